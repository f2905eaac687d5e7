"""Spark on Ray for the length of a `with`: RayDP's executors are Ray actors, and none is left when the block ends."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import raydp
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rayloom import cluster, config

# RayDP and Spark reach into these packages by reflection, which Java 17 refuses unless it is told otherwise.
OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.math", "java.text",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)  # fmt: skip

RELEASE_SECONDS = 20.0
"""How long Ray may take to give a stopped session's CPUs back."""


@contextmanager
def spark_session(pipeline: config.Pipeline, name: str, log: Path) -> Iterator[SparkSession]:
    """A Spark session whose executors run on the Ray cluster that this process is connected to.

    Args:
        pipeline: its `etl` section says what Spark may use.
        name: unique in the cluster; RayDP names its actors after it.
        log: file that takes what Spark's driver has to say.

    Raises:
        ResourceError: the cluster has no room for the executors (within seconds, before Spark starts), or a stopped
            session's CPUs did not come back.
    """
    require_room(pipeline)
    before = cluster.free_cpus()
    try:
        yield _start(pipeline.etl, name, log)
    finally:
        raydp.stop_spark(cleanup_data=True)
        _end_jvm()
        cluster.wait_for_cpus(before, RELEASE_SECONDS, "Spark was stopped but its CPUs were not given back")


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the executors and the hand-off."""
    etl = pipeline.etl
    # One CPU more than the executors': Ray Data describes the rows that it is handed in tasks of its own, and would wait
    # for good on a cluster that Spark fills.
    needed = {"CPU": etl.executors * etl.executor_cores + 1.0, **cluster.times(etl.resources, etl.executors)}
    cluster.require(needed, "etl", "lower etl.executors or etl.executor_cores (they leave 1 CPU to Ray Data)", pipeline.cluster)


def _start(etl: config.Etl, name: str, log: Path) -> SparkSession:
    with _output_in(log):
        return raydp.init_spark(
            app_name=name,
            num_executors=etl.executors,
            executor_cores=etl.executor_cores,
            executor_memory=etl.executor_memory,
            configs=_settings(etl),
        )


@contextmanager
def _output_in(log: Path) -> Iterator[None]:
    """Our stdout and stderr go to a file; a process that starts meanwhile, as the driver's JVM does, keeps them there."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    try:
        with log.open("ab") as file:
            for stream in kept:
                os.dup2(file.fileno(), stream)
        yield
    finally:
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)


def _settings(etl: config.Etl) -> dict[str, str]:
    opens = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES)
    return {
        "spark.driver.extraJavaOptions": opens,
        "spark.executor.extraJavaOptions": opens,
        "spark.ray.raydp_app_master.extraJavaOptions": opens,
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": str(etl.partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A dataset version has a manifest; Hadoop's own marker of a finished write would be a second truth.
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        **{f"spark.ray.raydp_spark_executor.actor.resource.{key}": str(value) for key, value in etl.resources.items()},
    }


def _end_jvm() -> None:
    """Ends the driver's JVM, which PySpark would keep, with its memory, until Python ends."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # PySpark's JVM ends itself when its parent's pipe closes
    deadline = time.monotonic() + RELEASE_SECONDS
    while gateway.proc.poll() is None:
        if time.monotonic() > deadline:
            gateway.proc.kill()
        time.sleep(0.05)
