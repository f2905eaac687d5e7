"""Delta tables: as they are, at a version, at a time."""

import datetime
import os
import re
import sys
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.unit.fetching import fetched, refusal, rows, settings


@pytest.fixture
def raw(tmp_path):
    """A table of three versions, each with a row more; partitioned by `part`."""
    path = tmp_path / "raw"
    for version in range(3):
        row = {"id": [version], "part": ["x"], "price": pa.array([Decimal("0.1001")], pa.decimal128(20, 4))}
        write_deltalake(path, pa.table(row), mode="append", partition_by=["part"])
    return path


def written_at(path, version: int) -> datetime.datetime:
    """When a version was written: history is newest first."""
    return datetime.datetime.fromtimestamp(DeltaTable(path).history()[2 - version]["timestamp"] / 1000, datetime.UTC)


@pytest.mark.parametrize("given, expected", [({}, 3), ({"version": 0}, 1), ({"version": 1}, 2), ({"version": 2}, 3)])
def test_a_version_has_its_rows_and_partition_columns(tmp_path, raw, given, expected):
    found = rows(tmp_path, kind="delta", path=raw, **given)
    assert sorted(found) == [(n, "x", Decimal("0.1001")) for n in range(expected)]


def test_types_are_the_table_s(tmp_path, raw):
    found = fetched(tmp_path, kind="delta", path=raw)
    assert found.opened.types == found.raw == {"id": "BIGINT", "part": "STRING", "price": "DECIMAL(20,4)"}


def test_declared_columns_alone_come(tmp_path, raw):
    found = fetched(tmp_path, kind="delta", path=raw, columns="price DOUBLE, id INT")
    assert (found.opened.types, found.raw) == ({"price": "DOUBLE", "id": "INT"}, {"price": "DECIMAL(20,4)", "id": "BIGINT"})


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_time_has_the_rows_of_its_version(tmp_path, raw, version):
    found = rows(tmp_path, kind="delta", path=raw, timestamp=written_at(raw, version).isoformat())
    assert len(found) == version + 1


def test_times_are_those_of_the_log_and_not_of_its_files(tmp_path, raw):
    """A copy's files are all of its own time."""
    found = written_at(raw, 1)
    for file in (raw / "_delta_log").iterdir():
        os.utime(file, (found.timestamp() + 60,) * 2)
    assert len(rows(tmp_path, kind="delta", path=raw, timestamp=found.isoformat())) == 2


def test_a_log_without_times_is_refused(tmp_path, raw):
    for file in (raw / "_delta_log").iterdir():
        file.write_text(re.sub(r'"timestamp":\d+,', "", file.read_text()))
    said = refusal(tmp_path, kind="delta", path=raw, timestamp="2024-07-01T00:00:00Z")
    assert said.endswith("has no times; name etl.sources.raw.version instead.")


def test_a_version_that_is_not_there_is_refused_with_the_latest(tmp_path, raw):
    said = refusal(tmp_path, kind="delta", path=raw, version=7)
    assert said.endswith("has no version 7, the latest is 2; correct etl.sources.raw.version.")


def test_a_time_before_the_table_is_refused_with_its_beginning(tmp_path, raw):
    said = refusal(tmp_path, kind="delta", path=raw, timestamp="2001-01-01T00:00:00Z")
    assert f"began at {written_at(raw, 0).isoformat()}, after 2001-01-01" in said


@pytest.mark.parametrize("timestamp", ["2024-07-01", "2024-07-01T00:00:00", "yesterday"])
def test_a_time_without_an_offset_is_refused(timestamp):
    with pytest.raises(ValueError, match="write ISO 8601 with an offset"):
        settings(kind="delta", path="raw", timestamp=timestamp)


def test_version_and_time_together_are_refused():
    with pytest.raises(ValueError, match="at a `version` or at a `timestamp`; remove one"):
        settings(kind="delta", path="raw", version=1, timestamp="2024-07-01T00:00:00Z")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_place_without_a_table_is_refused(tmp_path, make):
    make(tmp_path / "no")
    assert "etl.sources.raw: there is no Delta table at" in refusal(tmp_path, kind="delta", path=tmp_path / "no")


def test_a_lost_file_is_refused(tmp_path, raw):
    next((raw / "part=x").glob("*.parquet")).unlink()
    assert "cannot be read" in refusal(tmp_path, kind="delta", path=raw)


def test_a_declared_column_that_is_not_there_gets_the_nearest(tmp_path, raw):
    assert "no column 'prize'" in (said := refusal(tmp_path, kind="delta", path=raw, columns="prize DOUBLE"))
    assert "did you mean 'price'?" in said


def test_the_fingerprint_is_that_of_the_version(tmp_path, raw):
    latest, second, first = (fetched(tmp_path, kind="delta", path=raw, version=version).sha256 for version in (None, 2, 1))
    assert latest == second != first


def test_a_missing_package_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    said = refusal(tmp_path, kind="delta", path=tmp_path)
    assert "Delta tables need the package deltalake; run `pip install deltalake`" in said
