"""The OpenAPI 3.1 document of a served model, made from the model's own schema: https://spec.openapis.org/oas/v3.1.0

Every path that is served is there. Every request has an example that the model takes, made from a golden record, and every
path names the errors that it gives. Not here, since JSON Schema cannot say it: that lists are as long as each other and as a
shape says, that the values of a frame are of their columns' types, and what is in CSV and Arrow.
"""

from collections.abc import Sequence
from typing import Any

from rayloom.serving.keys import OPEN
from rayloom.serving.protocols import Limits, Model, arrow, inference, invocations
from rayloom.serving.schema import Kind, Schema

WHY = {
    "400": "the body is not of the protocol's form",
    "401": "there is no API key, or none that is known",
    "404": "no model or version of this name is served",
    "408": "the body did not come in time",
    "413": "the body or its number of rows is over the limit, which is named",
    "415": "the body's media type, charset or encoding is not one that is taken",
    "422": "a field is missing, unknown or of the wrong type; its row is named",
    "429": "the API key has asked too often; try again after the seconds in Retry-After",
    "500": "the model failed on this request",
    "503": "the queue is full, or no version is ready yet; try again after the seconds in Retry-After",
}

TEXT = {"type": "string"}
LABEL = {"type": ["string", "integer"]}
PROBABILITY = {"type": "number", "minimum": 0, "maximum": 1}
PARAMETERS = {"type": ["object", "null"]}
SECONDS = {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}

Responses = dict[str, dict[str, Any]]


def document(
    schema: Schema, card: dict[str, Any], limits: Limits, versions: Sequence[int] = (), needs_key: bool = False
) -> dict[str, Any]:
    """The document.

    Args:
        schema: the model's.
        card: what GET /model answers: "model" {name, version}, "classes", and "example", a golden record or None.
        limits: of a request.
        versions: numbers of those that are held; none for the card's only.
        needs_key: requests need an API key.
    """
    model = Model(card["model"]["name"], card["model"]["version"], card["classes"])
    example = card.get("example") or dict.fromkeys(schema.kinds)
    held = list(versions) or [int(model.version)]
    about = {
        "title": f"Rayloom: {model.name}",
        "version": str(model.version),
        "description": "Answers of one model. Every field is sent with every record, null where it is not known.",
    }
    components: dict[str, Any] = {"schemas": _schemas(schema, model, example, held, limits.max_rows)}
    paths = {**_predicting(example, held), **_inferring(schema, model, example), **_telling()}
    made = {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}
    return _with_keys(made) if needs_key else made


def _predicting(example: dict[str, Any], held: list[int]) -> dict[str, Any]:
    frame = {"columns": list(example), "data": [list(example.values())]}
    stream = {"schema": {"type": "string", "contentMediaType": arrow.STREAM}}
    sheet = {"schema": {"type": "string", "contentMediaType": invocations.CSV}}
    records = {"application/json": _json("Records", [example]), arrow.STREAM: stream}
    frames = {"application/json": _json("Frame", {"dataframe_split": frame}), invocations.CSV: sheet}
    answers = {"application/json": _json("Predictions"), arrow.STREAM: stream}
    reward = {"application/json": _json("Reward", {"version": held[0], "reward": 1})}
    said = "What an answer was worth, which the strategy bandit learns from"
    return {
        "/predict": {"post": _post("predict", "Answers for records", records, answers, "Error")},
        "/invocations": {
            "post": _post("invocations", "MLflow's scoring protocol", frames, _content("Predictions"), "MlflowError")
        },
        "/feedback": {"post": _post("feedback", said, reward, _content("Counted"), "Error")},
    }


def _inferring(schema: Schema, model: Model, example: dict[str, Any]) -> dict[str, Any]:
    """The Open Inference Protocol's paths; those of a model again with its version."""
    types = {name: inference.DATATYPES[kind] for name, kind in schema.kinds.items()}
    inputs = [{"name": name, "datatype": types[name], "shape": [1], "data": [value]} for name, value in example.items()]
    asked = {"application/json": _json("InferRequest", {"id": "1", "inputs": inputs})}
    about = {"application/json": _json("Metadata", inference.metadata(schema, model))}
    named = [_in_path("model", model.name), _in_path("version", str(model.version))]
    paths: dict[str, Any] = {
        "/v2": {"get": _get("server", "The server and its extensions", _content("Server"))},
        "/v2/health/live": {"get": _get("live", "Whether the server lives", _content("Live"))},
        "/v2/health/ready": {"get": _ready("ready", "Whether the server answers", _content("Ready"))},
    }
    for place, parameters, of in (("", named[:1], ""), ("/versions/{version}", named, "_of_version")):
        said = "The Open Inference Protocol (KServe v2); binary tensors as its extension says"
        infer = _post(f"infer{of}", said, asked, _content("InferResponse"), "InferError")
        tell = _get(f"metadata{of}", "The model's tensors", about, _refused("InferError", "503"))
        ready = _ready(f"model_ready{of}", "Whether the model answers", _content("Ready"))
        for path, verb, operation in (("", "get", tell), ("/ready", "get", ready), ("/infer", "post", infer)):
            operation["responses"] |= _refused("InferError", "404")
            paths[f"/v2/models/{{model}}{place}{path}"] = {"parameters": parameters, verb: operation}
    return paths


def _in_path(name: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}, "example": example}


def _telling() -> dict[str, Any]:
    text = {"text/plain": {"schema": TEXT}}
    loading = _refused("Error", "503")
    return {
        "/": {
            "get": _get("front", "A page for people: the model, a form, its answers", {"text/html": {"schema": TEXT}}, loading)
        },
        "/model": {"get": _get("model", "The model's card", _content("Card"), loading)},
        "/plan": {"get": _get("plan", "Which version answers, and why", _content("Plan"))},
        "/openapi.json": {"get": _get("openapi", "This document", _content(None), loading)},
        "/healthz": {"get": _get("healthz", "200 while the replica lives", _content("Health"))},
        "/readyz": {"get": _ready("readyz", "200 after the golden rows were answered as in training", _content("Readiness"))},
        "/ping": {"get": _ready("ping", "MLflow's health check", text)},
        "/version": {"get": _get("version", "The server's version", text)},
        "/metrics": {"get": _get("metrics", "Counts and times in Prometheus' format", text)},
    }


def _json(name: str | None, example: Any = None) -> dict[str, Any]:
    """A media type of a component, of any object where there is no name."""
    schema = {"$ref": f"#/components/schemas/{name}"} if name else {"type": "object"}
    return {"schema": schema} if example is None else {"schema": schema, "example": example}


def _content(name: str | None) -> dict[str, Any]:
    return {"application/json": _json(name)}


def _refused(error: str, *statuses: str) -> Responses:
    """Responses with these statuses and a body of the component `error`."""
    made: Responses = {status: {"description": WHY[status], "content": _content(error)} for status in statuses}
    for status in made.keys() & {"429", "503"}:
        made[status]["headers"] = {"Retry-After": SECONDS}
    return made


def _get(name: str, said: str, content: dict[str, Any], refused: Responses = {}) -> dict[str, Any]:
    responses = {"200": {"description": said, "content": content}, **refused}
    return {"operationId": name, "summary": said, "responses": responses}


def _ready(name: str, said: str, content: dict[str, Any]) -> dict[str, Any]:
    return _get(name, said, content, {"503": {"description": "not ready yet, or no more", "content": content}})


def _post(name: str, said: str, asked: dict[str, Any], answered: dict[str, Any], error: str) -> dict[str, Any]:
    refused = _refused(error, "400", "408", "413", "415", "422", "500", "503")
    responses = {"200": {"description": "the answers", "content": answered}, **refused}
    return {
        "operationId": name,
        "summary": said,
        "requestBody": {"required": True, "content": asked},
        "responses": responses,
    }


def _with_keys(made: dict[str, Any]) -> dict[str, Any]:
    """A document whose paths, but those that are open to everybody, need an API key."""
    made["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    made["security"] = [{"bearer": []}, {"key": []}]
    for path, item in made["paths"].items():
        operation = item.get("post") or item["get"]
        if path in OPEN or path == "/":
            operation["security"] = []
        else:
            operation["responses"] |= _refused("InferError" if path.startswith("/v2") else "Error", "401", "429")
    return made


def _schemas(schema: Schema, model: Model, example: dict[str, Any], held: list[int], most: int) -> dict[str, Any]:
    records = _rows({"$ref": "#/components/schemas/Record"}, most)
    place = {"row": {"type": ["integer", "null"]}, "field": {"type": ["string", "null"]}}
    error = _object({"message": TEXT, **place})
    answers = {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}}
    return {
        "Record": schema.json_schema(example),
        "Records": records,
        "Answer": _answer(model),
        "Predictions": _object({"model": _object({"name": TEXT, "version": LABEL}), "predictions": answers}),
        "Frame": _frame(schema, records, most),
        "InferRequest": _request(schema, most),
        "InferResponse": _response(),
        "Error": _object({"error": error}),
        "MlflowError": _object({"error_code": TEXT, "message": TEXT, "error": error}),
        "InferError": _object({"error": TEXT}),
        "Reward": _object({"version": {"enum": held}, "reward": {"type": "number", "minimum": 0, "maximum": 1}}),
        "Counted": _object({"counted": {"const": True}}),
        **_states(model),
    }


def _states(model: Model) -> dict[str, Any]:
    """What is told of the server and its model."""
    about = {"type": ["object", "null"], "properties": {"name": TEXT, "version": LABEL}}
    flag = {"type": "boolean"}
    tensor = _object({"name": TEXT, "datatype": TEXT, "shape": {"type": "array", "items": {"type": "integer"}}})
    tensors = {"type": "array", "items": tensor}
    names = {"type": "array", "items": TEXT}
    card = {"model": about, "dataset": TEXT, "classes": {"const": list(model.classes)}, "metrics": {"type": "object"}}
    return {
        "Card": _object({**card, "label": TEXT, "example": {"type": ["object", "null"]}}),
        "Plan": {"type": "object", "properties": {"strategy": TEXT, "stable": {"type": "integer"}, "state": TEXT}},
        "Health": _object({"status": {"const": "ok"}, "model": about}),
        "Readiness": _object({"ready": flag, "model": about}),
        "Server": _object({"name": TEXT, "version": TEXT, "extensions": names}),
        "Live": _object({"live": flag}),
        "Ready": _object({"ready": flag}),
        "Metadata": _object({"name": TEXT, "versions": names, "platform": TEXT, "inputs": tensors, "outputs": tensors}),
    }


def _rows(each: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": each}


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


def _frame(schema: Schema, records: dict[str, Any], most: int) -> dict[str, Any]:
    """The forms of MLflow's protocol, of which a request has one."""
    kinds = schema.json_schema()["properties"]
    lists = _object({name: _rows(kind, most) for name, kind in kinds.items()})
    rows = _rows({"type": "array", "minItems": len(kinds), "maxItems": len(kinds)}, most)
    names = {"type": "array", "items": {"enum": list(kinds)}, "uniqueItems": True, "minItems": len(kinds)}
    split = _object({"columns": names, "data": rows}, {"index": {"type": ["array", "null"]}})
    forms = {
        "dataframe_split": {**split, "additionalProperties": False},
        "dataframe_records": records,
        "instances": records,
        "inputs": {"anyOf": [{**lists, "additionalProperties": False}, {"$ref": "#/components/schemas/Record"}, records]},
    }
    params = {"params": PARAMETERS}
    return {"oneOf": [{**_object({name: form}, params), "additionalProperties": False} for name, form in forms.items()]}


def _request(schema: Schema, most: int) -> dict[str, Any]:
    tensors = [_input(name, kind, most) for name, kind in schema.kinds.items()]
    output = _object({"name": {"enum": list(inference.OUTPUTS)}}, {"parameters": PARAMETERS})
    inputs = {"type": "array", "minItems": len(tensors), "maxItems": len(tensors), "items": {"oneOf": tensors}}
    outputs = {"type": ["array", "null"], "items": output}
    return _object({"inputs": inputs}, {"id": {"type": ["string", "null"]}, "parameters": PARAMETERS, "outputs": outputs})


def _input(name: str, kind: Kind, most: int) -> dict[str, Any]:
    """A field as an input tensor, whose data are here or, in binary, after the JSON."""
    size = {"type": "integer", "minimum": 1, "maximum": most}
    shape = {"type": "array", "prefixItems": [size, {"const": 1}], "items": False, "minItems": 1}
    of_one = {"type": "array", "items": kind.json, "minItems": 1, "maxItems": 1}
    data = {"type": "array", "anyOf": [{"items": kind.json}, {"items": of_one}]}
    datatypes = {"enum": list(inference.FITS.get(kind, ("BYTES",)))}
    tensor = _object({"name": {"const": name}, "shape": shape, "datatype": datatypes}, {"data": data, "parameters": PARAMETERS})
    return {**tensor, "anyOf": [{"required": ["data"]}, {"required": ["parameters"]}]}


def _response() -> dict[str, Any]:
    shape = {"type": "array", "items": {"type": "integer"}}
    given = {"data": {"type": "array"}, "parameters": {"type": "object"}}
    tensor = _object({"name": TEXT, "datatype": TEXT, "shape": shape}, given)
    return _object({"model_name": TEXT, "model_version": TEXT, "outputs": {"type": "array", "items": tensor}}, {"id": TEXT})
