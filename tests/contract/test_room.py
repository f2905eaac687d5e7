"""What can never run on the cluster is refused within a second, with the arithmetic: before Spark, before the workers. What
others hold is waited for, as long as one says.
"""

import time
from collections.abc import Iterator

import pytest
import ray
from ray.actor import ActorHandle

from rayloom import cluster, config, launchers
from rayloom.datasets import Encoded
from rayloom.errors import DataError, ResourceError
from rayloom.etl import session
from rayloom.launchers import ray_train
from tests.conftest import wait_for
from tests.contract.conftest import Other

REFUSED = {
    "executors": (
        {"executors": 2, "executor_cores": 2},
        "etl (2 × 2 CPU for Spark's executors) needs 4 CPU, the cluster has 2; set etl.executors to 1.",
    ),
    "cores": (
        {"executors": 1, "executor_cores": 3},
        "etl (1 × 3 CPU for Spark's executors) needs 3 CPU, the cluster has 2; set etl.executor_cores to 2.",
    ),
    "Ray Data's own": (
        {"executors": 1, "executor_cores": 2, "handoff": "memory"},
        "etl (1 × 2 CPU for Spark's executors + 1 for Ray Data) needs 3 CPU, the cluster has 2; set etl.executor_cores to 1.",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), REFUSED.values(), ids=list(REFUSED))
def test_input_7_more_than_the_cluster_has_is_refused_with_the_arithmetic(joined, toy, changes, sentence):
    began = time.monotonic()
    with pytest.raises(ResourceError) as caught:
        session.require_room(toy({f"etl.{key}": value for key, value in changes.items()}))
    assert str(caught.value) == sentence
    assert time.monotonic() - began < 10  # no wait


def test_more_memory_than_the_cluster_has_is_refused(joined, toy):
    with pytest.raises(
        ResourceError, match=r"needs 4096.0 GiB of memory, the cluster has [0-9.]+ GiB; lower etl.executor_memory"
    ):
        session.require_room(toy({"etl.executor_memory": "4096g", "etl.executor_cores": 1}))


@pytest.fixture
def held(joined) -> Iterator[tuple[ActorHandle, dict[str, float]]]:
    """An actor of somebody else's that holds a CPU, and what was free before it came."""
    before = cluster.free_cpus()
    actor = ray.remote(num_cpus=1)(Other).remote()
    wait_for(lambda: cluster.free_cpus() < before)
    yield actor, {"CPU": before}
    ray.kill(actor)
    wait_for(lambda: cluster.free_cpus() == before)


def test_what_others_hold_is_refused_after_a_wait(held):
    with pytest.raises(ResourceError, match=r"needs \d CPU, the cluster has 2 but only \d free; .*\(cluster\.wait_s\)\.$"):
        cluster.require(held[1], "train", "lower train.workers", config.Cluster(wait_s=1))


def test_what_others_hold_is_waited_for_and_said(held, monkeypatch):
    actor, needed = held
    said = []

    def hear(line: str, flush: bool) -> None:
        said.append(line)
        ray.kill(actor)

    monkeypatch.setattr(cluster, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "print", hear, raising=False)
    cluster.require(needed, "train", "lower train.workers", config.Cluster(wait_s=60))
    assert len(said) == 1 and "which others hold: waiting up to 60 s" in said[0]


@pytest.mark.parametrize("launcher", ["ray", "torchrun"])
def test_more_workers_than_the_cluster_has_are_refused(joined, toy, launcher):
    with pytest.raises(ResourceError, match=r"train needs 64 CPU, the cluster has 2; lower train\.workers"):
        launchers.find(launcher).require_room(toy({"train": {"workers": 64, "launcher": launcher}}))


def test_input_9_three_rows_for_four_workers_are_refused_before_any_starts(toy):
    splits = {"train": Encoded([], [2, 1]), "validation": Encoded([], [4])}
    began = time.monotonic()
    with pytest.raises(DataError, match=r"The train split has 3 rows for 4 workers; lower train\.workers"):
        ray_train.launch(toy({"train": {"workers": 4}}), None, splits, "run")
    assert time.monotonic() - began < 10  # no wait
