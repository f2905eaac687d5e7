"""The contract of the launchers: the same seed, rows and number of workers give the same model, whoever starts the workers."""

import signal
import time
from contextlib import nullcontext
from functools import partial

import pytest
import ray
import torch
from ray.train.v2._internal.constants import get_env_vars_to_propagate

from rayloom.launchers import ray_backend, ray_controller, spark
from rayloom.launchers.result import Result
from tests.conftest import at_once
from tests.launchers.conftest import SHARED, pipeline_changes, quiet

RUNS = [("inline", 1), ("ray", 1), ("torchrun", 1), ("spark", 1), ("ray", 2), ("torchrun", 2), ("spark", 2)]
PAIRS = [(name, workers) for name, workers in RUNS if (name, workers) not in (("inline", 1), ("torchrun", 2))]


PATIENCE = 90.0
"""Seconds that a worker without anything to tell lets Ray Train's controller wait."""

LOCAL = {"train.local_mode": True}
"""Spark's single worker trains beside the driver, its two on an executor."""


@pytest.fixture(scope="module")
def text_changes(encoder) -> dict:
    """A BERT on two workers."""
    return {
        "model": {"family": "text", "encoder": str(encoder)},
        **pipeline_changes(2),
        "train.lr": 0.002,
        "train.epochs": 2,
    }


@pytest.fixture(scope="module")
def under_spark(launch, training_pipeline, tabular_rows, text_rows, text_state, text_changes, tmp_path_factory):
    """Spark's runs, in one session for all of them: tabular ones by number of workers, and the text one."""
    pipeline, log = training_pipeline(pipeline_changes(2)), tmp_path_factory.mktemp("spark") / "spark.log"
    with pytest.MonkeyPatch.context() as patch, spark._session(pipeline, "all", log):
        patch.setattr(spark, "_session", lambda *_: nullcontext())
        patch.setattr(spark, "require_room", lambda _: None)  # the session holds what there is
        return {
            1: launch("spark", {**pipeline_changes(1), **LOCAL}, tabular_rows),
            2: launch("spark", pipeline_changes(2), tabular_rows),
            "text": launch("spark", text_changes, text_rows, text_state),
        }


@pytest.fixture(scope="module")
def under_others(launch, tabular_rows, text_rows, text_state, text_changes) -> dict[tuple[str, int | str], Result]:
    """The other launchers' runs, by launcher and number of workers or 'text'. Ray Train and torchrun go through theirs at the
    same time, on CPUs that they share."""

    def of(launcher: str) -> dict:
        tabular = {workers: launch(launcher, {**pipeline_changes(workers), **SHARED}, tabular_rows) for workers in (1, 2)}
        return {**tabular, "text": launch(launcher, {**text_changes, **SHARED}, text_rows, text_state)}

    ray, torchrun = at_once(partial(of, "ray"), partial(of, "torchrun"))
    runs = {"ray": ray, "torchrun": torchrun, "inline": {1: launch("inline", pipeline_changes(1), tabular_rows)}}
    return {(name, key): result for name, results in runs.items() for key, result in results.items()}


@pytest.fixture(scope="module")
def alike(under_others, under_spark) -> dict[tuple[str, int | str], Result]:
    """The same runs under every launcher."""
    return {**under_others, **{("spark", key): result for key, result in under_spark.items()}}


@pytest.fixture(scope="module")
def tabular(alike) -> dict[tuple[str, int], Result]:
    return {key: alike[key] for key in RUNS}


@pytest.fixture(scope="module")
def text(alike) -> dict[str, Result]:
    """A BERT under the launchers of two workers."""
    return {name: alike[name, "text"] for name in ("ray", "torchrun", "spark")}


def reference(workers: int) -> tuple[str, int]:
    return ("inline", 1) if workers == 1 else ("torchrun", 2)


@pytest.mark.parametrize(("launcher", "workers"), PAIRS)
def test_tabular_weights_are_equal_bit_for_bit(tabular, launcher, workers):
    weights, expected = (tabular[key].best.weights() for key in ((launcher, workers), reference(workers)))
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


@pytest.mark.parametrize(("launcher", "workers"), PAIRS)
def test_tabular_metrics_are_equal(tabular, launcher, workers):
    assert quiet(tabular[launcher, workers].history) == quiet(tabular[reference(workers)].history)


@pytest.mark.parametrize("launcher", ["ray", "spark"])
def test_text_weights_are_equal(text, launcher):
    weights, expected = (text[name].best.weights() for name in (launcher, "torchrun"))
    assert max(float((weights[name] - expected[name]).abs().max()) for name in expected) <= 1e-5


@pytest.mark.parametrize("launcher", ["ray", "spark"])
def test_text_metrics_are_equal(text, launcher):
    losses, expected = ([epoch["loss"] for epoch in text[name].history] for name in (launcher, "torchrun"))
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("launcher", ["ray", "torchrun", "spark"])
def test_every_launcher_tells_the_way_to_its_first_step(tabular, launcher):
    timeline = tabular[launcher, 2].timeline
    assert list(timeline) == ["worker started", "group joined", "rows read", "model built", "first step"]
    assert sorted(timeline.values()) == list(timeline.values()) and timeline["worker started"] > 0


def test_spark_leaves_ctrl_c_to_the_job(tabular):
    assert getattr(signal.getsignal(signal.SIGINT), "__module__", "") != "pyspark.context"


@pytest.fixture(scope="module")
def elastic(launch, tabular_rows) -> tuple[Result, list[dict], float]:
    """A run that wants three workers of two CPUs, with a variable of the user's; what workers were given; its seconds."""
    given = []

    class Noting(ray_controller.Group):
        def _create_workers(self, *arguments, **named):
            given.append(get_env_vars_to_propagate())
            return super()._create_workers(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_controller.Controller, "worker_group_cls", Noting)
        patch.setenv(ray_backend.POLL, str(PATIENCE))
        began = time.monotonic()
        result = launch("ray", {**pipeline_changes(3), "train.min_workers": 1}, tabular_rows)
        seconds = time.monotonic() - began
    return result, given, seconds


def test_an_elastic_run_trains_on_the_workers_that_the_cluster_has(elastic):
    result = elastic[0]
    assert (result.best.progress()["world_size"], len(result.history)) == (2, 3)


def test_no_actor_stands_beside_ray_trains_workers(elastic):
    """Each would be a process that starts beside them, and wakes up a hundred times a second."""
    started = {actor["ActorClassName"] for actor in ray._private.state.actors().values()}
    assert "Worker" in started and not started & {"Controller", "TrainController", "SynchronizationActor", "DatasetManager"}


def test_ray_trains_workers_get_the_users_variables_and_no_others(elastic):
    """With any, each of their processes starts twice."""
    assert elastic[1] == [{ray_backend.POLL: str(PATIENCE)}]


def test_a_report_and_the_end_are_taken_when_they_come(elastic):
    """Three epochs and an end: taken by the clock, each would have waited for it."""
    assert elastic[2] < PATIENCE


@pytest.mark.parametrize("launcher", ["torchrun", "spark"])
def test_the_rows_lent_to_processes_are_gone_when_the_run_ends(tabular, launcher):
    run = tabular[launcher, 2].best.folder.parents[1]
    assert (run / "checkpoints").is_dir() and not (run / "handover").exists()


def test_two_workers_send_their_gradients_and_one_sends_nothing(tabular):
    model = sum(weight.numel() * weight.element_size() for weight in tabular["ray", 2].best.weights().values())
    assert [tabular["ray", workers].history[0]["wire_bytes"] for workers in (1, 2)] == [0, model]
