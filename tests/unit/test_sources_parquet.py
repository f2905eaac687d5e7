"""Parquet: its own types, exactly; what Spark cannot read of them is written anew or refused."""

import datetime
import re
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.fetching import fetched, refusal

NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, 123456)
EXACT = pa.table(
    {
        "decimal": pa.array([Decimal("0.1001")], pa.decimal128(20, 4)),
        "instant": pa.array([NOON.replace(tzinfo=datetime.UTC)], pa.timestamp("us", "UTC")),
        "wall": pa.array([NOON], pa.timestamp("us")),
        "day": pa.array([NOON.date()]),
        "text": ["x"],
        "list": [[1, 2]],
        "struct": [{"a": 1}],
    }
)
TYPES = {
    "decimal": "DECIMAL(20,4)",
    "instant": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "day": "DATE",
    "text": "STRING",
    "list": "ARRAY<BIGINT>",
    "struct": "STRUCT<`a`: BIGINT>",
}


@pytest.fixture
def raw(tmp_path):
    """Writes raw.parquet."""

    def write(rows: pa.Table, name: str = "raw.parquet", **options):
        pq.write_table(rows, tmp_path / name, **options)
        return tmp_path / name

    return write


def test_types_are_the_files_and_the_file_stays_where_it_is(tmp_path, raw):
    found = fetched(tmp_path, path=raw(EXACT))
    assert found.opened.types == found.raw == TYPES
    assert found.paths == [tmp_path / "raw.parquet"]


def test_declared_columns_alone_come_with_the_files_types_to_be_cast(tmp_path, raw):
    found = fetched(tmp_path, path=raw(EXACT), columns="text STRING, decimal DOUBLE")
    assert found.opened.types == {"text": "STRING", "decimal": "DOUBLE"}
    assert found.raw == {"text": "STRING", "decimal": "DECIMAL(20,4)"}


@pytest.mark.parametrize(
    "kind, values, expected",
    [
        (pa.timestamp("ns"), [1_719_784_800_000_001_000], "TIMESTAMP_NTZ"),
        (pa.timestamp("ns", "Europe/Berlin"), [1_719_784_800_000_001_000], "TIMESTAMP"),
        (pa.null(), [None], "STRING"),
        (pa.float16(), [1.5], "FLOAT"),
    ],
)
def test_what_spark_cannot_read_is_written_anew_without_loss(tmp_path, raw, kind, values, expected):
    original = pa.table({"a": pa.array(values, kind), "b": [1]})
    path = raw(original)
    found = fetched(tmp_path, path=path)
    assert found.raw == {"a": expected, "b": "BIGINT"} and found.paths != [path]
    assert pq.read_table(found.paths[0])["a"].to_pylist() == original["a"].to_pylist()


def test_nanoseconds_that_would_be_lost_are_refused(tmp_path, raw):
    path = raw(pa.table({"a": pa.array([1], pa.timestamp("ns"))}))
    assert f"{path}: the column 'a' would lose something" in refusal(tmp_path, path=path)


def test_int96_is_a_moment(tmp_path, raw):
    rows = pa.table({"a": pa.array([NOON], pa.timestamp("ns"))})
    found = fetched(tmp_path, path=raw(rows, use_deprecated_int96_timestamps=True))
    assert found.raw == {"a": "TIMESTAMP"}


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.duration("s"), pa.list_(pa.timestamp("ns"))])
def test_a_type_that_spark_does_not_have_is_refused_unless_left_out(tmp_path, raw, kind):
    path = raw(pa.table({"a": pa.array([None], kind), "b": [1]}))
    assert re.search("the column 'a' is of type .*, which Spark does not have", refusal(tmp_path, path=path))
    assert fetched(tmp_path, path=path, columns="b BIGINT").raw == {"b": "BIGINT"}


def test_files_with_columns_in_another_order_agree(tmp_path, raw):
    raw(pa.table({"a": [1], "b": ["x"]}), "1.parquet")
    raw(pa.table({"b": ["y"], "a": [2]}), "2.parquet")
    assert fetched(tmp_path, path=tmp_path, kind="parquet").raw == {"a": "BIGINT", "b": "STRING"}


@pytest.mark.parametrize(
    "second, said",
    [
        ({"a": ["x"]}, "the column 'a' is STRING, but BIGINT in"),
        ({"a": [1], "b": [2]}, "the column 'b' is BIGINT, but not there in"),
        ({"c": [1]}, "the column 'a' is not there, but BIGINT in"),
    ],
)
def test_files_that_differ_are_refused_naming_both(tmp_path, raw, second, said):
    first, other = raw(pa.table({"a": [1]}), "1.parquet"), raw(pa.table(second), "2.parquet")
    answer = refusal(tmp_path, path=[str(first), str(other)], kind="parquet")
    assert answer.startswith(f"{other}: {said} {first}")


def test_a_declared_column_that_is_not_there_gets_the_nearest(tmp_path, raw):
    said = refusal(tmp_path, path=raw(EXACT), columns="txt STRING")
    assert "no column 'txt', which etl.sources.raw.columns declares; did you mean 'text'?" in said


def test_columns_that_differ_in_case_alone_are_refused(tmp_path, raw):
    said = refusal(tmp_path, path=raw(pa.table({"Amount": [1], "amount": [2]})))
    assert "'Amount' and 'amount' differ in case alone" in said


@pytest.mark.parametrize("keep", [0, 20, 200])
def test_a_truncated_file_is_refused(tmp_path, raw, keep):
    path = raw(EXACT)
    path.write_bytes(path.read_bytes()[:keep])
    assert f"{path} is not a whole Parquet file" in refusal(tmp_path, path=path)


def test_a_folder_partitioned_by_key_is_refused(tmp_path):
    pq.write_to_dataset(pa.table({"a": [1], "year": [2013]}), tmp_path / "raw", partition_cols=["year"])
    assert "has no file that ends with .parquet" in refusal(tmp_path, path=tmp_path / "raw", kind="parquet")


def test_the_fingerprint_changes_with_the_content(tmp_path, raw):
    before = fetched(tmp_path, path=raw(pa.table({"a": [1]}))).sha256
    assert fetched(tmp_path, path=raw(pa.table({"a": [2]}))).sha256 != before
