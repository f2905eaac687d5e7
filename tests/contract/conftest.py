"""One Spark session for all contract tests: on the tests' cluster of 2 CPUs it takes one, and leaves one to Ray Data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest
import ray
from pyspark.sql import SparkSession

from rayloom import cluster, config, runs, stages
from rayloom.datasets import DatasetVersion
from rayloom.etl import session
from rayloom.etl.check import check
from tests.conftest import wait_for
from tests.unit.conftest import merged

TOY = {
    "name": "toy",
    "etl": {
        "sources": {"raw": {"path": "raw.csv", "columns": "id INT, size DOUBLE, shade STRING, big INT"}},
        "splits": {"train": "id % 5 < 3", "validation": "id % 5 = 3", "test": "id % 5 = 4"},
        "order_by": ["id"],
        "partitions": 2,
    },
    "features": {"label": "big", "columns": {"size": {"kind": "number"}, "shade": {"kind": "category", "min_count": 1}}},
}


@pytest.fixture(scope="package")
def pipeline(arguments: list[str]) -> config.Pipeline:
    """The flights pipeline, with one executor of one core."""
    return config.load(arguments[1::2], ["etl.executors=1", "etl.executor_cores=1"])


class Other:
    """An actor of somebody else's."""


@pytest.fixture(scope="package")
def spark(joined: None, pipeline: config.Pipeline, workspace: Path) -> Iterator[SparkSession]:
    """Ends with this folder's tests, and then shows that a session gives back its CPUs and its JVM, whatever others take
    meanwhile.

    A task may fail once, not three times: the tests that lose executors wait for a new one each time.
    """
    before = cluster.total_cpus()
    wait_for(lambda: cluster.free_cpus() == before)  # tasks of the tests before may still run
    once = {"spark.task.maxFailures": "2"}
    with session.spark_session(pipeline, "rayloom-contract", workspace / "spark-driver.log", more=once) as spark:
        java = [process for process in psutil.Process().children() if process.name() == "java"]
        assert (cluster.free_cpus(), len(java)) == (before - 1, 1)
        yield spark
        other = ray.remote(num_cpus=1)(Other).remote()
        ray.get(other.__ray_ready__.remote())
    wait_for(lambda: cluster.free_cpus() == before - 1, config.Cluster().wait_s)  # as the next stage would
    ray.kill(other)
    assert [process for process in java if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []


def toy_in(folder: Path, changes: dict = {}) -> config.Pipeline:
    """A pipeline over `raw.csv` in the folder, or over what `changes` by dotted key say."""
    below = {"etl.sources.raw.path": str(folder / "raw.csv"), "storage": {"root": str(folder)}}
    return config.Pipeline.model_validate(merged(TOY, {**below, **changes}))


@pytest.fixture
def toy(tmp_path: Path) -> Callable[..., config.Pipeline]:
    """Makes a pipeline over `raw.csv` in tmp_path."""
    return partial(toy_in, tmp_path)


@pytest.fixture(scope="package")
def etl(spark: SparkSession) -> Iterator[Callable[..., DatasetVersion]]:
    """Runs the stage `etl`, on the shared session, with the time zone and partitions that the pipeline's own would have."""

    @contextmanager
    def lend(pipeline: config.Pipeline, name: str, log: Path, cells: int) -> Iterator[SparkSession]:
        wanted = {
            "spark.sql.session.timeZone": pipeline.etl.time_zone,
            "spark.sql.shuffle.partitions": str(pipeline.etl.partitions),
        }
        before = {key: spark.conf.get(key) for key in wanted}
        try:
            for key, value in wanted.items():
                spark.conf.set(key, value)
            yield spark
        finally:
            for key, value in before.items():
                spark.conf.set(key, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "spark_session", lend)
        yield lambda pipeline, parent=None: stages.etl(runs.start(pipeline, check(pipeline)), parent)
