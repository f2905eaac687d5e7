"""Delta tables through deltalake, which is optional: as they are, at a version, or at a moment.

The fingerprint is the table's id and version: what a version holds does not change.
"""

import datetime
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayloom import config, places
from rayloom.errors import SourceError, hint
from rayloom.etl.sources import packed
from rayloom.etl.sources.columns import ddl_of_schema, declared_types, require_distinct, written_as
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read


def open(name: str, settings: config.Delta) -> Opened:
    """Finds a table and the version that is meant.

    Raises:
        ConfigError: `columns` is no Spark DDL list.
        SourceError: there is no table, no such version, nothing at that time yet, or no such column.
    """
    declared = declared_types(name, settings.columns) if settings.columns is not None else {}
    place = f"etl.sources.{name}"
    table = _at(_table(settings.path, place), settings, place)
    schema = pa.schema(table.schema().to_arrow())
    require_distinct(schema.names, place)
    for column in declared:
        if column not in schema.names:
            raise SourceError(
                f"{settings.path}: no column '{column}', which {place}.columns declares{hint(column, schema.names)}"
            )
    schema = pa.schema([schema.field(column).remove_metadata() for column in declared or schema.names])
    return Opened(name, settings, declared or ddl_of_schema(schema, settings.path), (table, schema))


@contextmanager
def _explained(place: str, path: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError:
        raise SourceError(f"{place}: there is no Delta table at {path}; correct {place}.path.") from None
    except (DeltaError, OSError) as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise SourceError(f"{place}: the Delta table {path} cannot be read ({reason:.200}); check it and its place.") from None


def _table(path: str, place: str) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise SourceError(f"{place}: Delta tables need the package deltalake; run `pip install deltalake`.") from None
    where = path if "://" in path else str(places.resolve(path, f"{place}.path"))
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    with _explained(place, path):
        return DeltaTable(where, storage_options={"allow_http": "true"} if plain and where.startswith("s3") else None)


def _at(table: Any, settings: config.Delta, place: str) -> Any:
    """The table at the version or moment that the pipeline file names."""
    latest = table.version()
    if settings.version is not None:
        if settings.version > latest:
            said = f"{settings.path} has no version {settings.version}"
            raise SourceError(f"{place}: {said}, the latest is {latest}; correct {place}.version.")
        with _explained(place, f"{settings.path} at version {settings.version}"):
            table.load_as_version(settings.version)
    if settings.timestamp is not None:
        version = _version_at(table, settings, place)
        with _explained(place, f"{settings.path} at {settings.timestamp}"):
            table.load_as_version(version)
    return table


def _version_at(table: Any, settings: config.Delta, place: str) -> int:
    """The newest version that was written until a moment, by what the table's log says.

    deltalake would look at its files' times instead, which are a millisecond later now and then, and others in a copy.
    """
    moment = datetime.datetime.fromisoformat(str(settings.timestamp))
    said = ((entry["version"], entry.get("inCommitTimestamp", entry.get("timestamp"))) for entry in table.history())
    written = {version: datetime.datetime.fromtimestamp(at / 1000, datetime.UTC) for version, at in said if at is not None}
    if not written:
        raise SourceError(f"{place}: the log of {settings.path} has no times; name {place}.version instead.")
    if moment < min(written.values()):
        began = f"{settings.path} began at {min(written.values()).isoformat()}, after {settings.timestamp}"
        raise SourceError(f"{place}: {began}; correct {place}.timestamp.")
    return max(version for version, at in written.items() if at <= moment)


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Brings the version's rows into one Parquet file, batch by batch.

    Raises:
        SourceError: a file of the table cannot be read.
    """
    table, schema = opened.files
    written = pa.schema([field.with_type(written_as(field.type)) for field in schema])
    target = scratch / f"{opened.name}.parquet"
    place = f"etl.sources.{opened.name}"
    with _explained(place, opened.settings.path):
        dataset = table.to_pyarrow_dataset()
        scanned = dataset.scanner(columns=schema.names, batch_readahead=2, fragment_readahead=1).to_batches()
        packed.write(target, written, (pa.Table.from_batches([batch]).cast(written) for batch in scanned))
    made_of = f"{table.metadata().id} {table.version()}"
    return Fetched(opened, [target], hashlib.sha256(made_of.encode()).hexdigest(), ddl_of_schema(schema, place))
