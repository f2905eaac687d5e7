"""Rows that stay on the device and rows that are streamed, from memory or from files, give the same batches."""

import numpy as np
import pytest
import torch

from rayloom import feeding, training
from rayloom.balance import Balanced
from rayloom.features import FeatureState
from rayloom.launchers import handover
from rayloom.worker import Arrays, Shard


@pytest.fixture
def arrays(make_arrays) -> Arrays:
    return make_arrays(101, 1)


@pytest.fixture
def job(tmp_path, training_pipeline, training_state, make_arrays) -> handover.Job:
    """What a launcher left for its processes."""
    splits = {name: make_arrays(rows, rows) for name, rows in {"train": 101, "validation": 61}.items()}
    handover.write(tmp_path / "handover", training_pipeline(), training_state, splits, tmp_path / "checkpoints")
    return handover.read(tmp_path / "handover")


def batches(rows: feeding.Rows, seed: int = 0, epoch: int = 0) -> list[dict[str, list]]:
    """An epoch's batches of a rank with these rows."""
    given = Balanced(rows, [101])
    training.seed_rank(seed, epoch, 0)
    return [{name: values.tolist() for name, values in batch.items()} for batch in given.batches(given.order(), 4)]


def test_streamed_rows_give_the_batches_of_resident_ones(arrays):
    assert batches(feeding.Streamed(arrays, "cpu")) == batches(feeding.Resident(arrays, "cpu"))


def test_rows_in_files_give_the_batches_of_those_in_memory(job, make_arrays):
    assert batches(feeding.Streamed(job.shards(0, 1)["train"].arrays, "cpu")) == batches(
        feeding.Resident(make_arrays(101, 101), "cpu")
    )


def test_rows_in_files_train_to_the_weights_of_those_in_memory(job, train, monkeypatch):
    resident = train()
    monkeypatch.setattr(training.config, "count_bytes", lambda memory: 0)
    assert train(shards=job.shards(0, 1)).weights() == resident.weights()


@pytest.mark.parametrize(("limit", "kind"), [(0, feeding.Streamed), (10**6, feeding.Resident)])
def test_rows_are_streamed_where_they_take_more_than_the_limit(arrays, limit, kind):
    assert type(feeding.place(Shard(arrays, 101), "cpu", limit)) is kind


def test_a_shard_of_the_limits_size_stays_on_the_device(arrays):
    shard = Shard(arrays, 101)
    assert type(feeding.place(shard, "cpu", shard.size)) is feeding.Resident


def test_resident_rows_do_not_change_with_the_arrays(arrays):
    rows = feeding.Resident(arrays, "cpu")
    arrays["label"][:] = 7
    assert 7 not in rows.labels


def test_a_row_that_cannot_be_read_ends_the_loop(arrays):
    with pytest.raises(IndexError):
        list(feeding.Streamed(arrays, "cpu").take([torch.tensor([500])]))


def test_a_loop_that_stops_early_leaves_no_thread(arrays):
    import threading

    taken = feeding.Streamed(arrays, "cpu").take(torch.arange(101).split(1))
    next(taken)
    taken.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("rayloom-feeding")]


def test_the_order_changes_with_the_epoch(arrays):
    rows = feeding.Resident(arrays, "cpu")
    assert batches(rows, epoch=0) != batches(rows, epoch=1)


def test_the_order_of_an_epoch_is_the_same_in_every_run(arrays):
    rows = feeding.Resident(arrays, "cpu")
    assert batches(rows, epoch=1) == batches(rows, epoch=1)


def test_a_job_comes_back_as_it_was_handed_over(job, training_pipeline, training_state):
    assert (job.pipeline, FeatureState.model_validate(job.state)) == (training_pipeline(), training_state)


def test_each_rank_gets_its_rows_of_a_split(job, make_arrays):
    parts = [job.shards(rank, 4)["train"].arrays["numbers"] for rank in range(4)]
    assert [len(part) for part in parts] == [25, 25, 25, 26]
    assert np.array_equal(np.concatenate(parts), make_arrays(101, 101)["numbers"])
