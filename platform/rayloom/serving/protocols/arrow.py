"""Arrow IPC streams as bodies: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format

A stream comes from anyone, so nothing in it is believed. Compressed buffers are refused before they are read, for a few bytes
could ask for terabytes. Only flat types are taken: views, runs and nested values can repeat a few bytes many times. What a
dictionary repeats is counted before it is copied. Every batch is validated in full (offsets, indices, UTF-8) before a value
is read.
"""

import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from rayloom.errors import InvalidRecords
from rayloom.serving.protocols.exchange import Limits, Model, Reply, require_rows
from rayloom.serving.schema import Columns, Schema, shown

STREAM = "application/vnd.apache.arrow.stream"

BATCHES, EXPANDED = 100, 64 * 2**20
"""The most batches of a stream, each of which has its dictionaries validated anew, and the most bytes that these stand for."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
"""The types of a message's header in Arrow's Message.fbs."""


def read(body: bytes, schema: Schema, limits: Limits) -> Columns:
    """The rows of a stream.

    Raises:
        InvalidRecords: 400 where this is no Arrow stream, or an empty one; 413 too many rows, or a dictionary that stands for
            too much; 422 a column is missing, unknown, there twice, compressed, or of a type that its field does not take.
    """
    try:
        _refuse_compressed(body, BATCHES * (1 + len(schema.kinds)))
        reader = pa.ipc.open_stream(pa.py_buffer(body))
        schema.require_names(reader.schema.names)
        return schema.read_columns(_columns(reader, limits))
    except (pa.ArrowException, OSError, EOFError, ValueError, IndexError, struct.error) as error:
        raise InvalidRecords(400, f"the body is not an Arrow stream: {str(error).splitlines()[0]:.200}") from None


def _columns(reader: pa.RecordBatchStreamReader, limits: Limits) -> dict[str, list]:
    names = reader.schema.names
    for field in reader.schema:
        _require_type(field)
    columns: dict[str, list] = {name: [] for name in names}
    expanded = rows = 0
    for number, batch in enumerate(reader):
        rows += len(batch)
        require_rows(rows, limits)
        if number == BATCHES:
            raise InvalidRecords(413, f"the stream has over {BATCHES} batches; write its rows in fewer")
        batch.validate(full=True)
        expanded += sum(map(_expanded, batch.columns))
        if expanded > EXPANDED:
            raise InvalidRecords(413, f"the stream's dictionaries stand for over {EXPANDED:,} bytes; send fewer rows")
        for name, array in zip(names, batch.columns, strict=True):
            columns[name] += _values(array)
    return columns


def _require_type(field: pa.Field) -> None:
    kind = field.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        flat = types.is_string(kind) or types.is_large_string(kind)
    else:
        checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string)
        more = (types.is_binary, types.is_large_binary, types.is_date, types.is_timestamp, types.is_null)
        flat = any(check(kind) for check in (*checks, *more))
    if not flat:
        name = shown(field.name)
        said = f"column '{name}' is of type {shown(field.type)}; send numbers, booleans, text, dates or binary"
        raise InvalidRecords(422, said, None, name)


def _expanded(array: pa.Array) -> int:
    """Bytes of what a dictionary array stands for."""
    if not types.is_dictionary(array.type):
        return 0
    return pc.sum(pc.take(pc.binary_length(array.dictionary), array.indices)).as_py() or 0


def _values(array: pa.Array) -> list:
    """Python values, None where the array is null."""
    kind = array.type
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if types.is_date64(kind) or types.is_timestamp(kind):
        plain = array.cast(pa.timestamp(kind.unit)) if types.is_timestamp(kind) else array  # an instant is kept in UTC
        array = plain.cast(pa.date32())
    elif types.is_float16(kind):
        array = array.cast(pa.float32())
    if not array.null_count or types.is_date32(array.type) or not _has_zero(array.type):
        return array.to_numpy(zero_copy_only=False).tolist()
    values = array.fill_null(False if types.is_boolean(kind) else 0).to_numpy(zero_copy_only=False).astype(object)
    values[array.is_null().to_numpy(zero_copy_only=False)] = None
    return values.tolist()


def _has_zero(kind: pa.DataType) -> bool:
    """NumPy's numbers and booleans have no null: whole numbers would become floats, and a float's null would be NaN."""
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def _refuse_compressed(body: bytes, most: int) -> None:
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(pa.py_buffer(body))):
        if number > most:
            raise InvalidRecords(413, f"the stream has over {most:,} messages; write its rows in fewer batches")
        if _is_compressed(message.metadata.to_pybytes()):
            raise InvalidRecords(422, "the stream has compressed buffers; write it without compression")


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message's flatbuffer (verified by its reader) has a record batch with the field `compression`."""
    root = struct.unpack_from("<I", metadata, 0)[0]
    kind = _field(metadata, root, 1)
    if kind is None or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    batch = _table(metadata, root, 2)
    if metadata[kind] == _DICTIONARY_BATCH and batch is not None:
        batch = _table(metadata, batch, 1)
    return batch is not None and _field(metadata, batch, 3) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field is, None where it is absent. https://flatbuffers.dev/internals/"""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + place)[0] if place < size else 0
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    field = _field(data, table, number)
    return None if field is None else field + struct.unpack_from("<I", data, field)[0]


def reply(answers: list[dict[str, Any]], model: Model) -> Reply:
    """Answers as a stream of one batch.

    Columns: probability float32, label int64 or text, unseen list of text (null where there is none), and for more than two
    classes probabilities, a list of float32 in the order of the schema's metadata `classes`.
    """
    labels = pa.int64() if isinstance(model.classes[0], int) else pa.string()
    arrays = {
        "probability": pa.array([answer["probability"] for answer in answers], pa.float32()),
        "label": pa.array([answer["label"] for answer in answers], labels),
        "unseen": pa.array([answer.get("unseen") for answer in answers], pa.list_(pa.string())),
    }
    if len(model.classes) > 2:
        rows = [list(answer["probabilities"].values()) for answer in answers]
        arrays["probabilities"] = pa.array(rows, pa.list_(pa.float32(), len(model.classes)))
    about = {"model": model.name, "version": str(model.version), "classes": "\n".join(map(str, model.classes))}
    table = pa.table(arrays).replace_schema_metadata(about)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Reply(sink.getvalue().to_pybytes(), [(b"content-type", STREAM.encode())])
