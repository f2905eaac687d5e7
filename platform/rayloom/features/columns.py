"""A feature's column among its rows, and which Arrow types a feature and the label may have: found before a row is read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from rayloom.config.features import Features
from rayloom.errors import DataError, hint
from rayloom.features.state import RecordType


@dataclass(frozen=True)
class Column:
    """A feature's values among the rows that they stand in."""

    name: str
    table: pa.Table

    @property
    def values(self) -> pa.ChunkedArray:
        return self.table[self.name]

    def row(self, index: int) -> str:
        """Where an error finds a value: in its file, where the rows come from files."""
        if "path" in self.table.column_names:
            return f"'{self.table['path'][index].as_py()}'"
        return f"in row {index} of '{self.name}'"


Inputs = dict[str, list[np.ndarray]]
"""What a column gives to a model: by "numbers", "categories", "tokens", "mask" or "image", arrays (n, ...) of n rows."""


class OneByOne:
    """Columns of a kind that has nothing to make ready: each by the kind's `apply`."""

    def __init__(self, columns: Mapping[str, Any], apply_one: Callable[[Any, Column], Inputs]):
        self.columns, self.apply_one = columns, apply_one

    def apply(self, table: pa.Table) -> dict[str, Inputs]:
        """What each column gives."""
        return {name: self.apply_one(column, Column(name, table)) for name, column in self.columns.items()}


def require(spec: Features, schema: pa.Schema) -> None:
    """Holds the columns' types against what their kinds need.

    Raises:
        DataError: a column is missing, or of a type that its kind cannot use; the sentence names it and the remedy.
    """
    require_names([*spec.columns, spec.label], schema.names)
    for name, feature in spec.columns.items():
        _require_type(f"The feature '{name}'", feature.kind, _plain(schema.field(name).type))
    _require_type(f"The label '{spec.label}'", "label", _plain(schema.field(spec.label).type))


def require_names(names: Iterable[str], known: list[str]) -> None:
    """Raises DataError for the first of `names` that is not among the rows' columns."""
    found = set(known)
    for name in names:
        if name not in found:
            raise DataError(f"The rows have no column '{name}'{hint(name, known)}")


def record_type(kind: pa.DataType) -> RecordType:
    """What a category of this type is in a record: dates are text there."""
    kind = _plain(kind)
    if types.is_boolean(kind):
        return "boolean"
    return "integer" if types.is_integer(kind) else "text"


def is_text(kind: pa.DataType) -> bool:
    return types.is_string(_plain(kind)) or types.is_large_string(_plain(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _is_category(kind: pa.DataType) -> bool:
    return is_text(kind) or types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind)


def _is_day(kind: pa.DataType) -> bool:
    return types.is_date(kind) or types.is_timestamp(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return types.is_binary(kind) or types.is_large_binary(kind)


def _is_label(kind: pa.DataType) -> bool:
    return is_text(kind) or types.is_boolean(kind) or _is_number(kind)


_NEEDS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "number": (_is_number, "a number is needed: CAST(... AS DOUBLE) in the SQL, or another kind in features.columns"),
    "category": (_is_category, "a category is text, a whole number, a boolean or a date: CAST(... AS STRING) in the SQL"),
    "date": (_is_day, "a date or timestamp is needed: CAST(... AS DATE) in the SQL"),
    "text": (is_text, "text is needed: CAST(... AS STRING) in the SQL"),
    "image": (_is_bytes, "the bytes of an image file are needed: name a column of a source of kind images"),
    "label": (_is_label, "0 and 1, a boolean, text or a whole number is needed: CAST(... AS INT) in the SQL"),
}


def _require_type(what: str, kind: str, found: pa.DataType) -> None:
    fits, needed = _NEEDS[kind]
    if not types.is_null(found) and not fits(found):
        raise DataError(f"{what} is of type {found}; {needed}.")
