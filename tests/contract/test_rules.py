"""Rules: each check accepts what fulfils it, names the first that does not, and never changes how many rows there are."""

import datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.etl import casts, rules

ROWS = "id INT, text STRING, number DOUBLE, amount DECIMAL(10,2), ratio FLOAT, day DATE, flag BOOLEAN"
DAY = datetime.date(2013, 10, 1)


@pytest.fixture
def rows(spark):
    """1 is plain, 2 is NULL but for its id, 3 is awkward."""
    return spark.createDataFrame(
        [
            (1, "abc", 1.0, Decimal("0.10"), 0.1, DAY, True),
            (2, None, None, None, None, None, None),
            (3, "abc\n", float("nan"), Decimal("9.99"), 7.0, DAY.replace(day=2), False),
        ],
        ROWS,
    )


def etl(*given: dict, order_by=("id",)) -> config.Etl:
    named = [{"name": f"rule{index}", **rule} for index, rule in enumerate(given)]
    splits = {"train": "true", "validation": "false", "test": "false"}
    data = {"sources": {"raw": {"path": "raw.csv"}}, "rules": named, "splits": splits, "order_by": list(order_by)}
    return config.Etl.model_validate(data)


def broken_by(spark, rows, *given: dict, **more) -> dict[int, str | None]:
    return {row.id: row._rule for row in rules.tag(spark, rows, etl(*given, **more)).collect()}


CHECKS = [
    ({"where": "number > 0"}, {2}),
    ({"where": "number < 2"}, {2, 3}),
    ({"not_null": ["id", "text"]}, {2}),
    ({"range": {"number": [0, None]}}, {3}),
    ({"range": {"id": [2, 2]}}, {1, 3}),
    ({"range": {"id": [1.5, None]}}, {1}),
    ({"range": {"amount": [0.1, 9.98]}}, {3}),
    ({"range": {"ratio": [0.1, 0.1]}}, {3}),
    ({"range": {"day": [None, "2013-10-01"]}}, {3}),
    ({"range": {"day": [None, "2013-10-01"], "id": [2, None]}}, {1, 3}),
    ({"allowed": {"text": ["abc"]}}, {3}),
    ({"allowed": {"id": [1, 2]}}, {3}),
    ({"allowed": {"flag": [True]}}, {3}),
    ({"allowed": {"ratio": [0.1]}}, {3}),
    ({"regex": {"text": "x|a.c"}}, {3}),
    ({"regex": {"id": "[12]"}}, {3}),
]


@pytest.mark.parametrize(("rule", "broken"), CHECKS)
def test_a_check_is_broken_by_these_rows(spark, rows, rule, broken):
    assert {row for row, name in broken_by(spark, rows, rule).items() if name} == broken


def test_the_first_broken_rule_counts(spark, rows):
    found = broken_by(
        spark, rows, {"where": "id != 1"}, {"not_null": ["text"], "action": "fail", "above": 1.0}, {"where": "id = 9"}
    )
    assert found == {1: "rule0", 2: "rule1", 3: "rule2"}


def test_a_warning_sets_nothing_aside(spark, rows):
    tagged = rules.tag(spark, rows, etl({"not_null": ["text"], "action": "warn"}, {"where": "id < 2", "action": "warn"}))
    found = {row.id: (row._rule, [name for name in row._warned if name]) for row in tagged.collect()}
    assert found == {1: (None, []), 2: (None, ["rule0", "rule1"]), 3: (None, ["rule1"])}


def test_without_warnings_there_is_no_column_for_them(spark, rows):
    assert rules.tag(spark, rows, etl()).columns == [*rows.columns, "_rule"]


@pytest.mark.parametrize("partitions", [1, 5])
def test_of_equal_keys_the_first_accepted_row_is_unique(spark, partitions):
    """The first row with key 7 breaks an earlier rule; rows without a key are not compared."""
    data = [(1, 7, "bad"), (2, 7, "a"), (3, 7, "b"), (4, None, "c"), (5, None, "d"), (6, 8, "e")]
    rows = spark.createDataFrame(data, "id INT, key INT, text STRING").repartition(partitions)
    found = broken_by(spark, rows, {"where": "text != 'bad'"}, {"unique": ["key"]})
    assert found == {1: "rule0", 2: None, 3: "rule1", 4: None, 5: None, 6: None}


def test_of_equal_keys_and_equal_order_the_same_row_stays(spark):
    rows = spark.range(40).selectExpr("CAST(id AS INT) AS id", "1 AS key")
    found = [broken_by(spark, rows.repartition(n), {"unique": ["key"]}, order_by=["key"]) for n in (1, 7)]
    assert found[0] == found[1] and list(found[0].values()).count(None) == 1


def test_a_foreign_key_neither_adds_nor_loses_rows(spark, rows):
    spark.createDataFrame([(1, "abc"), (1, "abc"), (3, "x"), (None, None)], "a INT, b STRING").createOrReplaceTempView("other")
    key = {"columns": ["id", "text"], "table": "other", "to": ["a", "b"]}
    assert broken_by(spark, rows, {"foreign_key": key}) == {1: None, 2: None, 3: "rule0"}


def test_duplicates_break_no_rule_and_are_not_the_first(spark):
    data = [(1, 7, "exact"), (2, 7, None)]
    rows = spark.createDataFrame(data, "id INT, key INT, _duplicate STRING")
    assert broken_by(spark, rows, {"unique": ["key"]}, {"where": "id = 2"}) == {1: None, 2: None}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"allowed": {"text": [True]}}, "quote it"),
        ({"allowed": {"id": ["x"]}}, "'x' cannot be compared with 'id', which is int"),
        ({"range": {"day": ["2013-02-30", None]}}, "'2013-02-30' cannot be compared with 'day', which is date"),
        ({"range": {"text": [0, None]}}, "0 cannot be compared with 'text', which is string"),
    ],
)
def test_a_value_that_is_not_of_the_columns_type_is_refused(spark, rows, rule, said):
    with pytest.raises(ConfigError, match=said):
        rules.tag(spark, rows, etl(rule))


def test_blank_labels_are_rejected_and_counted(spark):
    """1,000 rows, yes or no, with 30 blanks, one ' yes ' and one '   ': two classes, and 31 rows without a label."""
    labels = [""] * 30 + [" yes ", "   "] + ["yes", "no"] * 484
    raw = spark.createDataFrame([(str(index), label) for index, label in enumerate(labels)], "id STRING, label STRING")
    source = config.Csv(path="raw.csv", clean={"label": ["trim"]})
    typed = casts.cast(raw, {"id": "INT", "label": "STRING"}, source)
    tagged = rules.tag(spark, typed, etl({"not_null": ["label"]}))
    counts = {(row._rule, row.label): row["count"] for row in tagged.groupBy("_rule", "label").count().collect()}
    assert counts == {("rule0", None): 31, (None, "yes"): 485, (None, "no"): 484}


def test_rules_shuffle_nothing_that_they_need_not(spark, rows):
    tagged = rules.tag(spark, rows, etl({"where": "id > 0"}, {"range": {"number": [0, 1]}}, {"regex": {"text": "a"}}))
    assert "Exchange" not in tagged._jdf.queryExecution().toString()


def test_a_column_may_have_any_name(spark):
    rows = spark.range(2).select(F.col("id").cast("int").alias("id"), F.col("id").alias("a `b`.c"))
    assert broken_by(spark, rows, {"range": {"a `b`.c": [1, None]}}, {"unique": ["a `b`.c"]}) == {0: "rule0", 1: None}
