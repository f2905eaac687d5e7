"""Micro-batches: requests that are there at the same time are answered in one pass of the model.

An idle model answers the first request at once, and nobody waits for company. While it is busy, requests gather, and the next
pass takes all that wait, up to a number of rows. What may wait is bounded, in rows and in seconds. A request that the model
fails on fails alone, a client that hangs up leaves its place, and nothing that a model does ends the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rayloom.errors import Overloaded
from rayloom.serving.schema import Columns

Answers = list[dict[str, Any]]


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for its answers."""

    columns: Columns
    rows: int
    answers: asyncio.Future


class Batcher:
    """One model's queue.

    Args:
        answer: checked columns of n rows to n answers.
        most: rows of one pass; a request of more goes alone.
        room: rows that may wait.
        seconds: in which a request must be answered.
        apart: compute in a thread, so that other requests are read meanwhile; for models of many milliseconds, since it costs
            the small ones more than it gives.
    """

    def __init__(self, answer: Callable[[Columns], Answers], most: int, room: int, seconds: float, apart: bool):
        self.answer, self.most, self.room, self.seconds = answer, most, room, seconds
        self.thread = ThreadPoolExecutor(1, "rayloom-model") if apart else None
        self.waiting: deque[Waiting] = deque()
        self.rows = 0
        self.work: asyncio.Task | None = None

    async def submit(self, columns: Columns, rows: int) -> Answers:
        """The answers of a request's rows.

        Raises:
            Overloaded: too many rows wait, or the answer did not come in time.
            InvalidRecords: the model cannot use a row, such as an image that is none.
        """
        if self.waiting and self.rows + rows > self.room:
            raise Overloaded(f"{self.rows:,} rows are waiting, the limit is {self.room:,}; try again")
        loop = asyncio.get_running_loop()
        one = Waiting(columns, rows, loop.create_future())
        self.waiting.append(one)
        self.rows += rows
        if self.work is None:
            self.work = loop.create_task(self._work())
        timer = loop.call_later(self.seconds, self._give_up, one)  # a third of what asyncio.timeout costs
        try:
            return await one.answers
        finally:
            timer.cancel()

    def _give_up(self, one: Waiting) -> None:
        if not one.answers.done():
            one.answers.set_exception(Overloaded(f"no answer within {self.seconds:g} s; try again"))

    async def _work(self) -> None:
        """Takes batch after batch, until nobody waits."""
        try:
            while self.waiting:
                if batch := self._take():
                    await self._answer(batch)
                await asyncio.sleep(0)  # what came meanwhile is read before the next pass
        finally:
            self.work = None

    def _take(self) -> list[Waiting]:
        """The next batch: requests in their order, without those whose clients are gone."""
        batch: list[Waiting] = []
        rows = 0
        while self.waiting and (not batch or rows + self.waiting[0].rows <= self.most):
            one = self.waiting.popleft()
            self.rows -= one.rows
            if not one.answers.done():
                batch.append(one)
                rows += one.rows
        return batch

    async def _answer(self, batch: list[Waiting]) -> None:
        try:
            answers = await self._compute(joined([one.columns for one in batch]))
        except Exception as error:
            await self._answer_alone(batch, error)
            return
        start = 0
        for one in batch:
            if not one.answers.done():
                one.answers.set_result(answers[start : start + one.rows])
            start += one.rows

    async def _answer_alone(self, batch: list[Waiting], error: Exception) -> None:
        """What failed together is tried one by one: who is at fault gets the error, the others their answers."""
        if len(batch) > 1:
            for one in batch:
                await self._answer([one])
        elif not batch[0].answers.done():
            batch[0].answers.set_exception(error)

    async def _compute(self, columns: Columns) -> Answers:
        if self.thread is None:
            return self.answer(columns)
        return await asyncio.get_running_loop().run_in_executor(self.thread, self.answer, columns)


def joined(parts: list[Columns]) -> Columns:
    """Several requests' rows as one."""
    if len(parts) == 1:
        return parts[0]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
