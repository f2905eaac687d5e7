"""What a Parquet file of a dataset version holds, read back: rows, checksum, and the summaries of its columns.

A module of its own, since each Ray worker that reads back pays for its imports: Ray Data's would cost seconds.
"""

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rayloom import checksum, statistics

ROWS = 2**17
"""Rows in memory at a time."""


def read_back(path: str) -> list[dict[str, Any]]:
    """A cell (rows, checksum, columns' summary as JSON) for each part of a file; its folder's name is the split."""
    with pq.ParquetFile(path) as file:
        parts = (pa.Table.from_batches([batch]) for batch in file.iter_batches(ROWS))
        return [{"split": Path(path).parent.name, **total(part), "summary": summary(part)} for part in parts]


def total(rows: pa.Table) -> dict[str, Any]:
    return {"rows": len(rows), "sum": f"{checksum.total(checksum.row_hashes(rows)):016x}"}


def summary(rows: pa.Table) -> bytes:
    return orjson.dumps(statistics.summarize(rows))
