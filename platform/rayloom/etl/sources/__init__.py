"""Sources: what is read, by kind. Each kind is a module with three functions:

    open(name, settings) -> Opened       within a second, without reading whole files: places, headers, schemas, connections
    fetch(opened, scratch) -> Fetched    content and its fingerprint, in bounded memory; Parquet that Spark reads
    read(spark, fetched) -> DataFrame    its rows: text where the files hold text, their own types where they have some

Adding a kind is one file, one line here, and its settings in `rayloom.config.sources`.
"""

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rayloom import config
from rayloom.etl.sources import csv, delta, folders, json, parquet, sql
from rayloom.etl.sources.columns import declared_types as declared_types
from rayloom.etl.sources.opened import Fetched as Fetched
from rayloom.etl.sources.opened import Opened as Opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCES: dict[str, ModuleType] = {
    "csv": csv,
    "json": json,
    "parquet": parquet,
    "text": folders,
    "images": folders,
    "sql": sql,
    "delta": delta,
}


def open_source(name: str, settings: config.Source) -> Opened:
    """Opens a source.

    Raises:
        ConfigError: its settings do not go together.
        SourceError: it is not there, or not as its settings say.
    """
    return SOURCES[settings.kind].open(name, settings)


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Brings an opened source's content here, and fingerprints it.

    Args:
        scratch: an existing folder that all executors see; files in it begin with the source's name.

    Raises:
        SourceError: the content cannot be read, or is not as its kind has it.
    """
    return SOURCES[opened.settings.kind].fetch(opened, scratch)


def read(spark: "SparkSession", fetched: Fetched) -> "DataFrame":
    """A fetched source's rows in Spark, of the types in `fetched.raw`."""
    return SOURCES[fetched.opened.settings.kind].read(spark, fetched)
