"""Rows of files as tables for the predictor, by the rules of a served record: a row that breaks one is set aside alone."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from rayloom.errors import InvalidRecords
from rayloom.features import FeatureState
from rayloom.serving.schema import Columns, Schema

TRUTH = "truth"
"""The output's name of the label's column, where the rows have one."""

SHOWN = 40
"""Characters of a cell that a reason shows."""

NUMERALS = {pa.float64(): "a number", pa.int64(): "a whole number", pa.bool_(): "true or false"}
"""Types that are no text in a record, and so have to be read from a cell's text."""


@dataclass(frozen=True)
class Failure:
    """Why a row is not predicted.

    Attributes:
        row: its number in the file.
        field: the field at fault, where it is one.
    """

    row: int
    field: str | None
    reason: str


@dataclass(frozen=True)
class Fields:
    """What of a row is read.

    Attributes:
        schema: what the model needs.
        label: the label's column.
        keep: columns that go to the output as they are.
        missing: what a cell of a CSV file holds where its value is not known.
    """

    schema: Schema
    label: str
    keep: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=lambda: [""])

    @classmethod
    def of(cls, state: FeatureState, keep: list[str], missing: list[str]) -> "Fields":
        return cls(Schema(state.columns), state.label, keep, missing)

    @property
    def names(self) -> list[str]:
        """The model's columns."""
        return list(self.schema.kinds)

    def needed(self, header: list[str]) -> list[str]:
        """The columns that are read of a file with these."""
        return list(dict.fromkeys([*self.names, *self.kept(header).values()]))

    def kept(self, there: list[str]) -> dict[str, str]:
        """A file's column by the output's name."""
        truth = {TRUTH: self.label} if self.label in there else {}
        return {**truth, **{name: name for name in self.keep}}


@dataclass(frozen=True)
class Chunk:
    """n rows to predict, and the rows beside them that cannot be.

    Attributes:
        rows: int64 (n,), their numbers in the file.
        inputs: the model's columns.
        kept: the columns that go to the output.
        blank: blank lines among them.
    """

    rows: np.ndarray
    inputs: pa.Table
    kept: pa.Table
    failures: list[Failure] = field(default_factory=list)
    blank: int = 0

    def where(self, good: np.ndarray, failures: list[Failure]) -> "Chunk":
        """Without the rows where `good`, bool (n,), is false: they have failed."""
        mask = pa.array(good)
        kept = self.kept.filter(mask) if self.kept.num_columns else self.kept
        return Chunk(self.rows[good], self.inputs.filter(mask), kept, self.failures + failures, self.blank)

    def with_more(self, failures: list[Failure], blank: int) -> "Chunk":
        return replace(self, failures=self.failures + failures, blank=self.blank + blank)


Bad = dict[int, str]
"""Reason by place in the chunk."""


def typed(fields: Fields, rows: np.ndarray, inputs: pa.Table, kept: pa.Table) -> Chunk:
    """Rows whose columns have types: what can still be wrong is a number that is not finite. NaN means missing."""
    bad = {name: _infinite(name, inputs[name]) for name in inputs.column_names if pa.types.is_floating(inputs[name].type)}
    return _without(Chunk(rows, inputs, kept), bad)


def _infinite(name: str, values: pa.ChunkedArray) -> Bad:
    if not pc.any(pc.is_inf(values)).as_py():
        return {}
    return {int(place): _not_finite(name) for place in np.flatnonzero(pc.fill_null(pc.is_inf(values), False).to_numpy())}


def _not_finite(name: str) -> str:
    return f"field '{name}': expected a finite number"


def _without(chunk: Chunk, bad: dict[str, Bad]) -> Chunk:
    """The chunk without the rows that are bad in a field; the first such field gives the reason."""
    reasons: dict[int, tuple[str, str]] = {}
    for name, found in bad.items():
        for place, reason in found.items():
            reasons.setdefault(place, (name, reason))
    if not reasons:
        return chunk
    good = np.ones(len(chunk.rows), bool)
    good[list(reasons)] = False
    return chunk.where(good, [Failure(int(chunk.rows[place]), *reasons[place]) for place in sorted(reasons)])


def from_cells(fields: Fields, header: list[str], rows: np.ndarray, cells: list[list[str]]) -> Chunk:
    """Records of a CSV file, each a list of as many cells as the header has, or a failure."""
    width = np.array([len(one) == len(header) for one in cells], bool)
    short = [
        Failure(int(rows[place]), None, f"{len(cells[place])} cells, the header has {len(header)}")
        for place in np.flatnonzero(~width)
    ]
    whole = [one for one in cells if len(one) == len(header)]
    texts, bad = {}, {}
    for name in fields.needed(header):
        place = header.index(name)
        texts[name], bad[name] = _texts(name, [one[place] for one in whole], fields.missing)
    chunk = _from_columns(fields, header, rows[width], texts, bad)
    return chunk.with_more(short, blank=0)


def from_plain_csv(fields: Fields, header: list[str], first: int, lines: list[bytes]) -> Chunk | None:
    """CSV records of a line each, twice as fast as `from_cells`; None where one of them is no plain record."""
    options = {
        "read_options": csv.ReadOptions(column_names=header, use_threads=False, block_size=sum(map(len, lines)) + 1),
        "convert_options": csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            include_columns=fields.needed(header),
            null_values=fields.missing,
            strings_can_be_null=True,
        ),
    }
    try:
        table = csv.read_csv(pa.BufferReader(b"".join(lines)), **options)
    except pa.ArrowInvalid:
        return None
    if len(table) != len(lines):
        return None
    texts = {name: table[name].combine_chunks() for name in table.column_names}
    return _from_columns(fields, header, np.arange(first, first + len(lines)), texts, {})


def _from_columns(
    fields: Fields, header: list[str], rows: np.ndarray, texts: dict[str, pa.Array], bad: dict[str, Bad]
) -> Chunk:
    """Rows of cells, null where they have no value; `bad` says what is wrong with them already."""
    inputs: dict[str, pa.Array] = {}
    for name in fields.names:
        inputs[name], found = _from_texts(name, fields.schema, texts[name])
        bad[name] = {**found, **bad.get(name, {})}
    kept = pa.table({name: texts[source] for name, source in fields.kept(header).items()})
    return _without(Chunk(rows, pa.table(inputs), kept), bad)


def _texts(name: str, cells: list[str], missing: list[str]) -> tuple[pa.Array, Bad]:
    """Cells as text, null where they say that they have no value."""
    bad: Bad = {}
    try:
        texts = pa.array(cells, pa.string())
    except UnicodeEncodeError:
        bad = {place: f"field '{name}': not UTF-8" for place, cell in enumerate(cells) if not _is_unicode(cell)}
        texts = pa.array([None if place in bad else cell for place, cell in enumerate(cells)], pa.string())
    return pc.if_else(pc.is_in(texts, pa.array(missing, pa.string())), None, texts), bad


def _is_unicode(cell: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in cell)


def _from_texts(name: str, schema: Schema, texts: pa.Array) -> tuple[pa.Array, Bad]:
    """A field's values from cells: a number is read as one; text, dates and images in base64 are what a client would send."""
    kind = schema.kinds[name].arrow
    if kind == pa.string():
        return texts, {}
    if kind not in NUMERALS:
        return _by_schema(name, schema, texts)
    values, bad = _cast(name, texts, kind)
    if kind == pa.float64():
        strange = np.flatnonzero(~pc.fill_null(pc.is_finite(values), True).to_numpy(zero_copy_only=False))
        bad |= {int(place): _not_finite(name) for place in strange}
    return values, bad


def _cast(name: str, texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bad]:
    trimmed = pc.utf8_trim_whitespace(texts)
    try:
        return pc.cast(trimmed, kind), {}
    except pa.ArrowInvalid:
        bad = {place: _wrong(name, kind, cell) for place, cell in enumerate(trimmed) if not _casts(cell, kind)}
        good = pa.array([place not in bad for place in range(len(trimmed))])
        return pc.cast(pc.if_else(good, trimmed, None), kind), bad


def _casts(cell: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        pc.cast(cell, kind)
        return True
    except pa.ArrowInvalid:
        return False


def _wrong(name: str, kind: pa.DataType, cell: pa.Scalar) -> str:
    return f"field '{name}': expected {NUMERALS[kind]}, found '{cell.as_py()[:SHOWN]}'"


def _by_schema(name: str, schema: Schema, texts: pa.Array) -> tuple[pa.Array, Bad]:
    """A field's values by the served records' own rule; equal cells are looked at once."""
    encoded, kind = texts.dictionary_encode(), schema.kinds[name]
    cells = encoded.dictionary.to_pylist()
    faults = list(map(kind.fault, cells))
    good = [None if fault else cell for cell, fault in zip(cells, faults, strict=True)]
    values = pa.array(kind.convert(good, {str}), kind.arrow).take(encoded.indices)
    if not any(faults):
        return values, {}
    indices = encoded.indices.fill_null(-1).to_numpy()
    wrong = np.flatnonzero(np.array([*map(bool, faults), False])[indices])
    return values, {int(place): f"field '{name}': {faults[indices[place]]}" for place in wrong}


def from_objects(fields: Fields, rows: np.ndarray, objects: list[dict[str, Any]]) -> Chunk:
    """Records of a file of JSON lines; what the model does not know of is left out. Kept columns are text there, too."""
    columns, reasons = _checked(fields.schema, [{name: one[name] for name in fields.names if name in one} for one in objects])
    good = [place for place in range(len(objects)) if place not in reasons]
    kept = {
        name: pa.array([_text(objects[place].get(source)) for place in good], pa.string())
        for name, source in fields.kept([fields.label]).items()
    }
    failures = [Failure(int(rows[place]), error.field, error.message) for place, error in reasons.items()]
    return Chunk(rows[good], fields.schema.table(columns), pa.table(kept), failures)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _checked(schema: Schema, found: list[dict[str, Any]]) -> tuple[Columns, dict[int, InvalidRecords]]:
    """The good records' values, and what is wrong with the others by their places."""
    try:
        return schema.read(found), {}
    except InvalidRecords:  # only then are they looked at one by one
        refused = ((place, _refused(schema, one)) for place, one in enumerate(found))
        reasons = {place: error for place, error in refused if error is not None}
        good = [one for place, one in enumerate(found) if place not in reasons]
        return schema.read(good) if good else {name: [] for name in schema.kinds}, reasons


def _refused(schema: Schema, record: dict[str, Any]) -> InvalidRecords | None:
    try:
        schema.read([record])
    except InvalidRecords as error:
        return error
    return None
