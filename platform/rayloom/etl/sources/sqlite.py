"""SQLite: each value says its type, a column only promises one. With `columns`, values come as text, to be cast like CSV's."""

import datetime
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from rayloom.errors import SourceError
from rayloom.etl.sources import packed

SECONDS = 5.0
"""How long to wait for another process that is writing."""

SAMPLE = 1000
"""Rows whose values say the type of a column that is an expression."""


@contextmanager
def _connected(url: str, place: str) -> Iterator[sqlite3.Connection]:
    path = Path(url.partition(":///")[2]).expanduser().resolve()
    if not path.is_file():
        raise SourceError(f"{place}: there is no file {path}; correct {place}.url.")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=SECONDS)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise SourceError(f"{place}: SQLite refused ({error}); correct {place}.query or the file {path}.") from None


def describe(url: str, query: str, place: str, declared: dict[str, str]) -> pa.Schema:
    """The query's columns: text where `declared`, else of their tables' declared types, else of the first rows' values."""
    with _connected(url, place) as connection:
        # A view is the one way to hear of a query's declared types; a temporary one is no change of the file.
        connection.execute(f"CREATE TEMP VIEW rayloom_query AS {query}")
        described = connection.execute("PRAGMA table_info(rayloom_query)").fetchall()
        names = _without_counters([name for _, name, *_ in described])
        found = {}
        for name, (_, inner, kind, *_) in zip(names, described, strict=True):
            if name in declared:
                found[inner] = pa.binary() if declared[name].upper() == "BINARY" else pa.string()
            else:
                found[inner] = _declared(kind) or _sampled(connection, inner)
    return pa.schema([pa.field(name, kind) for name, kind in zip(names, found.values(), strict=True)])


def _without_counters(names: list[str]) -> list[str]:
    """SQLite's names of a view's columns, equal ones equal again: it calls the second 'a' of a query 'a:1'."""
    bases, known = [name.rpartition(":")[0] for name in names], {name.lower() for name in names}
    counted = [name.rpartition(":")[2].isdigit() and base.lower() in known for name, base in zip(names, bases, strict=True)]
    return [base if is_counted else name for name, base, is_counted in zip(names, bases, counted, strict=True)]


def _declared(kind: str) -> pa.DataType | None:
    """The type of a column declared so (https://sqlite.org/datatype3.html, 3.1), dates and exact decimals beside."""
    kind = kind.upper()
    exact = re.search(r"(?:DEC|NUM)\w*\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", kind)
    if exact and int(exact[1]) <= 38:
        return pa.decimal128(int(exact[1]), int(exact[2] or 0))
    named = {"DATE": pa.date32(), "DATETIME": pa.timestamp("us"), "TIMESTAMP": pa.timestamp("us")}
    if kind in named:
        return named[kind]
    parts = {"BOOL": pa.bool_(), "INT": pa.int64(), "CHAR": pa.string(), "CLOB": pa.string(), "TEXT": pa.string()}
    more = {"BLOB": pa.binary(), "REAL": pa.float64(), "FLOA": pa.float64(), "DOUB": pa.float64()}
    return next((of for part, of in {**parts, **more}.items() if part in kind), None)


def _sampled(connection: sqlite3.Connection, name: str) -> pa.DataType:
    column = '"' + name.replace('"', '""') + '"'
    rows = connection.execute(f"SELECT DISTINCT typeof({column}) FROM (SELECT {column} FROM rayloom_query LIMIT {SAMPLE})")
    kinds = {kind for (kind,) in rows} - {"null"}
    known = {("integer",): pa.int64(), ("real",): pa.float64(), ("integer", "real"): pa.float64(), ("blob",): pa.binary()}
    return known.get(tuple(sorted(kinds)), pa.string())


def batches(url: str, query: str, schema: pa.Schema, place: str) -> Iterator[pa.Table]:
    """The query's rows, some thousands at a time; only the columns of `schema`, in its order."""
    with _connected(url, place) as connection:
        cursor = connection.execute(query)
        names = [column[0] for column in cursor.description]
        wanted = [names.index(name) for name in schema.names]
        for rows in packed.fetched(cursor.fetchmany):
            yield pa.Table.from_arrays(
                [_column([row[place_] for row in rows], field, place) for place_, field in zip(wanted, schema, strict=True)],
                schema=schema,
            )


def _column(values: list, field: pa.Field, place: str) -> pa.Array:
    convert = CONVERSIONS.get(field.type, _decimal(field.type))
    converted = []
    for value in values:
        try:
            converted.append(None if value is None else convert(value))
        except (ValueError, TypeError, InvalidOperation):
            raise SourceError(
                f"{place}: the column '{field.name}' has {value!r:.60}, which is no {field.type}; declare the column in "
                f"{place}.columns, where such values are counted, or change the query."
            ) from None
    return pa.array(converted, field.type)


def _decimal(of: pa.DataType) -> Callable[[Any], Decimal]:
    def convert(value: Any) -> Decimal:
        number = Decimal(str(value))
        exact = number.quantize(Decimal(1).scaleb(-of.scale))
        if exact != number or len(exact.as_tuple().digits) > of.precision:
            raise ValueError(value)
        return exact

    return convert


def _integer(value: Any) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(value)


def _number(value: Any) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(value)


def _truth(value: Any) -> bool:
    if value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError(value)
    return value if isinstance(value, str) else repr(value)


def _moment(value: Any) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(value)
    if found.tzinfo is not None:
        raise ValueError(value)
    return found


CONVERSIONS: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.int64(): _integer,
    pa.float64(): _number,
    pa.bool_(): _truth,
    pa.string(): _text,
    pa.binary(): lambda value: value.encode() if isinstance(value, str) else bytes(memoryview(value)),
    pa.date32(): datetime.date.fromisoformat,
    pa.timestamp("us"): _moment,
}
