"""Launcher `ray`: Ray Train's TorchTrainer starts the workers, watches them, and starts them again where one fails."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

from rayloom import config
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.launchers import failures, ray_worker, room
from rayloom.launchers.ray_backend import OwnGroup
from rayloom.launchers.result import Result, collect, folder_of

SUPERFLUOUS = (DatasetsCallback, PlacementGroupCleanerCallback)


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the workers, or for the fewest of them."""
    room.require(pipeline, pipeline.train.min_workers)


def launch(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], run: str) -> Result:
    """Trains on `train.workers` Ray workers; see `rayloom.launchers`."""
    launched = time.time()
    settings = pipeline.train
    room.require_rows(splits, settings.workers)
    require_room(pipeline)
    folder = folder_of(pipeline, run)
    trainer = _Trainer(
        ray_worker.run,
        # By reference: Ray Train's controller reads the configuration, too, and with it would import torch first.
        train_loop_config={"job": ray.put(ray_worker.Given(pipeline, state, splits, folder))},
        torch_config=OwnGroup(),  # type: ignore[arg-type]
        scaling_config=ScalingConfig(
            num_workers=(settings.min_workers, settings.workers) if settings.min_workers else settings.workers,  # type: ignore[arg-type]
            use_gpu=settings.gpu,
            resources_per_worker=room.per_worker(settings),
        ),
        run_config=RunConfig(
            name="ray-train", storage_path=str(folder.parent), failure_config=FailureConfig(max_failures=settings.max_failures)
        ),
    )
    try:
        with _own_interrupt_handler():
            trainer.fit()
    except ray.train.TrainingFailedError as error:
        failures.raise_first(folder.parent / "failures", _cause(error))
    failures.raise_final(folder.parent / "failures")
    return collect(pipeline, len(state.classes), run, launched)


class _Trainer(TorchTrainer):
    """TorchTrainer without two actors that start, with seconds of imports, while the workers do: one that hands out datasets,
    of which there are none, and one that removes the placement group of a controller that died, which ends with the job."""

    def _create_default_callbacks(self) -> list:
        given = super()._create_default_callbacks()  # type: ignore[misc]  # of Ray Train's second version
        return [one for one in given if not isinstance(one, SUPERFLUOUS)]


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Puts the SIGINT handler back that `fit` replaces for good: it would keep Ray Train's controller alive and swallow Ctrl-C.

    While `fit` runs, Ray's handler stops the workers, then exits with 0: an interrupted run would pass for a whole one.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, handler)


def _cause(error: Exception) -> str:
    """The workers' own errors as one line; Ray keeps them by rank."""
    caught = getattr(error, "worker_failures", None)
    if not caught:
        return f"{str(error).strip().splitlines()[-1]:.400}"
    causes = {rank: str(getattr(failure, "__cause__", None) or failure).strip() for rank, failure in caught.items()}
    return "; ".join(f"rank {rank}: {text.splitlines()[0]:.400}".rstrip(".") for rank, text in sorted(causes.items()))
