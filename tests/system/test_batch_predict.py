"""Batch prediction as users run it: killed in the middle and resumed, each row once."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from tests.conftest import ROOT, Finished, at_once, run_job

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
def predict(on_cluster, workspace) -> Callable[[list[str]], Finished]:
    return partial(run_job, "jobs.batch_predict", env=on_cluster, workspace=workspace)


@pytest.fixture(scope="module")
def given(arguments, source) -> list[str]:
    return [*arguments, "--input", f"{source}/*.parquet", "--keep", "flight", "--workers", "1"]


def workers_begun() -> int:
    """On the cluster, in all."""
    return sum(actor["ActorClassName"] == "Worker" for actor in ray._private.state.actors().values())


@dataclass(frozen=True)
class Both:
    """The same prediction undisturbed, and killed and resumed; and how many workers these three runs had in all."""

    undisturbed: Finished
    killed: Killed
    workers: int


@pytest.fixture(scope="module")
def both(joined, predict, on_cluster, given, tmp_path_factory) -> Both:
    """Side by side: each has a worker, and the cluster two CPUs."""

    def kill() -> Killed:
        folder = tmp_path_factory.mktemp("killed")
        command = [sys.executable, "-m", "jobs.batch_predict", *given, "--output", str(folder)]
        with subprocess.Popen(
            command, cwd=ROOT, env=on_cluster, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            for line in process.stdout:
                if line.startswith("  part 1 "):
                    process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        total = len(json.loads((folder / "plan.json").read_text())["inputs"])
        return Killed(changed(folder), total, predict([*given, "--resume", str(folder)]), folder)

    before = workers_begun()
    undisturbed, killed = at_once(partial(predict, given), kill)
    assert undisturbed.code == 0, undisturbed.output
    return Both(undisturbed, killed, workers_begun() - before)


@pytest.fixture
def undisturbed(both) -> Finished:
    return both.undisturbed


@pytest.fixture
def killed(both) -> Killed:
    return both.killed


def rows_of(folder: Path) -> pa.Table:
    return pq.read_table(folder / "predictions").sort_by([("file", "ascending"), ("row", "ascending")])


def test_it_was_killed_in_the_middle(killed):
    assert 0 < len(killed.there) < killed.total


def test_parts_that_are_there_are_not_made_again(killed):
    assert killed.resumed.code == 0, killed.resumed.output
    assert killed.there.items() <= changed(killed.folder).items()


def test_after_a_kill_each_row_is_there_once_as_in_an_undisturbed_run(undisturbed, killed):
    expected = rows_of(Path(undisturbed.summary["output"]))
    assert rows_of(killed.folder).equals(expected)
    ids = {*zip(expected["file"].to_pylist(), expected["row"].to_pylist(), strict=True)}
    assert len(ids) == len(expected) == undisturbed.summary["rows"]["in"]


def test_no_more_workers_predict_than_were_asked_for(both):
    assert both.workers == 3


@pytest.fixture(scope="module")
def others(predict, arguments, given, both, tmp_path_factory) -> list[Finished]:
    """At once: a run without a word, a resume with other columns, and one of rows that lack their fields."""
    bad = tmp_path_factory.mktemp("bad") / "bad.jsonl"
    bad.write_text('{"carrier": "AA"}\n' * 10)
    other = [*given, "--keep", "carrier", "--resume", both.undisturbed.summary["output"]]
    return at_once(*(partial(predict, words) for words in (arguments, other, [*arguments, "--input", str(bad)])))


def test_a_default_run_predicts_the_whole_dataset_version(others, finished):
    done = others[0]
    rows = finished.first.summary["dataset"]["accepted"]
    assert done.code == 0, done.output
    assert done.summary["rows"] == {"in": rows, "predicted": rows, "failed": 0}


def test_a_resume_with_other_columns_is_refused(others):
    done = others[1]
    assert done.code == 2 and "it was begun with --keep 'flight', and this is 'carrier'" in done.output


def test_too_many_failed_rows_end_it_with_figures(others):
    done = others[2]
    assert done.code == 2
    assert re.search(
        r"10 of 10 rows failed \(100\.0%\).*--max-failed allows 5\.0%.*row 0: field 'date' is missing", done.output
    )
