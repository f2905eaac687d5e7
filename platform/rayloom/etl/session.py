"""Spark on Ray for the length of a `with`: RayDP's executors are Ray actors, and none is left when the block ends."""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import raydp
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from raydp.spark import SparkCluster

from rayloom import cluster, config
from rayloom.errors import ResourceError
from rayloom.etl import archive

# RayDP and Spark reach into these packages by reflection, which Java 17 refuses unless it is told otherwise.
OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.math", "java.text",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)  # fmt: skip

SOON = "-XX:TieredStopAtLevel=1"
"""Java's first compiler alone: code that is ready sooner, not code that is fast later."""

QUICK = f"{SOON} -XX:+UseSerialGC"
"""For the JVMs that plan and coordinate and live for a minute."""

EAGER = "-XX:-DontCompileHugeMethods"
"""For executors: Spark puts a whole stage into one method, and Java leaves those of over 8,000 bytes to its interpreter."""

SHORT_WORK = 12_000_000
"""Cells of sources up to which an executor's code, too, is better ready sooner: flights have 7 million and are done in a sixth
less time, ten times the flights would take a third more."""

MOST_CORES = 4
"""Cores that an executor takes by itself; more are asked for by etl.executor_cores."""

READY_SECONDS = 120.0
"""How long executors may take to be there, once there is room for them."""

RELEASE_SECONDS = 20.0
"""How long a stopped session's processes may take to end, and with them what they hold of the cluster."""

ACTOR = re.compile("raydp-executor-|RAY_APP_MASTER$|.*_SPARK_MASTER$")
"""Names of RayDP's actors, in the Ray namespace that this job has to itself."""


@contextmanager
def spark_session(
    pipeline: config.Pipeline, name: str, log: Path, cells: int = SHORT_WORK, more: dict[str, str] = {}
) -> Iterator[SparkSession]:
    """A Spark session whose executors run on the Ray cluster that this process is connected to.

    Args:
        pipeline: its `etl` section says what Spark may use.
        name: unique in the cluster; RayDP names its actors after it.
        log: file that takes what Spark's driver has to say.
        cells: of the sources, rows times columns; decides how the executors' code is compiled.
        more: Spark settings besides ours.

    Raises:
        ResourceError: the cluster has no room for the executors (before Spark starts), or they did not end with the session.
    """
    require_room(pipeline)
    with _own_interrupt_handler():
        try:
            yield _start(pipeline, name, log, {**_settings(pipeline.etl, cells), **more})
        finally:
            raydp.stop_spark(cleanup_data=True)
            _end_jvm()
            _await_release()


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Puts the handler of Ctrl-C back that PySpark replaces for good: its own fails in a session that has ended."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():  # no other thread may set one
            signal.signal(signal.SIGINT, handler)


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the executors and the hand-off."""
    etl = pipeline.etl
    cores = executor_cores(pipeline)
    spare = _spare_cpus(etl)
    what = f"{etl.executors} × {cores} CPU for Spark's executors" + (f" + {spare:g} for Ray Data" if spare else "")
    memory = etl.executors * config.count_bytes(etl.executor_memory)
    needed = {"CPU": etl.executors * cores + spare, **cluster.times(etl.resources, etl.executors)}
    cluster.require(needed, f"etl ({what})", _remedy(etl, spare), pipeline.cluster)
    cluster.require(
        {"memory": memory}, f"etl ({etl.executors} × {etl.executor_memory})", "lower etl.executor_memory", pipeline.cluster
    )


def _spare_cpus(etl: config.Etl) -> float:
    """Through memory, Ray Data describes the rows in tasks of its own while Spark holds its CPUs, and would wait for good."""
    return 1.0 if etl.handoff == "memory" else 0.0


def _remedy(etl: config.Etl, spare: float) -> str:
    total = cluster.total_cpus()
    if etl.executors > 1 and (fits := int((total - spare) // (etl.executor_cores or 1))) >= 1:
        return f"set etl.executors to {fits}"
    if (etl.executor_cores or 1) > 1 and total - spare >= 1:
        return f"set etl.executor_cores to {int(total - spare)}"
    return "set etl.handoff to parquet" if spare else "join a larger cluster"


def executor_cores(pipeline: config.Pipeline) -> int:
    """Cores of an executor: as configured, or its part of what the cluster has, MOST_CORES at most."""
    etl = pipeline.etl
    if etl.executor_cores is not None:
        return etl.executor_cores
    if pipeline.cluster.autoscales:
        return 1
    return max(1, min(MOST_CORES, int((cluster.total_cpus() - _spare_cpus(etl)) // etl.executors)))


def _start(pipeline: config.Pipeline, name: str, log: Path, settings: dict[str, str]) -> SparkSession:
    etl = pipeline.etl
    with output_in(log), _driver_beside_master():
        spark = raydp.init_spark(
            app_name=name,
            num_executors=etl.executors,
            executor_cores=executor_cores(pipeline),
            executor_memory=etl.executor_memory,
            configs=settings,
        )
    _await_executors(spark, etl, READY_SECONDS + pipeline.cluster.wait_s)
    return spark


@contextmanager
def _driver_beside_master() -> Iterator[None]:
    """Starts the driver's JVM while RayDP's master starts its own: each takes seconds, and does not need the other."""
    start_master = SparkCluster._set_up_master

    def start_both(cluster: SparkCluster, **given: Any) -> None:
        settings = SparkConf(loadDefaults=False).setAll(list(cluster._configs.items()))
        with ThreadPoolExecutor(1) as thread:
            driver = thread.submit(SparkContext._ensure_initialized, conf=settings)
            start_master(cluster, **given)
            driver.result()

    SparkCluster._set_up_master = start_both
    try:
        yield
    finally:
        SparkCluster._set_up_master = start_master


def _await_executors(spark: SparkSession, etl: config.Etl, seconds: float) -> None:
    """Waits until the executors have registered: Spark itself would let the first job wait, without an end.

    Raises:
        ResourceError: they have not after so many seconds.
    """
    deadline = time.monotonic() + seconds
    context = spark.sparkContext._jsc.sc()
    while (there := context.getExecutorMemoryStatus().size() - 1) < etl.executors:  # the driver counts as well
        if time.monotonic() > deadline:
            raise ResourceError(
                f"{there} of {etl.executors} Spark executors came in {seconds:g} s; "
                f"see the logs of the Ray session, and lower etl.executor_memory ({etl.executor_memory}) if they were killed."
            )
        time.sleep(0.05)


@contextmanager
def output_in(log: Path) -> Iterator[None]:
    """Sends our stdout and stderr to a file for the length of the block; a process that starts meanwhile, as the driver's JVM
    does, keeps them there."""
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


def _await_release() -> None:
    """Waits until Ray has ended the session's actors. How many CPUs are free says nothing: others may have taken them.

    Raises:
        ResourceError: some live after RELEASE_SECONDS.
    """

    def look() -> list[str]:
        return sorted(name for name in ray.util.list_named_actors() if ACTOR.match(name))

    if left := cluster.still_found(look, RELEASE_SECONDS, pause=0.05):
        raise ResourceError(f"Spark was stopped, but after {RELEASE_SECONDS:g} s there is still {', '.join(left)}.")


def _settings(etl: config.Etl, cells: int) -> dict[str, str]:
    opens = " ".join(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES)
    common = f"{opens} {archive.options()}"
    return {
        "spark.driver.extraJavaOptions": f"{common} {QUICK}",
        "spark.executor.extraJavaOptions": f"{common} {EAGER} {SOON if cells <= SHORT_WORK else ''}",
        "spark.ray.raydp_app_master.extraJavaOptions": f"{common} {QUICK}",
        "spark.pyspark.python": sys.executable,
        "spark.sql.shuffle.partitions": str(etl.partitions),
        "spark.sql.session.timeZone": etl.time_zone,
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Fetched files are few and of one node: a small cost of opening one spreads their rows evenly over the tasks.
        "spark.sql.files.openCostInBytes": "65536",
        # A file for each place is open at once: else Spark would sort rows by their place, and lose their order.
        "spark.sql.maxConcurrentOutputFileWriters": "1000",
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
