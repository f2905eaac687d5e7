"""What a run is worth when a rank is killed, fails, hangs or diverges, under the launchers that start processes."""

import json
import os
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import psutil
import pytest
import ray
import torch
from ray.util import placement_group_table

from rayloom import checkpoints
from rayloom.errors import DivergedError, TrainingError
from rayloom.launchers.result import Result
from tests.conftest import at_once, wait_for
from tests.launchers.conftest import SHARED, quiet

LAUNCHERS = ["ray", "torchrun"]
EPOCHS, STEPS = 3, 4
ONCE = {"train.max_failures": 0}
FAULTS = {"none": {}, "kill": {}, "fail": ONCE, "hang": {**ONCE, "train.timeout_s": 4.0}, "diverge": {}}


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result or an error. `folder` tells of its steps, and is its storage root."""

    folder: Path
    result: Result | None = None
    error: TrainingError | DivergedError | None = None


@pytest.fixture(scope="module")
def faulty(launch, tabular_rows, tmp_path_factory):
    """Runs a launcher with two workers, to one of which `fault` happens in the seventh step, the third of the second epoch."""

    def run(launcher: str, fault: str, **changes):
        folder = tmp_path_factory.mktemp(f"{launcher}-{fault}")
        settings = {"fault": fault, "at": 7 if fault != "none" else 0, "folder": str(folder)}
        model = {"family": "tests.faulty_family:build", "settings": settings}
        train = {"train.workers": 2, "train.checkpoint": {"every_steps": 1}, "storage": {"root": str(folder)}, **changes}
        return folder, lambda: launch(launcher, {"model": model, **train}, tabular_rows)

    return run


@pytest.fixture(scope="module")
def outcomes(faulty) -> dict[tuple[str, str], Outcome]:
    """By launcher and fault. The launchers go through the faults at the same time, on CPUs that they share."""

    def outcome(launcher: str, fault: str) -> Outcome:
        folder, run = faulty(launcher, fault, **SHARED, **FAULTS[fault])
        try:
            return Outcome(folder, run())
        except (TrainingError, DivergedError) as error:
            return Outcome(folder, error=error)

    def through(launcher: str) -> dict:
        return {(launcher, fault): outcome(launcher, fault) for fault in FAULTS if (launcher, fault) != ("ray", "none")}

    first, second = at_once(*(partial(through, launcher) for launcher in LAUNCHERS))
    return first | second


@pytest.fixture
def undisturbed(outcomes) -> Result:
    return outcomes["torchrun", "none"].result


@pytest.fixture(params=LAUNCHERS)
def killed(request, outcomes) -> Outcome:
    """A run whose rank 1 was ended by SIGKILL in the middle of an epoch."""
    return outcomes[request.param, "kill"]


def test_a_killed_rank_does_not_change_the_weights(killed, undisturbed):
    weights, expected = killed.result.best.weights(), undisturbed.best.weights()
    assert (killed.folder / "happened").exists()
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


def test_a_killed_rank_does_not_change_the_history(killed, undisturbed):
    assert quiet(killed.result.history) == quiet(undisturbed.history)


def test_a_killed_run_goes_on_inside_the_epoch(killed):
    """Seven steps were begun. At the sixth's checkpoint, or the fifth's if that was not yet written, the run went on."""
    begun = len((killed.folder / "steps").read_text())
    assert begun - 7 in (EPOCHS * STEPS - 6, EPOCHS * STEPS - 5)


def test_a_worker_is_the_leader_of_a_session(killed):
    """Which the system gives its share of the CPUs: another process of Ray's takes none of it."""
    processes = [line.split() for line in (killed.folder / "processes").read_text().splitlines()]
    assert len(processes) == 4  # two ranks, begun twice
    assert [(pid, leader) for pid, leader in processes if pid != leader] == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_exception_on_rank_1_is_told_with_its_rank_and_text(outcomes, launcher):
    error = outcomes[launcher, "fail"].error
    assert isinstance(error, TrainingError) and "rank 1: ValueError: the third row is odd" in str(error)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_hangs_is_named(outcomes, launcher):
    error = outcomes[launcher, "hang"].error
    assert isinstance(error, TrainingError) and "Not rank 1 came to a collective within train.timeout_s (4 s)" in str(error)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_interrupted_run_leaves_no_process_and_no_claim(faulty, launcher, ctrl_c):
    folder, run = faulty(launcher, "hang")
    Thread(target=interrupt_after, args=(folder / "happened",), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run()
    workers = [int(line.split()[0]) for line in (folder / "processes").read_text().splitlines()]
    wait_for(lambda: not any(map(psutil.pid_exists, workers)), 10)
    wait_for(lambda: {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}, 10)
    wait_for(lambda: ray.available_resources().get("CPU") == 2, 10)


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also where these tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(happened: Path) -> None:
    """Sends this process what Ctrl-C does."""
    wait_for(happened.exists)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(outcomes, launcher):
    outcome = outcomes[launcher, "diverge"]
    assert isinstance(outcome.error, DivergedError) and "The training loss became nan in epoch 1" in str(outcome.error)
    run = outcome.folder / "runs" / "run"
    found = checkpoints.found(run / "checkpoints")
    assert all(torch.isfinite(value).all() for one in found for value in one.weights().values())
    assert checkpoints.best(run / "checkpoints", "validation_auc", 1).place == (1, 0)
    assert len((outcome.folder / "steps").read_text()) == 7  # the same rows would give the same loss: it was not tried again
    assert {json.loads(file.read_text())["kind"] for file in (run / "failures").iterdir()} == {"DivergedError"}
