"""Which trials of a sweep are stopped early, and after which epochs that is decided."""

import math
from collections.abc import Iterator
from itertools import accumulate, repeat, takewhile
from operator import mul

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from rayloom.config.tuning import Tune

COMPARED = 5
"""Median stopping: finished trials that it compares with before it stops any."""

MOST_EPOCHS = 1_000_000
"""More than any trial has: a sweep may search train.epochs, so the pipeline's own number bounds no trial."""


def pruner(settings: Tune) -> BasePruner:
    """What stops trials; population based training is Tune's own and stops none."""
    match settings.scheduler:
        case "asha":
            return Halving(settings.grace, settings.reduction)
        case "median":  # Golovin et al., 2017
            return MedianPruner(n_startup_trials=COMPARED, n_warmup_steps=settings.grace)
        case _:
            return NopPruner()


class Halving(BasePruner):
    """Asynchronous successive halving (Li et al., 2018): at a rung, a trial goes on where its value is among the best of those
    that have come there so far, one in `reduction`, or is the very best while they are fewer.

    The verdict follows from the trials' values alone. Optuna's SuccessiveHalvingPruner gives the same, but notes rungs beside
    the values: a driver that is killed between these two writes would go on as if the trial had passed.
    """

    def __init__(self, grace: int, reduction: int):
        self.grace, self.reduction = grace, reduction

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial is stopped after its last epoch."""
        epoch = trial.last_step
        if epoch is None or epoch not in takewhile(epoch.__ge__, _rungs(self.grace, self.reduction)):
            return False
        value, others = trial.intermediate_values[epoch], study.get_trials(deepcopy=False)
        values = [one.intermediate_values.get(epoch, math.nan) for one in others if one.number != trial.number]
        rivals = [rival for rival in values if not math.isnan(rival)]
        is_max = study.direction == StudyDirection.MAXIMIZE
        better = sum(rival > value if is_max else rival < value for rival in rivals)
        return math.isnan(value) or better >= max(1, (len(rivals) + 1) // self.reduction)


def _rungs(grace: int, reduction: int) -> Iterator[int]:
    """All of them, without end."""
    return accumulate(repeat(reduction), mul, initial=grace)


def rungs(settings: Tune, epochs: int) -> list[int]:
    """Epochs after which asha decides; empty for other schedulers.

    >>> rungs(Tune(grace=1, reduction=3), 10)
    [1, 3, 9]
    """
    if settings.scheduler != "asha":
        return []
    return list(takewhile(epochs.__gt__, _rungs(settings.grace, settings.reduction)))


def decisive(settings: Tune, epochs: int = MOST_EPOCHS) -> frozenset[int] | None:
    """Epochs, counted from 1, after which a trial may be stopped or changed; None: after each.

    >>> sorted(decisive(Tune(grace=1, reduction=3), 10))
    [1, 3, 9]
    """
    return frozenset(rungs(settings, epochs)) if settings.scheduler in ("asha", "none") else None
