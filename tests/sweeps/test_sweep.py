"""Sweeps on a real cluster: what a trial gives, what fails alone, what stays warm, and what is left behind: nothing."""

import os
import re
import signal
from pathlib import Path

import pytest
import ray
import torch
from mlflow import MlflowClient
from mlflow.entities import ViewType

from rayloom import checkpoints, cluster, config, launchers
from rayloom.datasets import Encoded
from rayloom.errors import ConfigError, ResourceError
from rayloom.launchers.result import Result
from rayloom.stages import search
from rayloom.stages.model import Prepared
from rayloom.tuning import records, space, sweep, trial
from tests.launchers.conftest import quiet
from tests.unit.conftest import make_arrays, toy_data, training_pipeline, training_state  # noqa: F401 (fixtures)

SPACE = {"train.lr": {"loguniform": [1e-3, 0.3]}, "train.weight_decay": {"uniform": [0.0, 0.1]}}
ROWS = {"train": 101, "validation": 61}


class Ear:
    """Keeps what it hears of a sweep."""

    def __init__(self, on_begin=lambda number: None):
        self.begun, self.epochs, self.ended, self.warnings, self.on_begin = [], [], [], [], on_begin

    def begin(self, number, params):
        self.begun.append(number)
        self.on_begin(number)

    def epoch(self, number, epoch, value, metrics):
        self.epochs.append((number, epoch, value))

    def end(self, ended):
        self.ended.append(ended)

    def warn(self, text):
        self.warnings.append(text)


@pytest.fixture(scope="module")
def rows(joined, make_arrays) -> dict[str, Encoded]:  # noqa: F811
    return {name: Encoded([ray.put(make_arrays(count, count))], [count]) for name, count in ROWS.items()}


@pytest.fixture(scope="module")
def run(joined, rows, training_pipeline, training_state, tmp_path_factory):  # noqa: F811
    """Sweeps over the toy rows; returns the record, the pipeline and the sweep's folder."""

    def go(
        tune: dict, more: dict = {}, ear: Ear | None = None, rows: dict = rows
    ) -> tuple[records.Sweep, config.Pipeline, Path]:
        folder = tmp_path_factory.mktemp("sweep")
        changes = {"storage": {"root": str(folder)}, "train.epochs": 3, "tune": {"space": SPACE, **tune}, **more}
        pipeline = training_pipeline(changes)
        own = folder / "runs" / "the-sweep"
        own.mkdir(parents=True)
        prepared = Prepared(pipeline, training_state, rows, [])
        return search.sweep_rows(pipeline, "0123456789ab", prepared, own, [ear] if ear else []), pipeline, own

    return go


@pytest.fixture(scope="module")
def plain(run):
    """A sweep of one-worker trials, all trained to the end."""
    return run({"trials": 4, "scheduler": "none"})


@pytest.fixture(scope="module")
def wide(run):
    """A sweep of two-worker trials, of which the second diverges."""
    return run({"trials": 4, "scheduler": "none", "workers_per_trial": 2, "first": [{}, {"train.lr": 10.0}], "space": {
        "train.lr": {"loguniform": [1e-3, 10.0]}, "train.optimizer": {"choice": ["sgd"]}}})  # fmt: skip


def launched(
    made: tuple, launcher: str, workers: int, rows: dict, state
) -> tuple[records.Trial, Result, checkpoints.Checkpoint]:
    """The best trial's settings under a launcher, and the trial's own checkpoint."""
    swept, pipeline, folder = made
    applied = space.apply(trial.of_trial(pipeline), swept.best.params)
    settings = applied.train.model_copy(update={"launcher": launcher, "workers": workers})
    result = launchers.find(launcher).launch(applied.model_copy(update={"train": settings}), state, rows, "alone")
    kept = checkpoints.last(trial.folder_of(folder, swept.best.number))
    return swept.best, result, kept


@pytest.mark.parametrize(("made", "launcher", "workers"), [("plain", "inline", 1), ("wide", "ray", 2)])
def test_a_trial_gives_what_its_settings_give_alone(request, rows, training_state, made, launcher, workers):  # noqa: F811
    _, result, kept = launched(request.getfixturevalue(made), launcher, workers, rows, training_state)
    weights, expected = kept.weights(), result.last.weights()
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []
    assert quiet(kept.progress()["history"]) == quiet(result.history)


def test_every_trial_is_accounted_for(plain):
    swept, _, _ = plain
    assert [(one.number, one.state, sorted(one.values)) for one in swept.trials] == [
        (number, "complete", [1, 2, 3]) for number in range(4)
    ]
    assert swept.best.value == max(one.value for one in swept.trials)


def test_only_the_best_trials_checkpoints_are_kept(plain):
    swept, _, folder = plain
    assert [one.name for one in (folder / "trials").iterdir()] == [f"{swept.best.number:05d}"]


def test_a_diverging_trial_fails_alone_and_the_gang_stays(wide):
    swept, _, _ = wide
    assert [one.state for one in swept.trials].count("failed") >= 1
    assert "diverged" in swept.trials[1].reason
    later = [one.seconds for one in swept.trials[2:] if one.state == "complete"]
    assert later and max(later) < swept.trials[0].seconds / 2  # they did not start workers again


def test_no_more_trials_run_at_once_than_the_file_says(run):
    ear = Ear()
    ear.most = 0

    def begin(number: int) -> None:
        ear.most = max(ear.most, len(ear.begun) - len(ear.ended))

    ear.on_begin = begin
    run({"trials": 4, "scheduler": "none", "concurrency": 1}, ear=ear)
    assert (ear.most, len(ear.ended)) == (1, 4)


def test_nothing_is_held_after_a_sweep(plain, wide):
    assert [one for one in cluster.held_in_cluster() if re.search("Trainable|Member|placement", one)] == []


def test_mlflow_has_a_parent_and_a_child_a_trial(plain):
    swept, pipeline, _ = plain
    client = MlflowClient(f"sqlite:///{pipeline.storage.root}/mlflow.db")
    [experiment] = [one for one in client.search_experiments() if one.name == pipeline.name]
    found = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    [parent] = [one for one in found if one.info.run_name == "the-sweep"]
    children = {one.info.run_name: one for one in found if one.data.tags.get("mlflow.parentRunId") == parent.info.run_id}
    assert sorted(children) == [f"the-sweep/trial-{number:05d}" for number in range(4)]
    for one in swept.trials:
        child = children[f"the-sweep/trial-{one.number:05d}"]
        curve = client.get_metric_history(child.info.run_id, "validation_auc")
        assert [(point.step, point.value) for point in curve] == list(one.values.items())
        assert float(child.data.params["train.lr"]) == one.params["train.lr"]
    assert parent.data.metrics["best_value"] == swept.best.value


def test_identical_settings_are_not_trained_again(run):
    ear = Ear()
    swept, _, _ = run({"trials": 10, "sampler": "random", "space": {"train.lr": {"choice": [0.1, 0.01, 0.001]}}}, ear=ear)
    assert (len(ear.begun), swept.distinct, len(swept.trials)) == (3, 3, 10)


def kill_the_actor(number: int, killed: list[int]) -> None:
    """SIGKILL to the process that begins trial 1, once."""
    if number != 1 or killed:
        return
    living = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    [victim] = [actor["Pid"] for actor in living if "Trainable" in actor["ActorClassName"]]
    os.kill(victim, signal.SIGKILL)
    killed.append(victim)


@pytest.mark.parametrize(("again", "state"), [(0, "failed"), (1, "complete")])
def test_a_trial_whose_process_is_killed_fails_alone_or_starts_again(run, again, state):
    killed: list[int] = []
    ear = Ear(lambda number: kill_the_actor(number, killed))
    swept, _, _ = run({"trials": 3, "scheduler": "none", "concurrency": 1, "max_failures": again}, ear=ear)
    assert killed and [one.state for one in swept.trials] == ["complete", state, "complete"]
    assert ("process died" in swept.trials[1].reason) == (state == "failed")


def test_population_based_training_takes_over_better_weights(run, make_arrays):  # noqa: F811
    """Two trials at a time, of which one learns nothing with what it begins with."""
    searched = {"train.lr": {"loguniform": [1e-6, 0.3]}}
    first = [{"train.lr": lr} for lr in (1e-6, 0.1, 2e-6, 0.11, 3e-6, 0.12, 4e-6, 0.13)]
    many = {name: Encoded([ray.put(make_arrays(8_000, 1))], [8_000]) for name in ROWS}
    tune = {"trials": 8, "scheduler": "pbt", "space": searched, "first": first, "reduction": 2}
    swept, _, _ = run(tune, {"train.epochs": 8}, rows=many)
    assert [one.state for one in swept.trials] == ["complete"] * 8
    assert any(one.params != point for one, point in zip(swept.trials, first, strict=True))


def test_a_sweep_that_cannot_run_is_refused_with_the_arithmetic(run):
    with pytest.raises(ResourceError, match="a trial needs 64 CPU, the cluster has 2"):
        run({"trials": 2, "workers_per_trial": 64})


def test_settings_that_pbt_cannot_change_are_refused(training_pipeline):  # noqa: F811
    searched = {"model.dropout": {"uniform": [0.0, 0.5]}}
    with pytest.raises(ConfigError, match=r"pbt changes settings.*model\.dropout"):
        sweep.require_searchable(training_pipeline({"tune": {"space": searched, "scheduler": "pbt"}}))


def test_a_folder_has_one_sweep_at_a_time(tmp_path):
    with sweep.held(tmp_path), pytest.raises(ResourceError, match="at work in another process"), sweep.held(tmp_path):
        pass
