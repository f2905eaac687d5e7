"""POST /predict: a JSON list of records, or an Arrow IPC stream for many; the form that is Rayloom's own.

    [{"carrier": "UA", ...}] -> {"model": {"name", "version"}, "predictions": [answers]}

An answer is as `rayloom.serving.predictor` says. `Accept: application/vnd.apache.arrow.stream` asks for an Arrow stream.
"""

from typing import Any

from rayloom.errors import InvalidRecords
from rayloom.serving.protocols import arrow
from rayloom.serving.protocols.exchange import (
    JSON,
    Call,
    Headers,
    Limits,
    Model,
    Reply,
    json_reply,
    loads,
    media_type,
    named,
    require_finite,
    require_rows,
)
from rayloom.serving.schema import Schema

TYPES = (JSON, arrow.STREAM, "application/x-www-form-urlencoded")
"""The last is what `curl -d` says of any body; it is read as JSON."""


def decode(body: bytes, headers: Headers, schema: Schema, limits: Limits) -> Call:
    """A request's rows.

    Raises:
        InvalidRecords: 400, 413, 415 or 422.
    """
    wants_arrow = arrow.STREAM.encode() in headers.get(b"accept", b"")
    if media_type(headers, TYPES) == arrow.STREAM:
        columns = arrow.read(body, schema, limits)
        return Call(columns, len(next(iter(columns.values()))), wants_arrow)
    records = loads(body)
    if isinstance(records, list):
        require_rows(len(records), limits)
    return Call(schema.read(records), len(records), wants_arrow)


def encode(answers: list[dict[str, Any]], model: Model, call: Call) -> Reply:
    """The reply.

    Raises:
        ServingError: an answer is not finite.
    """
    require_finite(answers)
    if call.asked:
        return arrow.reply(answers, model)
    return json_reply({"model": named(model), "predictions": answers})


def refuse(error: InvalidRecords) -> dict[str, Any]:
    """The JSON body of an error."""
    return error.body()
