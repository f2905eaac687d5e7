"""Micro-batches: who goes together, what may wait, and that nothing ends the loop."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from rayloom.errors import Overloaded
from rayloom.serving.batching import Batcher, joined
from rayloom.serving.predictor import Predictor

UNLUCKY = 1313
"""The distance on which the model fails."""


class Passes:
    """A model that keeps the rows of its passes, fails on UNLUCKY, and waits while its gate is closed."""

    def __init__(self, predictor: Predictor):
        self.predictor, self.rows = predictor, []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, columns: dict[str, list]) -> list[dict]:
        self.rows.append(len(columns["distance"]))
        self.begun.set()
        assert self.gate.wait(10)
        if UNLUCKY in columns["distance"]:
            raise ZeroDivisionError("unlucky")
        return self.predictor.answer_rows(self.predictor.schema.table(columns))


@pytest.fixture
def passes(toy_bundle) -> Passes:
    return Passes(Predictor(toy_bundle))


@pytest.fixture(params=[False, True], ids=["in the loop", "apart"])
def batcher(passes, request) -> Callable[..., Batcher]:
    """Makes a queue, in both ways of computing."""

    def make(most: int = 100, room: int = 100, seconds: float = 10.0) -> Batcher:
        return Batcher(passes, most, room, seconds, apart=request.param)

    return make


@pytest.fixture
def apart(passes) -> Callable[..., Batcher]:
    """Makes a queue whose model computes in a thread."""
    return lambda seconds=10.0: Batcher(passes, 100, 100, seconds, apart=True)


@pytest.fixture
def columns(passes, toy_records) -> Callable[..., dict[str, list]]:
    """Makes checked columns of so many rows, which differ from request to request."""

    def make(rows: int = 1, **changes) -> dict[str, list]:
        given = [{**toy_records[row % 8], "distance": 100.0 + 7 * row + 31 * rows, **changes} for row in range(rows)]
        return passes.predictor.schema.read(given)

    return make


def run(batcher: Batcher, *requests: dict[str, list]) -> list:
    """What becomes of requests that come at the same time: answers or exceptions."""

    async def together() -> list:
        calls = (batcher.submit(one, len(one["distance"])) for one in requests)
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(together())


def test_an_idle_model_answers_at_once(batcher, columns, passes):
    (answers,) = run(batcher(), columns(3))
    assert len(answers) == 3 and passes.rows == [3]


def test_requests_that_wait_together_go_in_one_pass(batcher, columns, passes):
    run(batcher(), *[columns(rows) for rows in (1, 2, 3)])
    assert passes.rows == [6]


def test_what_comes_while_the_model_is_busy_goes_in_the_next_pass(apart, columns, passes):
    async def scenario() -> None:
        queue = apart()
        passes.gate.clear()
        first = asyncio.create_task(queue.submit(columns(1), 1))
        await asyncio.to_thread(passes.begun.wait, 10)
        others = [asyncio.create_task(queue.submit(columns(2), 2)) for _ in range(3)]
        await asyncio.sleep(0)
        passes.gate.set()
        await asyncio.gather(first, *others)

    asyncio.run(scenario())
    assert passes.rows == [1, 6]


def test_a_pass_has_at_most_so_many_rows_and_a_larger_request_goes_alone(batcher, columns, passes):
    run(batcher(most=4), *[columns(rows) for rows in (3, 3, 1, 9, 1)])
    assert passes.rows == [3, 4, 9, 1]


def test_answers_are_those_of_the_request_whatever_its_company(batcher, columns, passes):
    requests = [columns(rows) for rows in (1, 5, 2, 40, 3, 1)]
    found = run(batcher(most=45), *requests)
    for one, answers in zip(requests, found, strict=True):
        expected = passes.predictor.answer_rows(passes.predictor.schema.table(one))
        assert [answer["probability"] for answer in answers] == pytest.approx(
            [answer["probability"] for answer in expected], abs=1e-6
        )


def test_more_rows_than_may_wait_are_refused_and_the_others_answered(batcher, columns):
    *admitted, refused = run(batcher(room=4), columns(2), columns(2), columns(1))
    assert [len(answers) for answers in admitted] == [2, 2]
    assert isinstance(refused, Overloaded) and refused.status == 503
    assert str(refused) == "4 rows are waiting, the limit is 4; try again"


def test_a_request_that_alone_is_over_the_room_is_taken_where_nobody_waits(batcher, columns):
    (answers,) = run(batcher(room=4), columns(9))
    assert len(answers) == 9


def test_room_is_free_again_after_a_pass(batcher, columns):
    queue = batcher(room=2)
    assert [len(run(queue, columns(2))[0]) for _ in range(3)] == [2, 2, 2]


def test_an_answer_that_does_not_come_in_time_is_overload(apart, columns, passes):
    passes.gate.clear()

    async def scenario() -> Overloaded:
        queue = apart(seconds=0.01)
        try:
            with pytest.raises(Overloaded) as caught:
                await asyncio.wait_for(queue.submit(columns(), 1), 5)
        finally:
            passes.gate.set()
        return caught.value

    assert str(asyncio.run(scenario())) == "no answer within 0.01 s; try again"


def test_a_request_that_waited_too_long_is_not_computed(apart, columns, passes):
    async def scenario() -> None:
        queue = apart(seconds=0.01)
        passes.gate.clear()
        late = [asyncio.create_task(queue.submit(columns(rows), rows)) for rows in (1, 5)]
        await asyncio.to_thread(passes.begun.wait, 10)
        late.append(asyncio.create_task(queue.submit(columns(7), 7)))
        await asyncio.gather(*late, return_exceptions=True)
        passes.gate.set()
        queue.seconds = 10.0
        await queue.submit(columns(2), 2)

    asyncio.run(scenario())
    assert passes.rows == [6, 2]


def test_who_hangs_up_leaves_the_queue_uncomputed(batcher, columns, passes):
    async def scenario() -> list:
        queue = batcher()
        calls = [asyncio.create_task(queue.submit(columns(rows), rows)) for rows in (1, 20, 3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, gone, last = asyncio.run(scenario())
    assert (len(first), len(last), passes.rows) == (1, 3, [4]) and isinstance(gone, asyncio.CancelledError)


def test_who_hangs_up_in_a_pass_takes_nothing_from_the_others(apart, columns, passes):
    async def scenario() -> list:
        queue = apart()
        passes.gate.clear()
        calls = [asyncio.create_task(queue.submit(columns(rows), rows)) for rows in (1, 2, 3)]
        await asyncio.to_thread(passes.begun.wait, 10)
        calls[1].cancel()
        passes.gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, _, last = asyncio.run(scenario())
    assert (len(first), len(last)) == (1, 3)


def test_a_queue_of_which_all_hang_up_computes_nothing_and_goes_on(batcher, columns, passes):
    async def scenario() -> list:
        queue = batcher()
        call = asyncio.create_task(queue.submit(columns(5), 5))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return await queue.submit(columns(2), 2)

    assert len(asyncio.run(scenario())) == 2 and passes.rows == [2]


def test_a_request_that_the_model_fails_on_fails_alone(batcher, columns, passes):
    first, failed, last = run(batcher(), columns(2), columns(1, distance=UNLUCKY), columns(3))
    assert (len(first), type(failed), len(last)) == (2, ZeroDivisionError, 3)
    assert passes.rows == [6, 2, 1, 3]


def test_after_a_failure_the_queue_goes_on(batcher, columns):
    queue = batcher()
    assert isinstance(run(queue, columns(1, distance=UNLUCKY))[0], ZeroDivisionError)
    assert len(run(queue, columns(2))[0]) == 2


def test_nothing_works_while_nobody_waits(batcher, columns):
    queue = batcher()

    async def scenario() -> None:
        await queue.submit(columns(), 1)
        while queue.work:
            await queue.work

    asyncio.run(scenario())
    assert (queue.work, len(queue.waiting), queue.rows) == (None, 0, 0)


def test_requests_are_joined_in_their_order_by_field():
    assert joined([{"a": [1], "b": ["x"]}, {"b": ["y", None], "a": [2, 3]}]) == {"a": [1, 2, 3], "b": ["x", "y", None]}
