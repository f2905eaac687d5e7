"""The versions of a model that one replica holds, the plan that says which of them answers, and what is counted of each."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rayloom import config
from rayloom.errors import DataError, InvalidRecords, Overloaded
from rayloom.serving.batching import Answers, Batcher
from rayloom.serving.capture import Capture
from rayloom.serving.plan import Choice, Counts, Plan, choose
from rayloom.serving.predictor import Predictor
from rayloom.serving.protocols import Headers, Limits, Model, Reply, request_id

logger = logging.getLogger("rayloom.serving")


@dataclass(frozen=True, eq=False)
class Version:
    """One version, ready to answer."""

    predictor: Predictor
    batcher: Batcher
    model: Model


class Versions:
    """What a replica answers with. A thread may add versions and change the plan while the loop answers: each is one
    assignment.

    Args:
        name: of the registered model.
        settings: limits of a request and of the queue.
        capture: keeps some requests and their answers; None for none.
    """

    def __init__(self, name: str, settings: config.Serve, capture: Capture | None = None):
        self.name, self.settings, self.capture = name, settings, capture
        self.limits = Limits(settings.max_rows)
        self.held: Mapping[int, Version] = {}
        self.counts: dict[int, Counts] = {}
        self.plan: Plan | None = None
        self.shadows: set[asyncio.Task] = set()

    def add(self, number: int, predictor: Predictor) -> None:
        """Holds a version whose golden rows have been replayed."""
        batcher = Batcher(
            lambda columns: predictor.answer_rows(predictor.schema.table(columns)),
            min(predictor.most, self.settings.max_batch_rows),
            self.settings.max_waiting_rows,
            self.settings.timeout_s,
            self.settings.threads if predictor.is_heavy else 0,
            predictor.weigh if predictor.is_heavy else None,
            self.settings.max_batch_tokens,
        )
        model = Model(self.name, number, predictor.bundle.state.classes)
        self.counts = {number: Counts(), **self.counts}
        self.held = {**self.held, number: Version(predictor, batcher, model)}

    def keep(self, numbers: set[int]) -> None:
        """Lets go of all other versions; requests that are under way there still get their answers."""
        if not self.held.keys() <= numbers:
            self.held = {number: version for number, version in self.held.items() if number in numbers}

    @property
    def is_ready(self) -> bool:
        return self.plan is not None and self.plan.stable in self.held

    def choose(self, headers: Headers, held: Mapping[int, Version]) -> Choice:
        """Which version answers a request.

        Raises:
            Overloaded: none is there yet.
        """
        plan = self.loaded(held)
        key = headers.get(self.settings.rollout.header.encode()) if plan.candidate is not None else None
        choice = choose(plan, random.random(), key)
        return choice if choice.version in held else Choice(standing(plan, held))

    @property
    def stable(self) -> Version:
        """The version that answers.

        Raises:
            Overloaded: none is there yet.
        """
        held = self.held
        return held[standing(self.loaded(held), held)]

    def loaded(self, held: Mapping[int, Version]) -> Plan:
        """The plan, where there is one and something to answer with; else raises Overloaded."""
        if self.plan is None or not held:
            raise Overloaded("the model is being loaded; try again")
        return self.plan

    async def reply(self, protocol: ModuleType, body: bytes, headers: Headers, number: int | None = None) -> Reply:
        """Answers a request's body.

        Args:
            number: of the version that the client asks for; None for the plan's choice.

        Raises:
            InvalidRecords, Overloaded: the body cannot be answered.
        """
        held = self.held  # a thread may put another in its place
        choice = self.choose(headers, held) if number is None else Choice(number)
        if choice.version not in held:
            raise InvalidRecords(404, f"version {choice.version} is not served; there are {', '.join(map(str, held))}")
        version, counts = held[choice.version], self.counts[choice.version]
        version.batcher.require_room()  # before the body is read, which costs as much as an answer
        call = protocol.decode(body, headers, version.predictor.schema, self.limits)
        began = time.perf_counter()
        try:
            answers = await version.batcher.submit(call.columns, call.rows)
            reply = protocol.encode(answers, version.model, call)
        except InvalidRecords:
            raise
        except Exception:
            counts.answered(time.perf_counter() - began, failed=True)
            raise
        counts.answered(time.perf_counter() - began)
        counts.scored(answers[0]["probability"])
        if self.capture is not None and self.capture.is_chosen():
            schema = version.predictor.schema
            self.capture.take(choice.version, schema, request_id(headers), len(body), call.columns, answers)
        if choice.shadow is not None and choice.shadow in held:
            self.compare(held[choice.shadow], protocol, body, headers, answers)
        return reply

    def compare(self, shadow: Version, protocol: ModuleType, body: bytes, headers: Headers, answers: Answers) -> None:
        """Has another version answer as well, after the client has its answer, unless it is behind already."""
        if shadow.batcher.rows < self.settings.max_waiting_rows // 4:
            task = asyncio.create_task(self._compare(shadow, protocol, body, headers, answers))
            self.shadows.add(task)  # the loop alone would let go of it
            task.add_done_callback(self.shadows.discard)

    async def _compare(self, shadow: Version, protocol: ModuleType, body: bytes, headers: Headers, answers: Answers) -> None:
        counts, began = self.counts[int(shadow.model.version)], time.perf_counter()
        try:
            call = protocol.decode(body, headers, shadow.predictor.schema, self.limits)
            found = await shadow.batcher.submit(call.columns, call.rows)
        except Overloaded:
            return
        except Exception as error:
            counts.answered(time.perf_counter() - began, failed=True)
            if not isinstance(error, InvalidRecords | DataError):
                logger.exception("the shadow version %s failed", shadow.model.version)
            return
        counts.answered(time.perf_counter() - began)
        for one, other in zip(answers, found, strict=True):
            counts.differed(distance(one, other), self.settings.rollout.shadow_tolerance)


def standing(plan: Plan, held: Mapping[int, Version]) -> int:
    """The stable version; between two looks at the coordinator a replica may hold it no more, or not yet: then the newest."""
    return plan.stable if plan.stable in held else max(held)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between two answers' probabilities; 1 where they are of other classes."""
    a, b = (answer.get("probabilities", {"": answer["probability"]}) for answer in (one, other))
    return max(abs(a[name] - b[name]) for name in a) if a.keys() == b.keys() else 1.0
