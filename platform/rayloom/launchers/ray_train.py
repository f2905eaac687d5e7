"""Launcher `ray`: Ray Train's TorchTrainer starts the workers, watches them, and starts them again where one fails."""

import time
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

from rayloom import config
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.launchers import failures, ray_worker, room
from rayloom.launchers.ray_backend import OwnGroup
from rayloom.launchers.ray_controller import follow
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
        train_loop_config={"job": ray.put(ray_worker.Given(pipeline, state, splits, folder))},
        torch_config=OwnGroup(),  # type: ignore[arg-type]
        scaling_config=ScalingConfig(
            num_workers=(settings.min_workers, settings.workers) if settings.min_workers else settings.workers,  # type: ignore[arg-type]
            use_gpu=settings.gpu,
            resources_per_worker=room.per_worker(settings),
        ),
        run_config=RunConfig(  # type: ignore[call-arg]  # of Ray Train's second version
            name="ray-train",
            storage_path=str(folder.parent),
            failure_config=FailureConfig(max_failures=settings.max_failures),
            logging_config=LoggingConfig(log_level="CRITICAL"),  # on the console; its file has everything
        ),
    )
    try:
        trainer.fit()
    except ray.train.TrainingFailedError as error:
        failures.raise_first(folder.parent / "failures", _cause(error))
    failures.raise_final(folder.parent / "failures")
    return collect(pipeline, len(state.classes), run, launched)


class _Trainer(TorchTrainer):
    """TorchTrainer that runs its controller here, and goes without two actors that would start, with seconds of imports, while
    the workers do: one that hands out datasets, of which there are none, and one that removes the placement group of a
    controller that died, which ends with this process.
    """

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        return follow(**given)

    def _create_default_callbacks(self) -> list:
        given = super()._create_default_callbacks()  # type: ignore[misc]  # of Ray Train's second version
        return [one for one in given if not isinstance(one, SUPERFLUOUS)]


def _cause(error: Exception) -> str:
    """The workers' own errors as one line; Ray keeps them by rank."""
    caught = getattr(error, "worker_failures", None)
    if not caught:
        return f"{str(error).strip().splitlines()[-1]:.400}"
    causes = {rank: str(getattr(failure, "__cause__", None) or failure).strip() for rank, failure in caught.items()}
    return "; ".join(f"rank {rank}: {text.splitlines()[0]:.400}".rstrip(".") for rank, text in sorted(causes.items()))
