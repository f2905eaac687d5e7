"""What a request's fields are and what each may hold, from the columns of a bundle's feature state.

A request is checked column by column: the set of the values' types is held against the types that the field takes, in one
step, and only where that fails are the rows looked at one by one for the first bad one. What a client sends is never bent
into another type: 3.4 or true is no whole number, true is no number, a number is no text, and nothing infinite is a number.
"""

import base64
import datetime
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NoReturn

import pyarrow as pa

from rayloom.errors import InvalidRecords, hint
from rayloom.features import CategoryState, ColumnState, DateState, HashState, ImageState, TextState

Columns = dict[str, list]
"""n checked values (or None) of each field of a model, in the schema's order: float, int, bool, str, date or bytes."""

FEW = 32
"""Up to so many rows a table is made faster row by row than column by column."""

NAMED = 12
"""The most values of a category that its description names."""


@dataclass(frozen=True, eq=False)
class Kind:
    """What the values of a field are.

    Attributes:
        types: of the values that a client may send.
        arrow: the type of the column.
        convert: a column's values as checked ones, from the values and the set of their types; ValueError, OverflowError
            where one is not acceptable.
        expected: what is said of a value of another type; "{found}" is its type.
        refused: what is said of a value that `convert` does not accept.
        json: JSON Schema of a value.
    """

    types: frozenset[type]
    arrow: pa.DataType
    convert: Callable[[list, set[type]], list]
    expected: str
    refused: str
    json: dict[str, Any]

    def fault(self, value: Any) -> str | None:
        """What is wrong with one value."""
        if type(value) not in self.types:
            return self.expected.format(found=_name_of(value))
        try:
            self.convert([value], {type(value)})
        except (ValueError, OverflowError):
            return self.refused
        return None


def _numbers(values: list, types: set[type]) -> list:
    """Floats. A sum is finite only if all that it adds are; a sum that is not may only be too large."""
    if int in types:
        values = [None if value is None else float(value) for value in values]
    if not math.isfinite(sum(filter(None, values))) and not all(map(math.isfinite, filter(None, values))):
        raise ValueError
    return values


def _integers(values: list, types: set[type]) -> list:
    if max(filter(None, values), default=0) >= 2**63 or min(filter(None, values), default=0) < -(2**63):
        raise ValueError
    return values


def _booleans(values: list, types: set[type]) -> list:
    return values


def _texts(values: list, types: set[type]) -> list:
    """Text as it is, where UTF-8 can hold it: a lone surrogate is in no Unicode text."""
    joined = "".join(filter(None, values))
    if not joined.isascii():
        joined.encode()
    return values


def _dates(values: list, types: set[type]) -> list:
    known = {value: _date(value) for value in set(values)}
    return [known[value] for value in values]


def _date(value: str | datetime.date | None) -> datetime.date | None:
    """A date, or the date in UTC of a timestamp, which is in UTC where it does not say its offset."""
    if not isinstance(value, str):
        return value
    moment = datetime.datetime.fromisoformat(value)
    return moment.astimezone(datetime.UTC).date() if moment.tzinfo else moment.date()


def _images(values: list, types: set[type]) -> list:
    return [base64.b64decode(value, validate=True) if isinstance(value, str) else value for value in values]


def _types(*types: type) -> frozenset[type]:
    return frozenset({*types, type(None)})


NUMBER = Kind(
    _types(int, float),
    pa.float64(),
    _numbers,
    "expected a number or null, found {found}",
    "expected a finite number",
    {"type": ["number", "null"]},
)
INTEGER = Kind(
    _types(int),
    pa.int64(),
    _integers,
    "expected a whole number or null, found {found}",
    "expected a whole number of 64 bits",
    {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1},
)
BOOLEAN = Kind(
    _types(bool),
    pa.bool_(),
    _booleans,
    "expected true, false or null, found {found}",
    "expected true, false or null",
    {"type": ["boolean", "null"]},
)
TEXT = Kind(
    _types(str),
    pa.string(),
    _texts,
    "expected text or null, found {found}",
    "expected text that UTF-8 can hold, found a lone surrogate",
    {"type": ["string", "null"]},
)
DATE = Kind(
    _types(str, datetime.date),
    pa.date32(),
    _dates,
    "expected a date such as '2013-11-05' or null",
    "expected a date such as '2013-11-05' or null",
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}, {"type": "null"}]},
)
IMAGE = Kind(
    _types(str, bytes),
    pa.binary(),
    _images,
    "expected an image file in base64 or null",
    "expected an image file in base64 or null",
    {"type": ["string", "null"], "contentEncoding": "base64"},
)


def kind_of(column: ColumnState) -> Kind:
    """What a column's values are in a request: of the type that they had in training."""
    match column:
        case CategoryState(type="integer") | HashState(type="integer"):
            return INTEGER
        case CategoryState(type="boolean") | HashState(type="boolean"):
            return BOOLEAN
        case CategoryState() | HashState() | TextState():
            return TEXT
        case DateState():
            return DATE
        case ImageState():
            return IMAGE
    return NUMBER


class Schema:
    """The fields of a model's requests.

    Args:
        columns: of the bundle's feature state.
    """

    def __init__(self, columns: dict[str, ColumnState]):
        self.columns = columns
        self.kinds = {name: kind_of(column) for name, column in columns.items()}
        self.arrow = pa.schema([(name, kind.arrow) for name, kind in self.kinds.items()])
        self._row = pa.struct(list(self.arrow))
        self._checks = [(name, kind.types, kind.convert) for name, kind in self.kinds.items()]
        self._pick = itemgetter(*columns) if len(columns) > 1 else _tuple_of(*columns)

    def read(self, records: Any) -> Columns:
        """A JSON list of records, checked; every field must be there, null where its value is not known.

        Raises:
            InvalidRecords: 400 where this is no list of objects or an empty one; 422 naming row and field where one is
                missing, unknown, or of the wrong type. Whether an image can be decoded shows in prediction.
        """
        return self._checked(self.transpose(records))

    def read_columns(self, columns: dict[str, list]) -> Columns:
        """Lists of equal lengths by field, checked; every field must be there.

        Raises:
            InvalidRecords: 400 where there is no row; 422 as `read`, or where the lengths differ.
        """
        if columns.keys() != self.kinds.keys():
            self.require_names(columns)
        rows = len(columns[next(iter(self.kinds))])
        if not rows:
            raise InvalidRecords(400, "expected at least one record")
        for name, values in columns.items():
            if len(values) != rows:
                first = next(iter(self.kinds))
                raise InvalidRecords(422, f"field '{name}': {len(values):,} values, '{first}' has {rows:,}", None, name)
        return self._checked(columns)

    def require_names(self, names: Collection[str], row: int | None = None) -> None:
        """Each field once and nothing else, in any order.

        Raises:
            InvalidRecords: 422 naming the first field that is missing, unknown or there twice, and `row`.
        """
        found = set(names)
        for name in self.kinds:
            if name not in found:
                raise InvalidRecords(422, f"field '{name}' is missing; send null where it is not known", row, name)
        seen = set()
        for name in names:
            if name not in self.kinds:
                unknown = shown(name)
                raise InvalidRecords(422, f"unknown field '{unknown}'{hint(unknown, self.kinds)}", row, unknown)
            if name in seen:
                raise InvalidRecords(422, f"field '{name}' is there twice", row, name)
            seen.add(name)

    def transpose(self, records: Any) -> dict[str, list]:
        """A JSON list of records as lists by field, whose values are not checked yet.

        Raises:
            InvalidRecords: 400 where this is no list of objects or an empty one; 422 where fields are missing or unknown.
        """
        if not isinstance(records, list) or not records:
            raise InvalidRecords(400, "expected a JSON list with at least one record")
        try:
            rows = list(map(self._pick, records))
            if set(map(len, records)) == {len(self.kinds)}:
                return dict(zip(self.kinds, map(list, zip(*rows, strict=True)), strict=True))
        except (KeyError, TypeError):  # a field is missing, or a record is no object
            pass
        self._refuse_shape(records)

    def table(self, columns: Columns) -> pa.Table:
        """Checked columns as one Arrow table of the types in `self.arrow`."""
        if len(next(iter(columns.values()))) <= FEW:
            rows = pa.array(list(zip(*map(columns.__getitem__, self.kinds), strict=True)), self._row)
            return pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
        arrays = [pa.array(columns[name], kind.arrow) for name, kind in self.kinds.items()]
        return pa.Table.from_arrays(arrays, schema=self.arrow)

    def json_schema(self, example: dict[str, Any] | None = None) -> dict[str, Any]:
        """JSON Schema (2020-12) of one record.

        Args:
            example: a record to show, such as a golden one.
        """
        properties = {name: {**kind.json, **_about(self.columns[name])} for name, kind in self.kinds.items()}
        schema = {"type": "object", "properties": properties, "required": list(self.kinds), "additionalProperties": False}
        return schema if example is None else {**schema, "examples": [example]}

    def _checked(self, columns: dict[str, list]) -> Columns:
        checked = {}
        for name, accepted, convert in self._checks:
            values = columns[name]
            types = set(map(type, values))
            if not types <= accepted:
                self._refuse_value(name, values)
            try:
                checked[name] = convert(values, types)
            except (ValueError, OverflowError):
                self._refuse_value(name, values)
        return checked

    def _refuse_value(self, name: str, values: list) -> NoReturn:
        fault = self.kinds[name].fault
        row, said = next((row, said) for row, said in enumerate(map(fault, values)) if said)
        raise InvalidRecords(422, f"field '{name}': {said}", row, name)

    def _refuse_shape(self, records: list) -> NoReturn:
        for row, record in enumerate(records):
            if not isinstance(record, dict):
                raise InvalidRecords(422, f"expected an object, found {_name_of(record)}", row)
            if record.keys() != self.kinds.keys():
                self.require_names(record, row)
        raise AssertionError("records that fit were refused")


def _tuple_of(name: str) -> Callable[[Any], tuple]:
    """itemgetter of one name gives the value itself, of several a tuple."""
    return lambda record: (record[name],)


def _about(column: ColumnState) -> dict[str, Any]:
    match column:
        case CategoryState():
            more = f" and {len(column.values) - NAMED} more" if len(column.values) > NAMED else ""
            return {"description": f"a category; training knew {', '.join(column.values[:NAMED]) or 'none'}{more}"}
        case ImageState():
            return {"description": f"an image file (PNG, JPEG) of {column.width} x {column.height} pixels in base64"}
        case DateState():
            return {"description": "a date; of a timestamp its date in UTC"}
    return {}


def shown(name: Any) -> str:
    """A client's name as a message can hold it: its beginning, without what UTF-8 cannot hold."""
    return str(name)[:80].encode(errors="replace").decode()


def _name_of(value: Any) -> str:
    """A value's type in JSON's words."""
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
