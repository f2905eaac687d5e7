"""The versions in a replica: which answers, what is counted of it, and what a shadow does unseen."""

import asyncio
from collections.abc import Callable

import orjson
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from rayloom import config, models
from rayloom.errors import InvalidRecords, Overloaded, ServingError
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.protocols import records
from rayloom.serving.versions import Versions, distance

JSON = {b"content-type": b"application/json"}


@pytest.fixture
def predictors(write_toy_bundle, toy_weights, toy_model, toy_state) -> list[Predictor]:
    """Two models of the same fields with other weights."""
    first = Predictor(write_toy_bundle([], "first"))
    torch.manual_seed(9)
    save_file(models.build(toy_model, toy_state).state_dict(), toy_weights)
    return [first, Predictor(write_toy_bundle([], "second"))]


@pytest.fixture
def body(toy_records) -> bytes:
    return orjson.dumps(toy_records)


@pytest.fixture
def held(predictors) -> Callable[..., Versions]:
    """Makes a replica that holds versions 1 and 2, or those that are named, under a plan."""

    def make(plan: Plan | None, numbers: tuple[int, ...] = (1, 2), **rollout) -> Versions:
        versions = Versions("toy", config.Serve(rollout=config.Rollout(**rollout)))
        for number in numbers:
            versions.add(number, predictors[number - 1])
        versions.plan = plan
        return versions

    return make


def ask(versions: Versions, body: bytes, number: int | None = None, key: bytes | None = None) -> dict:
    """The answer, after all shadows have answered, too."""

    async def call() -> dict:
        headers = JSON if key is None else {**JSON, b"x-session-id": key}
        reply = await versions.reply(records, body, headers, number)
        await asyncio.gather(*versions.shadows)
        return orjson.loads(reply.body)

    return asyncio.run(call())


@pytest.mark.parametrize("number", [1, 2])
def test_an_answer_is_of_the_version_that_it_names(held, predictors, body, toy_records, number):
    answer = ask(held(Plan(stable=number)), body)
    assert answer["model"] == {"name": "toy", "version": number}
    assert answer["predictions"] == predictors[number - 1].answer(toy_records)


@pytest.mark.parametrize("number", [1, 2])
def test_a_client_may_ask_for_a_version(held, body, number):
    assert ask(held(Plan(stable=1)), body, number)["model"]["version"] == number


def test_a_version_that_is_not_held_is_404(held, body):
    with pytest.raises(InvalidRecords, match="version 3 is not served; there are 1, 2") as caught:
        ask(held(Plan(stable=1)), body, 3)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("plan", "numbers", "expected"),
    [
        (Plan(stable=1, candidate=2, share=1.0, strategy="canary"), (1, 2), 2),
        (Plan(stable=1, candidate=2, share=1.0, strategy="canary"), (1,), 1),
        (Plan(stable=1, candidate=3, share=1.0, strategy="canary"), (1, 2), 1),
        (Plan(stable=3), (1, 2), 2),
    ],
    ids=["candidate", "not loaded yet", "another candidate", "stable not loaded yet"],
)
def test_a_version_that_is_held_answers(held, body, plan, numbers, expected):
    assert ask(held(plan, numbers), body)["model"]["version"] == expected


@pytest.mark.parametrize(("plan", "numbers"), [(None, (1,)), (Plan(stable=1), ())])
def test_before_a_version_is_there_a_client_is_to_come_again(held, body, plan, numbers):
    with pytest.raises(Overloaded, match="the model is being loaded; try again"):
        ask(held(plan, numbers), body)


def test_only_a_plan_whose_stable_version_is_held_is_ready(held):
    assert [held(plan, (1,)).is_ready for plan in (None, Plan(stable=1), Plan(stable=2))] == [False, True, False]


SPLIT = Plan(stable=1, candidate=2, share=0.5, strategy="ab", salt="2:1")


def test_in_an_ab_test_a_session_gets_the_same_version_again(held, body):
    versions = held(SPLIT, strategy="ab")
    for key in (b"anna", b"bert", b"carl", b"dora"):
        assert len({ask(versions, body, key=key)["model"]["version"] for _ in range(8)}) == 1


def test_in_an_ab_test_sessions_are_split(held, body):
    versions = held(SPLIT, strategy="ab")
    found = [ask(versions, body, key=b"%d" % key)["model"]["version"] for key in range(100)]
    assert 30 < found.count(2) < 70


SHADOW = Plan(stable=1, candidate=2, share=1.0, strategy="shadow")


def test_a_shadows_answers_are_compared_and_not_returned(held, predictors, body, toy_records):
    versions = held(SHADOW, shadow_tolerance=0.0)
    assert ask(versions, body)["model"]["version"] == 1
    old, new = (predictor.predict_records(toy_records) for predictor in predictors)
    counts = versions.counts[2]
    assert (counts.compared, counts.differing, counts.requests) == (8, 8, 1)
    assert counts.largest == pytest.approx(abs(old - new).max(), abs=1e-6)


def test_a_shadow_that_answers_the_same_does_not_differ(held, predictors, body):
    predictors[1] = predictors[0]
    versions = held(SHADOW, shadow_tolerance=1e-6)
    ask(versions, body)
    assert (versions.counts[2].compared, versions.counts[2].differing) == (8, 0)


def test_without_a_shadow_nothing_is_compared(held, body):
    versions = held(Plan(stable=1))
    ask(versions, body)
    assert (versions.counts[2].requests, versions.counts[2].compared) == (0, 0)


def test_a_shadow_that_is_behind_is_left_out(held, body):
    versions = held(SHADOW)
    versions.held[2].batcher.rows = versions.settings.max_waiting_rows // 4
    ask(versions, body)
    assert versions.counts[2].requests == 0


@pytest.mark.parametrize(("is_heavy", "expected"), [(True, (3, True)), (False, (1, False))])
def test_models_of_texts_and_images_compute_in_threads_on_the_replicas_cpus(predictors, is_heavy, expected):
    predictors[0].is_heavy = is_heavy
    versions = Versions("toy", config.Serve(cpus=3, max_batch_tokens=500))
    versions.add(1, predictors[0])
    batcher = versions.held[1].batcher
    assert (batcher.cpus, batcher.threads is not None, batcher.tokens) == (*expected, 500)


class Broken(nn.Module):
    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        raise ZeroDivisionError("broken")


def test_a_shadow_that_fails_is_counted_and_the_client_answered(held, predictors, body):
    predictors[1].model = Broken()
    versions = held(SHADOW)
    assert ask(versions, body)["model"]["version"] == 1
    assert [(versions.counts[number].requests, versions.counts[number].errors) for number in (1, 2)] == [(1, 0), (1, 1)]


def test_a_failure_of_the_model_is_counted(held, predictors, body):
    predictors[0].model = Broken()
    versions = held(Plan(stable=1))
    with pytest.raises(ZeroDivisionError):
        ask(versions, body)
    assert (versions.counts[1].requests, versions.counts[1].errors, versions.counts[1].scores) == (1, 1, 0)


def test_an_answer_that_is_no_number_is_a_failure(held, predictors, body):
    with torch.no_grad():
        for weights in predictors[0].model.parameters():
            weights.fill_(torch.nan)
    versions = held(Plan(stable=1))
    with pytest.raises(ServingError):
        ask(versions, body)
    assert versions.counts[1].errors == 1


def test_what_a_client_did_wrong_is_not_counted(held):
    versions = held(Plan(stable=1))
    with pytest.raises(InvalidRecords):
        ask(versions, b"[{}]")
    assert versions.counts[1].requests == 0


def test_answers_are_counted_with_their_latency_and_first_score(held, body, toy_records, predictors):
    versions = held(Plan(stable=1))
    for _ in range(3):
        ask(versions, body)
    counts, first = versions.counts[1], predictors[0].answer(toy_records)[0]["probability"]
    assert (counts.requests, counts.errors, sum(counts.latency), counts.scores) == (3, 0, 3, 3)
    assert counts.score_sum == pytest.approx(3 * first, abs=1e-6)


def test_a_version_that_is_let_go_answers_who_waits_for_it(held, body):
    versions = held(Plan(stable=1))

    async def scenario() -> bytes:
        call = asyncio.create_task(versions.reply(records, body, JSON))
        await asyncio.sleep(0)
        versions.plan = Plan(stable=2, epoch=1)
        versions.keep({2})
        return (await call).body

    assert orjson.loads(asyncio.run(scenario()))["model"]["version"] == 1
    assert [*versions.held] == [2] and ask(versions, body)["model"]["version"] == 2


def test_a_version_that_comes_back_goes_on_counting(held, predictors, body):
    versions = held(Plan(stable=1))
    ask(versions, body)
    versions.keep({2})
    versions.add(1, predictors[0])
    ask(versions, body)
    assert versions.counts[1].requests == 2


THREE = {"label": "tea", "probability": 0.5, "probabilities": {"milk": 0.3, "tea": 0.5, "wine": 0.2}}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (THREE, 0.0),
        ({**THREE, "probabilities": {"milk": 0.1, "tea": 0.5, "wine": 0.4}}, 0.2),
        ({**THREE, "probabilities": {"milk": 0.3, "tea": 0.7}}, 1.0),
        ({"probability": 0.5, "label": 1}, 1.0),
    ],
)
def test_answers_are_as_far_apart_as_their_furthest_probabilities(other, expected):
    assert distance(THREE, other) == pytest.approx(expected)


def test_answers_of_two_classes_are_as_far_apart_as_their_probabilities():
    assert distance({"probability": 0.25, "label": 0}, {"probability": 0.75, "label": 1}) == 0.5
