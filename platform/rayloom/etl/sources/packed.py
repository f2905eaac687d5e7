"""Content as Parquet in a scratch folder: what every kind writes, but Parquet that Spark can read where it lies."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from rayloom.etl.sources.columns import ddl_list
from rayloom.etl.sources.opened import Fetched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_BYTES = 4 * 2**20
"""About so much content is in memory at a time, here, and in Spark, which reads a row group's values in one go."""

MAX_ROWS = 50_000


def write(path: Path, schema: pa.Schema, batches: Iterable[pa.Table | pa.RecordBatch]) -> int:
    """Writes batches as row groups of one Parquet file; returns the number of rows."""
    rows = 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            if batch.num_rows:
                writer.write(batch)
            rows += batch.num_rows
    return rows


def read(spark: "SparkSession", fetched: Fetched) -> "DataFrame":
    """A fetched source's rows with the types of `fetched.raw`; nothing is read yet."""
    # Corrected: dates count by one calendar, whoever wrote them; Spark would refuse those before 1582 otherwise.
    options = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}
    return spark.read.options(**options).schema(ddl_list(fetched.raw)).parquet(*map(spark_path, fetched.paths))


def spark_path(path: Path) -> str:
    """A path as Spark takes it: not percent-encoded, and with the characters of globs escaped."""
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path.absolute()))


def combined(digests: list[str]) -> str:
    """The fingerprint of several files' content, in any order: rows of files are a set. One file's is its own."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()


def fetched(fetch: Callable[[int], list[tuple]]) -> Iterator[list[tuple]]:
    """A database cursor's rows, in lists whose size follows the rows': about BATCH_BYTES, at most MAX_ROWS.

    Args:
        fetch: a cursor's `fetchmany`.
    """
    size = 1000
    while rows := fetch(size):
        yield rows
        bytes_each = sum(map(_size, rows)) / len(rows)
        size = max(1, min(MAX_ROWS, int(BATCH_BYTES / bytes_each)))


def _size(row: tuple) -> int:
    return 8 * len(row) + sum(len(value) for value in row if isinstance(value, str | bytes))
