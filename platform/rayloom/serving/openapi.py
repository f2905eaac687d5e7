"""The OpenAPI 3.1 document of a served model, made from the model's own schema: https://spec.openapis.org/oas/v3.1.0

Every request has an example that the model takes, made from a golden record, and every path names the errors that it gives.
"""

from typing import Any

from rayloom.serving.protocols import Model, arrow, inference, invocations
from rayloom.serving.schema import Schema

REFUSALS = {
    "400": "the body is not of the protocol's form",
    "413": "the body or its number of rows is over the limit, which is named",
    "415": "the body's media type, charset or encoding is not one that is taken",
    "422": "a field is missing, unknown or of the wrong type; its row is named",
    "503": "the queue is full; try again after the seconds in Retry-After",
}

TEXT = {"type": "string"}
LABEL = {"type": ["string", "integer"]}
PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}


def document(schema: Schema, card: dict[str, Any]) -> dict[str, Any]:
    """The document.

    Args:
        schema: the model's.
        card: what GET /model answers: "model" {name, version}, "classes", and "example", a golden record or None.
    """
    model = Model(card["model"]["name"], card["model"]["version"], card["classes"])
    example = card.get("example") or dict.fromkeys(schema.kinds)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Rayloom: {model.name}",
            "version": str(model.version),
            "description": "Answers of one model. Every field is sent with every record, null where it is not known.",
        },
        "paths": {**_predicting(example), **_inferring(schema, model, example), **_telling(schema, model)},
        "components": {"schemas": _schemas(schema, model, example)},
    }


def _predicting(example: dict[str, Any]) -> dict[str, Any]:
    frame = {"columns": list(example), "data": [list(example.values())]}
    stream = {"schema": {"type": "string", "contentMediaType": arrow.STREAM}}
    sheet = {"schema": {"type": "string", "contentMediaType": invocations.CSV}}
    records = {"application/json": _json("Records", [example]), arrow.STREAM: stream}
    frames = {"application/json": _json("Frame", {"dataframe_split": frame}), invocations.CSV: sheet}
    answers = {"application/json": _json("Predictions"), arrow.STREAM: stream}
    return {
        "/predict": {"post": _post("predict", "Answers for records", records, answers, "Error")},
        "/invocations": {
            "post": _post("invocations", "MLflow's scoring protocol", frames, _content("Predictions"), "MlflowError")
        },
    }


def _inferring(schema: Schema, model: Model, example: dict[str, Any]) -> dict[str, Any]:
    types = {name: inference.DATATYPES[kind] for name, kind in schema.kinds.items()}
    inputs = [{"name": name, "datatype": types[name], "shape": [1], "data": [value]} for name, value in example.items()]
    asked = {"application/json": _json("InferRequest", {"id": "1", "inputs": inputs})}
    said = "The Open Inference Protocol (KServe v2); binary tensors as its extension says"
    infer = _post("infer", said, asked, _content("InferResponse"), "InferError")
    infer["responses"]["404"] = {"description": "no model of this name is served", "content": _content("InferError")}
    about = _get("metadata", "The model's tensors", {"application/json": _json(None, inference.metadata(schema, model))})
    about["responses"]["404"] = infer["responses"]["404"]
    named = {"name": "model", "in": "path", "required": True, "schema": TEXT, "example": model.name}
    return {
        "/v2": {"get": _get("server", "The server and its extensions", _content(None))},
        "/v2/health/live": {"get": _get("live", "Whether the server lives", _content(None))},
        "/v2/health/ready": {"get": _ready("ready", "Whether the server answers")},
        "/v2/models/{model}": {"parameters": [named], "get": about},
        "/v2/models/{model}/ready": {"parameters": [named], "get": _ready("model_ready", "Whether the model answers")},
        "/v2/models/{model}/infer": {"parameters": [named], "post": infer},
    }


def _telling(schema: Schema, model: Model) -> dict[str, Any]:
    text = {"text/plain": {"schema": TEXT}}
    return {
        "/model": {"get": _get("model", "The model's card", _content(None))},
        "/healthz": {"get": _get("healthz", "200 while the replica lives", _content(None))},
        "/readyz": {"get": _ready("readyz", "200 after the golden rows were answered as in training")},
        "/ping": {"get": _ready("ping", "MLflow's health check")},
        "/version": {"get": _get("version", "The server's version", text)},
        "/metrics": {"get": _get("metrics", "Counts and times in Prometheus' format", text)},
    }


def _json(name: str | None, example: Any = None) -> dict[str, Any]:
    """A media type of a component, of any object where there is no name."""
    schema = {"$ref": f"#/components/schemas/{name}"} if name else {"type": "object"}
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


def _content(name: str | None) -> dict[str, Any]:
    return {"application/json": _json(name)}


def _get(name: str, said: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"operationId": name, "summary": said, "responses": {"200": {"description": said, "content": content}}}


def _ready(name: str, said: str) -> dict[str, Any]:
    made = _get(name, said, {"*/*": {}})
    made["responses"]["503"] = {"description": "not ready yet, or no more"}
    return made


def _post(name: str, said: str, asked: dict[str, Any], answered: dict[str, Any], error: str) -> dict[str, Any]:
    refused: dict[str, Any] = {status: {"description": why, "content": _content(error)} for status, why in REFUSALS.items()}
    refused["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    responses = {"200": {"description": "the answers", "content": answered}, **refused}
    return {
        "operationId": name,
        "summary": said,
        "requestBody": {"required": True, "content": asked},
        "responses": responses,
    }


def _schemas(schema: Schema, model: Model, example: dict[str, Any]) -> dict[str, Any]:
    records = {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Record"}}
    about = _object({"name": TEXT, "version": LABEL})
    place = {"row": {"type": ["integer", "null"]}, "field": {"type": ["string", "null"]}}
    error = _object({"message": TEXT, **place})
    return {
        "Record": schema.json_schema(example),
        "Records": records,
        "Answer": _answer(model),
        "Predictions": _object(
            {"model": about, "predictions": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}}
        ),
        "Frame": _frame(schema, records),
        "InferRequest": _request(schema),
        "InferResponse": _response(),
        "Error": _object({"error": error}),
        "MlflowError": _object({"error_code": TEXT, "message": TEXT, "error": error}),
        "InferError": _object({"error": TEXT}),
    }


def _object(properties: dict[str, Any], optional: dict[str, Any] = {}) -> dict[str, Any]:
    return {"type": "object", "properties": {**properties, **optional}, "required": list(properties)}


def _answer(model: Model) -> dict[str, Any]:
    label = {"enum": list(model.classes)}
    unseen = {"type": "array", "items": TEXT, "description": "categories of the record that training did not know"}
    if len(model.classes) == 2:
        return _object(
            {"probability": {**PROBABILITY, "description": f"of {model.classes[1]}"}, "label": label}, {"unseen": unseen}
        )
    each = _object({str(name): PROBABILITY for name in model.classes})
    return _object({"label": label, "probability": PROBABILITY, "probabilities": each}, {"unseen": unseen})


def _frame(schema: Schema, records: dict[str, Any]) -> dict[str, Any]:
    """The forms of MLflow's protocol, of which a request has one."""
    kinds = schema.json_schema()["properties"]
    lists = _object({name: {"type": "array", "minItems": 1, "items": kind} for name, kind in kinds.items()})
    rows = {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": len(kinds), "maxItems": len(kinds)}}
    split = _object({"columns": {"type": "array", "items": {"enum": list(kinds)}, "uniqueItems": True}, "data": rows})
    split["properties"]["index"] = {"type": "array"}
    forms = {
        "dataframe_split": {**split, "additionalProperties": False},
        "dataframe_records": records,
        "instances": records,
        "inputs": {"anyOf": [{**lists, "additionalProperties": False}, records]},
    }
    params = {"params": {"type": ["object", "null"]}}
    return {"oneOf": [{**_object({name: form}, params), "additionalProperties": False} for name, form in forms.items()]}


def _request(schema: Schema) -> dict[str, Any]:
    size = {"type": "integer", "minimum": 0}
    shape = {"type": "array", "items": size, "minItems": 1, "maxItems": 2}
    kinds = {"enum": [*inference.DTYPES, "BYTES"]}
    given = {"data": {"type": "array"}, "parameters": {"type": "object"}}
    tensor = _object({"name": {"enum": list(schema.kinds)}, "shape": shape, "datatype": kinds}, given)
    output = _object({"name": {"enum": list(inference.OUTPUTS)}}, {"parameters": {"type": "object"}})
    inputs = {"type": "array", "minItems": len(schema.kinds), "maxItems": len(schema.kinds), "items": tensor}
    more = {"id": TEXT, "parameters": {"type": "object"}, "outputs": {"type": "array", "items": output}}
    return _object({"inputs": inputs}, more)


def _response() -> dict[str, Any]:
    shape = {"type": "array", "items": {"type": "integer"}}
    given = {"data": {"type": "array"}, "parameters": {"type": "object"}}
    tensor = _object({"name": TEXT, "datatype": TEXT, "shape": shape}, given)
    return _object({"model_name": TEXT, "model_version": TEXT, "outputs": {"type": "array", "items": tensor}}, {"id": TEXT})
