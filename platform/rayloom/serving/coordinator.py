"""Who decides which version answers: one coordinator for all replicas of a model. No Ray here;
`rayloom.serving.rollouts` makes an actor of it.

Replicas come about once a second (`sync`): they bring what they hold and have counted, and take the newest plan and the list
of versions to hold. A rollout is first a version that every living replica loads and whose golden rows each replays; only then
does its strategy begin. So a version that cannot be loaded, or that answers otherwise than in training, never gets a request.
Replicas may come and go meanwhile: a new one takes the newest plan before it is ready, one that ends says so (`leave`).
"""

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayloom.config.rollout import Rollout
from rayloom.errors import ServingError
from rayloom.serving import policies
from rayloom.serving.plan import NONE, Counts, Plan, finish, roll_back

ALIVE_S = 10.0
"""A replica that has not come for so long is gone: it comes also while it loads a version."""


@dataclass
class Replica:
    """What a replica said last."""

    seen: float
    epoch: int
    held: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)


class Coordinator:
    """The plan of one model, and how it goes on.

    Args:
        plan: to begin with.
        audit: file that gets a line of JSON for each change of the plan.
        clock: seconds; tests have their own.
    """

    def __init__(self, plan: Plan, settings: Rollout, audit: Path, clock: Callable[[], float] = time.time):
        self.plan, self.settings, self.audit, self.clock = plan, settings, audit, clock
        self.replicas: dict[str, Replica] = {}
        self.counted: dict[str, dict[int, Counts]] = {}
        self.past: dict[int, Counts] = {}
        self.left: set[str] = set()
        self.pending: int | None = None
        self.lock = threading.RLock()

    def sync(
        self, name: str, epoch: int, held: list[int], failed: dict[int, str], counts: dict[int, dict]
    ) -> tuple[str, list[int], int]:
        """A replica's report; returns the newest plan as JSON, the versions to hold, and how many replicas live.

        Args:
            epoch: of the plan that it has, -1 for none.
            failed: why a version could not be loaded, by its number.
            counts: totals since the replica began, by version.
        """
        with self.lock:
            if name not in self.left:  # its last report may come after it has left
                self.replicas[name] = Replica(self.clock(), epoch, held, failed)
                self.counted[name] = {int(number): Counts.read(one) for number, one in counts.items()}
                self.go_on()
            named = (self.plan.stable, self.plan.candidate, self.pending)
            wanted = [number for number in named if number is not None]
            return self.plan.model_dump_json(exclude={"before"}), wanted, len(self.alive())

    def leave(self, name: str) -> None:
        """A replica ends: nothing waits for it any more, and its counts stay."""
        with self.lock:
            self.left.add(name)
            self.replicas.pop(name, None)
            self.past = total([self.past, self.counted.pop(name, {})])

    def roll_out(self, version: int, settings: Rollout | None = None) -> None:
        """Begins a rollout, once all replicas hold the version.

        Raises:
            ServingError: another rollout is under way, or the version answers already.
        """
        with self.lock:
            if self.under_way is not None:
                raise ServingError(f"Version {self.under_way} is being rolled out; wait for its end, or roll it back first.")
            if version == self.plan.stable:
                raise ServingError(f"Version {version} answers already.")
            self.settings = settings or self.settings
            for replica in self.replicas.values():
                replica.failed.pop(version, None)
            self.pending = version

    @property
    def under_way(self) -> int | None:
        """The version that is being loaded or rolled out."""
        return self.plan.candidate if self.pending is None else self.pending

    def roll_back(self, reason: str) -> None:
        """Ends a rollout by hand: the stable version answers all."""
        with self.lock:
            if self.pending is not None:
                self.refuse(self.pending, reason)
            self.change(roll_back(self.plan, self.clock(), reason))

    def finish(self, reason: str) -> None:
        """Ends a rollout by hand: the candidate answers all."""
        with self.lock:
            self.change(finish(self.plan, self.clock(), reason))

    def status(self) -> dict[str, Any]:
        """The plan, who waits for what, and whether all living replicas have the newest plan."""
        with self.lock:
            alive = self.alive()
            return {
                "plan": self.plan.model_dump(mode="json", exclude={"before", "salt"}),
                "pending": self.pending,
                "replicas": len(alive),
                "switched": bool(alive) and all(one.epoch == self.plan.epoch for one in alive.values()),
                "requests": {number: [one.requests, one.errors] for number, one in sorted(self.counts().items())},
            }

    def go_on(self) -> None:
        """The next step, where it is time for one."""
        if self.pending is None:
            self.change(policies.advance(self.plan, self.counts(), self.clock(), self.settings))
            return
        alive, version = self.alive(), self.pending
        reasons = [one.failed[version] for one in alive.values() if version in one.failed]
        if reasons:
            self.refuse(version, f"version {version} was refused: {reasons[0]}")
        elif all(version in one.held for one in alive.values()):
            self.pending = None
            self.change(policies.begin(self.plan, version, self.counts(), self.clock(), self.settings))

    def refuse(self, version: int, reason: str) -> None:
        self.pending = None
        self.change(self.plan.changed(state="rolled back", reason=reason, refused=version, since=self.clock()))

    def change(self, plan: Plan) -> None:
        """Takes a plan that is newer, and writes it down."""
        if plan.epoch == self.plan.epoch:
            return
        self.plan = plan
        entry = {"time": self.clock(), **plan.model_dump(mode="json", exclude={"before", "salt"})}
        self.audit.parent.mkdir(parents=True, exist_ok=True)
        with self.audit.open("a") as file:
            file.write("\n" * is_cut(self.audit) + json.dumps(entry) + "\n")

    def alive(self) -> dict[str, Replica]:
        now = self.clock()
        return {name: one for name, one in self.replicas.items() if now - one.seen < ALIVE_S}

    def counts(self) -> dict[int, Counts]:
        """Totals by version over all replicas, those that are gone among them."""
        return total([self.past, *self.counted.values()])


def total(parts: Iterable[dict[int, Counts]]) -> dict[int, Counts]:
    """Sums by version."""
    sums: dict[int, Counts] = {}
    for counted in parts:
        for number, one in counted.items():
            sums[number] = sums.get(number, NONE) + one
    return sums


def audit_path(root: Path, name: str) -> Path:
    """Where the changes of a model's plan are written down.

    Args:
        root: storage.root.
        name: the pipeline's.
    """
    return root / "serving" / f"{name}.jsonl"


def is_cut(file: Path) -> bool:
    """Whether a crash has cut a file of lines within its last one."""
    content = file.read_bytes()
    return bool(content) and not content.endswith(b"\n")


def last_plan(audit: Path) -> Plan | None:
    """The plan that a coordinator wrote down last, as its successor takes it up: without a rollout that was under way."""
    try:
        lines = audit.read_text().splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):  # a crash may have cut the last one
        try:
            entry = json.loads(line)
            entry.pop("time")
            plan = Plan.model_validate(entry)
        except (ValueError, AttributeError, KeyError, TypeError):
            continue
        return roll_back(plan, plan.since, "the coordinator was started anew during the rollout")
    return None
