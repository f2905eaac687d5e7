"""What is known of a sweep and of each trial, for whoever shows or stores it. Plain data: no Optuna, no Ray."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["complete", "stopped", "failed", "repeat", "running"]
"""complete: trained to its end; stopped: by the scheduler; repeat: an earlier trial's settings, not trained again."""


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        number: counted from 0, in the order in which the sampler gave them out.
        state: see `State`.
        params: value by searched key; keys whose `when` did not hold are missing.
        values: the metric by epoch, counted from 1, as far as the trial came.
        value: of its best epoch; None where it has none.
        best_epoch: counted from 1.
        seconds: of training and validation.
        reason: why it failed, a sentence; empty where it did not.
        repeats: number of the trial whose settings it has, where state is "repeat".
        metrics: the best epoch's other metrics.
    """

    number: int
    state: State
    params: dict[str, Any]
    values: dict[int, float] = field(default_factory=dict)
    value: float | None = None
    best_epoch: int | None = None
    seconds: float = 0.0
    reason: str = ""
    repeats: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A whole sweep.

    Attributes:
        title: the pipeline's name.
        setting: name -> value of what all trials have in common, such as the dataset version.
        metric: name of the validation metric that judges.
        sign: 1 where a higher value is better, -1 where a lower one is.
        trials: by number.
        rungs: epochs after which the scheduler decides; empty for none.
        importance: part of the metric's variance by searched key, largest first; empty where it cannot be told.
        wall_s: seconds of the sweep, from its first trial's start.
        slots: trials at once.
    """

    title: str
    setting: dict[str, Any]
    metric: str
    sign: int
    trials: list[Trial]
    rungs: list[int] = field(default_factory=list)
    importance: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0
    slots: int = 1

    @property
    def best(self) -> Trial | None:
        """As `best` says."""
        return best(self.trials, self.sign)

    @property
    def distinct(self) -> int:
        """Settings that were trained."""
        return sum(trial.state != "repeat" for trial in self.trials)

    def count(self, state: State) -> int:
        return sum(trial.state == state for trial in self.trials)


def best(trials: list[Trial], sign: int) -> Trial | None:
    """The trial with the best finite value: of those that were trained to their end, where there are any."""
    known = [trial for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    done = [trial for trial in known if trial.state == "complete"]
    some = done or [trial for trial in known if trial.state == "stopped"]
    return max(some, key=lambda trial: sign * trial.value) if some else None  # type: ignore[operator]
