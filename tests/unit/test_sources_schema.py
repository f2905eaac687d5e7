"""Types that `rayloom schema infer` proposes, and kinds that follow from names."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayloom.etl.sources.schema import Proposal, infer, propose, type_of
from tests.unit.fetching import settings


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["1", "-20", "+3", "0"], "INT"),
        (["2147483648"], "BIGINT"),
        (["9223372036854775808"], "DECIMAL(19,0)"),
        (["1" * 39], "STRING"),
        (["1", "2.5", "1e-3", ".5", "NaN"], "DOUBLE"),
        (["1.00000000000000000001"], "DECIMAL(21,20)"),
        (["007"], "STRING"),
        (["1,234.5"], "STRING"),
        (["12abc"], "STRING"),
        ([" 1"], "STRING"),
        (["true", "False", "TRUE"], "BOOLEAN"),
        (["2024-02-29"], "DATE"),
        (["2023-02-29"], "STRING"),
        (["2024-07-01T00:00:00+02:00", "2024-07-01 00:00:00"], "TIMESTAMP"),
        (["2024-07-01", "2024-07-01T12:00:00Z"], "TIMESTAMP"),
        (["20240701"], "INT"),
        (["x", "1"], "STRING"),
        ([], "STRING"),
    ],
)
def test_the_narrowest_type_that_loses_nothing(texts, expected):
    assert type_of(texts) == expected


def test_missing_cells_say_nothing(tmp_path):
    (tmp_path / "raw.csv").write_text('a,b,c d\n1,NA,x\n,2.5,\n"",,\n')
    source = settings(path=tmp_path / "raw.csv", missing="NA")
    assert propose("raw", source) == Proposal("`a` INT, `b` DOUBLE, `c d` STRING", 3)


def test_columns_that_are_declared_are_no_answer(tmp_path):
    (tmp_path / "raw.csv").write_text("a\n1\n")
    assert infer("raw", settings(path=tmp_path / "raw.csv", columns="a STRING")) == "a INT"


def test_json_lines(tmp_path):
    (tmp_path / "raw.jsonl").write_text('{"a": 1, "b": "x"}\n{"a": 2.5, "c": {"d": 1}}\n')
    assert infer("raw", settings(path=tmp_path / "raw.jsonl")) == "a DOUBLE, b STRING, c STRING"


def test_parquet_says_its_types_itself(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1], pa.int16()), "b": ["x"]}), tmp_path / "raw.parquet")
    assert propose("raw", settings(path=tmp_path / "raw.parquet")) == Proposal("a SMALLINT, b STRING", 0)


def test_a_long_file_is_not_read_whole(tmp_path):
    (tmp_path / "raw.csv").write_text("a\n" + "1\n" * 100_000 + "x\n")
    assert propose("raw", settings(path=tmp_path / "raw.csv")) == Proposal("a INT", 10_000)


@pytest.mark.parametrize(
    "path, kind",
    [
        ("x.csv", "csv"),
        ("x.csv.gz", "csv"),
        ("x.parquet", "parquet"),
        ("x/*.jsonl", "json"),
        ("x.jsonl.gz", "json"),
        (["x.ndjson", "y.csv"], "json"),
        ("x", "csv"),
    ],
)
def test_the_first_name_says_the_kind(path, kind):
    assert settings(path=path).kind == kind


def test_a_list_of_no_files_is_refused():
    with pytest.raises(ValueError, match="at least 1 item"):
        settings(path=[])
