"""Spark's JVMs take their classes from the archive that the set-up wrote."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from rayloom import environment
from rayloom.etl import archive


def test_every_jvm_of_a_session_maps_the_archive(spark: SparkSession):
    processes = environment.marked_processes(os.environ[environment.MARK])
    maps = [Path(f"/proc/{process.pid}/maps").read_text() for process in processes if process.name() == "java"]
    assert len(maps) == 4  # the driver, RayDP's master and its actor, one executor
    assert [str(archive.ARCHIVE) in mapped for mapped in maps] == [True] * 4
