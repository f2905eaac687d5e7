"""Launcher `ray`: Ray Train's TorchTrainer makes the process group (gloo on CPU, NCCL on GPU) and restarts failed workers."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ray.train
import ray.train.torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

from rayloom import cluster, config, training
from rayloom.datasets import Encoded
from rayloom.errors import DataError, TrainingError
from rayloom.features import FeatureState
from rayloom.launchers.result import Result
from rayloom.worker import Shard, Worker, bounds

SCORE = "validation_auc"


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the workers."""
    needed = cluster.times(_per_worker(pipeline.train), pipeline.train.workers)
    cluster.require(needed, "train", "lower train.workers", pipeline.cluster)


def _per_worker(settings: config.Train) -> dict[str, float]:
    return {"CPU": 1.0, **({"GPU": 1.0} if settings.gpu else {}), **settings.resources}


def launch(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], run: str) -> Result:
    """Trains on `train.workers` Ray workers.

    Args:
        splits: "train" and "validation" as model inputs in Ray's object store.
        run: the run's id; checkpoints go to <root>/runs/<run>/checkpoints.

    Raises:
        DataError: a split has fewer rows than there are workers.
        ResourceError: the cluster has no room for the workers.
        TrainingError: a worker failed more often than `train.max_failures`; the sentence names the rank and its error.
    """
    settings = pipeline.train
    require_rows({name: encoded.rows for name, encoded in splits.items()}, settings.workers)
    require_room(pipeline)
    storage = pipeline.storage.path() / "runs" / run
    trainer = ray.train.torch.TorchTrainer(
        _loop,
        train_loop_config={"pipeline": pipeline, "state": state, "splits": splits},
        scaling_config=ScalingConfig(
            num_workers=settings.workers, use_gpu=settings.gpu, resources_per_worker=_per_worker(settings)
        ),
        run_config=RunConfig(
            name="checkpoints",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=settings.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute=SCORE, checkpoint_score_order="max"),
        ),
    )
    try:
        with _own_interrupt_handler():
            result = trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise TrainingError(f"Training failed: {_cause(error)}. The workers' logs lie in the Ray session's folder.") from error
    return _result(result)


def require_rows(rows: dict[str, int], workers: int) -> None:
    """Raises DataError where a split has fewer rows than there are workers: said here, it costs no start of workers."""
    for name, count in rows.items():
        if count < workers:
            raise DataError(f"The {name} split has {count} rows for {workers} workers; lower train.workers.")


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
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return f"{str(error).strip().splitlines()[-1]:.400}".rstrip(".")
    causes = {rank: str(getattr(failure, "__cause__", None) or failure).strip() for rank, failure in failures.items()}
    return "; ".join(f"rank {rank}: {text.splitlines()[-1]:.400}".rstrip(".") for rank, text in sorted(causes.items()))


def _result(result: ray.train.Result) -> Result:
    if not result.best_checkpoints or result.checkpoint is None:
        raise TrainingError("Training ended without a checkpoint; set train.epochs to 1 or more.")
    best, _ = max(result.best_checkpoints, key=lambda pair: pair[1][SCORE])
    last = Path(result.checkpoint.path) / "progress.json"
    return Result(history=json.loads(last.read_text())["history"], best=Path(best.path))


def _loop(given: dict) -> None:
    """Runs in each Ray Train worker: fills in the Worker and this rank's shards, then calls the one training loop."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    shards = {name: _shard(encoded, rank, world_size) for name, encoded in given["splits"].items()}
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        worker = Worker(rank, world_size, str(ray.train.torch.get_device()), _report, Path(folder) if folder else None)
        training.train(given["pipeline"], given["state"], worker, shards)


def _shard(encoded: Encoded, rank: int, world_size: int) -> Shard:
    starts = bounds(encoded.rows, world_size)
    return Shard(encoded.read(starts[rank], starts[rank + 1]), encoded.rows)


def _report(metrics: dict[str, float], folder: Path | None) -> None:
    ray.train.report(metrics, checkpoint=Checkpoint.from_directory(str(folder)) if folder else None)
