"""Spark rows as a Ray dataset, through RayDP and Ray's object store, without a file between."""

import warnings
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.data
import ray.exceptions
import raydp.spark.dataset as raydp_dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rayloom.config import SPLITS
from rayloom.etl.sources.packed import spark_path


def rows(spark: SparkSession, folder: Path) -> DataFrame:
    """A built version's accepted rows in their order, with their split in `_split`.

    File by file: Spark reads many files in the order of their sizes.
    """
    files = [(split, file) for split in SPLITS for file in sorted((folder / split).glob("*.parquet"))]
    frames = [spark.read.parquet(spark_path(file)).withColumn("_split", F.lit(split)) for split, file in files]
    return reduce(DataFrame.unionAll, frames)


def in_memory(spark: SparkSession, folder: Path) -> ray.data.Dataset | None:
    """A built version's accepted rows from Spark's memory; None where an executor was lost while Spark ran.

    RayDP finds an executor by the number that it started with; the one that replaces it has another.
    """
    try:
        return from_spark(rows(spark, folder))
    except (ray.exceptions.RayTaskError, ValueError) as error:
        if "Failed to look up actor" in str(error):
            return None
        raise


def from_spark(rows: DataFrame) -> ray.data.Dataset:
    """The rows as a materialised Ray dataset, in Spark's order; it outlives the Spark session."""
    own = raydp_dataset._fetch_arrow_table_from_executor
    raydp_dataset._fetch_arrow_table_from_executor = ray.remote(max_retries=-1)(_fetch)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="DataFrame.sql_ctx is an internal property")  # RayDP's use of PySpark
            return ray.data.from_spark(rows).materialize()
    finally:
        raydp_dataset._fetch_arrow_table_from_executor = own


def _fetch(*place: Any) -> pa.Table:
    """RayDP's fetch of a partition, in a worker process that is then as it was.

    RayDP switches the process to another way of loading code. Ray hands it to the next task, where creating an actor would die
    ("Expected str or bytes, got NoneType"). tests/contract/test_handoff.py shows both.
    """
    try:
        return raydp_dataset._fetch_arrow_table_from_executor._function(*place)
    finally:
        ray._private.worker.global_worker.set_load_code_from_local(False)
