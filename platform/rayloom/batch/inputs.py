"""Files to predict: surveyed once and cut into blocks of rows, then read a chunk at a time, what is wrong with a row beside it.

    .parquet           as the dataset versions have them; a column of a wrong type refuses the file
    .csv               RFC 4180 with a header, UTF-8; every cell is text and has to mean what the model's field is
    .jsonl, .ndjson    an object a line, by the rules of a served record; what the model does not know is ignored

A row's number counts the file's records from 0; a text file's blank lines count, and are no rows. Memory holds one chunk,
whatever the file's size.
"""

import csv
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from rayloom import config, features
from rayloom.batch import records
from rayloom.batch.records import Chunk, Failure, Fields
from rayloom.errors import DataError, SourceError, hint

SUFFIXES = (".parquet", ".csv", ".jsonl", ".ndjson")

READ = 4 * 2**20
"""Bytes of a text file looked through at once."""

PIECES = 4
"""Blocks of one row group at most: each of them decodes it from its beginning."""

LONGEST_CELL = 16 * 2**20
"""Characters of a CSV cell; a quote that is never closed would otherwise take the rest of the file."""

BOM = b"\xef\xbb\xbf"


class Block(BaseModel):
    """Consecutive rows of a file.

    Attributes:
        file: its path below the root.
        first: the number of its first row.
        rows: how many rows; blank lines of a text file among them.
        start, end: its bytes, where the file is text.
        header: the file's columns, where it is CSV.
        multiline: whether the file has cells with a line's end in them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    first: int
    rows: int
    start: int = 0
    end: int = 0
    header: list[str] = []
    multiline: bool = False


class Input(BaseModel):
    """A file as it was found: its content, and how it is cut."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    bytes: int
    sha256: str
    blocks: list[Block]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)


def survey(root: Path, file: str, spec: config.Features, keep: list[str], rows: int) -> Input:
    """Reads a file once: checksum, columns and cuts.

    Args:
        file: path below `root`.
        spec: the features section of the bundle.
        keep: further columns that must be there.
        rows: rows of a block; the last has what is left, and those of Parquet go by its row groups.

    Raises:
        SourceError: it cannot be read, is of no known kind, or lacks a column or has it in an unusable type.
    """
    path = root / file
    try:
        return _surveyor(path)(path, file, spec, keep, rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(
            f"{path} cannot be read ({str(error).splitlines()[0]:.200}); correct or leave out the file."
        ) from None


def _unreadable(path: Path, error: Exception) -> SourceError:
    return SourceError(f"{path} cannot be read ({str(error).splitlines()[0]:.200}); correct it or leave it out.")


def _surveyor(path: Path) -> Callable[..., Input]:
    known = {".parquet": _survey_parquet, ".csv": _survey_csv, ".jsonl": _survey_json, ".ndjson": _survey_json}
    if path.suffix not in known:
        raise SourceError(f"{path} is of no kind that is known by its name{hint(path.suffix, SUFFIXES)}")
    return known[path.suffix]


def _survey_parquet(path: Path, file: str, spec: config.Features, keep: list[str], rows: int) -> Input:
    with pq.ParquetFile(path) as opened:
        schema, sizes = opened.schema_arrow, _group_sizes(opened.metadata)
    _require_names(path, schema.names, [*spec.columns, *keep])
    labelled = schema if spec.label in schema.names else schema.append(pa.field(spec.label, pa.null()))
    try:
        features.check_types(spec, labelled)
    except DataError as error:
        raise SourceError(f"{path}: {error}") from None
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    blocks = [Block(file=file, first=first, rows=size) for first, size in _group_cuts(sizes, rows)]
    return Input(file=file, bytes=path.stat().st_size, sha256=digest, blocks=blocks)


def _group_sizes(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def _group_cuts(sizes: list[int], rows: int) -> Iterator[tuple[int, int]]:
    """First row and rows of each block: small row groups together, a large one in at most PIECES, whatever `rows` says."""
    first, held = 0, 0
    for size in sizes:
        if held and held + size > rows:
            yield first, held
            first, held = first + held, 0
        held += size
        if held > rows:
            piece = max(rows, -(-held // PIECES))
            yield from ((first + begin, min(piece, held - begin)) for begin in range(0, held, piece))
            first, held = first + held, 0
    if held:
        yield first, held


def _survey_json(path: Path, file: str, spec: config.Features, keep: list[str], rows: int) -> Input:
    lines = _look_through(path, 0, rows)
    return Input(file=file, bytes=lines.size, sha256=lines.sha256, blocks=_blocks(file, 0, lines.size, lines.cuts, rows))


def _survey_csv(path: Path, file: str, spec: config.Features, keep: list[str], rows: int) -> Input:
    with path.open("rb") as content:
        counted = _Counted(content)
        header = next(_csv_records(counted), [])
    if isinstance(header, str):
        raise SourceError(f"{path}: its header is {header}; correct or leave out the file.")
    _require_names(path, header, [*spec.columns, *keep])
    lines = _look_through(path, counted.position, rows)
    cuts = _csv_cuts(path, counted.position, rows) if lines.quotes else lines.cuts
    multiline = cuts.rows != lines.cuts.rows
    blocks = _blocks(file, counted.position, lines.size, cuts, rows, header=header, multiline=multiline)
    return Input(file=file, bytes=lines.size, sha256=lines.sha256, blocks=blocks)


def _require_names(path: Path, found: list[str], wanted: list[str]) -> None:
    for name in wanted:
        if found.count(name) != 1:
            there = "no column" if name not in found else f"{found.count(name)} columns"
            raise SourceError(f"{path} has {there} '{name}'{hint(name, found) if name not in found else '; rename one.'}")


def _blocks(file: str, start: int, size: int, cuts: "_Cuts", rows: int, **about: Any) -> list[Block]:
    starts = [start, *cuts.places]
    ends = [*cuts.places, size]
    firsts = range(0, len(starts) * rows, rows)
    return [
        Block(file=file, first=first, rows=min(rows, cuts.rows - first), start=begin, end=end, **about)
        for first, begin, end in zip(firsts, starts, ends, strict=True)
        if first < cuts.rows
    ]


@dataclass
class _Cuts:
    """Bytes after each full block, and the number of rows."""

    places: list[int]
    rows: int


@dataclass(frozen=True)
class _Lines:
    """What a pass over a text file finds; `cuts` take each line for a row."""

    size: int
    sha256: str
    quotes: bool
    cuts: _Cuts


def _look_through(path: Path, start: int, rows: int) -> _Lines:
    digest, cuts, position, quotes, last = hashlib.sha256(), _Cuts([], 0), 0, False, b""
    with path.open("rb") as content:
        while data := content.read(READ):
            digest.update(data)
            quotes = quotes or b'"' in data
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + position + 1
            ends = ends[ends > start]
            cuts.places += ends[-(cuts.rows + 1) % rows :: rows].tolist()
            cuts.rows += len(ends)
            position, last = position + len(data), data[-1:]
    if position > start and last != b"\n":
        cuts.rows += 1
    return _Lines(position, digest.hexdigest(), quotes, cuts)


def _csv_cuts(path: Path, start: int, rows: int) -> _Cuts:
    """Where rows end, of a file with quotes: a line's end may stand within them."""
    cuts = _Cuts([], 0)
    with path.open("rb") as content:
        content.seek(start)
        counted = _Counted(content, start)
        for _ in _csv_records(counted):
            cuts.rows += 1
            if cuts.rows % rows == 0:
                cuts.places.append(counted.position)
    return cuts


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


class _Counted:
    """A file's lines as text, up to `end`, and how far they have been taken. Bytes that are not UTF-8 become surrogates."""

    def __init__(self, content: BinaryIO, position: int = 0, end: int | None = None):
        self.content, self.position, self.end = content, position, end

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return _text(self.take())

    def take(self) -> bytes:
        line = b"" if self.position == self.end else self.content.readline()
        if not line:
            raise StopIteration
        at_start, self.position = self.position == 0, self.position + len(line)
        return line.removeprefix(BOM) if at_start else line


@contextmanager
def _long_cells() -> Iterator[None]:
    """The limit is the whole process's, and others in it hold cells of requests and headers to the usual one."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_records(lines: Iterator[str]) -> Iterator[list[str] | str]:
    """The records, [] for a blank line, or what is wrong with one; the next one begins on the next line."""
    reader = csv.reader(lines)
    while True:
        try:
            with _long_cells():
                record = next(reader, None)
        except csv.Error as error:
            yield f"no CSV: {error}"
            continue
        if record is None:
            return
        yield record


def read(root: Path, block: Block, fields: Fields, rows: int) -> Iterator[Chunk]:
    """A block's rows in chunks of at most `rows`; at least one chunk.

    Raises:
        SourceError: the file cannot be read.
    """
    path = root / block.file
    readers = {".parquet": _read_parquet, ".csv": _read_csv}
    try:
        yield from readers.get(path.suffix, _read_json)(path, block, fields, rows)
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(
            f"{path} cannot be read ({str(error).splitlines()[0]:.200}); correct or leave out the file."
        ) from None


def _read_parquet(path: Path, block: Block, fields: Fields, rows: int) -> Iterator[Chunk]:
    with pq.ParquetFile(path) as opened:
        kept = fields.kept(opened.schema_arrow.names)
        groups, number = _row_groups(opened.metadata, block)
        columns = [*dict.fromkeys([*fields.names, *kept.values()])]
        for batch in opened.iter_batches(rows, row_groups=groups, columns=columns):
            begin, end = max(block.first - number, 0), min(block.first + block.rows - number, len(batch))
            number += len(batch)
            if begin < end:
                table = pa.Table.from_batches([batch.slice(begin, end - begin)])
                places = np.arange(number - len(batch) + begin, number - len(batch) + end)
                chosen = pa.table({name: table[source] for name, source in kept.items()})
                yield records.typed(fields, places, table.select(fields.names), chosen)


def _row_groups(metadata: pq.FileMetaData, block: Block) -> tuple[list[int], int]:
    """The row groups that hold a block's rows, and the number of the first row in them."""
    sizes = np.array(_group_sizes(metadata))
    ends = sizes.cumsum()
    touched = np.flatnonzero((ends > block.first) & (ends - sizes < block.first + block.rows))
    return touched.tolist(), int((ends - sizes)[touched[0]])


def _read_csv(path: Path, block: Block, fields: Fields, rows: int) -> Iterator[Chunk]:
    convert = partial(records.from_cells, fields, block.header)
    with path.open("rb") as content:
        content.seek(block.start)
        counted = _Counted(content, block.start, block.end)
        if block.multiline:
            yield from _by_chunk(_csv_records(counted), block.first, rows, convert)
            return
        number = block.first
        while lines := list(islice(iter(partial(_next_line, counted), None), rows)):
            plain = records.from_plain_csv(fields, block.header, number, lines)
            yield from [plain] if plain else _by_chunk(_csv_records(map(_text, lines)), number, rows, convert)
            number += len(lines)


def _read_json(path: Path, block: Block, fields: Fields, rows: int) -> Iterator[Chunk]:
    with path.open("rb") as content:
        content.seek(block.start)
        counted = _Counted(content, block.start, block.end)
        found = (_parsed(line) for line in iter(partial(_next_line, counted), None))
        yield from _by_chunk(found, block.first, rows, partial(records.from_objects, fields))


def _next_line(counted: _Counted) -> bytes | None:
    try:
        return counted.take()
    except StopIteration:
        return None


def _parsed(line: bytes) -> Any:
    """A line's object, [] where it is blank, or what is wrong with it."""
    if not line.strip():
        return []
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return f"no JSON: {error!s:.200}"
    return found if isinstance(found, dict) else "no JSON object"


def _by_chunk(found: Iterator[Any], number: int, rows: int, convert: Callable[..., Chunk]) -> Iterator[Chunk]:
    """Sorts records, blank lines and what is wrong apart, and converts the records."""
    while taken := list(islice(found, rows)):
        numbered = list(enumerate(taken, number))
        number += len(taken)
        good = [(place, one) for place, one in numbered if one != [] and not isinstance(one, str)]
        failures = [Failure(place, None, one) for place, one in numbered if isinstance(one, str)]
        chunk = convert(np.array([place for place, _ in good], np.int64), [one for _, one in good])
        yield chunk.with_more(failures, blank=len(taken) - len(good) - len(failures))
