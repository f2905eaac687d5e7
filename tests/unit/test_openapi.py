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


def made(classes: int = 2, example: dict | None = RECORD, **more) -> dict:
    card = {"model": {"name": "flights", "version": 3}, "classes": list(range(classes)), "metrics": {}, "example": example}
    return json.loads(orjson.dumps(openapi.document(SCHEMA, card, Limits(10), **more)))


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
    of = "/v2/models/{model}"
    of_version = f"{of}/versions/{{version}}"
    below_v2 = {"/v2", "/v2/health/live", "/v2/health/ready", of, f"{of}/ready", of_version, f"{of_version}/ready"}
    told = {"/", "/model", "/plan", "/openapi.json", "/ping", "/version", "/healthz", "/readyz", "/metrics"}
    assert set(made()["paths"]) == {*POSTS, f"{of_version}/infer", "/feedback", *below_v2, *told}


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
    assert len(names) == len(set(names)) == len(made()["paths"])


@pytest.mark.parametrize("path", POSTS)
def test_a_post_names_its_errors(path):
    assert {"200", "400", "408", "413", "415", "422", "500", "503"} <= set(made()["paths"][path]["post"]["responses"])


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


def test_no_key_is_asked_for_where_none_is_needed():
    document = made()
    assert "security" not in document and "401" not in document["paths"]["/predict"]["post"]["responses"]


@pytest.mark.parametrize(("path", "verb"), [("/predict", "post"), ("/metrics", "get"), ("/v2/models/{model}/infer", "post")])
def test_a_path_that_needs_a_key_says_so(path, verb):
    document = made(needs_key=True)
    operation = document["paths"][path][verb]
    assert {"401", "429"} <= operation["responses"].keys() and "security" not in operation
    assert document["security"] == [{"bearer": []}, {"key": []}]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "key"}


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"])
def test_a_path_that_is_open_needs_no_key(path):
    operation = made(needs_key=True)["paths"][path]["get"]
    assert operation["security"] == [] and "401" not in operation["responses"]


@pytest.mark.parametrize("status", ["429", "503"])
def test_who_is_to_come_again_is_told_when(status):
    responses = made(needs_key=True)["paths"]["/predict"]["post"]["responses"]
    assert responses[status]["headers"]["Retry-After"]["required"]


def reward(**changes) -> dict:
    return {"version": 3, "reward": 0.5, **changes}


@pytest.mark.parametrize("body", [reward(version=9), reward(version="3"), reward(reward=2), reward(reward=True), {}])
def test_a_reward_is_of_a_version_that_is_held(body):
    document = made(versions=[3, 4])
    schema = validator(document, document["components"]["schemas"]["Reward"])
    assert schema.is_valid(reward(version=4)) and not schema.is_valid(body)


FRAME = {"columns": list(RECORD), "data": [list(RECORD.values())]}
TYPES = {"gate": "INT64", "holiday": "BOOL"}
TENSOR = {"name": "distance", "datatype": "FP64", "shape": [1], "data": [5.0]}
OTHERS = [
    {"name": name, "datatype": TYPES.get(name, "BYTES"), "shape": [1], "data": [None]} for name in COLUMNS if name != "distance"
]


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {**FRAME, "index": None}},
        {"dataframe_records": [RECORD], "params": None},
        {"inputs": RECORD},
        {"inputs": {name: [value] for name, value in RECORD.items()}},
    ],
)
def test_what_mlflows_protocol_takes_is_of_its_schema(body):
    document = made()
    validator(document, content(document, "/invocations")["schema"]).validate(body)
    PROTOCOLS["/invocations"].decode(orjson.dumps(body), {}, SCHEMA, Limits(10))


@pytest.mark.parametrize("body", [{"dataframe_records": [RECORD] * 11}, {"inputs": {**RECORD, "extra": 1}}, {"instances": []}])
def test_what_mlflows_protocol_refuses_is_not_of_its_schema(body):
    document = made()
    assert not validator(document, content(document, "/invocations")["schema"]).is_valid(body)
    with pytest.raises(InvalidRecords):
        PROTOCOLS["/invocations"].decode(orjson.dumps(body), {}, SCHEMA, Limits(10))


def asked(**changes) -> dict:
    """A request of the inference protocol, with a change to the tensor of `distance`."""
    return {"inputs": [{key: value for key, value in {**TENSOR, **changes}.items() if value is not ...}, *OTHERS]}


@pytest.mark.parametrize(
    "body",
    [
        asked(),
        asked(shape=[1, 1], data=[[5.0]]),
        asked(datatype="INT8", data=[5]),
        asked(data=[None], parameters=None),
        {**asked(), "id": None, "parameters": None, "outputs": None},
        {**asked(), "outputs": [{"name": "label", "parameters": None}], "more": 1},
    ],
)
def test_what_the_inference_protocol_takes_is_of_its_schema(body):
    document = made()
    validator(document, content(document, "/v2/models/{model}/infer")["schema"]).validate(body)
    PROTOCOLS["/v2/models/{m}/infer"].decode(orjson.dumps(body), {}, SCHEMA, Limits(10))


@pytest.mark.parametrize(
    "body",
    [
        asked(data=...),
        asked(datatype="BYTES"),
        asked(data=["5"]),
        asked(data=[[5.0, 6.0]]),
        asked(shape=[0], data=[]),
        asked(shape=[11], data=[5.0] * 11),
        asked(shape=[1, 2]),
        asked(shape=[1, 1, 1]),
        asked(parameters=[]),
        {**asked(), "id": 5},
        {**asked(), "outputs": [{"name": "logits"}]},
        {"inputs": asked()["inputs"][1:]},
    ],
)
def test_what_the_inference_protocol_refuses_is_not_of_its_schema(body):
    document = made()
    assert not validator(document, content(document, "/v2/models/{model}/infer")["schema"]).is_valid(body)
    with pytest.raises(InvalidRecords):
        PROTOCOLS["/v2/models/{m}/infer"].decode(orjson.dumps(body), {}, SCHEMA, Limits(10))
