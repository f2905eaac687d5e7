"""The training loop in this process: repeats itself bit for bit, resumes, learns, and cuts rows fairly."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rayloom import training
from rayloom.balance import Balanced
from rayloom.errors import DataError, TrainingError
from rayloom.worker import Shard, Worker, bounds, shard_sizes


class Stopped(Exception):
    """The worker was ended from outside."""


class Recorder:
    """A worker's report that keeps each epoch's metrics and checkpoint, and ends the worker after an epoch if told to."""

    def __init__(self, folder: Path, stop_after: int | None = None):
        self.folder, self.stop_after, self.metrics = folder, stop_after, []

    def __call__(self, metrics: dict[str, float], checkpoint: Path | None) -> None:
        shutil.copytree(checkpoint, self.checkpoint(metrics["epoch"]))
        self.metrics.append(metrics)
        if metrics["epoch"] == self.stop_after:
            raise Stopped

    def checkpoint(self, epoch: int) -> Path:
        return self.folder / str(epoch)

    def weights(self, epoch: int) -> bytes:
        return (self.checkpoint(epoch) / "model.safetensors").read_bytes()

    def progress(self, epoch: int) -> dict:
        return json.loads((self.checkpoint(epoch) / "progress.json").read_text())


@pytest.fixture(scope="module")
def train(tmp_path_factory, training_pipeline, training_state, make_shards):
    """Trains in this process."""

    def run(changes: dict = {}, report: Recorder | None = None, resume: Path | None = None, shards=None) -> Recorder:
        recorder = report or Recorder(tmp_path_factory.mktemp("run"))
        worker = Worker(0, 1, "cpu", recorder, resume)
        training.train(training_pipeline(changes), training_state, worker, shards or make_shards())
        return recorder

    return run


@pytest.fixture(scope="module")
def whole(train) -> Recorder:
    """An undisturbed run of three epochs."""
    return train()


@pytest.fixture(scope="module")
def long(train) -> Recorder:
    """An undisturbed run of twenty epochs."""
    return train({"train.epochs": 20})


def without_seconds(history: list[dict]) -> list[dict]:
    return [{name: value for name, value in metrics.items() if name != "seconds"} for metrics in history]


def test_the_same_seed_gives_the_same_weights_bit_for_bit(train, whole):
    assert train().weights(2) == whole.weights(2)


def test_the_same_seed_gives_the_same_metrics(train, whole):
    assert without_seconds(train().metrics) == without_seconds(whole.metrics)


def test_what_was_drawn_before_does_not_count(train, whole):
    torch.rand(7), np.random.default_rng().random()
    assert train().weights(2) == whole.weights(2)


def test_another_seed_gives_other_weights(train, whole):
    assert train({"seed": 18}).weights(2) != whole.weights(2)


def test_a_stopped_run_goes_on_to_the_weights_of_an_undisturbed_one(train, whole, tmp_path):
    stopped = Recorder(tmp_path, stop_after=0)
    with pytest.raises(Stopped):
        train(report=stopped)
    assert train(resume=stopped.checkpoint(0)).weights(2) == whole.weights(2)


def test_a_resumed_run_has_each_epoch_once_in_its_history(train, whole):
    history = train(resume=whole.checkpoint(0)).progress(2)["history"]
    assert without_seconds(history) == without_seconds(whole.progress(2)["history"])


def test_a_resumed_run_reports_only_the_epochs_that_it_ran(train, whole):
    assert [metrics["epoch"] for metrics in train(resume=whole.checkpoint(0)).metrics] == [1, 2]


def test_a_finished_run_resumed_reports_nothing(train, whole):
    assert train(resume=whole.checkpoint(2)).metrics == []


def test_the_loss_falls_on_what_can_be_learned(long):
    assert long.metrics[-1]["loss"] < 0.5 * long.metrics[0]["loss"]


def test_what_can_be_learned_is_learned(long):
    assert long.metrics[-1]["validation_auc"] > 0.97


def test_every_epoch_reports_every_metric(whole):
    names = {"epoch", "loss", "seconds"} | {
        f"validation_{name}"
        for name in (
            "auc", "average_precision", "log_loss", "brier", "f1", "accuracy", "precision", "recall", "threshold", "n",
        )
    }  # fmt: skip
    assert [metrics.keys() for metrics in whole.metrics] == [names] * 3


def test_validation_covers_every_row(whole):
    assert whole.metrics[0]["validation_n"] == 61


def test_a_checkpoint_has_its_three_files(whole):
    files = {path.name for path in whole.checkpoint(0).iterdir()}
    assert files == {"model.safetensors", "optimizer.pt", "progress.json"}


def test_the_golden_answers_are_those_of_the_checkpoints_weights(whole, training_pipeline, training_state, make_shards):
    model = training.models.build(training_pipeline().model, training_state)
    model.load_state_dict(load_file(whole.checkpoint(1) / "model.safetensors"))
    data = training.to_device(make_shards()["validation"], Worker(0, 1, "cpu", whole))
    answers = training.predict(model, data)[: training.GOLDEN_ROWS].tolist()
    assert whole.progress(1)["golden"] == pytest.approx(answers, abs=1e-7)


def test_the_rows_scored_at_once_do_not_change_an_answer(training_pipeline, training_state, make_arrays, monkeypatch):
    model = training.models.build(training_pipeline().model, training_state)
    data = {name: torch.tensor(values) for name, values in make_arrays(101, 1).items()}
    whole = training.predict(model, data)
    monkeypatch.setattr(training, "EVALUATION_ROWS", 7)
    assert torch.allclose(training.predict(model, data), whole, atol=1e-7, rtol=0)


def test_a_validation_split_of_one_class_is_refused(train, make_shards):
    shards = make_shards()
    shards["validation"].arrays["label"] = np.ones_like(shards["validation"].arrays["label"])
    with pytest.raises(DataError, match="rows of the validation split have the label 1"):
        train(shards=shards)


def test_a_batch_larger_than_the_split_is_the_split(train):
    assert len(train({"train.batch_size": 10_000}).metrics) == 3


def test_one_row_is_enough_to_train(train, make_arrays, make_shards):
    assert len(train(shards={**make_shards(), "train": Shard(make_arrays(1, 1), 1)}).metrics) == 3


@pytest.mark.parametrize("mode", ["class_weights", "weighted_sampling", "down_sampling"])
def test_a_balanced_run_repeats_itself_and_differs_from_one_that_is_not(train, make_shards, make_unequal, mode):
    shards = {**make_shards(), "train": make_unequal()}
    weights = [train({"train.balance": balance}, shards=shards).weights(2) for balance in (mode, mode, "none")]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("mode", ["weighted_sampling", "down_sampling"])
def test_a_balanced_run_goes_on_to_the_weights_of_an_undisturbed_one(train, make_shards, make_unequal, mode):
    shards = {**make_shards(), "train": make_unequal()}
    whole = train({"train.balance": mode}, shards=shards)
    assert train({"train.balance": mode}, resume=whole.checkpoint(0), shards=shards).weights(2) == whole.weights(2)


def test_class_weights_raise_the_probability_of_the_rare_class(train, make_shards, make_unequal):
    shards = {**make_shards(), "train": make_unequal()}
    plain, weighted = (train({"train.balance": mode}, shards=shards) for mode in ("none", "class_weights"))
    assert np.mean(weighted.progress(2)["golden"]) > np.mean(plain.progress(2)["golden"]) + 0.1


def test_what_balancing_did_stands_in_the_checkpoint(train, make_shards, make_unequal):
    history = train({"train.balance": "down_sampling"}, shards={**make_shards(), "train": make_unequal()}).progress(2)[
        "history"
    ]
    assert [metrics["balance_kept_0"] for metrics in history] == [10, 10, 10]


def test_25_rows_on_2_ranks_in_batches_of_32_are_a_step_each():
    assert batches(25, 32, 2) == [[12], [13]]


def test_input_that_is_nan_ends_the_training(train, make_shards):
    shards = make_shards()
    shards["train"].arrays["numbers"][3, 0] = np.nan
    with pytest.raises(TrainingError, match=r"The training loss became nan; lower train\.lr"):
        train(shards=shards)


@pytest.mark.parametrize("name", ["train", "validation"])
def test_a_split_with_fewer_rows_than_ranks_is_refused(
    name, make_arrays, make_shards, training_pipeline, training_state, tmp_path
):
    shards = {**make_shards(0, 4), name: Shard(make_arrays(1, 1), 3)}
    with pytest.raises(DataError, match=f"The {name} split has 3 rows for 4 workers"):
        training.train(training_pipeline(), training_state, Worker(0, 4, "cpu", Recorder(tmp_path)), shards)


CUTS = [
    (total, batch_size, world_size)
    for total in (4, 5, 7, 16, 100, 101, 1024, 1025)
    for batch_size in (1, 2, 4, 10, 32, 101, 5000)
    for world_size in (1, 2, 3, 4)
]


def batches(total: int, batch_size: int, world_size: int) -> list[list[int]]:
    """Sizes of the batches that the ranks really take, by rank."""
    sizes = shard_sizes(total, world_size)
    steps = training.count_steps(sizes, batch_size)
    ranks = [Balanced({"label": torch.zeros(rows)}, sizes) for rows in sizes]
    return [[len(batch["label"]) for batch in rank.batches(steps)] for rank in ranks]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("total", [7, 8, 100, 101])
def test_shards_cover_all_rows_and_differ_by_one_at_most(total, world_size):
    sizes = shard_sizes(total, world_size)
    assert sum(sizes) == total and max(sizes) - min(sizes) <= 1


def test_bounds_begin_and_end_with_the_split():
    assert (bounds(101, 4)[0], bounds(101, 4)[-1]) == (0, 101)


def test_101_rows_on_4_ranks_are_shared_out():
    assert batches(101, 32, 4) == [[7, 6, 6, 6], [7, 6, 6, 6], [7, 6, 6, 6], [7, 7, 6, 6]]


def test_every_rank_takes_the_same_number_of_steps():
    assert [cut for cut in CUTS if len({len(sizes) for sizes in batches(*cut)}) != 1] == []


def test_no_rank_has_an_empty_batch():
    assert [cut for cut in CUTS if min(map(min, batches(*cut))) == 0] == []


def test_batches_cover_every_row():
    assert [cut for cut in CUTS if sum(map(sum, batches(*cut))) != cut[0]] == []


def test_a_step_has_at_most_the_batch_size_and_a_row_more_for_each_other_rank():
    def allowed(batch_size: int, world_size: int) -> int:
        # A batch cannot be under a row a rank: below that size, the number of ranks stands for it.
        return max(batch_size, world_size) + world_size - 1

    assert [cut for cut in CUTS if max(map(sum, zip(*batches(*cut), strict=True))) > allowed(*cut[1:])] == []


def test_batch_rows_says_what_the_ranks_really_have():
    def said(total: int, batch_size: int, world_size: int) -> list[int]:
        sizes = shard_sizes(total, world_size)
        steps = training.count_steps(sizes, batch_size)
        return [training.batch_rows(sizes, steps, step) for step in range(steps)]

    assert [cut for cut in CUTS if said(*cut) != [sum(sizes) for sizes in zip(*batches(*cut), strict=True)]] == []


def test_no_row_of_an_epoch_is_taken_twice():
    data = {"label": torch.arange(101.0)}
    seen = torch.cat([batch["label"] for batch in Balanced(data, [101]).batches(4)])
    assert seen.sort().values.tolist() == list(range(101))


def test_a_rows_values_stay_together_when_shuffled():
    data = {"label": torch.arange(101.0), "numbers": torch.arange(101.0)[:, None] * 2}
    assert all(torch.equal(batch["numbers"][:, 0], batch["label"] * 2) for batch in Balanced(data, [101]).batches(4))


@pytest.mark.parametrize(("left", "right"), [((1, 0, 0), (2, 0, 0)), ((1, 0, 0), (1, 1, 0)), ((1, 0, 0), (1, 0, 1))])
def test_seed_epoch_and_rank_each_give_another_order(left, right):
    orders = []
    for numbers in (left, right):
        training.seed_rank(*numbers)
        orders.append(torch.randperm(101).tolist())
    assert orders[0] != orders[1]
