"""A replica and those who mean it no good, or know no better: requests made from its OpenAPI document, slow clients, clients
that hang up, more work than it can do, and what all of them leave in its memory.
"""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterable

import numpy as np
import orjson
import pyarrow as pa
import pytest
import schemathesis

from rayloom import config
from rayloom.errors import InvalidRecords
from rayloom.serving.application import Application
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.reception import LARGEST, ClientGone
from rayloom.serving.versions import Versions
from tests import generated
from tests.malformed import Fields, corpus

GOOD = {"day": "2013-11-04", "carrier": "AA", "gate": 2, "holiday": True, "tail": "N1", "distance": 500, "wind": 7.5}
MAX_ROWS, MAX_BYTES = 20, 2**20
CORPUS = corpus(Fields(GOOD, "distance", "carrier", "day", MAX_ROWS))


@pytest.fixture
def toy_spec() -> config.Features:
    """Fields of every type that a request can have, but texts and images."""
    columns = {
        "day": {"kind": "date"},
        "carrier": {"kind": "category", "min_count": 1},
        "gate": {"kind": "category", "min_count": 1},
        "holiday": {"kind": "category", "min_count": 1},
        "tail": {"kind": "category", "encode": "hash", "buckets": 8},
        "distance": {"kind": "number"},
        "wind": {"kind": "number", "scale": "none"},
    }
    return config.Features.model_validate({"label": "late", "columns": columns})


@pytest.fixture
def toy_rows() -> pa.Table:
    rng = np.random.default_rng(5)
    size = 50
    days = np.datetime64("2013-01-01") + rng.integers(0, 365, size)
    numbers = {"gate": rng.integers(1, 4, size), "distance": rng.integers(100, 3000, size), "wind": rng.normal(10, 4, size)}
    texts = {"carrier": rng.choice(["AA", "UA"], size), "tail": rng.choice(["N1", "N2", "N3"], size)}
    flags = {"holiday": rng.integers(0, 2, size) == 1, "late": rng.integers(0, 2, size)}
    return pa.table({"day": days.astype("datetime64[D]"), **texts, **numbers, **flags})


class Model:
    """The model of a replica, which waits before a pass while its gate is closed, and keeps the rows of its passes."""

    def __init__(self, predictor: Predictor):
        self.answer, self.gate, self.begun, self.rows = predictor.answer_rows, threading.Event(), threading.Event(), []
        self.gate.set()
        predictor.answer_rows, predictor.is_heavy = self, True  # computes in a thread, so that the loop sees what happens

    def __call__(self, rows: pa.Table) -> list[dict]:
        self.rows.append(len(rows))
        self.begun.set()
        assert self.gate.wait(10)
        return self.answer(rows)


@pytest.fixture
def predictor(toy_bundle) -> Predictor:
    return Predictor(toy_bundle)


@pytest.fixture
def model(predictor) -> Model:
    return Model(predictor)


@pytest.fixture
def serve(predictor) -> Callable[..., Application]:
    """Makes a replica, with other settings where they are named."""

    def make(**settings) -> Application:
        versions = Versions("toy", config.Serve(**{"max_rows": MAX_ROWS, "max_body_bytes": MAX_BYTES, **settings}))
        versions.add(3, predictor)
        versions.plan = Plan(stable=3)
        return Application(versions)

    return make


async def ask(
    application: Application, messages: Iterable[dict], then: Awaitable | None = None, path: str = "/predict", **headers: str
) -> tuple[int, dict[bytes, bytes]] | None:
    """Status and headers of the answer to a request in these messages; None where nobody is answered.

    Args:
        then: when it is over, the client hangs up; None: never.
    """
    left, sent = iter(messages), []
    end = asyncio.get_running_loop().create_future() if then is None else then

    async def receive() -> dict:
        for message in left:
            return message
        await end
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await application({"type": "http", "method": "POST", "path": path, "headers": pairs}, receive, send)
    return (sent[0]["status"], dict(sent[0]["headers"])) if sent else None


def part(body: bytes, more: bool = False) -> dict:
    return {"type": "http.request", "body": body, "more_body": more}


def rows(count: int = 1) -> list[dict]:
    """The messages of a good request."""
    return [part(orjson.dumps([GOOD] * count))]


@pytest.mark.parametrize(("phase", "examples"), [("coverage", 1), ("fuzzing", 6)])
def test_answers_are_as_the_openapi_document_says(serve, phase, examples):
    """`benchmarks.hostile` sends 10,000 requests over HTTP."""
    application = serve()
    generated.know_streams(GOOD)
    settings = generated.settings(phase, examples, seed=17)
    report = generated.run(schemathesis.openapi.from_asgi("/openapi.json", application, config=settings), most=300)
    assert not report.violations
    assert report.cases.total() > 50 and 200 in report.statuses and max(report.statuses) < 500


@pytest.mark.parametrize("messages", [[], [part(b"[{", more=True)]], ids=["nothing", "a part"])
def test_a_body_that_does_not_come_in_time_is_408(serve, messages):
    application = serve(timeout_s=0.01)
    status, headers = asyncio.run(ask(application, messages))
    assert (status, headers[b"connection"], application.reception.held) == (408, b"close", 0)


def test_a_body_that_comes_late_but_in_time_is_answered(serve):
    application = serve()

    async def scenario() -> tuple:
        whole = orjson.dumps([GOOD])
        second = asyncio.get_running_loop().create_future()
        messages: list = [part(whole[:9], more=True), second]
        asyncio.get_running_loop().call_later(0.1, second.set_result, part(whole[9:]))
        sent = []

        async def receive() -> dict:
            message = messages.pop(0) if messages else asyncio.get_running_loop().create_future()
            return message if isinstance(message, dict) else await message

        async def send(message: dict) -> None:
            sent.append(message)

        await application({"type": "http", "method": "POST", "path": "/predict", "headers": []}, receive, send)
        return sent[0]["status"], application.reception.held

    assert asyncio.run(scenario()) == (200, 0)


def test_clients_that_hang_up_while_they_wait_leave_their_places_at_once(serve, model):
    """Before the model has come to them: it is in a pass all the while."""
    application = serve(max_waiting_rows=50)
    batcher = application.versions.held[3].batcher

    async def scenario() -> tuple:
        model.gate.clear()
        first = asyncio.create_task(ask(application, rows()))
        await asyncio.to_thread(model.begun.wait, 10)
        gone = asyncio.get_running_loop().create_future()
        calls = [asyncio.create_task(ask(application, rows(), gone)) for _ in range(50)]
        await asyncio.sleep(0)
        waited = batcher.rows
        gone.set_result(None)
        told = await asyncio.gather(*calls)
        left = batcher.rows
        later = [asyncio.create_task(ask(application, rows())) for _ in range(50)]
        await asyncio.sleep(0)
        model.gate.set()
        return waited, set(told), left, {said[0] for said in await asyncio.gather(first, *later)}

    assert asyncio.run(scenario()) == (50, {None}, 0, {200})
    assert model.rows == [1, 50]


def test_large_bodies_that_are_here_at_once_have_a_bound(serve):
    application = serve()
    half = part(b" " * (MAX_BYTES // 2), more=True)

    async def scenario() -> tuple:
        gone = asyncio.get_running_loop().create_future()
        calls = [asyncio.create_task(ask(application, [half], gone)) for _ in range(2 * LARGEST)]
        await asyncio.sleep(0)
        full = application.reception.held
        refused, small = await ask(application, [half]), await ask(application, rows())
        gone.set_result(None)
        await asyncio.gather(*calls)
        return full, refused[0], refused[1][b"retry-after"], small[0], application.reception.held

    assert asyncio.run(scenario()) == (LARGEST * MAX_BYTES, 503, b"1", 200, 0)


def test_large_bodies_go_one_after_the_other_and_small_ones_between_them(serve, model):
    application = serve()
    large = [part(orjson.dumps([GOOD]) + b" " * 100_000)]
    answered = []

    async def one(name: str, messages: list[dict]) -> None:
        await ask(application, messages)
        answered.append(name)

    async def scenario() -> None:
        await asyncio.gather(*(one("large", large) for _ in range(4)), one("small", rows()))

    asyncio.run(scenario())
    assert answered.index("small") < 2


@pytest.mark.parametrize(("spaces", "is_planned"), [(0, False), (100_000, True)])
def test_what_a_large_body_took_is_given_back(serve, spaces, is_planned):
    application = serve()

    async def scenario() -> bool:
        await ask(application, [part(orjson.dumps([GOOD]) + b" " * spaces)])
        return application.reception.trims is not None

    assert asyncio.run(scenario()) is is_planned


def test_at_ten_times_the_capacity_who_is_admitted_waits_a_few_passes_and_the_others_are_told_at_once(serve, model):
    """An admitted request waits until the rows before it are done: no more passes than fill the queue."""
    application = serve(max_waiting_rows=40, max_batch_rows=10)

    async def scenario() -> tuple:
        model.gate.clear()
        waited: list[tuple[int, int]] = []

        async def one() -> None:
            before = len(model.rows)
            said = await ask(application, rows())
            waited.append((said[0], len(model.rows) - before))

        calls = [asyncio.create_task(one()) for _ in range(400)]
        await asyncio.to_thread(model.begun.wait, 10)
        at_once = list(waited)
        model.gate.set()
        await asyncio.gather(*calls)
        return at_once, waited

    at_once, waited = asyncio.run(scenario())
    assert set(at_once) == {(503, 0)} and len(at_once) == 360
    admitted = [passes for status, passes in waited if status == 200]
    assert len(admitted) == 40 and max(admitted) <= 40 // 10 + 1


def test_who_would_not_be_answered_in_time_is_told_at_once(serve, model):
    """As the last passes went: here 1 s for a row, so that 30 rows wait for as long as a request may."""
    application = serve(timeout_s=30.0)
    batcher = application.versions.held[3].batcher
    batcher.done_rows, batcher.done_seconds = 1.0, 1.0

    async def scenario() -> list[int]:
        return [said[0] for said in await asyncio.gather(*(ask(application, rows()) for _ in range(40)))]

    assert asyncio.run(scenario()) == [200] * 30 + [503] * 10


def test_a_model_that_has_become_fast_again_admits_again(serve, model):
    application = serve(timeout_s=30.0)
    batcher = application.versions.held[3].batcher
    batcher.done_rows, batcher.done_seconds = 1.0, 60.0

    async def scenario() -> list[int]:
        for _ in range(60):
            await ask(application, rows())
        return [said[0] for said in await asyncio.gather(*(ask(application, rows()) for _ in range(40)))]

    assert asyncio.run(scenario()) == [200] * 40


def garbage() -> list:
    """Objects that nothing but themselves held, which only a garbage collection has found."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = list(gc.garbage)
    gc.set_debug(0)
    gc.garbage.clear()
    return found


def refuse_all(application: Application) -> None:
    async def scenario() -> None:
        for case in CORPUS:
            headers = {"content_type": case.content_type, "content_length": str(len(case.body))}
            said = await ask(application, [part(case.body)], path=case.path.replace("{m}", "toy"), **headers, **case.headers)
            assert said[0] == case.status, case.name
            assert (await ask(application, rows()))[0] == 200

    asyncio.run(scenario())


def time_out(application: Application) -> None:
    assert asyncio.run(ask(application, [part(b"[", more=True)]))[0] == 408


def send_too_much(application: Application) -> None:
    parts = [part(b" " * MAX_BYTES, more=True)] * 2
    assert asyncio.run(ask(application, parts))[0] == 413


def fail_alone(application: Application) -> None:
    """The model refuses a row, as it does an image that is none."""

    def refuse(rows: pa.Table) -> list:
        raise InvalidRecords(422, "no image")

    application.versions.held[3].predictor.answer_rows = refuse
    assert asyncio.run(ask(application, rows()))[0] == 422


@pytest.mark.parametrize("attack", [refuse_all, time_out, send_too_much, fail_alone])
def test_what_was_refused_is_let_go_of_at_once(serve, attack):
    """Errors that hold themselves, by their tracebacks, hold the bodies: megabytes each, and no reason for a collection."""
    application = serve(timeout_s=0.5)
    garbage()
    gc.disable()
    try:
        attack(application)
        kept = garbage()
    finally:
        gc.enable()
    assert [one for one in kept if isinstance(one, InvalidRecords | ClientGone)] == []
