"""What a replica says over HTTP, called as a server calls it: every path, all that is malformed, and clients that hang up."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson
import pytest
import torch
from torch import nn

from rayloom import config
from rayloom.serving.application import Application
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions
from tests.malformed import Fields, Malformed, corpus, inputs, stream

GOOD = {"day": "2013-11-04", "carrier": "AA", "distance": 500, "wind": 7.5}
MAX_ROWS, MAX_BYTES = 200, 1 << 20
FIELDS = Fields(GOOD, "distance", "carrier", "day", MAX_ROWS)
CASES = corpus(FIELDS)
INFER = "/v2/models/toy/infer"
ANSWERS = Plan(stable=3)


class Said(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        """Strict: no NaN or Infinity, which Python would read."""
        return json.loads(self.body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class Client:
    """Calls an application with the messages of an ASGI server."""

    def __init__(self, application: Application):
        self.application = application

    async def send(self, method: str, path: str, messages: Iterable[dict], headers: dict[str, str]) -> Said | None:
        """The reply, or None where the application says nothing."""
        left, sent = iter(messages), []

        async def receive() -> dict:
            return next(left)

        async def send(message: dict) -> None:
            sent.append(message)

        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.application({"type": "http", "method": method, "path": path, "headers": pairs}, receive, send)
        if not sent:
            return None
        start, end = sent
        return Said(start["status"], dict(start["headers"]), end["body"])

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> Said:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        length = {"content-length": str(len(body))} if body else {}
        said = asyncio.run(self.send(method, path, [{"type": "http.request", "body": body}], {**length, **named}))
        assert said is not None
        assert said.headers[b"content-length"] == b"%d" % len(said.body)
        return said

    def get(self, path: str) -> Said:
        return self.call("GET", path)

    def post(self, path: str, value: Any, **headers: str) -> Said:
        return self.call("POST", path, orjson.dumps(value), **{"content_type": "application/json", **headers})

    def is_served(self) -> bool:
        """Whether a good request gets its answer."""
        said = self.post("/predict", [GOOD])
        return said.status == 200 and len(said.json()["predictions"]) == 1


@pytest.fixture
def predictor(toy_bundle) -> Predictor:
    return Predictor(toy_bundle)


@pytest.fixture
def serve(predictor) -> Callable[..., Client]:
    """Makes a replica whose version 3 answers, with other settings where they are named."""

    def make(plan: Plan | None = ANSWERS, **settings) -> Client:
        below = {"max_rows": MAX_ROWS, "max_body_bytes": MAX_BYTES}
        versions = Versions("toy", config.Serve(**{**below, **settings}))
        versions.add(3, predictor)
        versions.plan = plan
        return Client(Application(versions))

    return make


@pytest.fixture
def client(serve) -> Client:
    return serve()


def test_records_are_answered(client, predictor, toy_records):
    said = client.post("/predict", toy_records)
    assert said.json() == {"model": {"name": "toy", "version": 3}, "predictions": predictor.answer(toy_records)}
    assert (said.status, said.headers[b"content-type"]) == (200, b"application/json")


FORMS = {
    "dataframe_records": {"dataframe_records": [GOOD]},
    "dataframe_split": {"dataframe_split": {"columns": list(GOOD), "data": [list(GOOD.values())]}},
    "inputs": {"inputs": {name: [value] for name, value in GOOD.items()}},
    "instances": {"instances": [GOOD]},
}


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
def test_mlflows_forms_are_answered(client, predictor, body):
    said = client.post("/invocations", body)
    assert said.json() == {"predictions": predictor.answer([GOOD]), "model": {"name": "toy", "version": 3}}


@pytest.mark.parametrize("path", [INFER, "/v2/models/toy/versions/3/infer"])
def test_the_inference_protocol_is_answered(client, predictor, path):
    said = client.post(path, {"id": "7", "inputs": inputs(FIELDS)}).json()
    assert (said["model_name"], said["model_version"], said["id"]) == ("toy", "3", "7")
    assert said["outputs"][0]["data"] == [predictor.answer([GOOD])[0]["probability"]]


def test_an_arrow_stream_is_answered_as_the_records(client, predictor, toy_records):
    table = predictor.schema.table(predictor.schema.read(toy_records))
    said = client.call("POST", "/predict", stream(table), content_type="application/vnd.apache.arrow.stream")
    assert said.json()["predictions"] == client.post("/predict", toy_records).json()["predictions"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/healthz", {"status": "ok", "model": {"name": "toy", "version": 3}}),
        ("/readyz", {"ready": True, "model": {"name": "toy", "version": 3}}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/toy/ready", {"ready": True}),
        ("/v2/models/toy/versions/3/ready", {"ready": True}),
    ],
)
def test_health_is_told(client, path, expected):
    said = client.get(path)
    assert (said.status, said.json()) == (200, expected)


def test_a_replica_without_a_plan_lives_and_is_not_ready(serve):
    client = serve(plan=None)
    paths = ("/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready")
    assert [client.get(path).status for path in paths] == [200, 503, 503, 200, 503]


@pytest.mark.parametrize("path", ["/predict", "/invocations", INFER])
def test_a_replica_without_a_plan_asks_to_come_again(serve, path):
    said = serve(plan=None).post(path, FORMS["instances"])
    assert (said.status, said.headers[b"retry-after"]) == (503, b"1")


@pytest.mark.parametrize("path", ["/ping", "/version"])
def test_mlflows_pages_are_there(client, path):
    said = client.get(path)
    assert (said.status, said.headers[b"content-type"][:10]) == (200, b"text/plain")


def test_the_card_tells_of_the_version_that_answers(client, predictor):
    card = client.get("/model").json()
    assert card["model"] == {"name": "toy", "version": 3} and card["classes"] == [0, 1]
    assert (card["dataset"], card["metrics"]) == ("0123456789ab", predictor.bundle.metrics)


def test_the_cards_example_is_answered(client):
    assert client.post("/predict", [client.get("/model").json()["example"]]).status == 200


def test_the_plan_is_told_without_what_is_only_ours(serve):
    plan = Plan(stable=3, candidate=4, share=0.25, step=2, state="rolling", strategy="canary", salt="4:1", reason="well")
    said = serve(plan).get("/plan").json()
    assert said == {
        "strategy": "canary", "stable": 3, "candidate": 4, "share": 0.25, "step": 2, "state": "rolling", "reason": "well",
    }  # fmt: skip


def test_the_servers_and_the_models_metadata_are_the_protocols(client):
    assert client.get("/v2").json()["name"] == "rayloom"
    about = client.get("/v2/models/toy").json()
    assert (about["name"], about["versions"]) == ("toy", ["3"])
    assert [tensor["name"] for tensor in about["inputs"]] == list(GOOD)


def test_the_openapi_document_has_the_models_own_fields_and_paths_that_are_served(client):
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.") and '"carrier"' in json.dumps(document)
    paths = {path.replace("{m}", "toy") for path in document["paths"]}
    assert "/predict" in paths
    assert all(client.get(path.replace("{model}", "toy").replace("{version}", "3")).status in (200, 405) for path in paths)


def test_the_metrics_count_what_was_answered(client):
    client.post("/predict", [GOOD])
    said = client.get("/metrics")
    assert said.headers[b"content-type"] == b"text/plain; version=0.0.4; charset=utf-8"
    assert re.search(rb'^rayloom_requests_total\{model="toy",version="3"\} 1$', said.body, re.MULTILINE)


def test_a_reward_is_counted(client):
    said = client.post("/feedback", {"version": 3, "reward": 0.5})
    counts = client.application.versions.counts[3]
    assert (said.status, said.json(), counts.rewards, counts.reward_sum) == (200, {"counted": True}, 1, 0.5)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"version": 3},
        {"reward": 1},
        {"version": 4, "reward": 1},
        {"version": "3", "reward": 1},
        {"version": 3.0, "reward": 1},
        {"version": [3], "reward": 1},
        {"version": 3, "reward": 1.5},
        {"version": 3, "reward": -1},
        {"version": 3, "reward": True},
        {"version": 3, "reward": "1"},
        {"version": 3, "reward": None},
    ],
)
def test_a_reward_that_is_none_is_refused(client, body):
    assert client.post("/feedback", body).status == 422 and client.application.versions.counts[3].rewards == 0


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_malformed_body_gets_its_status_and_the_next_client_an_answer(client, case: Malformed):
    headers = {"content-type": case.content_type, "content-length": str(len(case.body)), **case.headers}
    path = case.path.replace("{m}", "toy")
    said = asyncio.run(client.send("POST", path, [{"type": "http.request", "body": case.body}], headers))
    assert said.status == case.status and isinstance(said.json(), dict)
    assert client.is_served()


def test_a_bad_record_fails_alone_and_not_who_came_with_it(client):
    async def together() -> list:
        bodies = [orjson.dumps([{**GOOD, "distance": value}]) for value in (1, "2", 3)]
        return await asyncio.gather(
            *(client.send("POST", "/predict", [{"type": "http.request", "body": body}], {}) for body in bodies)
        )

    assert [said.status for said in asyncio.run(together())] == [200, 422, 200]


def test_an_error_names_row_and_field(client):
    said = client.post("/predict", [GOOD, {**GOOD, "wind": "strong"}])
    assert (said.status, said.json()["error"]["row"], said.json()["error"]["field"]) == (422, 1, "wind")


@pytest.mark.parametrize("path", ["/predict/", "/nowhere", "/%00", "/\ud800é"])
def test_a_path_that_is_not_there_is_404_and_names_those_that_are(client, path):
    said = client.get(path)
    assert said.status == 404 and "/predict, /invocations" in said.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v2/models", "/v2/models/toy/explain", "/v2/models/a/b/c", "/v2/nothing"])
def test_a_path_that_is_not_there_is_404_in_the_form_of_its_protocol(client, path):
    said = client.get(path)
    assert said.status == 404 and "/predict, /invocations" in said.json()["error"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v2/models/other/infer", "there is no model 'other' here, but toy"),
        ("/v2/models/toy/versions/4/infer", "version '4' is not served; there are 3"),
        ("/v2/models/toy/versions/03/infer", "version '03' is not served; there are 3"),
    ],
)
def test_another_model_or_version_is_404_in_the_protocols_own_form(client, path, said):
    found = client.post(path, {"inputs": inputs(FIELDS)})
    assert (found.status, found.json()) == (404, {"error": said})


@pytest.mark.parametrize("path", ["/predict", "/invocations", INFER, "/feedback"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X" * 5000])
def test_what_takes_post_takes_nothing_else(client, path, method):
    said = client.call(method, path)
    assert (said.status, said.headers[b"allow"]) == (405, b"POST") and len(said.body) < 1000


@pytest.mark.parametrize("path", ["/model", "/plan", "/healthz", "/metrics", "/v2", "/v2/models/toy", "/openapi.json"])
def test_what_is_read_is_not_written(client, path):
    said = client.post(path, {})
    assert (said.status, said.headers[b"allow"]) == (405, b"GET, HEAD")


@pytest.mark.parametrize("path", ["/model", "/healthz", "/metrics"])
def test_head_is_answered_as_get(client, path):
    found, headed = client.get(path), client.call("HEAD", path)
    assert (headed.status, headed.headers) == (200, found.headers)


def read(chunk: bytes, times: int) -> tuple[list[int], Iterable[dict]]:
    """Messages of a body, and how many of them were taken."""
    taken = []

    def messages() -> Iterable[dict]:
        for index in range(times):
            taken.append(index)
            yield {"type": "http.request", "body": chunk, "more_body": index < times - 1}

    return taken, messages()


def test_a_body_that_says_it_is_too_large_is_refused_unread(client):
    taken, messages = read(b"x" * 1024, 2048)
    said = asyncio.run(client.send("POST", "/predict", messages, {"content-length": str(MAX_BYTES + 1)}))
    assert (said.status, len(taken)) == (413, 0)
    assert "the body is over the limit of 1,048,576 bytes" in said.json()["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"content-length": "5"}, {"content-length": "-1"}, {"content-length": "many"}])
def test_a_body_that_is_too_large_is_read_no_further_than_the_limit(client, headers):
    taken, messages = read(b"x" * 1024, 2048)
    said = asyncio.run(client.send("POST", "/predict", messages, headers))
    assert (said.status, len(taken)) == (413, 1025)


def test_a_length_of_a_thousand_digits_is_too_large(client):
    assert client.call("POST", "/predict", content_length="9" * 1000).status == 413


def test_a_body_in_parts_is_one_body(client):
    body = orjson.dumps([GOOD])
    parts = [{"type": "http.request", "body": body[at : at + 7], "more_body": True} for at in range(0, len(body), 7)]
    said = asyncio.run(client.send("POST", "/predict", [*parts, {"type": "http.request"}], {}))
    assert said.status == 200


@pytest.mark.parametrize("path", ["/predict", INFER, "/feedback"])
def test_who_hangs_up_in_the_middle_of_a_body_is_told_nothing(client, path):
    messages = [{"type": "http.request", "body": b'[{"day"', "more_body": True}, {"type": "http.disconnect"}]
    assert asyncio.run(client.send("POST", path, messages, {})) is None
    assert client.is_served()


class Broken(nn.Module):
    """A model that fails on the distances of `unlucky`'s record."""

    def __init__(self, sound: nn.Module, unlucky: float):
        super().__init__()
        self.sound, self.unlucky = sound, unlucky

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if (batch["numbers"][:, 0] == self.unlucky).any():
            raise ZeroDivisionError("a secret of ours")
        return self.sound(batch)


@pytest.fixture
def unlucky(predictor) -> dict:
    """A record on which the model fails from now on."""
    record = {**GOOD, "distance": 1313}
    arrays = predictor.transform.apply(predictor.schema.table(predictor.schema.read([record])))
    predictor.model = Broken(predictor.model, float(arrays["numbers"][0, 0]))
    return record


@pytest.mark.parametrize(
    ("path", "form"),
    [("/predict", lambda record: [record]), ("/invocations", lambda record: {"instances": [record]})],
)
def test_a_failing_model_is_500_without_what_happened(client, unlucky, path, form, caplog):
    said = client.post(path, form(unlucky))
    assert (said.status, said.json()["error"]["message"]) == (500, "the model failed on this request")
    assert b"secret" not in said.body and b"Traceback" not in said.body
    assert "a secret of ours" in caplog.text and client.is_served()


def test_who_came_with_a_request_that_the_model_fails_on_is_answered(client, unlucky):
    async def together() -> list:
        bodies = [orjson.dumps([record]) for record in (GOOD, unlucky, GOOD)]
        return await asyncio.gather(
            *(client.send("POST", "/predict", [{"type": "http.request", "body": body}], {}) for body in bodies)
        )

    assert [said.status for said in asyncio.run(together())] == [200, 500, 200]


@pytest.mark.parametrize("path", ["/predict", "/invocations", INFER])
def test_an_answer_that_is_no_number_is_500_and_no_json_with_nan(client, predictor, path):
    with torch.no_grad():
        for weights in predictor.model.parameters():
            weights.fill_(torch.nan)
    body = {"/predict": [GOOD], "/invocations": FORMS["inputs"], INFER: {"inputs": inputs(FIELDS)}}[path]
    said = client.post(path, body)
    assert said.status == 500 and isinstance(said.json(), dict)


def test_too_many_at_once_are_asked_to_come_again(serve):
    client = serve(max_waiting_rows=4)

    async def together() -> list:
        message = {"type": "http.request", "body": orjson.dumps([GOOD])}
        return await asyncio.gather(*(client.send("POST", "/predict", [message], {}) for _ in range(10)))

    said = asyncio.run(together())
    assert [one.status for one in said] == [200] * 4 + [503] * 6
    assert {one.headers.get(b"retry-after") for one in said[4:]} == {b"1"} and client.is_served()


def test_a_client_that_is_cancelled_frees_its_place(serve):
    client = serve(max_waiting_rows=2)

    async def scenario() -> Said | None:
        message = {"type": "http.request", "body": orjson.dumps([GOOD])}
        calls = [asyncio.create_task(client.send("POST", "/predict", [message], {})) for _ in range(2)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return await client.send("POST", "/predict", [message], {})

    assert asyncio.run(scenario()).status == 200


def test_what_is_no_request_is_let_be(client):
    async def never(*message: Any) -> Any:
        raise AssertionError("nothing was to be said or heard")

    assert asyncio.run(client.application({"type": "lifespan"}, never, never)) is None


def test_a_websocket_is_closed_before_it_is_opened(client):
    """A server answers 403 then; where the application says nothing, it answers 500."""
    sent = []

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(client.application({"type": "websocket", "path": "/predict", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close"}]


def test_categories_that_training_did_not_know_are_answered_and_flagged(client):
    said = client.post("/predict", [GOOD, {**GOOD, "carrier": "✈"}]).json()["predictions"]
    assert [answer.get("unseen") for answer in said] == [None, ["carrier"]]
