"""The contract of the launchers on two GPUs, over NCCL. Run by hand where there are two; Java and Spark are not needed:

python -m pytest --noconftest -s tests/gpu

It prints, for each launcher, seconds to the first step, rows a second of the last epoch, and a worker's peak memory.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

from rayloom import config, launchers
from rayloom.datasets import Encoded
from rayloom.errors import DivergedError, TrainingError
from rayloom.features import CategoryState, FeatureState, NumberState
from rayloom.launchers.result import Result
from rayloom.worker import Arrays

LAUNCHERS = ["ray", "torchrun"]
ROWS = {"train": 200_001, "validation": 20_001}
STATE = FeatureState(
    label="big",
    columns={
        "shade": CategoryState(values=["blue", "red"]),
        "size": NumberState(center=0.0, spread=1.0, impute=0.0, flag=True),
    },
)


@pytest.fixture(scope="module")
def splits() -> Iterator[dict[str, Encoded]]:
    """Rows whose label can be learned, on a Ray cluster of this machine's."""
    ray.init(log_to_driver=False, include_dashboard=False)
    yield {name: Encoded([ray.put(make(rows))], [rows]) for name, rows in ROWS.items()}
    ray.shutdown()


def make(rows: int) -> Arrays:
    rng = np.random.default_rng(rows)
    numbers = rng.normal(size=(rows, 2)).astype(np.float32)
    categories = rng.integers(0, 3, (rows, 1))
    return {"numbers": numbers, "categories": categories, "label": (numbers[:, 0] + categories[:, 0] > 1).astype(np.float32)}


@pytest.fixture(scope="module")
def launch(splits, tmp_path_factory) -> Callable[..., Result]:
    """Trains on two GPUs."""

    def run(launcher: str, model: dict, **train) -> Result:
        settings = {"gpu": True, "workers": 2, "epochs": 3, "batch_size": 2048, "lr": 0.01, "timeout_s": 30.0}
        own = {**settings, "launcher": launcher, **train}
        pipeline = config.Pipeline.model_validate(
            {
                "name": "gpu",
                "storage": {"root": str(tmp_path_factory.mktemp(launcher))},
                "etl": {
                    "sources": {"raw": {"path": "raw.csv", "columns": "size DOUBLE, shade STRING, big INT"}},
                    "splits": {"train": "true", "validation": "false", "test": "false"},
                    "order_by": ["size"],
                },
                "features": {"label": "big", "columns": {"size": {"kind": "number"}, "shade": {"kind": "category"}}},
                "model": model,
                "train": own,
            }
        )
        result = launchers.find(launcher).launch(pipeline, STATE, splits, "run")
        last = result.history[-1]
        print(
            f"\n{launcher} {train}: first step {result.timeline['first step']} s {result.timeline}, "
            f"{last['samples_per_s']:,.0f} rows/s, peak {last['peak_mb']:.0f} MiB, AUC {last['validation_auc']:.4f}"
        )
        return result

    return run


@pytest.fixture(scope="module")
def alike(launch) -> dict[str, Result]:
    """The same run under both launchers."""
    return {name: launch(name, {"hidden": [256, 128]}) for name in LAUNCHERS}


def test_weights_are_equal_bit_for_bit(alike):
    weights, expected = (alike[name].best.weights() for name in LAUNCHERS)
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


def test_metrics_are_equal(alike):
    costs = ("seconds", "samples_per_s", "peak_mb")
    histories = [
        [{name: value for name, value in epoch.items() if name not in costs} for epoch in alike[launcher].history]
        for launcher in LAUNCHERS
    ]
    assert histories[0] == histories[1]


def test_what_can_be_learned_is_learned(alike):
    assert alike["ray"].history[-1]["validation_auc"] > 0.99


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_learns_as_well(launch, alike, precision):
    result = launch("torchrun", {"hidden": [256, 128]}, precision=precision)
    assert result.history[-1]["validation_auc"] == pytest.approx(alike["torchrun"].history[-1]["validation_auc"], abs=0.005)


def faulty(fault: str, folder: Path) -> dict:
    at = 130 if fault != "none" else 0
    return {"family": "tests.faulty_family:build", "settings": {"fault": fault, "at": at, "folder": str(folder)}}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_does_not_change_the_weights(launch, launcher, tmp_path, tmp_path_factory):
    settings = {"checkpoint": {"every_steps": 10}, "epochs": 2}
    expected = launch(launcher, faulty("none", tmp_path_factory.mktemp("none")), **settings).best.weights()
    weights = launch(launcher, faulty("kill", tmp_path), **settings).best.weights()
    assert (tmp_path / "happened").exists()
    assert [name for name in expected if not torch.equal(weights[name], expected[name])] == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_exception_on_rank_1_is_told_with_its_rank_and_text(launch, launcher, tmp_path):
    with pytest.raises(TrainingError, match="rank 1: ValueError: the third row is odd"):
        launch(launcher, faulty("fail", tmp_path), max_failures=0)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_loss_that_is_not_finite_ends_the_run_as_diverged(launch, launcher, tmp_path):
    with pytest.raises(DivergedError):
        launch(launcher, faulty("diverge", tmp_path))
