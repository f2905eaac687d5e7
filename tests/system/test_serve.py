"""The Serve application over real HTTP: good bodies, bad bodies, and a bundle that must not become ready."""

import json
import shutil
from collections.abc import Iterator

import httpx
import orjson
import pytest
from ray import serve

from rayloom import bundle, config, tracking
from rayloom.serving import app


@pytest.fixture(scope="module")
def pipeline(arguments) -> config.Pipeline:
    return config.load(arguments[1::2], ["serve.max_body_bytes=200000", "serve.max_rows=100"])


@pytest.fixture(scope="module")
def client(joined, pipeline) -> Iterator[httpx.Client]:
    """A client of the champion, served."""
    serve.start(http_options={"host": pipeline.serve.host, "port": pipeline.serve.port})
    champion = str(tracking.resolve(pipeline, "@champion").version)
    serve.run(app.build(pipeline, champion), name=pipeline.name, route_prefix="/")
    with httpx.Client(base_url=f"http://127.0.0.1:{pipeline.serve.port}", timeout=30) as client:
        yield client
    serve.shutdown()


@pytest.fixture
def flight(client) -> dict:
    """A real record: the example of the model's card."""
    return client.get("/model").json()["example"]


def test_answer_has_probability_label_and_model_version(client, flight, finished):
    body = client.post("/predict", json=[flight, flight]).json()
    assert body["model"] == {"name": "flights", "version": finished.second.summary["registry"]["version"]}
    assert len(body["predictions"]) == 2
    assert 0 < body["predictions"][0]["probability"] < 1
    assert body["predictions"][0]["label"] in (0, 1)


def test_golden_rows_are_answered_as_in_training(client, pipeline, finished):
    made = bundle.load(finished.second.folder / "bundle")
    body = client.post("/predict", json=[golden.record for golden in made.golden]).json()
    answers = [item["probability"] for item in body["predictions"]]
    assert answers == pytest.approx([golden.answer for golden in made.golden], abs=1e-6)


def test_null_and_unseen_category_are_answered(client, flight):
    changed = {**flight, "carrier": "never seen", "temp": None, "date": None}
    assert client.post("/predict", json=[changed]).status_code == 200


def with_value(name: str, value):
    return lambda flight: orjson.dumps([{**flight, name: value}])


BAD = {
    "not JSON": (lambda flight: b"{not json", 400, None, None),
    "empty body": (lambda flight: b"", 400, None, None),
    "empty list": (lambda flight: b"[]", 400, None, None),
    "null": (lambda flight: b"null", 400, None, None),
    "object": (lambda flight: orjson.dumps(flight), 400, None, None),
    "text": (lambda flight: b'"flight"', 400, None, None),
    "not UTF-8": (lambda flight: b'["\xff"]', 400, None, None),
    "NaN literal": (lambda flight: b'[{"temp": NaN}]', 400, None, None),
    "list of null": (lambda flight: b"[null]", 422, 0, None),
    "list of lists": (lambda flight: b"[[1]]", 422, 0, None),
    "missing field": (lambda flight: orjson.dumps([{k: v for k, v in flight.items() if k != "temp"}]), 422, 0, "temp"),
    "unknown field": (with_value("tempp", 1), 422, 0, "tempp"),
    "text for a number": (with_value("temp", "warm"), 422, 0, "temp"),
    "boolean for a number": (with_value("temp", True), 422, 0, "temp"),
    "number for a category": (with_value("carrier", 7), 422, 0, "carrier"),
    "list for a number": (with_value("temp", [1]), 422, 0, "temp"),
    "no date": (with_value("date", "yesterday"), 422, 0, "date"),
    "second record at fault": (lambda flight: orjson.dumps([flight, {**flight, "temp": "x"}]), 422, 1, "temp"),
    "too many records": (lambda flight: orjson.dumps([flight] * 101), 413, None, None),
    "too many bytes": (lambda flight: b"[" + b" " * 300_000 + b"]", 413, None, None),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_body_is_refused_and_the_next_good_one_answered(client, flight, name):
    make, status, row, field = BAD[name]
    answer = client.post("/predict", content=make(flight), headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["row"], error["field"]) == (status, row, field)
    assert error["message"] and "Traceback" not in answer.text
    assert client.post("/predict", json=[flight]).status_code == 200


def test_huge_number_is_refused_or_answered_finite(client, flight):
    body = json.dumps([{**flight, "temp": 10**30}]).encode()
    answer = client.post("/predict", content=body)
    assert answer.status_code == 200 and 0 <= answer.json()["predictions"][0]["probability"] <= 1


def test_healthz_names_the_model(client):
    assert client.get("/healthz").json()["model"]["name"] == "flights"


def test_unknown_path_is_404(client):
    assert client.get("/nothing").status_code == 404


def test_a_bundle_that_fails_its_golden_rows_never_becomes_ready(client, pipeline, finished, tmp_path):
    """The old version goes on answering: the new one is another application, and its replica refuses to start."""
    good = bundle.load(finished.second.folder / "bundle")
    wrong = list(good.golden)
    wrong[3] = wrong[3].model_copy(update={"answer": abs(wrong[3].answer - 0.01)})
    made = bundle.write(tmp_path / "bundle", good.config, good.state, good.weights, good.metrics, wrong)
    other = pipeline.model_copy(update={"name": "broken"})
    version = tracking.record_training(other, "test-broken", "none", [], made)
    with pytest.raises(RuntimeError):
        serve.run(app.build(other, str(version.version)), name="broken", route_prefix="/broken")
    messages = [deployment.message for deployment in serve.status().applications["broken"].deployments.values()]
    serve.delete("broken")
    shutil.rmtree(tmp_path)
    assert any("Golden row 3" in message for message in messages)
    assert client.get("/healthz").status_code == 200
