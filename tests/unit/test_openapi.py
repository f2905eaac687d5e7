"""The OpenAPI document: valid, its examples are what the decoders take, its schemas agree with them on what is wrong."""

import json

import jsonschema
import orjson
import pytest

from rayloom.errors import InvalidRecords
from rayloom.features import CategoryState, DateState, HashState, ImageState, NumberState, TextState
from rayloom.serving import openapi
from rayloom.serving.protocols import PROTOCOLS, Limits, Model
from rayloom.serving.schema import NAMED, Schema

COLUMNS = {
    "day": DateState(parts=["day"]),
    "carrier": CategoryState(values=["AA", "UA"]),
    "gate": CategoryState(values=["1", "3"], type="integer"),
    "holiday": CategoryState(values=["false", "true"], type="boolean"),
    "tail": HashState(buckets=8),
    "distance": NumberState(center=0.0, spread=1.0, impute=0.0, flag=True),
    "remark": TextState(tokenizer="{}", max_tokens=4, vocabulary=4),
    "face": ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25]),
}
RECORD = {
    "day": "2013-11-05",
    "carrier": "AA",
    "gate": 3,
    "holiday": True,
    "tail": "N1",
    "distance": 500.5,
    "remark": "late",
    "face": None,
}
POSTS = {"/predict": "/predict", "/invocations": "/invocations", "/v2/models/{model}/infer": "/v2/models/{m}/infer"}
ANSWERS = {
    2: {"probability": 0.25, "label": 0, "unseen": ["carrier"]},
    3: {"label": 1, "probability": 0.5, "probabilities": {"0": 0.25, "1": 0.5, "2": 0.25}},
}
SCHEMA = Schema(COLUMNS)


def made(classes: int = 2, example: dict | None = RECORD) -> dict:
    card = {"model": {"name": "flights", "version": 3}, "classes": list(range(classes)), "metrics": {}, "example": example}
    return json.loads(orjson.dumps(openapi.document(SCHEMA, card)))


def validator(document: dict, schema: dict) -> jsonschema.Draft202012Validator:
    """Of a schema whose references are to the document's components."""
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})


def content(document: dict, path: str) -> dict:
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]


def references(value) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    return [value["$ref"]] if "$ref" in value else [found for item in value.values() for found in references(item)]


def test_every_path_is_there():
    gets = {"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{model}", "/v2/models/{model}/ready"}
    assert set(made()["paths"]) == {*POSTS, *gets, "/ping", "/version", "/healthz", "/readyz", "/metrics", "/model"}


@pytest.mark.parametrize("classes", [2, 3])
def test_every_component_is_a_json_schema(classes):
    for schema in made(classes)["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_reference_leads_to_a_component():
    document = made()
    found = set(references(document))
    assert found and found <= {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


def test_operations_have_names_of_their_own():
    names = [one["operationId"] for path in made()["paths"].values() for verb, one in path.items() if verb in ("get", "post")]
    assert len(names) == len(set(names)) == 14


@pytest.mark.parametrize("path", POSTS)
def test_a_post_names_its_errors(path):
    assert {"200", "400", "413", "415", "422", "503"} <= set(made()["paths"][path]["post"]["responses"])


@pytest.mark.parametrize("example", [RECORD, None])
@pytest.mark.parametrize("path", POSTS)
def test_the_example_is_of_its_schema_and_is_taken(path, example):
    document = made(example=example)
    asked = content(document, path)
    validator(document, asked["schema"]).validate(asked["example"])
    call = PROTOCOLS[POSTS[path]].decode(orjson.dumps(asked["example"]), {}, SCHEMA, Limits(10))
    assert call.columns == SCHEMA.read([example or dict.fromkeys(COLUMNS)])


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("classes", [2, 3])
def test_a_reply_is_of_its_schema(path, classes):
    document = made(classes)
    call = PROTOCOLS[POSTS[path]].decode(orjson.dumps(content(document, path)["example"]), {}, SCHEMA, Limits(10))
    reply = PROTOCOLS[POSTS[path]].encode([ANSWERS[classes]], Model("flights", 3, list(range(classes))), call)
    schema = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    validator(document, schema).validate(orjson.loads(reply.body))


@pytest.mark.parametrize("path", POSTS)
def test_an_error_is_of_its_schema(path):
    document = made()
    body = PROTOCOLS[POSTS[path]].refuse(InvalidRecords(422, "field 'gate': expected a whole number", 0, "gate"))
    schema = document["paths"][path]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
    validator(document, schema).validate(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("carrier", 5),
        ("gate", 3.4),
        ("gate", "3"),
        ("gate", 2**63),
        ("holiday", 1),
        ("distance", True),
        ("distance", "5"),
        ("remark", []),
        ("face", 5),
        ("day", 20131105),
    ],
)
def test_schema_and_decoder_agree_on_a_wrong_value(name, value):
    record = {**RECORD, name: value}
    assert not jsonschema.Draft202012Validator(SCHEMA.json_schema()).is_valid(record)
    with pytest.raises(InvalidRecords):
        SCHEMA.read([record])


@pytest.mark.parametrize("record", [{**RECORD, "extra": 1}, {"carrier": "AA"}, {}])
def test_schema_and_decoder_agree_on_the_fields(record):
    assert not jsonschema.Draft202012Validator(SCHEMA.json_schema()).is_valid(record)
    with pytest.raises(InvalidRecords):
        SCHEMA.read([record])


def test_a_category_says_what_training_knew():
    many = CategoryState(values=[f"v{place}" for place in range(NAMED + 3)])
    described = Schema({**COLUMNS, "carrier": many}).json_schema()["properties"]["carrier"]["description"]
    assert described.startswith("a category; training knew v0, v1, ") and described.endswith(f"v{NAMED - 1} and 3 more")


def test_an_answer_of_three_classes_has_each_ones_probability():
    answer = made(3)["components"]["schemas"]["Answer"]
    assert list(answer["properties"]["probabilities"]["properties"]) == ["0", "1", "2"]
    assert not jsonschema.Draft202012Validator(answer).is_valid({**ANSWERS[3], "label": 7})


def test_the_documents_model_is_the_cards():
    assert made()["info"] | {"description": ""} == {"title": "Rayloom: flights", "version": "3", "description": ""}
