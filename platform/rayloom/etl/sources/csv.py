"""CSV: RFC 4180 in UTF-8 with a header line. Every declared column is text here, byte for byte; casts come later.

Arrow's reader cuts the records: newlines within quotes are text, a quote within quotes is doubled, a quote that does not
begin a cell is text, blank lines are no records. An empty cell is missing, quoted or not, and so are the `missing` texts.
Not here: other encodings, files without a header, comments.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import csv as arrow_csv

from rayloom import config
from rayloom.errors import SourceError, hint
from rayloom.etl.sources import packed
from rayloom.etl.sources.columns import require_distinct, required_types
from rayloom.etl.sources.files import File, Hashed, content, each, find
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read

SUFFIXES = (".csv", ".tsv", ".txt")

END = "\x03\x04"
"""The cells of a record that we add after a file's last: where it is not the last to be read, a quote has no end."""


class Table(NamedTuple):
    """A CSV file and its header's names."""

    file: File
    header: list[str]


def open(name: str, settings: config.Csv) -> Opened:
    """Finds a source's files and holds each header against the declared columns.

    Raises:
        ConfigError: `columns` is missing or no Spark DDL list.
        SourceError: a file is missing, is not UTF-8 with a header, lacks a declared column, or names a column twice.
    """
    types = required_types(name, settings)
    files = find(settings.path, f"etl.sources.{name}.path", SUFFIXES)
    headers = each(lambda file: header(file, settings.delimiter), files)
    for file, names in zip(files, headers, strict=True):
        for column in types:
            if column not in names:
                declares = f"which etl.sources.{name}.columns declares"
                raise SourceError(f"{file.shown}: no column '{column}', {declares}{hint(column, filter(None, names))}")
    return Opened(name, settings, types, [Table(*pair) for pair in zip(files, headers, strict=True)])


def header(file: File, delimiter: str) -> list[str]:
    """The names in a file's header; unnamed columns are empty text."""
    with content(file) as raw:
        try:
            # What is no UTF-8 becomes surrogates: some kilobytes are decoded at once, and only the header is looked at.
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            names = next(csv.reader(text, delimiter=delimiter), [])
        except csv.Error as error:
            raise SourceError(f"{file.shown}: the header cannot be read ({error}); correct its quotes.") from None
    if any(re.search("[\0\udc80-\udcff]", name) for name in names):
        looks = ", it looks like UTF-16" if any("\0" in name for name in names) else ""
        raise SourceError(f"{file.shown}: the header is not UTF-8 text{looks}; convert the file to UTF-8.")
    if not any(names):
        raise SourceError(f"{file.shown} is empty; it needs a header line with the columns' names.")
    require_distinct(filter(None, names), file.shown)
    return names


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Brings each file's declared columns as text into `scratch`, in one pass with its fingerprint.

    Raises:
        SourceError: a record has too many or too few cells, a quote has no end, or a cell is not UTF-8 text.
    """
    digests, paths = [], []
    for index, table in enumerate(opened.files):
        path = scratch / f"{opened.name}-{index:05}.parquet"
        digests.append(_pack(opened, table, path))
        paths.append(path)
    return Fetched(opened, paths, packed.combined(digests), dict.fromkeys(opened.types, "STRING"))


def _pack(opened: Opened, table: Table, path: Path) -> str:
    ragged: list = []
    with content(table.file) as raw:
        tail = "\n" + opened.settings.delimiter.join([END] * len(table.header)) + "\n"
        stream = Hashed(raw, tail.encode(), lambda data: _refuse_nul(data, table.file))
        try:
            batches = records(stream, opened.settings, list(opened.types), ragged)
            packed.write(path, batches.schema, _before_end(batches, table.file))
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise _explained(opened, table, str(error), ragged) from None
    return stream.hexdigest()


def _refuse_nul(data: bytes, file: File) -> None:
    """Arrow's reader loses its place at NUL bytes, which no text has, in long cells."""
    if b"\0" in data:
        raise SourceError(f"{file.shown} has NUL bytes: it is UTF-16 or damaged; convert it to UTF-8, or fetch it again.")


def records(
    stream: Hashed, settings: config.Csv, columns: list[str], ragged: list, parallel: bool = True
) -> arrow_csv.CSVStreamingReader:
    """A CSV stream's records as batches of text columns; a record of another length than the header goes to `ragged`."""

    def refuse(row: arrow_csv.InvalidRow) -> str:
        ragged.append(row)
        return "error"

    return arrow_csv.open_csv(
        stream,
        arrow_csv.ReadOptions(block_size=packed.BATCH_BYTES, use_threads=parallel),
        arrow_csv.ParseOptions(delimiter=settings.delimiter, newlines_in_values=True, invalid_row_handler=refuse),
        arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            include_columns=columns,
            null_values=["", *missing_texts(settings)],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )


def missing_texts(settings: config.Csv) -> list[str]:
    return [settings.missing] if isinstance(settings.missing, str) else settings.missing


def _before_end(batches: Iterable[pa.RecordBatch], file: File) -> Iterator[pa.RecordBatch]:
    """The batches without the record that stands for the file's end."""
    last = None
    for batch in batches:
        if last is not None and batch.num_rows:
            yield last
        last = batch if batch.num_rows else last
    if last is None or any(column[-1].as_py() != END for column in last.columns):
        raise _endless(file)
    yield last.slice(0, last.num_rows - 1)


def _endless(file: File) -> SourceError:
    return SourceError(f"{file.shown}: a quote is opened that nothing closes before the file's end; correct the file.")


def _explained(opened: Opened, table: Table, said: str, ragged: list) -> SourceError:
    """Arrow's refusal of a file as a sentence with the record's number, which costs another pass."""
    file = table.file
    if ragged and END in ragged[0].text:
        return _endless(file)
    if ragged:
        row, number = ragged[0], _number_of_ragged(opened, table)
        return SourceError(
            f"{file.shown}: record {number} has {row.actual_columns} cells and the header {row.expected_columns} "
            f"({row.text!r:.80}); correct the file, or quote cells that hold '{opened.settings.delimiter}'."
        )
    if "UTF8" in said:
        return SourceError(f"{file.shown}: {_first_undecodable_line(file)} is not UTF-8 text; convert the file to UTF-8.")
    if "straddl" in said:
        size = packed.BATCH_BYTES // 2**20
        return SourceError(f"{file.shown}: a record is longer than {size} MiB; most likely a quote is opened and never closed.")
    return SourceError(f"{file.shown}: not the CSV that it was when it was opened ({said:.200}); run again.")


def _number_of_ragged(opened: Opened, table: Table) -> int:
    """Number of the first record of another length than the header, counted from 1 after it."""
    ragged: list = []
    with content(table.file) as raw:
        try:
            for _ in records(Hashed(raw), opened.settings, list(opened.types), ragged, parallel=False):
                pass
        except pa.ArrowInvalid:
            return ragged[0].number - 1
    return 0


def _first_undecodable_line(file: File) -> str:
    with content(file) as raw:
        for number, line in enumerate(io.BufferedReader(Hashed(raw)), 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} (byte 0x{line[error.start]:02x})"
    return "a cell"


def sample(opened_header: list[str], file: File, settings: config.Csv, rows: int) -> dict[str, list[str | None]]:
    """The first records' cells by column, for `infer`."""
    with content(file) as raw:
        names = [name for name in opened_header if name]
        batches = records(Hashed(raw), settings, names, [])
        try:
            first = pa.Table.from_batches([next(iter(batches), pa.RecordBatch.from_pylist([], batches.schema))])
        except pa.ArrowInvalid as error:
            raise SourceError(f"{file.shown}: {re.sub('^CSV parse error: ', '', str(error)):.200}; correct the file.") from None
    return {name: first[name].slice(0, rows).to_pylist() for name in names}
