"""What all protocols share: a request's headers, what was called, what is replied, and how a body becomes JSON values."""

import json
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

import orjson

from rayloom.errors import InvalidRecords, ServingError
from rayloom.serving.schema import Columns

Headers = Mapping[bytes, bytes]
"""A request's headers by name in lower case: `dict(scope["headers"])` of ASGI."""

JSON = "application/json"

ID_BYTES = 128
"""The longest id of a request that is taken from the client; `rayloom.serving.haproxy` knows it, too."""


class Limits(NamedTuple):
    """What one request may hold; the size of a body is bounded before it is decoded."""

    max_rows: int


class Model(NamedTuple):
    """The model that answered. `classes` are the labels in the order of the probabilities."""

    name: str
    version: str | int
    classes: list[int] | list[str]


class Call(NamedTuple):
    """A decoded request: n checked rows, and what its protocol needs to know when it replies."""

    columns: Columns
    rows: int
    asked: Any = None


class Reply(NamedTuple):
    """The body of a 200 and its headers, as ASGI sends them (without the length)."""

    body: bytes
    headers: list[tuple[bytes, bytes]]


def media_type(headers: Headers, known: tuple[str, ...]) -> str:
    """The body's media type, the first of `known` where the client does not say.

    Raises:
        InvalidRecords: 415 for a type not in `known`, another charset than UTF-8, or a compressed body.
    """
    if b"content-encoding" in headers and headers[b"content-encoding"].strip().lower() not in (b"", b"identity"):
        raise InvalidRecords(415, "a compressed body is not taken; send it without Content-Encoding")
    given = headers.get(b"content-type", b"").decode("latin-1")
    name, *parameters = given.lower().split(";")
    name = name.strip() or known[0]
    if name not in known:
        raise InvalidRecords(415, f"the body's type '{given:.80}' is not one of {', '.join(known)}")
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "charset" and value.strip(" '\"") not in ("utf-8", "utf8", "us-ascii"):
            raise InvalidRecords(415, f"the charset '{value.strip():.40}' is not UTF-8; send the body in UTF-8")
    return name


def request_id(headers: Headers) -> str:
    """The id that a reply's x-request-id has, too. HAProxy and Ray see to it that there is one: the client's where it is short
    and printable, else a new one."""
    return headers.get(b"x-request-id", b"-")[:ID_BYTES].decode("ascii", "backslashreplace")


def loads(body: bytes) -> Any:
    """The values of a JSON body; strict: no NaN, no number beyond a float, no lone surrogate, at most 1,024 levels.

    Raises:
        InvalidRecords: 400.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        _refuse(error)


def loads_with_nan(body: bytes) -> Any:
    """`loads` for protocols whose clients write with Python's json, which writes a missing number as NaN: it is null.

    Raises:
        InvalidRecords: 400.
    """
    try:
        return loads(body)
    except InvalidRecords:
        if b"NaN" not in body and b"Infinity" not in body:
            raise
    try:
        values = json.loads(body.decode(), parse_constant=_constant)
        json.dumps(values, ensure_ascii=False).encode()  # a lone surrogate, which orjson refuses, would pass unseen
        return values
    except (ValueError, RecursionError) as error:
        _refuse(error)


def _constant(name: str) -> float | None:
    return None if name == "NaN" else float(name)


def _refuse(error: Exception) -> NoReturn:
    raise InvalidRecords(400, f"the body is not JSON: {error!s:.200}") from None


def require_rows(rows: int, limits: Limits) -> None:
    """
    Raises:
        InvalidRecords: 413.
    """
    if rows > limits.max_rows:
        raise InvalidRecords(413, f"{rows:,} records, the limit is {limits.max_rows:,}; send them in parts")


def require_finite(answers: list[dict[str, Any]]) -> None:
    """A model whose answer is NaN has failed: JSON has no NaN, and null would be taken for an answer.

    Raises:
        ServingError: an answer's probability is not finite.
    """
    if not math.isfinite(sum(map(itemgetter("probability"), answers))):
        raise ServingError("The model answered with a probability that is not a number; look at its weights and its inputs.")


def json_reply(body: Any) -> Reply:
    return Reply(orjson.dumps(body), [(b"content-type", b"application/json")])


def named(model: Model) -> dict[str, Any]:
    """How an answer names the model."""
    return {"name": model.name, "version": model.version}
