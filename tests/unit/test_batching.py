"""Micro-batches: who goes together, what may wait, and that nothing ends the loop."""

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
import torch

from rayloom.errors import InvalidRecords, Overloaded
from rayloom.serving.batching import PASS_S, Batcher, Part, Waiting, joined
from rayloom.serving.predictor import Predictor

UNLUCKY, UNUSABLE = 1313, 1414
"""The distances on which the model fails, and which it refuses."""


class Passes:
    """A model that keeps the rows of its passes, fails on UNLUCKY, and waits while its gate is closed."""

    def __init__(self, predictor: Predictor):
        self.predictor, self.rows = predictor, []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.cpus: list[int] = []

    def __call__(self, columns: dict[str, list]) -> list[dict]:
        self.rows.append(len(columns["distance"]))
        self.cpus.append(torch.get_num_threads())
        self.begun.set()
        assert self.gate.wait(10)
        if UNLUCKY in columns["distance"]:
            raise ZeroDivisionError("unlucky")
        if UNUSABLE in columns["distance"]:
            raise InvalidRecords(422, "unusable", columns["distance"].index(UNUSABLE), "distance")
        return self.predictor.answer_rows(self.predictor.schema.table(columns))


@pytest.fixture
def passes(toy_bundle) -> Passes:
    return Passes(Predictor(toy_bundle))


@pytest.fixture(params=[0, 1], ids=["in the loop", "apart"])
def batcher(passes, request) -> Callable[..., Batcher]:
    """Makes a queue, in both ways of computing."""

    def make(most: int = 100, room: int = 100, seconds: float = 10.0, **weighing) -> Batcher:
        return Batcher(passes, most, room, seconds, request.param, **weighing)

    return make


@pytest.fixture
def apart(passes) -> Callable[..., Batcher]:
    """Makes a queue whose model computes in a thread."""
    return lambda seconds=10.0, cpus=1: Batcher(passes, 100, 100, seconds, cpus)


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


def test_a_pass_has_at_most_so_many_rows_and_of_a_larger_request_the_rest_waits_behind_the_others(batcher, columns, passes):
    found = run(batcher(most=4), *[columns(rows) for rows in (3, 3, 1, 9, 1)])
    assert [len(answers) for answers in found] == [3, 3, 1, 9, 1]
    assert passes.rows == [3, 4, 4, 1, 4, 1]


@pytest.mark.parametrize("most", [45, 7, 1])
def test_answers_are_those_of_the_request_whatever_its_company(batcher, columns, passes, most):
    requests = [columns(rows) for rows in (1, 5, 2, 40, 3, 1)]
    found = run(batcher(most=most), *requests)
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
            await asyncio.gather(*queue.work)

    asyncio.run(scenario())
    assert (queue.busy, len(queue.waiting), queue.rows) == (0, 0, 0)


def test_a_row_that_is_refused_is_named_by_its_place_in_the_request(batcher, columns):
    request = columns(9)
    request["distance"][6] = UNUSABLE
    *others, refused = run(batcher(most=4), columns(2), request)
    assert [len(answers) for answers in others] == [2]
    assert isinstance(refused, InvalidRecords) and (refused.row, refused.field) == (6, "distance")


def test_of_a_request_that_failed_the_rest_is_not_computed(batcher, columns, passes):
    run(batcher(most=4), columns(9, distance=UNLUCKY))
    assert passes.rows == [4]


def test_of_a_request_whose_client_is_gone_the_rest_is_not_computed(apart, columns, passes):
    async def scenario() -> None:
        queue = apart()
        queue.most = 4
        passes.gate.clear()
        call = asyncio.create_task(queue.submit(columns(9), 9))
        await asyncio.to_thread(passes.begun.wait, 10)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert queue.rows == 0
        passes.gate.set()
        await queue.submit(columns(2), 2)

    asyncio.run(scenario())
    assert passes.rows == [4, 2]


def weigh(columns: dict[str, list]) -> list[int]:
    return [7 + int(distance) % 50 for distance in columns["distance"]]


def test_nothing_is_known_of_the_pace_at_first_and_one_row_is_tried(batcher, columns, passes):
    run(batcher(weigh=weigh), columns(3))
    assert passes.rows[0] == 1 and sum(passes.rows) == 3


def test_a_pass_has_the_tokens_that_the_last_ones_pace_gives_time_for_and_at_most_its_bound(batcher):
    queue = batcher(weigh=weigh, tokens=1000)
    affordable = []
    for queue.pace in (0.0, 120 / PASS_S, 1e9):
        affordable.append(queue._affordable())
    assert affordable == [1, 120, 1000]


@pytest.mark.parametrize("seed", range(12))
def test_all_rows_are_taken_once_in_batches_that_are_bounded_in_rows_and_tokens(seed):
    chance = random.Random(seed)
    sizes, most, tokens = chance.choices(range(1, 30), k=12), chance.randint(1, 40), chance.randint(1, 300)

    async def scenario() -> list[list[Part]]:
        queue = Batcher(lambda columns: [], most, 10_000, 10.0, weigh=weigh, tokens=tokens)
        queue.pace, loop = 1e9, asyncio.get_running_loop()
        for size in sizes:
            columns = {"distance": [31.0 * size + row for row in range(size)]}
            queue.waiting.append(Waiting(columns, size, loop.create_future(), weigh(columns)))
            queue.rows += size
        batches = []
        while queue.waiting:
            batches.append(queue._take())
        assert queue.rows == 0
        return batches

    batches = asyncio.run(scenario())
    for batch in batches:
        rows, weight = (sum(getattr(part, name) for part in batch) for name in ("rows", "tokens"))
        assert rows <= most and (weight <= tokens or rows == 1)
    taken: dict[int, list[int]] = {}
    for part in (part for batch in batches for part in batch):
        taken.setdefault(id(part.one), []).extend(range(part.start, part.start + part.rows))
    assert sorted(taken.values(), key=len) == [[*range(size)] for size in sorted(sizes)]


def test_as_many_passes_as_cpus_are_computed_at_once_and_each_has_its_own(apart, columns, passes):
    async def scenario() -> None:
        queue = apart(cpus=2)
        queue.most = 1
        passes.gate.clear()
        calls = [asyncio.create_task(queue.submit(columns(1), 1)) for _ in range(3)]
        while len(passes.rows) < 2:
            await asyncio.sleep(0)
        passes.gate.set()
        await asyncio.gather(*calls)
        assert (queue.busy, queue.rows) == (0, 0)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert passes.rows == [1, 1, 1] and passes.cpus[:2] == [1, 1]


def test_a_pass_that_is_alone_has_all_cpus_and_no_other_begins_meanwhile(apart, columns, passes):
    async def scenario() -> None:
        queue = apart(cpus=2)
        passes.gate.clear()
        calls = [asyncio.create_task(queue.submit(columns(1), 1))]
        await asyncio.to_thread(passes.begun.wait, 10)
        calls.append(asyncio.create_task(queue.submit(columns(1), 1)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert passes.rows == [1]
        passes.gate.set()
        await asyncio.gather(*calls)

    asyncio.run(scenario())
    assert passes.cpus == [2, 2]


def test_requests_are_joined_in_their_order_by_field():
    assert joined([{"a": [1], "b": ["x"]}, {"b": ["y", None], "a": [2, 3]}]) == {"a": [1, 2, 3], "b": ["x", "y", None]}
