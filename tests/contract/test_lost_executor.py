"""An executor that dies is replaced and the result is the same; work that none has the memory for ends with a sentence.

Its name puts it after test_handoff.py: what RayDP hands over in memory, it cannot hand over any more after this.
"""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from rayloom.errors import ResourceError
from rayloom.etl import handoff

ROWS = 100_000
CHANGES = {
    "etl.sources.raw.columns": None,
    "etl.partitions": 16,
    "etl.rules": [{"name": "sized", "range": {"size": [-2, None]}}],
    "etl.deduplicate": {"by": ["key"], "newest": "id"},
}


def executors() -> list[int]:
    """Processes of the Spark executors that live in the cluster."""
    actors = ray._private.state.actors().values()
    return [one["Pid"] for one in actors if "RayDPExecutor" in one["ActorClassName"] and one["State"] == "ALIVE"]


class Killer(threading.Thread):
    """Kills an executor as soon as a file that matches `pattern` is in `folder`."""

    def __init__(self, folder: Path, pattern: str):
        super().__init__()
        self.folder, self.pattern, self.done, self.killed = folder, pattern, threading.Event(), []

    def run(self) -> None:
        while not self.done.wait(0.01):
            if next(self.folder.glob(self.pattern), None) is not None:
                self.killed = executors()
                for process in self.killed:
                    os.kill(process, signal.SIGKILL)
                return

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.done.set()
        self.join()


@pytest.fixture
def many(tmp_path) -> Path:
    rng = np.random.default_rng(3)
    ids = np.arange(ROWS, dtype=np.int32)
    columns = {"id": ids, "key": ids // 2 * (ids % 7 > 0), "size": rng.normal(size=ROWS), "big": ids % 2}
    shades = pa.array(rng.choice(["red", "blue", "green"], ROWS))
    pq.write_table(pa.table({**columns, "shade": shades}), tmp_path / "raw.parquet", row_group_size=ROWS // 10)
    return tmp_path / "raw.parquet"


def test_a_build_whose_executor_is_killed_gives_the_same_version(spark, etl, toy, tmp_path, many):
    changes = {**CHANGES, "etl.sources.raw.path": str(many)}
    undisturbed = etl(toy({**changes, "storage": {"root": str(tmp_path / "undisturbed")}})).manifest
    root = tmp_path / "disturbed"
    with Killer(root, "datasets/toy/.building-*/_place/_temporary/**/part-*") as killer:
        dataset = etl(toy({**changes, "storage": {"root": str(root)}}))
    disturbed = dataset.manifest
    assert len(killer.killed) == 1 and executors() not in ([], killer.killed)
    assert (disturbed.splits, disturbed.rejected, disturbed.deduplicated) == (
        undisturbed.splits, undisturbed.rejected, undisturbed.deduplicated,
    )  # fmt: skip
    assert disturbed.statistics == undisturbed.statistics
    assert handoff.in_memory(spark, dataset.folder) is None  # RayDP cannot: they are read from Parquet then


def test_a_step_that_no_executor_has_memory_for_ends_the_build(etl, toy, tmp_path):
    (tmp_path / "raw.csv").write_text("id,size,shade,big\n1,1,red,1\n2,1,red,0\n3,1,red,1\n4,1,red,1\n")
    huge = {"name": "rows", "sql": "SELECT id, length(repeat(shade, 700000000)) AS size, shade, big FROM raw"}
    began = time.monotonic()
    with pytest.raises(ResourceError, match=r"lost its executors or their memory .*raise etl.executor_memory"):
        etl(toy({"etl.steps": [huge]}))
    assert time.monotonic() - began < 120
