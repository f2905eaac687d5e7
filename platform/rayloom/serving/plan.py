"""Which version answers a request, and what is counted about the answers.

A rollout is a `Plan`, held by one coordinator. Replicas take the newest (by `epoch`) from it, ask it for each request, and hand
back `Counts` by version; `rayloom.serving.policies` makes the next plan from a plan and its counts. All is pure: time and
chance come in as arguments. `roll_back` and `finish` are the ends of every strategy, and also a person's command.

Not here: who loads a version. A plan may name a candidate only once every replica holds it and gave its golden answers.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import xxhash
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

FASTEST, PER_OCTAVE, OCTAVES = 2.0**-14, 8, 20
"""Latency bins: from 61 µs, eight in each doubling (9 % wide), up to 64 s; the first and the last take what lies beyond."""

BINS = PER_OCTAVE * OCTAVES + 1
SCORE_BINS = 20


def latency_bin(seconds: float) -> int:
    """The bin of a latency: bin i holds (edge(i - 1), edge(i)]."""
    if not seconds > FASTEST:
        return 0
    return math.ceil(min(math.log2(seconds / FASTEST) * PER_OCTAVE, BINS - 1))


def latency_edge(index: int) -> float:
    """The upper edge of a latency bin, in seconds."""
    return FASTEST * 2.0 ** (index / PER_OCTAVE)


@dataclass(slots=True)
class Counts:
    """What happened to the answers of one version. Sums of parts from any replicas and times are the counts of them together.

    Attributes:
        requests, errors: answered by the version, well or not; those that failed by our own fault (5xx of the model).
        latency: of the answers, seconds by `latency_bin`; of failed ones, too.
        scores, score_sum, score_squares, score_bins: probabilities (of the second class, or the label's own) of the records
            answered: how many, sum, sum of squares, and how many in each twentieth.
        rewards, reward_sum: what /feedback told, each in 0..1.
        compared, differing, largest: shadow answers beside the returned ones; those further off than the tolerance; the
            furthest. Counted for the shadow version.
    """

    requests: int = 0
    errors: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * BINS)
    scores: int = 0
    score_sum: float = 0.0
    score_squares: float = 0.0
    score_bins: list[int] = field(default_factory=lambda: [0] * SCORE_BINS)
    rewards: int = 0
    reward_sum: float = 0.0
    compared: int = 0
    differing: int = 0
    largest: float = 0.0

    def answered(self, seconds: float, failed: bool = False) -> None:
        """Counts one request, whether the model answered it or failed."""
        self.requests += 1
        self.errors += failed
        self.latency[latency_bin(seconds)] += 1

    def scored(self, score: float) -> None:
        """Counts one record's probability; what is none (NaN, or outside of 0..1) is left out."""
        if 0.0 <= score <= 1.0:
            self.scores += 1
            self.score_sum += score
            self.score_squares += score * score
            self.score_bins[min(int(score * SCORE_BINS), SCORE_BINS - 1)] += 1

    def rewarded(self, reward: float) -> None:
        """Counts one reward.

        Raises:
            ValueError: it is not in 0..1.
        """
        if not 0.0 <= reward <= 1.0:
            raise ValueError(f"a reward is a number from 0 to 1, found {reward}")
        self.rewards += 1
        self.reward_sum += reward

    def differed(self, difference: float, tolerance: float) -> None:
        """Counts one comparison of two probabilities by their distance; one that is not a number counts as 1."""
        distance = abs(difference) if math.isfinite(difference) else 1.0
        self.compared += 1
        self.differing += distance > tolerance
        self.largest = max(self.largest, distance)

    def __add__(self, other: "Counts") -> "Counts":
        return self._with(other, 1)

    def since(self, before: "Counts") -> "Counts":
        """What came after `before`, an earlier state of these counts (`largest` stays that of all). Where these are no
        later state of it, since a coordinator began anew, all of them came after."""
        return self + NONE if before.requests > self.requests else self._with(before, -1)

    def _with(self, other: "Counts", sign: int) -> "Counts":
        total: dict[str, Any] = {}
        for name in COUNTED:
            mine, its = getattr(self, name), getattr(other, name)
            is_list = isinstance(mine, list)
            total[name] = [a + sign * b for a, b in zip(mine, its, strict=True)] if is_list else mine + sign * its
        return Counts(**total, largest=max(self.largest, other.largest))

    def as_dict(self) -> dict:
        """Plain JSON-able data, with lists of its own."""
        return {
            item.name: list(value) if isinstance(value := getattr(self, item.name), list) else value for item in fields(self)
        }

    @classmethod
    def read(cls, data: dict) -> "Counts":
        """The counts of `as_dict`'s data.

        Raises:
            pydantic.ValidationError: it is none.
        """
        return TypeAdapter(cls).validate_python(data)


COUNTED = tuple(item.name for item in fields(Counts) if item.name != "largest")
NONE = Counts()


def snapshot(counts: dict[int, Counts]) -> dict[int, Counts]:
    """Copies that stay as they are."""
    return {version: each + NONE for version, each in counts.items()}


class Plan(BaseModel):
    """Which version answers, at one moment of a rollout.

    Attributes:
        strategy: name of the policy that led here.
        stable, candidate: number of the version that answers, and of the one that is to take over, while
            there is one.
        share: the candidate's part of the requests, 0..1; in a shadow rollout, the part that it answers as well, unseen.
        step: counted from 1 while rolling; 0 when nothing has been rolled out.
        epoch: grows with every change: the plan with the greatest one is the newest.
        state: 'rolling' while there is a candidate, else how the last rollout ended.
        reason: why the plan is what it is, in a sentence.
        salt: mixed into sticky choices, so that each rollout splits the sessions anew.
        since: when the step began, in the coordinator's seconds.
        before: counts by version as they were then.
        refused: the version that was rolled back last, which is not to be tried again by itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: str = "replace"
    stable: int
    candidate: int | None = None
    share: float = Field(default=0.0, ge=0, le=1)
    step: int = Field(default=0, ge=0)
    epoch: int = Field(default=0, ge=0)
    state: Literal["steady", "rolling", "rolled back", "done"] = "steady"
    reason: str = ""
    salt: str = ""
    since: float = 0.0
    before: dict[int, Counts] = {}
    refused: int | None = None

    def gained(self, counts: dict[int, Counts]) -> tuple[Counts, Counts]:
        """What was counted of the candidate and of the stable version since the step began."""
        new, old = (counts.get(key, NONE).since(self.before.get(key, NONE)) for key in (self.candidate or 0, self.stable))
        return new, old

    def changed(self, **changes) -> "Plan":
        """This plan with other values, and newer."""
        return Plan(**{**dict(self), **changes, "epoch": self.epoch + 1})

    def where(self) -> str:
        """Step and share in words, such as 'step 2 (25 %)'."""
        return f"step {self.step} ({self.share * 100:.4g} %)"


class Choice(NamedTuple):
    """The version whose answer is returned, and one that answers as well, to be compared."""

    version: int
    shadow: int | None = None


def choose(plan: Plan, draw: float, key: bytes | None = None) -> Choice:
    """Which version answers one request.

    Args:
        plan: the newest one that the replica has.
        draw: uniform in [0, 1), new for each request.
        key: what identifies the session, in A/B tests: the same key gets the same version for the same share and salt, and a
            share that grows takes no key away from the candidate. None: chance decides.
    """
    candidate = plan.candidate
    if candidate is None:
        return Choice(plan.stable)
    if key is not None and plan.strategy == "ab":
        draw = place(plan.salt, key)
    chosen = draw < plan.share
    if plan.strategy == "shadow":
        return Choice(plan.stable, candidate if chosen else None)
    return Choice(candidate if chosen else plan.stable)


def place(salt: str, key: bytes) -> float:
    """A key's place in [0, 1), which is uniform over keys: the upper 53 bits of XXH3 of salt and key."""
    return (xxhash.xxh3_64_intdigest(b"%b\0%b" % (salt.encode(), key)) >> 11) * 2.0**-53


_ENDED: dict[str, Any] = {"candidate": None, "share": 0.0, "before": {}}


def roll_back(plan: Plan, now: float, reason: str) -> Plan:
    """The candidate goes, the stable version answers all. A plan without a candidate stays as it is."""
    if plan.candidate is None:
        return plan
    return plan.changed(**_ENDED, state="rolled back", reason=reason, since=now, refused=plan.candidate)


def finish(plan: Plan, now: float, reason: str) -> Plan:
    """The candidate becomes the stable version and answers all. A plan without a candidate stays as it is."""
    if plan.candidate is None:
        return plan
    return plan.changed(**_ENDED, state="done", stable=plan.candidate, reason=reason, since=now, refused=None)
