"""What a sweep's trials say: their ranking, the Pareto front, who reached which rung, what stopping saved. Pure functions."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayloom.config import Param
from rayloom.tuning.records import Sweep, Trial


def judged(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that were trained and have a finite value, complete or stopped."""
    return [trial for trial in trials if trial.state in ("complete", "stopped") and _finite(trial.value)]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def ranked(trials: Sequence[Trial], sign: int) -> list[Trial]:
    """All trials: the judged ones, best first, then those without a value, by number. Equal values go by number."""

    def order(trial: Trial) -> tuple:
        value = trial.value if trial.state in ("complete", "stopped") else None
        return (0, -sign * value, trial.number) if value is not None and math.isfinite(value) else (1, 0, trial.number)

    return sorted(trials, key=order)


def pareto(trials: Sequence[Trial], sign: int) -> list[Trial]:
    """The judged trials that no other beats in both quality and training seconds, the quickest first.

    Of trials that are equal in both only the one with the lowest number is on the front.
    """
    front: list[Trial] = []
    for trial in sorted(judged(trials), key=lambda trial: (trial.seconds, -sign * trial.value, trial.number)):  # type: ignore[operator]
        if not front or sign * trial.value > sign * front[-1].value:  # type: ignore[operator]
            front.append(trial)
    return front


@dataclass(frozen=True)
class Rung:
    """Where the trials that reached an epoch are now.

    Attributes:
        went_on: trained beyond it to the next rung; at the last one, to their end.
        stopped, failed: before the next rung.
        running: not yet at the next rung.
    """

    epoch: int
    went_on: int = 0
    stopped: int = 0
    failed: int = 0
    running: int = 0

    @property
    def reached(self) -> int:
        return self.went_on + self.stopped + self.failed + self.running


def records(trials: Sequence[Trial], sign: int) -> list[Trial]:
    """The judged trials that were better than all before them, by number."""
    found: list[Trial] = []
    for trial in sorted(judged(trials), key=lambda trial: trial.number):
        if not found or sign * trial.value > sign * found[-1].value:  # type: ignore[operator]
            found.append(trial)
    return found


def survival(sweep: Sweep, most: int = 12) -> list[Rung]:
    """Each rung, from 0 for the start; where the scheduler has none, each epoch, of many every so manieth.

    Repeats are not counted. A complete trial counts as gone on at every rung it reached, also where it ended early by itself.
    """
    trials = [trial for trial in sweep.trials if trial.state != "repeat"]
    last = max((_epochs(trial) for trial in trials), default=0)
    epochs = [epoch for epoch in sweep.rungs if epoch <= last] or list(range(1, last + 1))
    marks = [0, *epochs[:: math.ceil(len(epochs) / most) or 1]]
    return [_rung(trials, mark, following) for mark, following in zip(marks, [*marks[1:], None], strict=True)]


def _rung(trials: Sequence[Trial], mark: int, following: int | None) -> Rung:
    there = [trial for trial in trials if _epochs(trial) >= mark]
    beyond = [following is not None and _epochs(trial) >= following for trial in there]
    states = Counter(
        "went_on" if on or trial.state == "complete" else trial.state for trial, on in zip(there, beyond, strict=True)
    )
    return Rung(mark, **{name: states[name] for name in ("went_on", "stopped", "failed", "running")})


def _epochs(trial: Trial) -> int:
    return max(trial.values, default=0)


def saved_seconds(trials: Sequence[Trial]) -> float:
    """Seconds that the stopped trials would have gone on training, had each trained to its end at its own speed.

    The end is the trial's train.epochs where that is searched, else the most epochs that any complete trial has (0 s saved
    where none is complete).
    """
    longest = max((_epochs(trial) for trial in trials if trial.state == "complete"), default=0)
    return sum(_left(trial, longest) for trial in trials if trial.state == "stopped" and trial.values)


def _left(trial: Trial, longest: int) -> float:
    own = trial.params.get("train.epochs", longest)
    end = own if isinstance(own, int) else longest
    return max(0, end - _epochs(trial)) * trial.seconds / _epochs(trial)


def importance(sweep: Sweep) -> dict[str, float]:
    """The sweep's, without what is no number."""
    return {key: part for key, part in sweep.importance.items() if math.isfinite(part)}


def reasons(trials: Sequence[Trial]) -> dict[str, list[int]]:
    """Numbers of the failed trials by reason, the most frequent first."""
    found: dict[str, list[int]] = {}
    for trial in trials:
        if trial.state == "failed":
            found.setdefault(trial.reason or "no reason known", []).append(trial.number)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def at_the_end(trial: Trial, space: dict[str, Param], near: float = 0.02) -> list[str]:
    """Searched keys whose value in the trial is within a part `near` of its range from one end: a wider range may do better.

    Whole numbers of which there are fewer than six are left out: one of the two ends is often best there.
    """
    return [key for key, param in space.items() if key in trial.params and _near_end(param, trial.params[key], near)]


def _near_end(param: Param, value: Any, near: float) -> bool:
    ends = param.uniform or param.loguniform or param.int
    if ends is None or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if param.int and ends[1] - ends[0] < 5:
        return False
    low, high, here = (math.log(max(x, ends[0])) for x in (*ends, value)) if param.loguniform else (*ends, value)
    return min(here - low, high - here) <= near * (high - low)


def thinned(trials: Sequence[Trial], sign: int, most: int) -> list[Trial]:
    """At most so many of the trials, evenly over their ranking, the best one always among them; best first."""
    order = ranked(trials, sign)
    step = max(1.0, len(order) / most)
    return [order[int(place * step)] for place in range(min(most, len(order)))]


def robust_range(values: Sequence[float], sign: int) -> tuple[float, float]:
    """Ends of an axis for values of which few may be very bad: at most 3 times as far below the median as the best is above.

    Args:
        values: finite, at least one.
        sign: 1 where a higher value is better, -1 where a lower one is.

    Returns:
        The low and the high end.
    """
    order = sorted(sign * value for value in values)
    middle, top = order[len(order) // 2], order[-1]
    worst = max(order[0], middle - 3 * (top - middle)) if top > middle else order[0]
    ends = (sign * worst, sign * top)
    return min(ends), max(ends)
