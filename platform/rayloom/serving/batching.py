"""Micro-batches: requests that are there at the same time are answered in one pass of the model.

An idle model answers the first request at once, and nobody waits for company. While it is busy, requests gather, and the next
pass takes all that wait, up to a number of rows, and of tokens where rows are texts: as many as the model computes in PASS_S,
as the last pass went. A request of more is computed in parts, between which others have their turn. What may wait is bounded,
in rows and in seconds: who would not be answered in time, as the last passes went, is told so at once. A request that the model
fails on fails alone, a client that hangs up leaves its place, and nothing that a model does ends the loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from operator import itemgetter
from traceback import clear_frames
from typing import Any, NamedTuple

from rayloom.errors import InvalidRecords, Overloaded
from rayloom.serving import engine
from rayloom.serving.schema import Columns

Answers = list[dict[str, Any]]

FADING = 0.9
"""What a pass counts beside the one after it, where it is told from them how long the next ones will take."""


PASS_S = 0.15
"""Seconds that a pass of a heavy model is to take: about so long does a request wait for the one before it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that waits for its answers.

    Attributes:
        rows: that no pass has taken yet.
        tokens: of each row; None where rows cost little.
        taken: rows that passes have taken.
        found: of a request in parts, each part's first row and its answers.
    """

    columns: Columns
    rows: int
    answers: asyncio.Future
    tokens: list[int] | None = None
    taken: int = 0
    found: list[tuple[int, Answers]] = field(default_factory=list)
    is_queued: bool = True


class Part(NamedTuple):
    """Some rows of a request, most often all."""

    one: Waiting
    start: int
    rows: int
    tokens: int

    @property
    def is_whole(self) -> bool:
        return not self.start and self.one.taken == self.rows and not self.one.is_queued

    def columns(self) -> Columns:
        if self.is_whole:
            return self.one.columns
        return {name: values[self.start : self.start + self.rows] for name, values in self.one.columns.items()}

    def answered(self, answers: Answers) -> None:
        """The request gets its answers once all of its parts have theirs."""
        if self.one.answers.done():
            return
        if not self.is_whole:
            self.one.found.append((self.start, answers))
            if self.one.is_queued or sum(len(part) for _, part in self.one.found) < self.one.taken:
                return
            answers = [answer for _, part in sorted(self.one.found, key=itemgetter(0)) for answer in part]
        self.one.answers.set_result(answers)

    def failed(self, error: Exception) -> None:
        if not self.one.answers.done():
            if isinstance(error, InvalidRecords) and error.row is not None:
                error.row += self.start
            self.one.answers.set_exception(error)


class Batcher:
    """One model's queue.

    Args:
        answer: checked columns of n rows to n answers.
        most: rows of one pass.
        room: rows that may wait.
        seconds: in which a request must be answered.
        cpus: as many passes are computed at once, each in a thread, so that other requests are read meanwhile; a pass that is
            alone is given all of them. 0: in the loop, for models of few milliseconds, which a thread costs more than it gives.
        weigh: about how many tokens each row has, or what else rows cost; None where they cost little.
        tokens: of one pass, however fast the model is.
    """

    def __init__(
        self, answer: Callable[[Columns], Answers], most: int, room: int, seconds: float, cpus: int = 0,
        weigh: Callable[[Columns], list[int] | None] | None = None, tokens: int = engine.TOKENS,
    ):  # fmt: skip
        self.answer, self.most, self.room, self.seconds = answer, most, room, seconds
        self.cpus, self.weigh, self.tokens = max(1, cpus), weigh, tokens
        # One thread for all passes that are alone: OpenMP spins only where the threads of all its teams are no more than CPUs.
        self.alone = ThreadPoolExecutor(1, "rayloom-model") if cpus else None
        self.threads = ThreadPoolExecutor(cpus, "rayloom-model") if cpus > 1 else self.alone
        self.waiting: deque[Waiting] = deque()
        self.rows = 0
        self.pace = 0.0
        self.busy = 0
        self.work: set[asyncio.Task] = set()
        self.done_rows = self.done_seconds = 0.0

    def require_room(self, rows: int = 1) -> None:
        """
        Raises:
            Overloaded: as many rows wait as may, or more than the model answers in time.
        """
        if self.rows and self.rows + rows > self.room:
            raise Overloaded(f"{self.rows:,} rows are waiting, the limit is {self.room:,}; try again")
        if self.rows and (self.rows + rows) * self.done_seconds > self.seconds * self.done_rows > 0:
            raise Overloaded(f"{self.rows:,} rows are waiting, more than are answered in {self.seconds:g} s; try again")

    async def submit(self, columns: Columns, rows: int) -> Answers:
        """The answers of a request's rows.

        Raises:
            Overloaded: too many rows wait, or the answer did not come in time.
            InvalidRecords: the model cannot use a row, such as an image that is none.
        """
        self.require_room(rows)
        loop = asyncio.get_running_loop()
        one = Waiting(columns, rows, loop.create_future(), self.weigh(columns) if self.weigh else None)
        self.waiting.append(one)
        self.rows += rows
        if self.busy < self.cpus:
            self._begin()
        timer = loop.call_later(self.seconds, self._give_up, one)  # a third of what asyncio.timeout costs
        try:
            return await one.answers
        finally:
            timer.cancel()
            self._leave(one)
            del one  # an error has this frame in its traceback: with the future that has the error, it would hold itself

    def _leave(self, one: Waiting) -> None:
        """Frees the place of a request that waits no more: its client is gone, or it has waited for too long."""
        if one.is_queued:
            self.rows -= one.rows
            one.rows, one.columns = 0, {}

    def _give_up(self, one: Waiting) -> None:
        if not one.answers.done():
            one.answers.set_exception(Overloaded(f"no answer within {self.seconds:g} s; try again"))

    def _begin(self) -> None:
        self.busy += 1
        task = asyncio.get_running_loop().create_task(self._work())
        self.work.add(task)
        task.add_done_callback(self.work.discard)

    async def _work(self) -> None:
        """Takes batch after batch, until nobody waits."""
        try:
            while self.waiting:
                if batch := self._take():
                    await self._pass(batch)
                began = time.perf_counter()
                await asyncio.sleep(0)  # what came meanwhile is read before the next pass, and answers are sent
                self.done_seconds += (time.perf_counter() - began) / self.cpus
        finally:
            self.busy -= 1

    async def _pass(self, batch: list[Part]) -> None:
        """Answers a batch on one CPU while others compute or wait, else on all."""
        spare = 0 if self.waiting or self.busy > 1 else self.cpus - 1
        if self.waiting and self.busy < self.cpus:
            self._begin()
        self.busy += spare
        try:
            await self._answer(batch, 1 + spare)
        finally:
            self.busy -= spare

    def _take(self) -> list[Part]:
        """The next batch: requests in their order, without those whose clients are gone. One that is too large for a pass goes
        alone, as much of it as fits; the rest waits behind the others."""
        batch: list[Part] = []
        rows, tokens = self.most, self._affordable()
        while self.waiting and rows > 0:
            one = self.waiting[0]
            part = _cut(one, rows, tokens)
            is_gone = one.answers.done()
            if batch and not is_gone and (part.rows < one.rows or part.tokens > tokens):
                break
            self.waiting.popleft()
            if is_gone:
                self.rows, one.is_queued = self.rows - one.rows, False
                continue
            batch.append(part)
            rows, tokens, self.rows = rows - part.rows, tokens - part.tokens, self.rows - part.rows
            one.taken, one.rows = one.taken + part.rows, one.rows - part.rows
            one.is_queued = one.rows > 0
            if one.is_queued:
                self.waiting.append(one)
                break
        return batch

    def _affordable(self) -> int:
        """Tokens of the next pass. The first has one row: it is not known yet what they cost."""
        return min(self.tokens, max(1, int(self.pace * PASS_S)))

    async def _answer(self, batch: list[Part], cpus: int) -> None:
        began = time.perf_counter()
        try:
            answers = await self._compute(joined([part.columns() for part in batch]), cpus)
        except Exception as error:
            inner = error.__traceback__.tb_next if error.__traceback__ else None
            clear_frames(inner)  # whose columns the error would hold, and, without this frame, not itself either
            await self._answer_alone(batch, error.with_traceback(inner), cpus)
            return
        seconds = time.perf_counter() - began
        self.done_rows = FADING * self.done_rows + len(answers)
        self.done_seconds = FADING * self.done_seconds + seconds * cpus / self.cpus
        self.pace = sum(part.tokens for part in batch) / seconds
        start = 0
        for part in batch:
            part.answered(answers[start : start + part.rows])
            start += part.rows

    async def _answer_alone(self, batch: list[Part], error: Exception, cpus: int) -> None:
        """What failed together is tried one by one: who is at fault gets the error, the others their answers."""
        if len(batch) > 1:
            for part in batch:
                if not part.one.answers.done():
                    await self._answer([part], cpus)
        else:
            batch[0].failed(error)

    async def _compute(self, columns: Columns, cpus: int) -> Answers:
        if self.threads is None:
            return self.answer(columns)
        thread = self.alone if cpus > 1 else self.threads
        return await asyncio.get_running_loop().run_in_executor(thread, self._answer_on, cpus, columns)

    def _answer_on(self, cpus: int, columns: Columns) -> Answers:
        engine.use_cpus(cpus)
        return self.answer(columns)


def _cut(one: Waiting, rows: int, tokens: int) -> Part:
    """As much of a request as fits, at least one row."""
    count, cost = max(1, min(rows, one.rows)), 0
    if one.tokens is not None:
        for place, weight in enumerate(one.tokens[one.taken : one.taken + count]):
            if place and cost + weight > tokens:
                count = place
                break
            cost += weight
    return Part(one, one.taken, count, cost)


def joined(parts: list[Columns]) -> Columns:
    """Several requests' rows as one."""
    if len(parts) == 1:
        return parts[0]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}
