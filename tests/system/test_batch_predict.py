"""Batch prediction as users run it: killed in the middle and resumed, each row once."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, Finished, run_job

FILES = 150
"""So many parts take seconds, and the kill comes when the first is there."""


@pytest.fixture(scope="module")
def on_cluster(cluster) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": cluster.address}


@pytest.fixture(scope="module")
def source(finished, workspace, tmp_path_factory) -> Path:
    """The test rows of the slice in many files."""
    version = workspace / "datasets" / "flights" / finished.first.summary["dataset"]["id"]
    rows = pq.read_table(version / "test")
    folder = tmp_path_factory.mktemp("source")
    step = -(-len(rows) // FILES)
    for number, first in enumerate(range(0, len(rows), step)):
        pq.write_table(rows.slice(first, step), folder / f"{number:03}.parquet")
    return folder


@dataclass(frozen=True)
class Killed:
    """A prediction whose driver got SIGKILL.

    Attributes:
        there: time of last change by name of the parts that were there.
    """

    there: dict[str, int]
    total: int
    resumed: Finished
    folder: Path


def changed(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / "predictions").glob("part-*.parquet")}


@pytest.fixture(scope="module")
def given(arguments, source) -> list[str]:
    return [*arguments, "--input", f"{source}/*.parquet", "--keep", "flight"]


@pytest.fixture(scope="module")
def undisturbed(on_cluster, given, workspace) -> Finished:
    return run_job("jobs.batch_predict", given, on_cluster, workspace)


@pytest.fixture(scope="module")
def killed(on_cluster, given, workspace, tmp_path_factory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "jobs.batch_predict", *given, "--output", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, env=on_cluster, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process:
        for line in process.stdout:
            if line.startswith("  part 1 "):
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    there = changed(folder)
    total = len(json.loads((folder / "plan.json").read_text())["inputs"])
    return Killed(there, total, run_job("jobs.batch_predict", [*given, "--resume", str(folder)], on_cluster, workspace), folder)


def rows_of(folder: Path) -> pa.Table:
    return pq.read_table(folder / "predictions").sort_by([("file", "ascending"), ("row", "ascending")])


def test_it_was_killed_in_the_middle(killed):
    assert 0 < len(killed.there) < killed.total


def test_parts_that_are_there_are_not_made_again(killed):
    assert killed.resumed.code == 0, killed.resumed.output
    assert killed.there.items() <= changed(killed.folder).items()


def test_after_a_kill_each_row_is_there_once_as_in_an_undisturbed_run(undisturbed, killed):
    assert undisturbed.code == 0, undisturbed.output
    expected = rows_of(Path(undisturbed.summary["output"]))
    assert rows_of(killed.folder).equals(expected)
    ids = {*zip(expected["file"].to_pylist(), expected["row"].to_pylist(), strict=True)}
    assert len(ids) == len(expected) == undisturbed.summary["rows"]["in"]


def test_a_default_run_predicts_the_whole_dataset_version(on_cluster, arguments, workspace, finished):
    done = run_job("jobs.batch_predict", arguments, on_cluster, workspace)
    rows = finished.first.summary["dataset"]["accepted"]
    assert (done.code, done.summary["rows"]) == (0, {"in": rows, "predicted": rows, "failed": 0}), done.output


def test_a_resume_with_other_columns_is_refused(on_cluster, given, undisturbed, workspace):
    again = [*given[:-1], "carrier", "--resume", undisturbed.summary["output"]]
    done = run_job("jobs.batch_predict", again, on_cluster, workspace)
    assert done.code == 2 and "it was begun with --keep 'flight', and this is 'carrier'" in done.output


def test_too_many_failed_rows_end_it_with_figures(on_cluster, arguments, workspace, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"carrier": "AA"}\n' * 10)
    done = run_job("jobs.batch_predict", [*arguments, "--input", str(tmp_path / "bad.jsonl")], on_cluster, workspace)
    assert done.code == 2
    assert re.search(
        r"10 of 10 rows failed \(100\.0%\).*--max-failed allows 5\.0%.*row 0: field 'date' is missing", done.output
    )
