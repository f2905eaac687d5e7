"""Two real processes over gloo train on an odd number of rows, and are held against one process."""

import json
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import set_forkserver_preload
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing

from rayloom import checkpoints, config, evaluation, feeding, models, parallel, training
from rayloom.errors import DivergedError, TrainingError
from rayloom.features import FeatureState
from rayloom.launchers.group import process_group
from rayloom.worker import Shard, Worker
from tests.unit import breaking

RANKS = 2
MODES = ("class_weights", "weighted_sampling", "down_sampling")
EVERY_STEP = {"checkpoint": config.Checkpoints(every_steps=1, keep=9)}
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "epochs": 1, "batch_size": 101}


@dataclass
class Rank:
    """What one process is given."""

    pipeline: config.Pipeline
    state: FeatureState
    shards: dict[str, Shard]
    unequal: Shard

    def with_settings(self, fault: dict | None = None, **changes) -> "Rank":
        """The same with other keys of the train section, and with a fault."""
        model = config.Own(**breaking.section(**(fault or {})))
        settings = self.pipeline.train.model_copy(update=changes)
        return replace(self, pipeline=self.pipeline.model_copy(update={"train": settings, "model": model}))

    def train(self, worker: Worker) -> list[dict]:
        """The reported metrics; checkpoints are in the worker's folder."""
        history: list[dict] = []
        training.train(self.pipeline, self.state, replace(worker, report=history.append), self.shards)
        return history

    def step(self, worker: Worker, accumulate: int = 1) -> float:
        """One step of plain gradient descent over all rows, without dropout; the epoch's loss."""
        model = config.Tabular(**{**breaking.NETWORK, "dropout": 0.0})
        settings = self.pipeline.train.model_copy(update={**PLAIN, "accumulate": accumulate})
        pipeline = self.pipeline.model_copy(update={"model": model, "train": settings})
        return replace(self, pipeline=pipeline).train(worker)[0]["loss"]


def run_rank(rank: int, folder: Path, given: list[Rank]) -> None:
    """The whole life of a process."""
    torch.set_num_threads(1)
    with joined(rank, folder / "first", 120):
        check(given[rank], rank, folder)
    parallel.ROLL_CALL = timedelta(seconds=1)
    with joined(rank, folder / "second", 3):
        hang(given[rank], rank, folder)


def joined(rank: int, file: Path, timeout_s: float):
    return process_group(rank, RANKS, "cpu", timeout_s, distributed.FileStore(str(file), RANKS))


def check(given: Rank, rank: int, folder: Path) -> None:
    """Leaves what the tests look at."""

    def worker(name: str) -> Worker:
        return Worker(rank, RANKS, "cpu", folder / name)

    def leave(name: str, value) -> None:
        (folder / f"{name}-{rank}.json").write_text(json.dumps(value))

    leave("trained", given.with_settings(**EVERY_STEP).train(worker("trained")))
    save_file(breaking.BUILT[-1].state_dict(), folder / f"trained-{rank}.safetensors")
    for mode in MODES:
        one = replace(given.with_settings(balance=mode, epochs=1), shards={**given.shards, "train": given.unequal})
        leave(mode, one.train(worker(mode)))
        save_file(breaking.BUILT[-1].state_dict(), folder / f"{mode}-{rank}.safetensors")
    for parts in (1, 3):
        given.step(worker(f"stepped-{parts}"), parts)
    leave("patient", given.with_settings(epochs=30, patience=1, lr=0.5).train(worker("patient")))
    try:
        given.with_settings({"fault": "stop", "at": 6}, **EVERY_STEP).train(worker("resumed"))
    except breaking.Stopped:
        distributed.barrier()  # rank 0's checkpoints are whole
        leave("resumed", given.with_settings(**EVERY_STEP).train(worker("resumed")))
    try:
        given.with_settings({"fault": "diverge", "at": 6, "rank": 1}, **EVERY_STEP).train(worker("diverged"))
    except DivergedError as error:
        leave("diverged", str(error))
    rows = torch.arange(101)[slice(*((0, 50), (50, 101))[rank])]
    leave("gathered", parallel.gather_rows(rows, 101, worker("")).tolist())
    leave("shared", parallel.share({"rank": rank}, worker("")))


def hang(given: Rank, rank: int, folder: Path) -> None:
    """Rank 1 takes no part in the second step until rank 0 has found out."""
    pipe = folder / "pipe"
    try:
        given.with_settings({"fault": "hang", "at": 2, "rank": 1, "pipe": str(pipe)}, timeout_s=3.0).train(
            Worker(rank, RANKS, "cpu", folder / "hung")
        )
    except TrainingError as error:
        (folder / f"hung-{rank}.json").write_text(json.dumps(str(error)))
        with os.fdopen(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w") as opened:  # fails where nobody hangs
            opened.write("go on")
    except breaking.Stopped:
        pass


@pytest.fixture(scope="module")
def alone(training_pipeline, training_state, make_shards, make_unequal) -> Rank:
    """The same in one process."""
    pipeline = training_pipeline({"model": breaking.section(), "train.workers": RANKS, "train.epochs": 2})
    return Rank(pipeline, training_state, make_shards(), make_unequal())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, alone, make_shards, make_unequal) -> Path:
    """What the two processes left."""
    folder = tmp_path_factory.mktemp("ddp")
    os.mkfifo(folder / "pipe")
    given = [replace(alone, shards=make_shards(rank, RANKS), unequal=make_unequal(rank, RANKS)) for rank in range(RANKS)]
    # A fork server imports torch once for both processes, and has run no thread of it when it forks.
    set_forkserver_preload(["rayloom.training", "torch._dynamo"])
    multiprocessing.start_processes(run_rank, (folder, given), nprocs=RANKS, start_method="forkserver")
    return folder


def left(folder: Path, name: str, rank: int):
    return json.loads((folder / f"{name}-{rank}.json").read_text())


@pytest.mark.parametrize("name", ["trained", *MODES])
def test_both_ranks_end_with_the_weights_of_the_last_checkpoint(folder, name):
    saved = checkpoints.last(folder / name).weights()
    ranks = [load_file(folder / f"{name}-{rank}.safetensors") for rank in range(RANKS)]
    assert all(torch.equal(found[key], saved[key]) for found in ranks for key in saved)


def test_both_ranks_report_the_same_metrics(folder):
    assert left(folder, "trained", 0) == left(folder, "trained", 1)


def test_validation_covers_the_rows_of_all_ranks(folder):
    assert [metrics["validation_n"] for metrics in left(folder, "trained", 1)] == [61, 61]


@pytest.mark.parametrize("epoch", [0, 1])
def test_validation_metrics_are_those_of_one_process_with_the_saved_weights(folder, alone, epoch):
    model = models.build(alone.pipeline.model, alone.state)
    model.load_state_dict(load_file(folder / "trained" / f"epoch-0000{epoch + 1}-step-00000000" / "model.safetensors"))
    rows = feeding.Resident(alone.shards["validation"].arrays, "cpu")
    logits = training.predict(model, rows).numpy()
    expected, _ = evaluation.judge(rows.labels.numpy(), logits, alone.pipeline.evaluate)
    reported = {name: left(folder, "trained", 0)[epoch][f"validation_{name}"] for name in expected}
    assert reported == pytest.approx(expected, abs=1e-5)


def test_a_run_of_two_ranks_that_was_stopped_goes_on_to_the_weights_of_an_undisturbed_one(folder):
    found, expected = (checkpoints.last(folder / name).weights() for name in ("resumed", "trained"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_of_two_ranks_that_was_stopped_has_the_losses_of_an_undisturbed_one(folder):
    found, expected = (
        [metrics["loss"] for metrics in checkpoints.last(folder / name).progress()["history"]]
        for name in ("resumed", "trained")
    )
    assert found == expected


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_of_two_ranks_is_the_step_of_one_on_the_same_rows(folder, alone, tmp_path, accumulate):
    alone.step(Worker(0, 1, "cpu", tmp_path))
    expected = checkpoints.last(tmp_path).weights()
    found = checkpoints.last(folder / f"stepped-{accumulate}").weights()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6, rtol=0) for name in expected)


def test_the_loss_of_two_ranks_is_the_loss_of_one_on_the_same_rows(folder, alone, tmp_path):
    expected = alone.step(Worker(0, 1, "cpu", tmp_path))
    history = checkpoints.last(folder / "stepped-1").progress()["history"]
    assert history[0]["loss"] == pytest.approx(expected, abs=1e-6)


def test_ranks_stop_early_together(folder):
    epochs = [len(left(folder, "patient", rank)) for rank in range(RANKS)]
    assert epochs[0] == epochs[1] < 30


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_loss_that_is_nan_on_one_rank_stops_all(folder, rank):
    assert left(folder, "diverged", rank).startswith("The training loss became nan in epoch 1")


def test_a_run_that_diverged_leaves_its_last_good_checkpoint(folder):
    last = checkpoints.last(folder / "diverged")
    assert last.place == (1, 1) and all(weight.isfinite().all() for weight in last.weights().values())


def test_a_rank_that_hangs_is_named(folder):
    assert left(folder, "hung", 0).startswith("Not rank 1 came to a collective within train.timeout_s (3 s)")


@pytest.mark.parametrize("rank", range(RANKS))
def test_rows_of_unequal_shards_are_gathered_in_order(folder, rank):
    assert left(folder, "gathered", rank) == list(range(101))


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_rank_0_shares_is_known_to_all(folder, rank):
    assert left(folder, "shared", rank) == {"rank": 0}


@pytest.mark.parametrize(
    ("mode", "figures"),
    [
        ("class_weights", {"balance_weight_0": pytest.approx(101 / 182), "balance_weight_1": pytest.approx(101 / 20)}),
        ("weighted_sampling", {"balance_drawn_0": 51, "balance_drawn_1": 50}),
        ("down_sampling", {"balance_kept_0": 10, "balance_kept_1": 10}),
    ],
)
def test_both_ranks_report_what_balancing_did_to_the_whole_split(folder, mode, figures):
    expected = {"balance_rows_0": 91, "balance_rows_1": 10, **figures}
    for rank in range(RANKS):
        metrics = left(folder, mode, rank)[0]
        assert {name: value for name, value in metrics.items() if name.startswith("balance_")} == expected
