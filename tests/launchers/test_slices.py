"""Launchers and the bare loop in turns: each counts its own rows, only one runs at a time, and all are gone afterwards."""

import psutil
import pytest

from rayloom import cluster
from rayloom.costs import slices
from rayloom.errors import TrainingError
from tests.conftest import wait_for

NAMES = ["ray", "torchrun"]


@pytest.fixture(scope="module")
def pipeline(training_pipeline):
    return training_pipeline({"train.workers": 2, "train.batch_size": 50})


def test_launchers_and_the_bare_loop_take_turns_on_cpus_for_one(pipeline, training_state, tabular_rows, tmp_path, monkeypatch):
    """Two launchers of two workers on two CPUs. While one is watched, the others' rows stand still."""
    stood_still = []
    take = slices._Side.slice
    sides: dict[str, slices._Side] = {}

    def watched(side, length):
        sides[side.name] = side
        others = [other for other in sides.values() if other is not side]
        before = [other.counted(slices.ROWS) for other in others]
        speed = take(side, length)
        stood_still.append(before == [other.counted(slices.ROWS) for other in others])
        return speed

    monkeypatch.setattr(slices._Side, "slice", watched)
    free = cluster.free_cpus()
    found = slices.measure(pipeline, training_state, tabular_rows, NAMES, 50_000.0, 6.0, tmp_path)
    assert list(found) == [*NAMES, "bare"] and {len(speeds) for speeds in found.values()} == {len(found["bare"])}
    assert min(speed for speeds in found.values() for speed in speeds) > 0
    assert all(stood_still) and len(stood_still) >= 6
    workers = [pid for side in sides.values() for pid in side.workers]
    wait_for(lambda: not any(map(psutil.pid_exists, workers)), 15)
    wait_for(lambda: cluster.free_cpus() >= free, 15)


def test_a_launcher_that_cannot_train_is_named(training_pipeline, training_state, tabular_rows, tmp_path):
    broken = training_pipeline({"train.workers": 2, "model": {"family": "tests.broken_family:build", "settings": {}}})
    with pytest.raises(TrainingError, match=r"torchrun did not come to train beside the others: .*rank"):
        slices.measure(broken, training_state, tabular_rows, NAMES[1:], 50_000.0, 1.0, tmp_path)
