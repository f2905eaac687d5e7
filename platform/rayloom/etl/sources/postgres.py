"""PostgreSQL through psycopg, which is optional. The server's types are kept; those that Spark does not have come as text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rayloom.errors import SourceError
from rayloom.etl.sources import packed

SECONDS = 5
"""How long a connection may take, and then the description of the query."""

ARROW = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}

UNBOUND = pa.decimal128(38, 18)
"""numeric without precision: exact where it fits, refused where it does not."""


@contextmanager
def _connected(url: str, place: str) -> Iterator[Any]:
    try:
        import psycopg
    except ImportError:
        raise SourceError(f"{place}: PostgreSQL needs the package psycopg; run `pip install 'psycopg[binary]'`.") from None
    try:
        with psycopg.connect(url, connect_timeout=SECONDS, application_name="rayloom") as connection:
            connection.read_only = True
            yield connection
    except psycopg.OperationalError as error:
        says = f"PostgreSQL cannot be reached or gave up ({_line(error)}); check {place}.url, PGPASSWORD and the server"
        raise SourceError(f"{place}: {says}.") from None
    except psycopg.Error as error:
        raise SourceError(f"{place}: PostgreSQL refused ({_line(error)}); correct {place}.query.") from None


def _line(error: Exception) -> str:
    """The first line of what the server or driver said, without the password."""
    line = " ".join(str(error).split("\n")[0].split())
    password = os.environ.get("PGPASSWORD")
    return line.replace(password, "***")[:300] if password else line[:300]


def describe(url: str, query: str, place: str, declared: dict[str, str]) -> pa.Schema:
    """The query's columns with the server's types; `declared` ones are cast later, from those."""
    with _connected(url, place) as connection:
        connection.execute(f"SET LOCAL statement_timeout = '{SECONDS}s'")
        cursor = connection.execute(f"SELECT * FROM ({query}\n) AS rayloom_query LIMIT 0")
        return pa.schema([pa.field(column.name, _arrow(connection, column)) for column in cursor.description])


def _arrow(connection: Any, column: Any) -> pa.DataType:
    known = connection.adapters.types.get(column.type_code)
    name = known.name if known and column.type_code == known.oid else ""  # an array's code finds its items' type
    if name == "numeric":
        bound = column.precision is not None and column.precision <= 38 and 0 <= column.scale <= column.precision
        return pa.decimal128(column.precision, column.scale) if bound else UNBOUND
    return ARROW.get(name, pa.string())


def batches(url: str, query: str, schema: pa.Schema, place: str) -> Iterator[pa.Table]:
    """The query's rows through a cursor of the server's, some thousands at a time; only the columns of `schema`."""
    with _connected(url, place) as connection, connection.cursor(name="rayloom", binary=True) as cursor:
        cursor.execute(f"SELECT {', '.join(map(_selected, schema))} FROM ({query}\n) AS rayloom_query")
        for rows in packed.fetched(cursor.fetchmany):
            columns = zip(*rows, strict=True)
            arrays = [_column(list(values), field, place) for values, field in zip(columns, schema, strict=True)]
            yield pa.Table.from_arrays(arrays, schema=schema)


def _selected(field: pa.Field) -> str:
    column = '"' + field.name.replace('"', '""') + '"'
    return f"{column}::text AS {column}" if field.type == pa.string() else column


def _column(values: list, field: pa.Field, place: str) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise SourceError(
            f"{place}: the column '{field.name}' has a value that is no {field.type} ({str(error).splitlines()[0]:.150}); "
            f"cast it in {place}.query, as in {field.name}::numeric(20,4) or {field.name}::text."
        ) from None
