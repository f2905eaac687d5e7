"""Checkpoints: whole or not there, the best and the last kept, and a run goes on from one to where it would have been."""

import shutil

import pytest
import torch

from rayloom import checkpoints, training
from rayloom.checkpoints import Writer
from tests.unit import breaking

STEPS = 4
"""Of an epoch: 101 rows in batches of 32."""

SETTINGS = [
    {},
    {"train.ema": 0.9},
    {"train.optimizer": "sgd", "train.schedule": "linear"},
    {"train.accumulate": 2, "train.clip_norm": 0.5},
    {"train.balance": "class_weights"},
    {"train.balance": "weighted_sampling"},
    {"train.balance": "down_sampling", "train.batch_size": 4},
]


def settings(more: dict, fault: str | None = None, at: int | None = None) -> dict:
    return {"train.checkpoint": {"every_steps": 1}, "model": breaking.section(fault, at), **more}


@pytest.fixture(scope="module")
def whole(train):
    """An undisturbed run of three epochs."""
    return train(settings({}))


@pytest.fixture
def write(tmp_path):
    """Writes checkpoints with these places and metrics, one after the other; keeps two."""

    def run(metrics: dict[tuple[int, int], float], sign: int = 1, keep: int = 2) -> list[tuple[int, int]]:
        writer = Writer(tmp_path, keep, "validation_auc", sign)
        for place, value in metrics.items():
            writer.write(place, {"w": torch.ones(1)}, {}, {"history": [{"validation_auc": value}]})
        writer.close()
        return [one.place for one in checkpoints.found(tmp_path)]

    return run


@pytest.mark.parametrize("at", [2, 6, 9])
@pytest.mark.parametrize("more", SETTINGS, ids=str)
def test_a_stopped_run_goes_on_to_weights_and_history_of_an_undisturbed_one(
    train, make_shards, make_unequal, tmp_path, more, at
):
    shards = {**make_shards(), "train": make_unequal()} if "train.balance" in more else None
    undisturbed = train(settings(more), shards=shards)
    with pytest.raises(breaking.Stopped):
        train(settings(more, "stop", at), tmp_path, shards)
    resumed = train(settings(more), tmp_path, shards)
    assert (resumed.weights(), resumed.history()) == (undisturbed.weights(), undisturbed.history())


def test_a_run_that_is_stopped_goes_on_inside_the_epoch(train, tmp_path):
    with pytest.raises(breaking.Stopped):
        train(settings({}, "stop", STEPS + 3), tmp_path)
    assert checkpoints.last(tmp_path).place == (1, 2)


def test_a_run_goes_on_from_an_epochs_end(train, whole, tmp_path):
    with pytest.raises(breaking.Stopped):
        train({"model": breaking.section("stop", STEPS + 3)}, tmp_path)
    assert checkpoints.last(tmp_path).place == (1, 0)
    assert train(settings({}), tmp_path).weights() == whole.weights()


def test_a_resumed_run_reports_only_the_epochs_that_it_ends(train, tmp_path):
    with pytest.raises(breaking.Stopped):
        train(settings({}, "stop", STEPS + 3), tmp_path)
    resumed = train(settings({}), tmp_path)
    assert [metrics["epoch"] for metrics in resumed.reported] == [1, 2]
    assert [metrics["epoch"] for metrics in resumed.history()] == [0, 1, 2]


def test_a_finished_run_goes_on_to_nothing(train, whole):
    assert train(settings({}), whole.folder).reported == []


def test_a_checkpoint_has_its_three_files(whole):
    assert {path.name for path in whole.last.folder.iterdir()} == {"model.safetensors", "training.pt", "progress.json"}


@pytest.mark.parametrize(("seconds", "place"), [(0.0, 44), (1e6, 1)])
def test_seconds_save_where_ranks_look(train, tmp_path, monkeypatch, seconds, place):
    """After the first step, and then by how long steps take."""
    monkeypatch.setattr(training, "LOOK_S", seconds)
    wanted = {"train.checkpoint": {"every_seconds": 1e-6}, "train.batch_size": 2}
    with pytest.raises(breaking.Stopped):
        train({**wanted, "model": breaking.section("stop", 45)}, tmp_path)
    assert checkpoints.last(tmp_path).place == (0, place)


def test_short_epochs_are_saved_when_seconds_of_them_have_passed_and_the_last_one_always(train, tmp_path):
    apart = {"train.checkpoint": {"epoch_seconds": 1e6, "keep": 9}}
    assert [one.place for one in checkpoints.found(train(apart).folder)] == [(3, 0)]
    with pytest.raises(breaking.Stopped):
        train({**apart, "model": breaking.section("stop", 2 * STEPS + 1)}, tmp_path)
    assert checkpoints.found(tmp_path) == []
    assert train(apart, tmp_path).history()[-1]["epoch"] == 2


@pytest.fixture
def save_after(monkeypatch):
    """Has something done between a checkpoint's folder and the first file in it."""

    def give(step) -> None:
        save = checkpoints.save_file
        monkeypatch.setattr(checkpoints, "save_file", lambda *given: (step(), save(*given)))

    return give


def test_a_folder_that_is_removed_while_it_is_written_stays_away(save_after, tmp_path):
    run = tmp_path / "run"
    save_after(lambda: checkpoints.remove(run))
    writer = Writer(run / "checkpoints", 1, "validation_auc", 1)
    writer.write((1, 0), {"w": torch.ones(1)}, {}, {"history": [{"validation_auc": 0.5}]})
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_in_a_folder_that_is_there_is_an_error(save_after, tmp_path):
    save_after(lambda: [shutil.rmtree(half) for half in tmp_path.iterdir()])
    writer = Writer(tmp_path, 1, "validation_auc", 1)
    writer.write((1, 0), {"w": torch.ones(1)}, {}, {"history": [{"validation_auc": 0.5}]})
    with pytest.raises(Exception, match="No such file"):
        writer.close()


def test_half_a_checkpoint_is_not_looked_at(write, tmp_path):
    write({(1, 0): 0.5})
    (tmp_path / ".epoch-00002-step-00000000.77").mkdir()
    assert checkpoints.last(tmp_path).place == (1, 0)


def test_half_a_checkpoint_is_removed_by_the_next_writer(write, tmp_path):
    (tmp_path / ".epoch-00002-step-00000000.77").mkdir()
    write({(1, 0): 0.5})
    assert [one.name for one in tmp_path.iterdir()] == ["epoch-00001-step-00000000"]


def test_a_run_without_a_folder_has_no_checkpoint(tmp_path):
    assert checkpoints.last(tmp_path / "none") is None


def test_the_best_and_the_last_are_kept(write):
    assert write({(1, 0): 0.5, (2, 0): 0.9, (3, 0): 0.8, (4, 0): 0.6, (5, 0): 0.1}) == [(2, 0), (3, 0), (5, 0)]


def test_the_lowest_are_kept_where_lower_is_better(write):
    assert write({(1, 0): 0.5, (2, 0): 0.9, (3, 0): 0.8, (4, 0): 0.9}, -1) == [(1, 0), (3, 0), (4, 0)]


def test_inside_an_epoch_only_the_last_is_kept(write):
    assert write({(1, 0): 0.5, (1, 2): 0.5, (1, 4): 0.5}) == [(1, 0), (1, 4)]


@pytest.mark.parametrize(("sign", "place"), [(1, (2, 0)), (-1, (1, 0))])
def test_the_best_is_the_first_of_equally_good_ones_at_an_epochs_end(write, tmp_path, sign, place):
    write({(1, 0): 0.5, (2, 0): 0.9, (3, 0): 0.9, (3, 4): 0.9}, keep=9)
    assert checkpoints.best(tmp_path, "validation_auc", sign).place == place


def test_what_cannot_be_written_ends_the_loop(tmp_path):
    (tmp_path / "file").write_text("no folder")
    writer = Writer(tmp_path / "file", 1, "validation_auc", 1)
    writer.write((1, 0), {"w": torch.ones(1)}, {}, {"history": []})
    with pytest.raises(OSError, match="Not a directory"):
        writer.close()


def test_what_the_loop_changes_while_it_is_written_does_not_change_the_checkpoint(tmp_path):
    weights = {"w": torch.zeros(1000)}
    writer = Writer(tmp_path, 1, "validation_auc", 1)
    writer.write((1, 0), weights, {}, {"history": [{"validation_auc": 0.5}]})
    weights["w"].fill_(1.0)
    writer.close()
    assert float(checkpoints.last(tmp_path).weights()["w"].sum()) == 0
