"""Sweeps as users run them: killed in the middle and resumed, and from a sweep to a registered, deployed winner."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from ray import serve

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.runs import Run
from rayloom.stages import search
from tests.conftest import ROOT, Finished, run_job, wait_for

TRIALS = 6
SETTINGS = [f"tune.trials={TRIALS}", "tune.startup=3", "tune.concurrency=1", "tune.seeds=2", "train.epochs=4"]
KILLED_AFTER = "trial   2 "


@pytest.fixture(scope="module")
def on_cluster(cluster) -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": cluster.address}


@pytest.fixture(scope="module")
def given(arguments) -> list[str]:
    return [*arguments, *(word for setting in SETTINGS for word in ("--set", setting))]


@pytest.fixture(scope="module")
def killed(on_cluster, given, workspace, finished) -> Iterator[tuple[str, Future]]:
    """The id of a sweep that has begun, and whose driver gets SIGKILL while trial 3 or a later one is drawn or trains."""
    known = {*(workspace / "runs").iterdir()}
    with ThreadPoolExecutor(1) as thread:
        ending = thread.submit(kill_a_sweep, [sys.executable, "-m", "jobs.tune", *given], on_cluster)
        wait_for(lambda: ending.done() or {*(workspace / "runs").iterdir()} > known)
        begun = {*(workspace / "runs").iterdir()} - known
        assert len(begun) == 1, ending.result()
        yield begun.pop().name, ending


def kill_a_sweep(command: list[str], env: dict[str, str]) -> None:
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith(KILLED_AFTER):
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "".join(printed)


@pytest.fixture(scope="module")
def undisturbed(joined, killed, on_cluster, given, workspace) -> Iterator[Finished]:
    """The whole pipeline with a sweep in it, beside the one that is killed; what it leaves deployed is ended."""
    yield run_job("jobs.pipeline", [*given, "--set", "tune.enabled=true"], on_cluster, workspace)
    serve.shutdown()


@pytest.fixture(scope="module")
def resumed(killed, undisturbed, on_cluster, given, workspace) -> Finished:
    sweep, ending = killed
    ending.result()
    return run_job("jobs.tune", [*given, "--resume", sweep], on_cluster, workspace)


def trials(folder: Path) -> list[tuple]:
    """Settings, state and values by epoch of each trial in a sweep's journal."""
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    [summary] = optuna.get_all_study_summaries(storage)
    study = optuna.load_study(study_name=summary.study_name, storage=storage)
    return [(one.params, one.state, one.intermediate_values) for one in study.trials]


def sweep_of(done: Finished) -> Path:
    assert done.code == 0, done.output
    return Path(done.summary["report"]).parent


def test_a_killed_sweep_goes_on_to_what_an_undisturbed_one_found(undisturbed, resumed):
    assert trials(sweep_of(resumed)) == trials(sweep_of(undisturbed))
    assert resumed.summary["sweep"] == undisturbed.summary["sweep"]
    assert "goes on: " in resumed.output


def test_no_trial_runs_twice_and_the_cap_holds(resumed):
    found = [line for line in resumed.output.splitlines() if line.startswith("trial ")]
    assert len(found) <= TRIALS - 3
    assert resumed.summary["sweep"]["trials"] == TRIALS


def test_the_report_and_the_overlay_are_there(undisturbed, arguments):
    folder = sweep_of(undisturbed)
    best = yaml.safe_load((folder / "best.yaml").read_text())
    pipeline = config.load([*arguments[1::2], folder / "best.yaml"])
    assert pipeline.train.lr == best["train"]["lr"]
    assert "<svg" in (folder / "report.html").read_text() and (folder / "report.md").read_text()


def test_a_sweep_is_found_by_its_name_or_as_the_latest(arguments, undisturbed):
    run = Run("new", config.load(arguments[1::2]), {})
    with pytest.raises(ConfigError, match=f"--resume nothing: no such sweep.*{sweep_of(undisturbed).name}"):
        search._folder(run, "nothing")
    assert search._folder(run, "latest") == sweep_of(undisturbed)


def test_the_pipeline_sweeps_retrains_evaluates_and_deploys(undisturbed):
    assert undisturbed.code == 0, undisturbed.output
    assert undisturbed.summary["registry"]["alias"] == "champion"
    assert undisturbed.summary["seeds"]["seeds"] == 2
    stages = ["etl", "features", "tune", "retrain", "register", "evaluate", "deploy"]
    assert [stage["name"] for stage in undisturbed.summary["stages"]] == stages
