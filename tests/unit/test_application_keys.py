"""Who may ask, and the page for people, where keys are needed."""

import asyncio
from datetime import UTC, datetime

import orjson
import pytest

from rayloom import config
from rayloom.serving import keys
from rayloom.serving.application import Application
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions
from tests.unit.test_application import GOOD, Client, Said


@pytest.fixture
def client(toy_bundle, tmp_path) -> Client:
    versions = Versions("toy", config.Serve())
    versions.add(3, Predictor(toy_bundle))
    versions.plan = Plan(stable=3)
    return Client(Application(versions, keys.Keys(tmp_path / "keys.json")))


@pytest.fixture
def key(tmp_path) -> str:
    return keys.create(tmp_path / "keys.json", "tests", datetime.now(UTC), rate=1.0)


def ask(client: Client, method: str, path: str, headers: dict[str, str] = {}) -> Said:
    message = {"type": "http.request", "body": orjson.dumps([GOOD])}
    said = asyncio.run(client.send(method, path, [message], headers))
    assert said is not None
    return said


@pytest.mark.parametrize("headers", [lambda key: {"authorization": f"Bearer {key}"}, lambda key: {"x-api-key": key}])
def test_a_key_opens(client, key, headers):
    assert ask(client, "POST", "/predict", headers(key)).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/predict"), ("POST", "/invocations"), ("GET", "/model"), ("GET", "/plan")]
)
def test_without_one_nothing_is_told(client, key, method, path):
    said = ask(client, method, path)
    assert (said.status, b"www-authenticate" in said.headers) == (401, True)
    assert b"carrier" not in said.body


def test_who_asks_too_often_is_told_when_to_come_back(client, key):
    statuses = [ask(client, "POST", "/predict", {"x-api-key": key}).status for _ in range(3)]
    said = ask(client, "POST", "/predict", {"x-api-key": key})
    assert statuses[0] == 200 and said.status == 429 and int(said.headers[b"retry-after"]) >= 1


@pytest.mark.parametrize("path", sorted(keys.OPEN))
def test_probes_need_none(client, path):
    assert ask(client, "GET", path).status == 200


def test_the_page_asks_for_a_key_before_it_shows_a_record(client, key):
    locked, opened = ask(client, "GET", "/"), ask(client, "GET", "/", {"x-api-key": key})
    assert (locked.status, opened.status) == (200, 200)
    assert b"carrier" not in locked.body and b"carrier" in opened.body
