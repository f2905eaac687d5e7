"""What a query of a database answers: SQLite, or PostgreSQL through psycopg. Read only, in bounded memory.

A database is a module with `describe` and `batches`; DATABASES names them by the url's scheme.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import sqlglot
from sqlglot import exp

from rayloom import checksum, config
from rayloom.errors import ConfigError, SourceError, hint
from rayloom.etl.sources import packed, postgres, sqlite
from rayloom.etl.sources.columns import ddl_list, ddl_of_schema, declared_types, require_distinct
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read

DATABASES: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgres, "postgres": postgres}

CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.Into, exp.Command, exp.Lock)


def open(name: str, settings: config.Sql) -> Opened:
    """Asks the database for the query's columns and types, without its rows.

    Raises:
        ConfigError: the query is not one SELECT, or `columns` is no Spark DDL list.
        SourceError: the database cannot be reached within seconds, refuses the query, or lacks a declared column.
    """
    query = _require_select(name, settings)
    declared = declared_types(name, settings.columns) if settings.columns is not None else {}
    place = f"etl.sources.{name}"
    schema = _database(settings).describe(settings.url, query, place, declared)
    require_distinct(schema.names, f"{place}.query", "name one by AS")
    for column in declared:
        if column not in schema.names:
            raise SourceError(f"{place}.query gives no column '{column}', which `columns` declares{hint(column, schema.names)}")
    if declared:
        schema = pa.schema([schema.field(column) for column in declared])
    return Opened(name, settings, declared or ddl_of_schema(schema, place), schema)


def _database(settings: config.Sql) -> ModuleType:
    return DATABASES[settings.url.partition(":")[0]]


def _require_select(name: str, settings: config.Sql) -> str:
    dialect = "sqlite" if settings.url.startswith("sqlite") else "postgres"
    try:
        query, *more = sqlglot.parse(settings.query, dialect=dialect)
    except (sqlglot.errors.SqlglotError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"etl.sources.{name}.query: not SQL as {dialect} has it ({reason:.200}); correct the query."
        ) from None
    if any(more) or not isinstance(query, exp.Query) or query.find(*CHANGES):
        raise ConfigError(f"etl.sources.{name}.query: expected one SELECT that changes nothing, found '{settings.query:.60}'.")
    return settings.query.strip().rstrip(";")


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Runs the query and brings its rows into one Parquet file, batch by batch.

    The fingerprint is that of the rows, in any order: a database keeps none.

    Raises:
        SourceError: the database fails, or a value does not have its column's type.
    """
    settings, schema, place = opened.settings, opened.files, f"etl.sources.{opened.name}"
    target = scratch / f"{opened.name}.parquet"
    batches = _database(settings).batches(settings.url, _require_select(opened.name, settings), schema, place)
    sums: list[int] = []
    rows = packed.write(target, schema, _summed(batches, sums))
    raw = ddl_of_schema(schema, place)
    made_of = f"{ddl_list(raw)}\n{rows}\n{sum(sums) % 2**64:016x}"
    return Fetched(opened, [target], hashlib.sha256(made_of.encode()).hexdigest(), raw)


def _summed(batches: Iterable[pa.Table], sums: list[int]) -> Iterator[pa.Table]:
    for batch in batches:
        sums.append(checksum.total(checksum.row_hashes(batch)))
        yield batch
