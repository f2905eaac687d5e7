"""POST /v2/models/{m}/infer: the Open Inference Protocol (KServe v2) with its extension for binary tensors.

    https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

Each field of the model is an input tensor of shape [n] or [n, 1]:
    {"id": "7", "inputs": [{"name": "distance", "datatype": "FP64", "shape": [2], "data": [500, 700]}, ...]}
The outputs are probability, FP32 [n] of the second of two classes or [n, classes]; label, INT64 or BYTES [n]; and unseen,
BYTES [n], the names (with a comma between them) of the record's categories that training did not know.

Tensors come from arrays that have no null: NaN is null, in binary and as Python's json writes it; JSON's null is taken too.
Keys that the protocol does not know are ignored, as it asks. Not here: BF16, shared memory, sequences, classification, gRPC.
"""

import struct
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import orjson

from rayloom.errors import InvalidRecords, hint
from rayloom.serving.protocols.exchange import (
    JSON,
    Call,
    Headers,
    Limits,
    Model,
    Reply,
    loads_with_nan,
    media_type,
    require_finite,
    require_rows,
)
from rayloom.serving.schema import BOOLEAN, DATE, IMAGE, INTEGER, NUMBER, TEXT, Kind, Schema, shown

BINARY = "application/octet-stream"
LENGTH = b"inference-header-content-length"

DTYPES = {
    "BOOL": "u1",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""How an element of a datatype is in binary; BYTES is a length of 4 bytes and as many bytes."""

INTEGERS = tuple(datatype for datatype in DTYPES if "INT" in datatype)
FITS = {NUMBER: (*INTEGERS, "FP16", "FP32", "FP64"), INTEGER: INTEGERS, BOOLEAN: ("BOOL",)}
"""The datatypes that a field takes; BYTES where it is not named."""

DATATYPES = {NUMBER: "FP64", INTEGER: "INT64", BOOLEAN: "BOOL", TEXT: "BYTES", DATE: "BYTES", IMAGE: "BYTES"}
OUTPUTS = ("probability", "label", "unseen")


class Asked(NamedTuple):
    """What a request says about its reply: its id, and by name of each output whether it is to be binary."""

    id: str | None
    outputs: dict[str, bool]


class Target(NamedTuple):
    """What a path below /v2/models is about. `verb`: "infer", "ready" or "" (metadata)."""

    model: str
    version: str | None
    verb: str


def target(path: str) -> Target | None:
    """The model, version and verb of /v2/models/{m}[/versions/{v}][/infer|/ready]; None where the path is none of these."""
    parts = path.removesuffix("/").split("/")
    if parts[:3] != ["", "v2", "models"] or len(parts) < 4 or not parts[3]:
        return None
    model, rest = unquote(parts[3]), parts[4:]
    version = unquote(rest[1]) if len(rest) > 1 and rest[0] == "versions" else None
    rest = rest[2:] if version else rest
    return Target(model, version, rest[0] if rest else "") if rest in ([], ["infer"], ["ready"]) else None


def server(version: str) -> dict[str, Any]:
    """GET /v2."""
    return {"name": "rayloom", "version": version, "extensions": ["binary_tensor_data"]}


def live() -> dict[str, Any]:
    """GET /v2/health/live."""
    return {"live": True}


def ready(is_ready: bool) -> dict[str, Any]:
    """GET /v2/health/ready; with 503 where it is not."""
    return {"ready": is_ready}


def metadata(schema: Schema, model: Model) -> dict[str, Any]:
    """GET /v2/models/{m}."""
    shape = [-1, len(model.classes)] if len(model.classes) > 2 else [-1]
    outputs = {"probability": ("FP32", shape), "label": (_label_type(model), [-1]), "unseen": ("BYTES", [-1])}
    return {
        "name": model.name,
        "versions": [str(model.version)],
        "platform": "rayloom",
        "inputs": [{"name": name, "datatype": DATATYPES[kind], "shape": [-1]} for name, kind in schema.kinds.items()],
        "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in outputs.items()],
    }


def decode(body: bytes, headers: Headers, schema: Schema, limits: Limits) -> Call:
    """A request's rows.

    Raises:
        InvalidRecords: 400, 413, 415 or 422.
    """
    media_type(headers, (JSON, BINARY))
    header, tail = _parts(body, headers)
    request = loads_with_nan(header)
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), list) or not request["inputs"]:
        raise InvalidRecords(400, "expected an object with 'inputs', a list of tensors")
    asked = _asked(request)
    columns = _columns(request["inputs"], tail, schema, limits)
    checked = schema.read_columns(columns)
    return Call(checked, len(next(iter(checked.values()))), asked)


def refuse(error: InvalidRecords) -> dict[str, Any]:
    """The JSON body of an error: the protocol has a sentence only, so the row is told in it."""
    return {"error": str(error) if error.row is None else f"row {error.row}: {error}"}


def _parts(body: bytes, headers: Headers) -> tuple[bytes, bytes]:
    """The JSON of a request, and the binary data after it."""
    if LENGTH not in headers:
        return body, b""
    text = headers[LENGTH].strip()
    if not text.isdigit() or len(text) > 18 or int(text) > len(body):
        said = text.decode("latin-1")
        raise InvalidRecords(400, f"Inference-Header-Content-Length '{said:.40}' is no length within the body")
    return body[: int(text)], body[int(text) :]


def _asked(request: dict[str, Any]) -> Asked:
    name = request.get("id")
    if not isinstance(name, str | None):
        raise InvalidRecords(400, "'id' is not text")
    binary = _parameters(request, "the request").get("binary_data_output", False) is True
    outputs = request.get("outputs")
    if outputs is None or outputs == []:
        return Asked(name, dict.fromkeys(OUTPUTS, binary))
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise InvalidRecords(400, "'outputs' is not a list of objects")
    chosen = {}
    for output in outputs:
        wanted = output.get("name")
        if not isinstance(wanted, str) or wanted not in OUTPUTS:
            raise InvalidRecords(400, f"unknown output '{shown(wanted)}'{hint(shown(wanted), OUTPUTS)}")
        parameters = _parameters(output, f"output '{wanted}'")
        if "classification" in parameters:
            raise InvalidRecords(400, f"output '{wanted}': classification is not supported; 'label' is the most probable class")
        chosen[wanted] = parameters.get("binary_data", binary) is True
    return Asked(name, chosen)


def _parameters(holder: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = holder.get("parameters")
    if not isinstance(parameters, dict | None):
        raise InvalidRecords(400, f"'parameters' of {where} is not an object")
    parameters = parameters or {}
    if "shared_memory_region" in parameters:
        raise InvalidRecords(400, f"{where}: shared memory is not supported; send the data in the body")
    return parameters


def _columns(inputs: list, tail: bytes, schema: Schema, limits: Limits) -> dict[str, list]:
    """The values of all inputs; the binary ones lie one after the other in `tail`."""
    columns: dict[str, list] = {}
    start = 0
    for tensor in inputs:
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise InvalidRecords(400, "an input is not an object with a 'name'")
        name = tensor["name"]
        if name not in schema.kinds or name in columns:
            said = "is there twice" if name in columns else f"is unknown{hint(shown(name), schema.kinds)}"
            raise InvalidRecords(422, f"input '{shown(name)}' {said}", None, shown(name))
        rows = _rows(name, tensor, limits)
        datatype = _datatype(name, tensor, schema.kinds[name])
        size = _parameters(tensor, f"input '{name}'").get("binary_data_size")
        if size is None:
            columns[name] = _json_values(name, tensor, datatype, rows)
            continue
        if type(size) is not int or not 0 <= size <= len(tail) - start or "data" in tensor:
            raise InvalidRecords(400, f"input '{name}': 'binary_data_size' is not what is there of binary data", None, name)
        data = tail[start : start + size]
        columns[name] = _binary_values(name, data, datatype, rows, schema.kinds[name])
        start += size
    if start != len(tail):
        raise InvalidRecords(400, f"{len(tail) - start:,} bytes of binary data belong to no input")
    return columns


def _rows(name: str, tensor: dict[str, Any], limits: Limits) -> int:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or set(map(type, shape)) != {int} or min(shape) < 0 or shape[1:] not in ([], [1]):
        raise InvalidRecords(422, f"input '{name}': expected a shape [n] or [n, 1]", None, name)
    require_rows(shape[0], limits)
    return shape[0]


def _datatype(name: str, tensor: dict[str, Any], kind: Kind) -> str:
    """The datatype of an input, which must be one that its field can hold."""
    datatype = tensor.get("datatype")
    fits = FITS.get(kind, ("BYTES",))
    if datatype not in fits:
        raise InvalidRecords(422, f"input '{name}': datatype '{shown(datatype)}' is not one of {', '.join(fits)}", None, name)
    return datatype


def _json_values(name: str, tensor: dict[str, Any], datatype: str, rows: int) -> list:
    data = tensor.get("data")
    if not isinstance(data, list):
        raise InvalidRecords(422, f"input '{name}': expected 'data' as a list", None, name)
    if data and set(map(type, data)) == {list} and set(map(len, data)) == {1}:
        data = [value for (value,) in data]
    if len(data) != rows:
        raise InvalidRecords(422, f"input '{name}': {len(data):,} values, its shape says {rows:,}", None, name)
    if "INT" in datatype:
        _require_range(name, data, datatype)
    return data


def _require_range(name: str, data: list, datatype: str) -> None:
    """Whole numbers that the datatype holds; whether the field takes their type is the schema's to say."""
    held = np.iinfo(DTYPES[datatype])
    for row, value in enumerate(data):
        if value is not None and (type(value) is not int or not held.min <= value <= held.max):
            raise InvalidRecords(422, f"input '{name}': expected whole numbers of {datatype}", row, name)


def _binary_values(name: str, data: bytes, datatype: str, rows: int, kind: Kind) -> list:
    if datatype == "BYTES":
        return _read_bytes(name, data, rows, kind)
    dtype = np.dtype(DTYPES[datatype])
    if len(data) != rows * dtype.itemsize:
        raise InvalidRecords(422, f"input '{name}': {len(data):,} bytes are not {rows:,} of {datatype}", None, name)
    array = np.frombuffer(data, dtype)
    if datatype == "BOOL":
        if (wrong := np.flatnonzero(array > 1)).size:
            raise InvalidRecords(422, f"input '{name}': expected bytes of 0 or 1", int(wrong[0]), name)
        return array.astype(bool).tolist()
    values = array.tolist()
    return [None if value != value else value for value in values] if datatype.startswith("FP") else values


def _read_bytes(name: str, data: bytes, rows: int, kind: Kind) -> list:
    """Elements of a BYTES tensor: a file where the field is an image, else UTF-8."""
    values: list = []
    start = 0
    for row in range(rows):
        size = struct.unpack_from("<I", data, start)[0] if start + 4 <= len(data) else len(data)
        item = data[start + 4 : start + 4 + size]
        if start + 4 + size > len(data):
            raise InvalidRecords(422, f"input '{name}': its binary data ends within an element", row, name)
        try:
            values.append(item if kind is IMAGE else item.decode())
        except UnicodeDecodeError:
            raise InvalidRecords(422, f"input '{name}': expected text in UTF-8", row, name) from None
        start += 4 + size
    if start != len(data):
        raise InvalidRecords(422, f"input '{name}': its binary data has more than {rows:,} elements", None, name)
    return values


def encode(answers: list[dict[str, Any]], model: Model, call: Call) -> Reply:
    """The reply: JSON, and after it the outputs that were asked for in binary.

    Raises:
        ServingError: an answer is not finite.
    """
    require_finite(answers)
    asked: Asked = call.asked
    tensors = [_output(name, answers, model, binary) for name, binary in asked.outputs.items()]
    about: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version)}
    if asked.id is not None:
        about["id"] = asked.id
    header = orjson.dumps({**about, "outputs": [tensor for tensor, _ in tensors]})
    tail = b"".join(data for _, data in tensors)
    if not any(asked.outputs.values()):
        return Reply(header, [(b"content-type", JSON.encode())])
    length = (LENGTH, str(len(header)).encode())
    return Reply(header + tail, [(b"content-type", BINARY.encode()), length])


def _output(name: str, answers: list[dict[str, Any]], model: Model, binary: bool) -> tuple[dict[str, Any], bytes]:
    """An output tensor and its binary data."""
    values, datatype, shape = _tensor(name, answers, model)
    tensor = {"name": name, "datatype": datatype, "shape": shape}
    if not binary:
        return {**tensor, "data": values}, b""
    data = _pack(values) if datatype == "BYTES" else np.array(values, DTYPES[datatype]).tobytes()
    return {**tensor, "parameters": {"binary_data_size": len(data)}}, data


def _tensor(name: str, answers: list[dict[str, Any]], model: Model) -> tuple[list, str, list[int]]:
    """An output's values in row-major order, its datatype and shape."""
    if name == "label":
        return [answer["label"] for answer in answers], _label_type(model), [len(answers)]
    if name == "unseen":
        return [",".join(answer.get("unseen", ())) for answer in answers], "BYTES", [len(answers)]
    if len(model.classes) == 2:
        return [answer["probability"] for answer in answers], "FP32", [len(answers)]
    flat = [probability for answer in answers for probability in answer["probabilities"].values()]
    return flat, "FP32", [len(answers), len(model.classes)]


def _label_type(model: Model) -> str:
    return "INT64" if isinstance(model.classes[0], int) else "BYTES"


def _pack(texts: list[str]) -> bytes:
    items = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(item)) + item for item in items)
