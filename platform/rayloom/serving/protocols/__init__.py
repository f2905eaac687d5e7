"""The protocols that a model answers in, by path.

A protocol is a module of this package with
    decode(body, headers, schema, limits) -> Call     the rows, checked; InvalidRecords where they cannot be
    encode(answers, model, call) -> Reply             a body and its headers
    refuse(error) -> dict                             the JSON body with which its clients are told of an error
and a line in PROTOCOLS. No Ray, no HTTP: bytes and headers in, bytes and headers out.
"""

from types import ModuleType

from rayloom.serving.protocols import inference, invocations, records
from rayloom.serving.protocols.exchange import Call, Headers, Limits, Model, Reply, request_id

PROTOCOLS: dict[str, ModuleType] = {
    "/predict": records,
    "/invocations": invocations,
    "/v2/models/{m}/infer": inference,
}
"""By path; {m} is the model's name, and may be followed by /versions/{v} (see `inference.target`)."""

__all__ = ["PROTOCOLS", "Call", "Headers", "Limits", "Model", "Reply", "inference", "invocations", "records", "request_id"]
