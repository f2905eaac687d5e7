"""The Serve application over real HTTP: good bodies and bad ones, bundles that must not be served, and versions that take over
while clients ask.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import psutil
import pyarrow.parquet as pq
import pytest
import torch
from ray import serve

from benchmarks.takeover import kill_a_replica
from rayloom import bundle, config, tracking
from rayloom.errors import BundleError, ServingError
from rayloom.serving import app, capture, replica, rollouts
from rayloom.stages import rollout
from tests import malformed


@pytest.fixture(scope="module")
def pipeline(arguments) -> config.Pipeline:
    settings = ["replicas=2", "cpus=0.5", "max_body_bytes=200000", "max_rows=100", "records.share=1.0", "records.rotate_s=1"]
    return config.load(arguments[1::2], [f"serve.{setting}" for setting in settings])


@pytest.fixture(scope="module")
def second(pipeline) -> config.Pipeline:
    """Another model on the cluster, at a route of its own, which has no replica while nobody asks."""
    settings = {"route": "/second", "replicas": config.Scaling(min=0, max=1, down_s=1.0)}
    return pipeline.model_copy(update={"name": "second", "serve": pipeline.serve.model_copy(update=settings)})


@pytest.fixture(scope="module")
def client(joined, finished, pipeline, second, tmp_path_factory) -> Iterator[httpx.Client]:
    """A client of the champion, served, and of the second model."""
    serve.start(http_options={"host": pipeline.serve.host, "port": pipeline.serve.port})
    champion = tracking.resolve(pipeline, "@champion").version
    copy = register(second, bundle.load(finished.first.folder / "bundle"), tmp_path_factory.mktemp("second") / "bundle")
    models = [(pipeline, app.build(pipeline, champion)), (second, app.build(second, copy))]
    serve.run_many([serve.RunTarget(built, of.name, of.serve.route) for of, built in models])
    with httpx.Client(base_url=f"http://127.0.0.1:{pipeline.serve.port}", timeout=30) as client:
        yield client
    serve.shutdown()
    for of, _ in models:
        rollouts.end(of.name)


@pytest.fixture
def flight(client) -> dict:
    """A real record: the example of the model's card."""
    return client.get("/model").json()["example"]


def test_answer_has_probability_label_and_model_version(client, flight, finished):
    body = client.post("/predict", json=[flight, flight]).json()
    assert body["model"] == {"name": "flights", "version": finished.first.summary["registry"]["version"]}
    assert len(body["predictions"]) == 2
    assert 0 < body["predictions"][0]["probability"] < 1
    assert body["predictions"][0]["label"] in (0, 1)


def test_golden_rows_are_answered_as_in_training(client, pipeline, finished):
    made = bundle.load(finished.first.folder / "bundle")
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


def test_every_malformed_body_gets_its_status_over_http(client, flight, pipeline):
    """And so does a good request after each; those that are over the limit of bytes here are told so."""
    good = {name: 1.5 if value is None else value for name, value in flight.items()}
    wrong = []
    for case in malformed.corpus(malformed.Fields(good, "distance", "carrier", "date", pipeline.serve.max_rows)):
        headers = {"content-type": case.content_type, **case.headers}
        path, encoded = case.path.replace("{m}", "flights"), {name: value.encode() for name, value in headers.items()}
        status = client.post(path, content=case.body, headers=encoded).status_code
        if status != (413 if len(case.body) > pipeline.serve.max_body_bytes else case.status):
            wrong.append((case.name, status))
        wrong += [case.name] * (client.post("/predict", json=[flight]).status_code != 200)
    assert wrong == []


def test_a_body_without_a_length_is_refused_where_it_is_too_large(client, flight):
    answer = client.post("/predict", content=(b" " * 65536 for _ in range(300)))
    assert answer.status_code == 413 and "over the limit of 200,000 bytes" in answer.json()["error"]["message"]


def test_requests_that_never_end_keep_nobody_else_waiting(client, flight):
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 150000\r\n"
    address = (client.base_url.host, client.base_url.port)
    begun = [socket.create_connection(address) for _ in range(100)]
    for number, connection in enumerate(begun):
        connection.sendall([b"", head, head + b"\r\n[{", head + b"\r\n[" + b" " * 100_000][number % 4])
    assert {client.post("/predict", json=[flight]).status_code for _ in range(20)} == {200}
    for connection in begun:
        connection.close()


def test_huge_number_is_refused_or_answered_finite(client, flight):
    body = json.dumps([{**flight, "temp": 10**30}]).encode()
    answer = client.post("/predict", content=body)
    assert answer.status_code == 200 and 0 <= answer.json()["predictions"][0]["probability"] <= 1


def test_healthz_names_the_model(client):
    assert client.get("/healthz").json()["model"]["name"] == "flights"


@pytest.mark.parametrize("path", ["/healthz", "/nothing"])
def test_a_reply_has_the_clients_id_or_a_new_one(client, path):
    assert client.get(path, headers={"x-request-id": "mine-1"}).headers.get_list("x-request-id") == ["mine-1"]
    made = {client.get(path, headers=headers).headers["x-request-id"] for headers in ({}, {"x-request-id": "two words"})}
    assert len(made) == 2 and not made & {"", "two words"}


def test_a_request_is_kept_with_its_answer(client, pipeline, flight):
    """Written by a thread of the replica that answered, within a second or two."""
    said = client.post("/predict", json=[flight], headers={"x-request-id": "kept-1"}).json()
    folder, deadline = capture.folder_of(pipeline.storage.path(), pipeline.name, pipeline.serve.records), time.monotonic() + 60
    found = []
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
        found = pq.read_table(folder, filters=[("_request", "==", "kept-1")]).to_pylist() if folder.exists() else []
    assert [(row["_probability"], row["model_version"]) for row in found] == [
        (said["predictions"][0]["probability"], said["model"]["version"])
    ]
    assert {name: found[0][name] for name in flight if name != "date"} == {
        name: flight[name] for name in flight if name != "date"
    }


def test_unknown_path_is_404(client):
    assert client.get("/nothing").status_code == 404


def register(pipeline: config.Pipeline, made: bundle.Bundle, folder: Path, wrong_row: int | None = None) -> int:
    """Registers a copy of a bundle, in which a golden answer may be another than the model's; returns its version."""
    golden = list(made.golden)
    if wrong_row is not None:
        golden[wrong_row] = golden[wrong_row].model_copy(update={"answer": abs(golden[wrong_row].answer - 0.01)})
    copy = bundle.write(folder, made.config, made.state, made.weights, made.metrics, golden)
    return tracking.record_training(pipeline, folder.name, "none", [], copy).version


@pytest.fixture
def made(finished) -> bundle.Bundle:
    return bundle.load(finished.first.folder / "bundle")


def test_a_bundle_that_fails_its_golden_rows_never_becomes_ready(client, pipeline, made, tmp_path):
    """Not even as the first version of an application; others go on answering."""
    other = pipeline.model_copy(update={"name": "broken"})
    version = register(other, made, tmp_path / "broken", wrong_row=3)
    with pytest.raises(BundleError, match="Golden row 3"):
        replica.load(other, version)
    assert client.get("/healthz").status_code == 200


class Clients:
    """Clients that ask one after the other for as long as the block lasts, and keep when they asked, the status or the error,
    and the version that answered.
    """

    def __init__(self, url: str, record: dict, count: int = 4):
        self.url, self.record, self.ended = url, record, threading.Event()
        self.told: list[tuple[float, int | str, int | None]] = []
        self.threads = [threading.Thread(target=self.ask) for _ in range(count)]

    def ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self.ended.is_set():
                began = time.monotonic()
                try:
                    answer = client.post("/predict", json=[self.record])
                except httpx.HTTPError as error:
                    self.told.append((began, repr(error), None))
                    continue
                version = answer.json()["model"]["version"] if answer.status_code == 200 else None
                self.told.append((began, answer.status_code, version))

    def __enter__(self) -> "Clients":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()


def test_versions_take_over_and_a_replica_dies_without_a_lost_request(client, pipeline, made, flight, tmp_path):
    """A good version, one that answers otherwise than in training, a good one again, and a SIGKILL: every request of every
    client is answered, and after a switch nobody hears of the version before."""
    first, bad, last = (
        register(pipeline, made, tmp_path / name, wrong) for name, wrong in (("first", None), ("bad", 5), ("last", None))
    )
    switched = {}
    with Clients(str(client.base_url), flight) as clients:
        rollout.roll_out(pipeline, first)
        switched[first] = time.monotonic()
        with pytest.raises(ServingError, match=f"version {bad} was refused: Golden row 5 .*; version {first} answers"):
            rollout.roll_out(pipeline, bad)
        rollout.roll_out(pipeline, last)
        switched[last] = time.monotonic()
        kill_a_replica(pipeline.name)
        before = len(clients.told)
        while len(clients.told) < before + 300:
            time.sleep(0.05)
    assert {status for _, status, _ in clients.told} == {200}
    assert bad not in {version for _, _, version in clients.told}
    after_first = {version for began, _, version in clients.told if began > switched[first]}
    after_last = {version for began, _, version in clients.told if began > switched[last]}
    assert (after_first, after_last) == ({first, last}, {last})


def test_a_canary_is_answered_by_both_versions_until_it_has_passed(client, pipeline, made, flight, tmp_path):
    version = register(pipeline, made, tmp_path / "canary")
    settings = {"strategy": "canary", "steps": [0.5, 1.0], "min_requests": 20, "hold_s": 0.0}
    serve_settings = pipeline.serve.model_copy(update={"rollout": config.Rollout(**settings)})
    with Clients(str(client.base_url), flight) as clients:
        old = client.get("/plan").json()["stable"]
        found = rollout.roll_out(pipeline.model_copy(update={"serve": serve_settings}), version)
    assert (found["plan"]["state"], found["plan"]["stable"]) == ("done", version)
    told = [version for _, _, version in clients.told]
    assert {old, version} == set(told)


def test_a_second_model_sleeps_beside_the_first_until_it_is_asked(client, pipeline, second, flight):
    with pytest.raises(ServingError, match=r"serve\.route is /, where flights answers"):
        app.require_route(pipeline.model_copy(update={"name": "third"}))
    while not app.sleeps("second"):
        time.sleep(0.1)
    assert rollout.is_served("second")
    told = {path: client.post(f"{path}/predict", json=[flight], timeout=60).json() for path in ("", "/second")}
    assert [one["model"]["name"] for one in told.values()] == ["flights", "second"]
    assert rollout.status("second")["plan"]["stable"] == told["/second"]["model"]["version"]


def test_a_replica_with_a_gpu_that_torch_does_not_see_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ServingError, match=r"serve\.gpus is 0\.5, and torch .* sees no GPU here"):
        replica.device_of(config.Serve(gpus=0.5))


def test_what_the_model_says_of_itself_is_open(client):
    assert client.get("/readyz").json()["ready"] is True
    assert "/v2/models/{model}/infer" in client.get("/openapi.json").json()["paths"]
    assert 'rayloom_requests_total{model="flights"' in client.get("/metrics").text


def test_pages_of_haproxy_are_for_this_machine_alone(client):
    """Its statistics and metrics have no password."""
    listening = [
        connection.laddr.ip
        for process in psutil.process_iter()
        if process.name() == "haproxy"
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) == {"127.0.0.1"}
