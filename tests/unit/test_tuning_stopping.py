"""Which trials are stopped: as Optuna's own successive halving says, and when."""

import math

import numpy as np
import optuna
import pytest
from optuna.pruners import SuccessiveHalvingPruner
from optuna.trial import TrialState

from rayloom import config
from rayloom.tuning import stopping
from rayloom.tuning.stopping import Halving


def stopped_after(pruner: optuna.pruners.BasePruner, direction: str, curves: np.ndarray) -> list[int]:
    """Epochs that each trial had, all of them trained side by side, an epoch each in turn."""
    study = optuna.create_study(direction=direction, pruner=pruner)
    running, epochs = [study.ask() for _ in curves], [curves.shape[1]] * len(curves)
    for epoch in range(1, curves.shape[1] + 1):
        for trial in list(running):
            trial.report(curves[trial.number, epoch - 1], epoch)
            if trial.should_prune():
                running.remove(trial)
                epochs[trial.number] = epoch
    return epochs


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize(("grace", "reduction"), [(1, 2), (1, 3), (2, 3), (3, 4)])
def test_halving_stops_what_optunas_stops(direction, grace, reduction):
    rng = np.random.default_rng(grace + reduction)
    for trials in (1, 2, 7, 40):
        curves = rng.integers(0, 9, (trials, 20)) / 8  # ties are many
        curves[rng.random(curves.shape) < 0.02] = math.nan
        peer = SuccessiveHalvingPruner(grace, reduction, 0)
        assert stopped_after(Halving(grace, reduction), direction, curves) == stopped_after(peer, direction, curves)


def test_a_verdict_does_not_change_when_it_is_asked_for_again():
    study = optuna.create_study(direction="maximize", pruner=Halving(1, 2))
    for value, is_stopped in [(0.5, False), (0.4, True), (0.6, False)]:
        trial = study.ask()
        trial.report(value, 1)
        assert [trial.should_prune(), trial.should_prune()] == [is_stopped, is_stopped]
        study.tell(trial, state=TrialState.PRUNED)


@pytest.mark.parametrize(("scheduler", "rungs"), [("asha", [2, 6, 18]), ("median", []), ("none", [])])
def test_rungs(scheduler, rungs):
    assert stopping.rungs(config.Tune(scheduler=scheduler, grace=2, reduction=3), 20) == rungs


@pytest.mark.parametrize(("scheduler", "epochs"), [("asha", {2, 6, 18}), ("none", set()), ("median", None), ("pbt", None)])
def test_after_which_epochs_something_is_decided(scheduler, epochs):
    assert stopping.decisive(config.Tune(scheduler=scheduler, grace=2, reduction=3), 20) == epochs


def test_a_rung_beyond_the_pipelines_own_epochs_decides_too():
    assert {27, 81, 243} <= stopping.decisive(config.Tune(grace=1, reduction=3))
