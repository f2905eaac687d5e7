"""Sources of every kind as Spark reads them: names, types and values, exactly. Refusals: tests/unit/test_sources_*."""

import datetime
import sqlite3
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame

from rayloom.etl import sources
from tests.unit.fetching import fetched


@pytest.fixture
def read(spark, tmp_path):
    """A source's rows in Spark."""

    def read(**given) -> DataFrame:
        return sources.read(spark, fetched(tmp_path, **given))

    return read


@pytest.fixture
def raw(tmp_path):
    def write(content: str | bytes, name: str = "raw.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def plain(frame: DataFrame) -> list[tuple]:
    return [tuple(row) for row in frame.collect()]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_input_1_a_hundred_records_stay_a_hundred_byte_for_byte(read, raw, line_end):
    """100 records; 7 texts hold a line feed, 2 a carriage return and line feed, 1 a quote, which the file doubles."""
    notes = [f"note {n}" for n in range(100)]
    for n in (3, 14, 15, 26, 53, 58, 97):
        notes[n] = f"first\nsecond {n}\n"
    notes[20], notes[99], notes[40] = "a\r\nb", "\r\n", 'say "yes"'
    lines = ["id,note", *['{},"{}"'.format(n, note.replace('"', '""')) for n, note in enumerate(notes)]]
    rows = read(path=raw(line_end.join(lines) + line_end), columns="id INT, note STRING")
    assert rows.count() == 100
    assert plain(rows.sort(rows.id.cast("int"))) == [(str(n), note) for n, note in enumerate(notes)]


@pytest.mark.parametrize("header", ["label,n", '"label",n'])
def test_input_2_a_byte_order_mark_changes_nothing(read, raw, header):
    without = read(path=raw("label,n\nyes,1\nno,2\n"), columns="label STRING, n INT")
    marked = read(path=raw(b"\xef\xbb\xbf" + f"{header}\nyes,1\nno,2\n".encode(), "marked.csv"), columns="label STRING, n INT")
    assert marked.columns == ["label", "n"] and plain(marked) == plain(without) == [("yes", "1"), ("no", "2")]


def test_declared_columns_of_csv_are_text_in_their_order(read, raw):
    paths = [str(raw("a,b,c\n1,NA,\n", "1.csv")), str(raw("c,a\n ,2\n", "2.csv"))]
    rows = read(path=paths, columns="c INT, a INT", missing="NA")
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [("c", "string"), ("a", "string")]
    assert sorted(plain(rows), key=str) == [(" ", "2"), (None, "1")]


def test_json_is_text_as_written(read, raw):
    path = raw('{"a": 12345678901234.10010, "b": {"c": [1.0]}}\n{"b": null}\n', "raw.jsonl")
    assert plain(read(path=path, columns="a DECIMAL(20,5), b STRING")) == [
        ("12345678901234.10010", '{"c":[1.0]}'),
        (None, None),
    ]


@pytest.mark.parametrize("name", ["with space.parquet", "100%.parquet", "a[1]{b}*?.parquet", "größe+&=.parquet"])
def test_names_with_odd_characters(read, tmp_path, name):
    pq.write_table(pa.table({"a": [1]}), tmp_path / name)
    assert plain(read(path=tmp_path / name)) == [(1,)]


NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, 123456)
INSTANT = NOON.replace(tzinfo=datetime.UTC)
EXACT = {
    "byte": (pa.int8(), -1, "tinyint"),
    "short": (pa.int16(), -1, "smallint"),
    "int": (pa.int32(), -1, "int"),
    "long": (pa.int64(), 2**62, "bigint"),
    "ubyte": (pa.uint8(), 255, "smallint"),
    "ushort": (pa.uint16(), 65535, "int"),
    "uint": (pa.uint32(), 2**32 - 1, "bigint"),
    "ulong": (pa.uint64(), 2**64 - 1, "decimal(20,0)"),
    "half": (pa.float16(), 1.5, "float"),
    "float": (pa.float32(), 1.5, "float"),
    "double": (pa.float64(), 0.1, "double"),
    "decimal": (pa.decimal128(20, 4), Decimal("0.1001"), "decimal(20,4)"),
    "wide": (pa.decimal128(38, 18), Decimal("1.000000000000000001"), "decimal(38,18)"),
    "bool": (pa.bool_(), True, "boolean"),
    "text": (pa.large_string(), "é\n", "string"),
    "word": (pa.dictionary(pa.int32(), pa.string()), "x", "string"),
    "bytes": (pa.binary(), b"\0\xff", "binary"),
    "fixed": (pa.binary(2), b"\0\xff", "binary"),
    "day": (pa.date32(), NOON.date(), "date"),
    "ancient": (pa.date32(), datetime.date(1066, 10, 14), "date"),
    "wall": (pa.timestamp("us"), NOON, "timestamp_ntz"),
    "milli": (pa.timestamp("ms"), NOON.replace(microsecond=123000), "timestamp_ntz"),
    "nano": (pa.timestamp("ns"), NOON, "timestamp_ntz"),
    "list": (pa.list_(pa.int64()), [1, None], "array<bigint>"),
    "map": (pa.map_(pa.string(), pa.int32()), {"a": 1}, "map<string,int>"),
    "none": (pa.null(), None, "string"),
}


REWRITTEN = ("half", "nano", "none", "fixed")


@pytest.mark.parametrize(
    "names", [[name for name in EXACT if name not in REWRITTEN], list(EXACT)], ids=["as it is", "rewritten"]
)
def test_parquet_types_are_read_exactly(read, tmp_path, names):
    exact = {name: EXACT[name] for name in names}
    columns = {name: pa.array([[("a", 1)] if name == "map" else value], kind) for name, (kind, value, _) in exact.items()}
    pq.write_table(pa.table(columns), tmp_path / "raw.parquet")
    rows = read(path=tmp_path / "raw.parquet")
    assert rows.inputFiles()[0].endswith("/raw.parquet") == (len(names) < len(EXACT))
    assert {field.name: field.dataType.simpleString() for field in rows.schema} == {name: row[2] for name, row in exact.items()}
    found = rows.collect()[0].asDict()
    assert {name: bytes(value) if isinstance(value, bytearray) else value for name, value in found.items()} == {
        name: row[1] for name, row in exact.items()
    }


@pytest.mark.parametrize("options", [{}, {"use_deprecated_int96_timestamps": True}])
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_a_moment_is_the_same_whatever_the_session_s_time_zone(spark, read, tmp_path, options, zone):
    pq.write_table(
        pa.table({"at": pa.array([INSTANT], pa.timestamp("us", "Europe/Berlin"))}), tmp_path / "raw.parquet", **options
    )
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert plain(read(path=tmp_path / "raw.parquet").selectExpr("unix_micros(at)")) == [(int(INSTANT.timestamp() * 1e6),)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_texts(read, raw, tmp_path):
    (tmp_path / "news" / "sport").mkdir(parents=True)
    raw("Tor!\r\né", "news/sport/1 2%.txt")
    assert plain(read(kind="text", path=tmp_path / "news")) == [("sport/1 2%.txt", "sport", "Tor!\r\né")]


def test_images(read, raw, tmp_path):
    (tmp_path / "digits" / "7").mkdir(parents=True)
    content = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    raw(content, "digits/7/1.png")
    assert [(label, bytes(image)) for _, label, image in plain(read(kind="images", path=tmp_path / "digits"))] == [
        ("7", content)
    ]


def test_sql(read, tmp_path):
    with sqlite3.connect(tmp_path / "raw.db") as connection:
        connection.execute("CREATE TABLE t (i INTEGER, d DECIMAL(20,4), at TIMESTAMP)")
        connection.execute("INSERT INTO t VALUES (1, 0.1001, '2024-07-01 12:00:00.123456')")
    rows = read(kind="sql", url=f"sqlite:///{tmp_path}/raw.db", query="SELECT * FROM t")
    assert plain(rows) == [(1, Decimal("0.1001"), NOON)]


def test_delta(read, tmp_path):
    for version in range(3):
        write_deltalake(tmp_path / "raw", pa.table({"id": [version], "part": ["x"]}), mode="append", partition_by=["part"])
    assert sorted(plain(read(kind="delta", path=tmp_path / "raw", version=1))) == [(0, "x"), (1, "x")]


def test_a_header_alone_gives_no_rows(read, raw):
    rows = read(path=raw("a,b\n"), columns="a INT, b INT")
    assert (rows.columns, rows.count()) == (["a", "b"], 0)
