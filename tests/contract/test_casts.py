"""Text and other values to declared types: what is not exactly of its type is told, column by column and kind by kind."""

import datetime
import json
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from rayloom import config
from rayloom.errors import ConfigError, DataError
from rayloom.etl import casts
from rayloom.etl.clean import clean

DIRTY = ["1", "2.5", "N/A", "1,234.5", "12abc", None]


@pytest.fixture
def zone(spark):
    """Los Angeles as the session's time zone, for one test."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def source(**settings) -> config.Csv:
    return config.Csv(path="raw.csv", **settings)


def texts(spark, values, column="x"):
    return spark.createDataFrame([(value,) for value in values], f"`{column}` STRING")


def first(spark, value, type_, uncastable="missing") -> tuple:
    """The value that a text becomes, and why it does not."""
    row = casts.cast(texts(spark, [value]), {"x": type_}, source(uncastable=uncastable)).first()
    return row.x, row._uncastable and row._uncastable[0].removeprefix("x:")


def failure(frame) -> str:
    with pytest.raises(Exception) as caught:
        frame.write.format("noop").mode("overwrite").save()
    return str(caught.value)


GOOD = [
    ("12", "INT", 12),
    (" 12\t", "INT", 12),
    ("-0", "BIGINT", 0),
    ("1e5", "DOUBLE", 1e5),
    ("-inf", "DOUBLE", float("-inf")),
    (".5", "FLOAT", 0.5),
    ("0.1001", "DECIMAL(20,4)", Decimal("0.1001")),
    (" 0.10010000 ", "DECIMAL(20,4)", Decimal("0.1001")),
    ("1.5e1", "DECIMAL(20,4)", Decimal("15.0000")),
    ("2013-02-28", "DATE", datetime.date(2013, 2, 28)),
    (" 2013-02-28\t", "DATE", datetime.date(2013, 2, 28)),
    ("Yes", "BOOLEAN", True),
    ("0", "BOOLEAN", False),
    ("2024-07-01T10:00", "TIMESTAMP_NTZ", datetime.datetime(2024, 7, 1, 10)),
]


@pytest.mark.parametrize(("text", "type_", "value"), GOOD)
def test_text_that_is_of_its_type_casts(spark, text, type_, value):
    assert first(spark, text, type_) == (value, None)


BAD = [
    ("", "INT", "blank"),
    ("1.5", "INT", "fraction"),
    ("1.0", "INT", "fraction"),
    ("12abc", "INT", "digits then text"),
    ("1,234", "INT", "grouped digits"),
    ("N/A", "INT", "text"),
    ("2147483648", "INT", "out of range"),
    ("128", "TINYINT", "out of range"),
    ("\u00a012", "INT", "text with digits"),
    ("12d", "DOUBLE", "digits then text"),
    ("12f", "FLOAT", "digits then text"),
    ("0x1p3", "DOUBLE", "digits then text"),
    ("1e400", "DOUBLE", "out of range"),
    ("1e39", "FLOAT", "out of range"),
    ("1,5", "DOUBLE", "decimal comma"),
    ("1 234,50", "DOUBLE", "grouped digits"),
    ("$5", "DOUBLE", "text with digits"),
    ("0.10015", "DECIMAL(20,4)", "loses digits"),
    ("1e-5", "DECIMAL(20,4)", "loses digits"),
    ("1e-40", "DECIMAL(20,4)", "loses digits"),
    ("12345", "DECIMAL(4,0)", "out of range"),
    ("2013-02-30", "DATE", "no such time"),
    ("2013-1-5", "DATE", "not a date"),
    ("2013-01", "DATE", "not a date"),
    ("2013-01-5T", "DATE", "not a date"),
    ("2013-01-05T10:00:00Z", "DATE", "time of day"),
    ("10:00", "TIMESTAMP", "not a timestamp"),
    ("2013", "TIMESTAMP", "not a timestamp"),
    ("2024-07-01 00:00:00 Europe/Paris", "TIMESTAMP", "not a timestamp"),
    ("2024-07-01T00:00:0Z", "TIMESTAMP", "not a timestamp"),
    ("2024-07-01T00:00:00.1234567", "TIMESTAMP", "loses digits"),
    ("2024-07-01T25:00:00", "TIMESTAMP", "no such time"),
    ("2024-07-01T00:00:00Z", "TIMESTAMP_NTZ", "not a timestamp"),
    ("perhaps", "BOOLEAN", "not a boolean"),
]


@pytest.mark.parametrize(("text", "type_", "kind"), BAD)
def test_text_that_is_not_of_its_type_is_missing_with_its_kind(spark, text, type_, kind):
    assert first(spark, text, type_) == (None, kind)


def test_every_kind_is_documented(spark):
    assert {kind for _, _, kind in BAD} == set(casts.KINDS)


MOMENTS = {
    "2024-07-01T00:00:00+02:00": 1719784800,
    "2024-07-01T00:00:00+0200": 1719784800,
    "2024-06-30T22:00:00Z": 1719784800,
    "2024-06-30 22:00:00.000Z": 1719784800,
    "2024-07-01 00:00:00": 1719817200,
    "2024-07-01": 1719817200,
}


@pytest.mark.parametrize(("text", "epoch"), MOMENTS.items())
def test_a_timestamp_has_its_offset_or_the_sessions_zone(spark, zone, text, epoch):
    typed = casts.cast(texts(spark, [text]), {"x": "TIMESTAMP"}, source())
    assert typed.select(F.unix_seconds("x")).first()[0] == epoch


TYPED = [
    ("CAST(2.0 AS DOUBLE)", "INT", 2, None),
    ("CAST(1.5 AS DOUBLE)", "INT", None, "fraction"),
    ("double('NaN')", "INT", None, "out of range"),
    ("3000000000L", "INT", None, "out of range"),
    ("9007199254740993L", "DOUBLE", None, "loses digits"),
    ("0.10010BD", "DECIMAL(20,4)", Decimal("0.1001"), None),
    ("0.10015BD", "DECIMAL(20,4)", None, "loses digits"),
    ("CAST(0.1 AS DOUBLE)", "FLOAT", None, "loses digits"),
    ("TIMESTAMP'2024-07-01 00:00:00'", "DATE", datetime.date(2024, 7, 1), None),
    ("TIMESTAMP'2024-07-01 00:00:01'", "DATE", None, "time of day"),
    ("1", "STRING", "1", None),
]


@pytest.mark.parametrize(("value", "type_", "typed", "kind"), TYPED)
def test_a_typed_value_casts_where_it_comes_back_unchanged(spark, value, type_, typed, kind):
    row = casts.cast(spark.sql(f"SELECT {value} AS x"), {"x": type_}, source(uncastable="missing")).first()
    assert (row.x, row._uncastable) == (typed, kind and [f"x:{kind}"])


def test_types_with_nothing_in_common_are_refused_before_the_build(spark):
    with pytest.raises(ConfigError, match=r"DATE.*INT"):
        casts.cast(spark.sql("SELECT DATE'2024-07-01' AS x"), {"x": "INT"}, source())


def test_text_is_not_made_a_list(spark):
    with pytest.raises(ConfigError, match="text cannot become array<int>"):
        casts.cast(texts(spark, ["[1]"]), {"x": "ARRAY<INT>"}, source())


def test_sound_rows_have_exactly_the_declared_columns(spark):
    raw = spark.createDataFrame([("1", "a", "0.5")], "`an id` STRING, text STRING, `we``ird` STRING")
    typed = casts.cast(raw, {"an id": "INT", "text": "STRING", "we`ird": "DECIMAL(3,1)"}, source())
    assert typed.dtypes == [("an id", "int"), ("text", "string"), ("we`ird", "decimal(3,1)")]
    assert tuple(typed.first()) == (1, "a", Decimal("0.5"))


def test_the_build_ends_with_column_and_value(spark):
    said = failure(casts.cast(texts(spark, DIRTY[1:4], "amount"), {"amount": "DOUBLE"}, source()))
    assert f"{casts.MARK}column amount (DOUBLE): N/A\n" in said


def test_a_column_that_nobody_reads_costs_nothing(spark):
    raw = spark.createDataFrame([("1", "N/A")], "x STRING, y STRING")
    assert casts.cast(raw, {"x": "INT", "y": "INT"}, source()).select("x").collect() == [(1,)]


def test_uncastable_values_are_counted_by_column_and_kind(spark):
    raw = texts(spark, DIRTY).withColumn("y", F.lit("N/A"))
    frame = casts.cast(raw, {"x": "DOUBLE", "y": "INT"}, source(uncastable="missing"))
    assert [row.x for row in frame.collect()] == [1.0, 2.5, None, None, None, None]
    assert casts.counts(frame) == {"x": {"digits then text": 1, "grouped digits": 1, "text": 1}, "y": {"text": 6}}


def test_the_sentence_names_counts_kinds_and_commonest_values(spark):
    types, raw = {"amount": "DOUBLE"}, texts(spark, [*DIRTY, "N/A", "-"], "amount")
    found = casts.explain(raw, types, source())
    assert casts.sentence("raw", found).startswith(
        "etl.sources.raw: 5 values do not have their declared type: amount DOUBLE: 3 as 'N/A' (text), "
        "1 '12abc' (digits then text), 1 '1,234.5' (grouped digits). Correct the file"
    )


def test_a_rejected_row_keeps_its_raw_text(spark):
    raw = spark.createDataFrame([(" 1 ", "a"), ("1 234", None)], "x STRING, y STRING")
    frame = casts.cast(raw, {"x": "INT"}, source(uncastable="reject", clean={"x": ["trim"]}))
    sound, rejected = frame.collect()
    assert (sound._uncastable, sound._raw, sound.x) == (None, None, 1)
    assert rejected._uncastable == ["x:grouped digits"]
    assert json.loads(rejected._raw) == {"x": "1 234", "y": None}


def test_cleaning_comes_before_the_cast_and_blank_is_missing(spark):
    raw = texts(spark, ["\u00a012\u2003", "  "])
    frame = casts.cast(raw, {"x": "INT"}, source(clean={"x": ["trim"]}))
    assert [row.x for row in frame.collect()] == [12, None]


def test_cleaning_of_what_is_not_text_is_refused(spark):
    with pytest.raises(ConfigError, match="column 'id' is bigint, not text"):
        casts.cast(spark.range(1), {"id": "INT"}, source(clean={"id": ["trim"]}))


@pytest.mark.parametrize(("share", "refused"), [(0.6, False), (0.59, True)])
def test_a_share_of_uncastable_values_above_the_threshold_ends_the_build(spark, share, refused):
    """Three of five values; the missing one does not count."""
    raw, types = texts(spark, DIRTY), {"x": "DOUBLE"}
    settings = source(uncastable="missing", max_uncastable=share)
    found = casts.counts(casts.cast(raw, types, settings))
    if not refused:
        casts.require_castable("raw", raw, types, settings, found)
        return
    with pytest.raises(
        DataError, match=r"etl\.sources\.raw\.max_uncastable: 3 of 5 values \(60\.00%\).*above 59\.00%.*'N/A' \(text\)"
    ):
        casts.require_castable("raw", raw, types, settings, found)


CLEANED = [
    (["trim"], "\u00a0\u2003 yes no\t\n", "yes no"),
    (["trim"], "\u3000", None),
    (["lower"], " ÉA ", " éa "),
    (["unicode"], "e\u0301 \ufb01", "\u00e9 \ufb01"),
    (["text"], "\u2003\ufb01\t\n\uff21 \x00 e\u0301\u200d ", "fi A \u00e9\u200d"),
    (["text"], "\x00 \x07", None),
    (["lower", "text", "trim"], "\uff21 ", "a"),
    (["trim", "lower", "unicode", "text"], None, None),
]


@pytest.mark.parametrize(("operations", "text", "cleaned"), CLEANED)
def test_text_is_cleaned(spark, operations, text, cleaned):
    assert texts(spark, [text]).select(clean(F.col("x"), operations).alias("x")).first().x == cleaned
