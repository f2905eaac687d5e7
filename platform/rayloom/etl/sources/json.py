"""JSON lines: an object a line, in UTF-8. Every declared key is text here, as it stands in the file; casts come later.

Numbers keep their digits (0.10010 stays so; a double would not hold every decimal), true and false are those words, objects
and arrays are JSON text. null and a key that a line lacks are missing. Not here: one JSON array for all.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayloom import config
from rayloom.errors import SourceError, hint
from rayloom.etl.sources import packed
from rayloom.etl.sources.columns import first_twins, require_distinct, required_types, says_twins
from rayloom.etl.sources.files import File, Hashed, content, each, find
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read

SUFFIXES = (".jsonl", ".ndjson", ".json")


class _Digits(str):
    """A number as its file writes it."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError(says_twins(first_twins(key for key, _ in pairs) or ("?", "?")))
    return record


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_Digits, parse_float=_Digits, parse_constant=_Digits)


def open(name: str, settings: config.Json) -> Opened:
    """Finds a source's files and reads the first line of each.

    Raises:
        ConfigError: `columns` is missing or no Spark DDL list.
        SourceError: a file is missing, is empty, or does not begin with a JSON object.
    """
    types = required_types(name, settings)
    files = find(settings.path, f"etl.sources.{name}.path", SUFFIXES)
    each(_first_record, files)
    return Opened(name, settings, types, files)


def _first_record(file: File) -> dict[str, Any]:
    with content(file) as raw:
        for record, _ in records(Hashed(raw), file):
            return record
    raise SourceError(f"{file.shown} is empty; it needs a JSON object a line.")


def records(stream: Hashed, file: File) -> Iterator[tuple[dict[str, Any], int]]:
    """The objects of a JSON lines stream, each with the bytes of its line; blank lines are none."""
    for number, line in enumerate(io.BufferedReader(stream, 2**20), 1):
        text = _decoded(line, file, number)
        if not text:
            continue
        try:
            record = DECODER.decode(text)
        except ValueError as error:
            raise SourceError(f"{file.shown}: line {number} is not JSON ({error}): {text:.100}; correct the line.") from None
        if not isinstance(record, dict):
            raise SourceError(f"{file.shown}: line {number} is not a JSON object: {text:.100}; write an object a line.")
        yield record, len(line)


def _decoded(line: bytes, file: File, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        raise SourceError(f"{file.shown}: line {number} is not UTF-8 text; convert the file to UTF-8.") from None


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Brings each file's declared keys as text into `scratch`, in one pass with its fingerprint.

    Raises:
        SourceError: a line is not a JSON object, two keys differ in case alone, or no line has a declared key.
    """
    digests, paths, seen = [], [], dict[str, None]()
    for index, file in enumerate(opened.files):
        paths.append(scratch / f"{opened.name}-{index:05}.parquet")
        digests.append(_pack(opened, file, paths[-1], seen))
    for column in opened.types:
        if seen and column not in seen:
            said = f"no line has the key '{column}', which etl.sources.{opened.name}.columns declares{hint(column, seen)}"
            raise SourceError(f"{opened.files[0].shown}: {said}")
    return Fetched(opened, paths, packed.combined(digests), dict.fromkeys(opened.types, "STRING"))


def _pack(opened: Opened, file: File, path: Path, seen: dict[str, None]) -> str:
    schema = pa.schema([(column, pa.string()) for column in opened.types])
    with content(file) as raw:
        stream = Hashed(raw)
        packed.write(path, schema, _batches(stream, file, schema, seen))
    return stream.hexdigest()


def _batches(stream: Hashed, file: File, schema: pa.Schema, seen: dict[str, None]) -> Iterator[pa.Table]:
    """Tables of about BATCH_BYTES of lines; the keys that occur are added to `seen`."""
    batch: list[dict[str, Any]] = []
    size = 0
    for record, length in records(stream, file):
        batch.append(record)
        size += length
        if size >= packed.BATCH_BYTES:
            yield _table(batch, schema, file, seen)
            batch, size = [], 0
    yield _table(batch, schema, file, seen)


def _table(batch: list[dict[str, Any]], schema: pa.Schema, file: File, seen: dict[str, None]) -> pa.Table:
    for record in batch:
        seen.update(dict.fromkeys(record))
    require_distinct(seen, file.shown)
    columns = [pa.array([_text(record.get(column)) for record in batch], pa.string()) for column in schema.names]
    return pa.Table.from_arrays(columns, schema=schema)


def _text(value: Any) -> str | None:
    """A value as the file writes it; text without its quotes."""
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    """JSON text without spaces, numbers with the digits they had."""
    match value:
        case _Digits():
            return value
        case dict():
            return "{" + ",".join(f"{_json(key)}:{_json(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def sample(file: File, rows: int) -> dict[str, list[str | None]]:
    """The first lines' values by key, for `infer`."""
    batch: list[dict[str, Any]] = []
    with content(file) as raw:
        for record, _ in records(Hashed(raw), file):
            batch.append(record)
            if len(batch) == rows:
                break
    keys = list(dict.fromkeys(key for record in batch for key in record))
    require_distinct(keys, file.shown)
    return {key: [_text(record.get(key)) for record in batch] for key in keys}
