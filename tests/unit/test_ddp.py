"""Two real processes over gloo train on an odd number of rows, and are held against one process."""

import json
from dataclasses import dataclass
from multiprocessing import set_forkserver_preload
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, multiprocessing, nn

from rayloom import config, evaluation, models, parallel, training
from rayloom.balance import Balanced
from rayloom.features import FeatureState
from rayloom.models import tabular
from rayloom.worker import Shard, Worker, shard_sizes

RANKS = 2
MODES = ("class_weights", "weighted_sampling", "down_sampling")
BUILT: list[nn.Module] = []


def remembered(model: config.Model, state: FeatureState) -> nn.Module:
    """A user's own family: the tabular network, kept so that a rank can show its final weights."""
    BUILT.append(tabular.build(model, state))
    return BUILT[-1]


@dataclass
class Rank:
    """What one process is given."""

    pipeline: config.Pipeline
    state: FeatureState
    shards: dict[str, Shard]
    unequal: Shard

    def train(self, rank: int, folder: Path) -> None:
        """Trains as `rank` and leaves metrics, weights and checkpoints in `folder`."""
        history: list[dict] = []

        def report(metrics: dict[str, float], checkpoint: Path | None) -> None:
            history.append(metrics)
            if checkpoint:
                copytree(checkpoint, folder / f"checkpoint-{metrics['epoch']}")

        training.train(self.pipeline, self.state, Worker(rank, RANKS, "cpu", report), self.shards)
        save_file(BUILT[-1].state_dict(), folder / f"trained-{rank}.safetensors")
        (folder / f"history-{rank}.json").write_text(json.dumps(history))

    def balance(self, mode: str, rank: int, folder: Path) -> None:
        """Trains an epoch as `rank` with a mode of train.balance, and leaves metrics and weights in `folder`."""
        settings = self.pipeline.train.model_copy(update={"balance": mode, "epochs": 1})
        pipeline = self.pipeline.model_copy(update={"train": settings})
        history: list[dict] = []
        shards = {**self.shards, "train": self.unequal}
        training.train(pipeline, self.state, Worker(rank, RANKS, "cpu", lambda metrics, _: history.append(metrics)), shards)
        save_file(BUILT[-1].state_dict(), folder / f"{mode}-{rank}.safetensors")
        (folder / f"{mode}-{rank}.json").write_text(json.dumps(history[0]))

    def step(self, worker: Worker) -> tuple[dict[str, torch.Tensor], float]:
        """Weights after one step of plain gradient descent over all rows, without dropout, and the loss."""
        training.make_deterministic(self.pipeline.seed)
        settings = self.pipeline.model.model_copy(update={"dropout": 0.0})
        model = parallel.wrap(models.build(settings, self.state), worker)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        data, total = training.to_device(self.shards["train"], worker), self.shards["train"].total
        rows = Balanced(data, shard_sizes(total, worker.world_size))
        loss = training.run_epoch(model, optimizer, schedule, rows, 1, worker)
        return parallel.unwrap(model).state_dict(), loss


def run_rank(rank: int, folder: Path, given: list[Rank]) -> None:
    """The whole life of a process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    try:
        given[rank].train(rank, folder)
        for mode in MODES:
            given[rank].balance(mode, rank, folder)
        weights, loss = given[rank].step(Worker(rank, RANKS, "cpu", print))
        save_file(weights, folder / f"stepped-{rank}.safetensors")
        (folder / f"loss-{rank}.json").write_text(json.dumps(loss))
    finally:
        distributed.destroy_process_group()


@pytest.fixture(scope="module")
def pipeline(training_pipeline):
    return training_pipeline({"model.family": f"{__name__}:remembered", "train.workers": RANKS, "train.epochs": 2})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pipeline, training_state, make_shards, make_unequal) -> Path:
    """What the two processes left."""
    folder = tmp_path_factory.mktemp("ddp")
    given = [Rank(pipeline, training_state, make_shards(rank, RANKS), make_unequal(rank, RANKS)) for rank in range(RANKS)]
    # A fork server imports torch once for both processes, and has run no thread of it when it forks.
    set_forkserver_preload(["rayloom.training", "torch._dynamo"])
    multiprocessing.start_processes(run_rank, (folder, given), nprocs=RANKS, start_method="forkserver")
    return folder


@pytest.fixture(scope="module")
def alone(pipeline, training_state, make_shards, make_unequal) -> Rank:
    """The same in one process."""
    return Rank(pipeline, training_state, make_shards(), make_unequal())


def history(folder: Path, rank: int) -> list[dict]:
    found = json.loads((folder / f"history-{rank}.json").read_text())
    return [{name: value for name, value in metrics.items() if name != "seconds"} for metrics in found]


def test_both_ranks_end_with_the_same_weights(folder):
    left, right = (load_file(folder / f"trained-{rank}.safetensors") for rank in range(RANKS))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_the_checkpoint_has_the_weights_that_the_ranks_ended_with(folder):
    saved, trained = load_file(folder / "checkpoint-1/model.safetensors"), load_file(folder / "trained-1.safetensors")
    assert all(torch.equal(saved[name], trained[name]) for name in trained)


def test_both_ranks_report_the_same_metrics(folder):
    assert history(folder, 0) == history(folder, 1)


def test_validation_covers_the_rows_of_all_ranks(folder):
    assert [metrics["validation_n"] for metrics in history(folder, 1)] == [61, 61]


@pytest.mark.parametrize("epoch", [0, 1])
def test_validation_metrics_are_those_of_one_process_with_the_saved_weights(folder, alone, epoch):
    model = models.build(alone.pipeline.model, alone.state)
    model.load_state_dict(load_file(folder / f"checkpoint-{epoch}" / "model.safetensors"))
    answers = training.predict(model, training.to_device(alone.shards["validation"], Worker(0, 1, "cpu", print))).numpy()
    labels = alone.shards["validation"].arrays["label"]
    expected = evaluation.score(labels, answers, evaluation.best_threshold(labels, answers))
    reported = {name: history(folder, 0)[epoch][f"validation_{name}"] for name in expected}
    assert reported == pytest.approx(expected, abs=1e-6)


def test_the_golden_answers_are_the_first_rows_of_the_whole_split(folder, alone):
    model = models.build(alone.pipeline.model, alone.state)
    model.load_state_dict(load_file(folder / "checkpoint-1/model.safetensors"))
    answers = training.predict(model, training.to_device(alone.shards["validation"], Worker(0, 1, "cpu", print)))
    golden = json.loads((folder / "checkpoint-1/progress.json").read_text())["golden"]
    assert golden == pytest.approx(answers[: training.GOLDEN_ROWS].tolist(), abs=1e-6)


def test_a_step_of_two_ranks_is_the_step_of_one_on_the_same_rows(folder, alone):
    expected, _ = alone.step(Worker(0, 1, "cpu", print))
    found = load_file(folder / "stepped-1.safetensors")
    assert all(torch.allclose(found[name], expected[name], atol=1e-6, rtol=0) for name in expected)


def test_the_loss_of_two_ranks_is_the_loss_of_one_on_the_same_rows(folder, alone):
    _, expected = alone.step(Worker(0, 1, "cpu", print))
    assert json.loads((folder / "loss-0.json").read_text()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_balanced_ranks_take_equal_steps_to_the_same_weights(folder, mode):
    left, right = (load_file(folder / f"{mode}-{rank}.safetensors") for rank in range(RANKS))
    assert all(torch.equal(left[name], right[name]) for name in left)


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
        metrics = json.loads((folder / f"{mode}-{rank}.json").read_text())
        assert {name: value for name, value in metrics.items() if name.startswith("balance_")} == expected
