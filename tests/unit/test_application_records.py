"""Requests that a replica keeps with their answers, and the id by which a request is named there and in the log."""

import logging

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from rayloom import config
from rayloom.serving.application import Application
from rayloom.serving.capture import Capture
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions
from tests.unit.test_application import GOOD, Client

SECRET = "rl_secret"


@pytest.fixture
def kept(tmp_path) -> Capture:
    return Capture(config.Records(share=1.0), tmp_path / "records", "aa")


@pytest.fixture
def client(toy_bundle, kept) -> Client:
    versions = Versions("toy", config.Serve(), kept)
    versions.add(3, Predictor(toy_bundle))
    versions.plan = Plan(stable=3)
    return Client(Application(versions))


def rows(kept: Capture) -> list[dict]:
    kept.gather(last=True)
    return pq.read_table(kept.folder).to_pylist() if kept.folder.exists() else []


def test_an_answer_is_kept_with_its_request(client, kept):
    said = client.post("/predict", [GOOD, GOOD], x_request_id="abc-1")
    found = rows(kept)
    assert [row["_probability"] for row in found] == [answer["probability"] for answer in said.json()["predictions"]]
    assert [(row["_request"], row["_row"], row["distance"], row["model_version"]) for row in found] == [
        ("abc-1", 0, 500.0, 3),
        ("abc-1", 1, 500.0, 3),
    ]


@pytest.mark.parametrize(
    ("path", "body"), [("/invocations", {"dataframe_records": [GOOD]}), ("/predict", [GOOD])], ids=["mlflow", "records"]
)
def test_every_protocols_answers_are_kept(client, kept, path, body):
    client.post(path, body)
    assert [row["distance"] for row in rows(kept)] == [500.0]


def test_what_is_refused_is_not_kept(client, kept):
    client.post("/predict", [{**GOOD, "distance": "far"}])
    assert rows(kept) == []


def test_no_header_is_kept(client, kept):
    client.post("/predict", [GOOD], authorization=f"Bearer {SECRET}", x_api_key=SECRET, cookie=SECRET)
    assert SECRET not in repr(rows(kept))
    assert all(SECRET.encode() not in path.read_bytes() for path in kept.folder.rglob("*.parquet"))


def test_the_metrics_count_what_is_kept(client, kept):
    client.post("/predict", [GOOD])
    kept.gather(last=True)
    assert b'rayloom_records_written_total{model="toy"} 1' in client.get("/metrics").body


class Broken(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        raise ZeroDivisionError("broken")


def test_the_log_names_the_request_that_the_model_failed_on(client, caplog):
    client.application.versions.held[3].predictor.model = Broken()
    with caplog.at_level(logging.ERROR, "rayloom.serving"):
        client.post("/predict", [GOOD], x_request_id="abc-1")
    assert "the model failed on request abc-1" in caplog.text


@pytest.mark.parametrize(
    ("given", "named"), [({}, "-"), ({"x_request_id": "x" * 500}, "x" * 128), ({"x_request_id": "é"}, "\\xc3\\xa9")]
)
def test_an_id_that_is_none_is_still_short_and_printable(client, kept, given, named):
    """Behind HAProxy and Ray there is always a good one."""
    client.post("/predict", [GOOD], **given)
    assert rows(kept)[0]["_request"] == named
