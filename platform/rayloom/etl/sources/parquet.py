"""Parquet: read where it lies, or copied here first. What Spark could not read of its types is written anew, without loss.

Nanoseconds become microseconds where nothing is lost. Not here: folders partitioned by `key=value`.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayloom import config
from rayloom.errors import SourceError, hint
from rayloom.etl.sources import packed
from rayloom.etl.sources.columns import ddl_of_schema, declared_types, require_distinct, written_as
from rayloom.etl.sources.files import File, digest, each, find, reachable
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read

SUFFIXES = (".parquet", ".pq")


def open(name: str, settings: config.Parquet) -> Opened:
    """Finds a source's files and holds their schemas against each other and the declared columns.

    Raises:
        ConfigError: `columns` is no Spark DDL list.
        SourceError: a file is missing or no Parquet, lacks a column, or gives it another type than the first file does.
    """
    declared = declared_types(name, settings.columns) if settings.columns is not None else {}
    files = find(settings.path, f"etl.sources.{name}.path", SUFFIXES)
    schemas = each(lambda file: _schema(file, list(declared), name), files)
    types = [ddl_of_schema(schema, file.shown) for file, schema in zip(files, schemas, strict=True)]
    for file, found in zip(files, types, strict=True):
        _require_alike(files[0], types[0], file, found)
    return Opened(name, settings, declared or types[0], list(zip(files, schemas, strict=True)))


def _schema(file: File, columns: list[str], name: str) -> pa.Schema:
    """The schema of the declared columns, or of all."""
    try:
        with reachable(file.shown), file.system.open_input_file(file.path) as source:
            metadata = pq.ParquetFile(source)
            schema = _instants(metadata)
    except pa.ArrowInvalid as error:
        raise SourceError(f"{file.shown} is not a whole Parquet file ({error!s:.100}); fetch it again.") from None
    require_distinct(schema.names, file.shown)
    for column in columns:
        if column not in schema.names:
            declares = f"which etl.sources.{name}.columns declares"
            raise SourceError(f"{file.shown}: no column '{column}', {declares}{hint(column, schema.names)}")
    return pa.schema([schema.field(column).remove_metadata() for column in columns or schema.names])


def _instants(file: pq.ParquetFile) -> pa.Schema:
    """The file's schema; INT96, by which Spark and Impala mean a moment, is that also where Arrow sees no time zone."""
    schema = file.schema_arrow
    for column in (file.schema.column(index) for index in range(len(file.schema))):
        if column.physical_type == "INT96" and column.path in schema.names:
            place = schema.get_field_index(column.path)
            schema = schema.set(place, pa.field(column.path, pa.timestamp("us", "UTC")))
    return schema


def _require_alike(first: File, expected: dict[str, str], file: File, found: dict[str, str]) -> None:
    for column in [*expected, *found]:
        if expected.get(column) != found.get(column):
            kinds = [kinds.get(column, "not there") for kinds in (found, expected)]
            raise SourceError(
                f"{file.shown}: the column '{column}' is {kinds[0]}, but {kinds[1]} in {first.shown}; make them alike."
            )


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Fingerprints each file; brings it into `scratch` where it is not on this machine, or Spark could not read it.

    Raises:
        SourceError: a file cannot be read, or has nanoseconds that would be lost.
    """
    digests, paths = list[str](), list[Path]()
    for index, (file, schema) in enumerate(opened.files):
        path = file.local or scratch / f"{opened.name}-{index:05}.fetched.parquet"
        digests.append(digest(file, None if file.local else path))
        paths.append(
            path if _reads_as_is(schema) else _rewritten(path, file, schema, scratch / f"{opened.name}-{index:05}.parquet")
        )
    raw = ddl_of_schema(opened.files[0][1], opened.files[0][0].shown)
    return Fetched(opened, paths, packed.combined(digests), raw)


def _reads_as_is(schema: pa.Schema) -> bool:
    written = [(field.type, written_as(field.type)) for field in schema]
    return all(kind == other or pa.types.is_dictionary(kind) for kind, other in written)


def _rewritten(path: Path, file: File, schema: pa.Schema, target: Path) -> Path:
    as_written = pa.schema([field.with_type(written_as(field.type)) for field in schema])
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as source:
        packed.write(target, as_written, _cast(source, file, as_written))
    return target


def _cast(source: pq.ParquetFile, file: File, schema: pa.Schema) -> Iterator[pa.Table]:
    for batch in source.iter_batches(batch_size=packed.MAX_ROWS, columns=schema.names):
        table = pa.Table.from_batches([batch]).select(schema.names)
        for name in schema.names:
            try:
                table = table.set_column(
                    table.schema.get_field_index(name), schema.field(name), table[name].cast(schema.field(name).type)
                )
            except pa.ArrowInvalid as error:
                raise SourceError(
                    f"{file.shown}: the column '{name}' would lose something as Spark reads it ({error}); round it in the file."
                ) from None
        yield table
