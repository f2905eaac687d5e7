"""What a source is after it was opened, and after its content was fetched: what every kind gives to the next stage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


@dataclass(frozen=True)
class Opened:
    """A source that is there and has what the pipeline file says of it.

    Attributes:
        name: its name in the pipeline file.
        settings: its section there, a `config.Source` of its kind.
        types: Spark DDL type by column, in order, as SQL steps see it.
        files: what its kind needs to fetch it.
    """

    name: str
    settings: Any
    types: dict[str, str]
    files: Any


@dataclass(frozen=True)
class Fetched:
    """A source's content, as Parquet that Spark reads.

    Attributes:
        opened: the source.
        paths: Parquet files with the columns of `raw`.
        sha256: fingerprint of the content: the same for the same content, wherever it lies.
        raw: Spark DDL type by column, in order, as `read` gives it: before it is cast to `opened.types`.
    """

    opened: Opened
    paths: list[Path]
    sha256: str
    raw: dict[str, str]

    @property
    def rows(self) -> int:
        """Its number of rows, as the files' footers have it."""
        return sum(pq.read_metadata(path).num_rows for path in self.paths)
