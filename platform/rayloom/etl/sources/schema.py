"""A proposal for `columns`: the narrowest Spark types that hold a source's first rows, or the types that it says itself."""

import datetime
import re
from collections.abc import Callable
from typing import NamedTuple

from rayloom import config
from rayloom.etl import sources
from rayloom.etl.sources import csv, json
from rayloom.etl.sources.columns import ddl_list
from rayloom.etl.sources.files import find

ROWS = 10_000

INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|[+-]?Infinity")
POINT = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
DOUBLE_DIGITS = 15
"""Decimal digits that a double always keeps (DBL_DIG)."""


class Proposal(NamedTuple):
    """A Spark DDL list, and the number of rows whose values say so: 0 where the source says its types itself."""

    columns: str
    rows: int


def infer(name: str, settings: config.Source) -> str:
    """A source's `columns` as its first rows suggest them (at most ROWS), or as it says itself.

    >>> infer("flights", config.Csv(path="flights.csv"))  # doctest: +SKIP
    'year INT, carrier STRING'

    Raises:
        ConfigError, SourceError: the source cannot be read.
    """
    return propose(name, settings).columns


def propose(name: str, settings: config.Source) -> Proposal:
    """`infer`, with the number of rows looked at."""
    without = settings.model_copy(update={"columns": None})
    if not isinstance(without, config.Csv | config.Json):
        return Proposal(_plain_ddl(sources.open_source(name, without).types), 0)
    cells = _sample(name, without)
    types = {column: type_of([text for text in texts if text is not None]) for column, texts in cells.items()}
    return Proposal(_plain_ddl(types), max(map(len, cells.values()), default=0))


def _sample(name: str, settings: config.Csv | config.Json) -> dict[str, list[str | None]]:
    key = f"etl.sources.{name}.path"
    if isinstance(settings, config.Json):
        return json.sample(find(settings.path, key, json.SUFFIXES)[0], ROWS)
    file = find(settings.path, key, csv.SUFFIXES)[0]
    return csv.sample(csv.header(file, settings.delimiter), file, settings, ROWS)


def _plain_ddl(types: dict[str, str]) -> str:
    """DDL with names quoted only where they have to be."""
    plain = all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in types)
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) if plain else ddl_list(types)


def type_of(texts: list[str]) -> str:
    """The narrowest Spark type that holds all texts without loss; numbers with leading zeros are text, as codes are.

    >>> type_of(["1", "-20"]), type_of(["1", "2.5"]), type_of(["007"]), type_of(["true", "False"])
    ('INT', 'DOUBLE', 'STRING', 'BOOLEAN')
    """
    return (
        next((kind for kind, holds in TYPES.items() if texts and all(map(holds, texts))), None) or _decimal(texts) or "STRING"
    )


def _integer_of(bits: int) -> Callable[[str], bool]:
    return lambda text: bool(INTEGER.fullmatch(text)) and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)


def _is_double(text: str) -> bool:
    return (
        bool(NUMBER.fullmatch(text)) and sum(map(str.isdigit, text.lower().partition("e")[0].lstrip("+-0."))) <= DOUBLE_DIGITS
    )


def _is_date(text: str) -> bool:
    return bool(DATE.fullmatch(text)) and _parses(datetime.date.fromisoformat, text)


def _is_timestamp(text: str) -> bool:
    return bool(DATE.match(text)) and _parses(datetime.datetime.fromisoformat, text)


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
        return True
    except ValueError:
        return False


def _decimal(texts: list[str]) -> str | None:
    """DECIMAL for numbers with more digits than a double keeps, where 38 are enough."""
    if not texts or not all(map(POINT.fullmatch, texts)):
        return None
    wholes = max(len(text.lstrip("+-").partition(".")[0]) for text in texts)
    scale = max(len(text.partition(".")[2]) for text in texts)
    return f"DECIMAL({wholes + scale},{scale})" if wholes + scale <= 38 else None


TYPES: dict[str, Callable[[str], bool]] = {
    "BOOLEAN": lambda text: text.lower() in ("true", "false"),
    "INT": _integer_of(32),
    "BIGINT": _integer_of(64),
    "DOUBLE": _is_double,
    "DATE": _is_date,
    "TIMESTAMP": _is_timestamp,
}
