"""Launcher `spark`: Spark's TorchDistributor starts the workers, on RayDP's executors, or with `train.local_mode` beside the
driver.

Spark gets as many cores as the workers need, in one executor where a node has room for all. TorchDistributor does not start
failed workers again: this launcher does, in the same Spark session.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayloom import cluster, config
from rayloom.datasets import Encoded
from rayloom.errors import ResourceError
from rayloom.features import FeatureState
from rayloom.launchers import failures, handover, process, room
from rayloom.launchers.result import Result, collect, folder_of


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the workers, or where they want GPUs."""
    if pipeline.train.gpu:
        raise ResourceError(
            "train.gpu is true, and Spark's executors on Ray have no GPUs to give; set train.launcher to ray or torchrun."
        )
    room.require(pipeline)


def launch(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], run: str) -> Result:
    """Trains on `train.workers` processes; see `rayloom.launchers`."""
    launched = time.time()
    room.require_rows(splits, pipeline.train.workers)
    require_room(pipeline)
    checkpoints = folder_of(pipeline, run)
    folder = checkpoints.parent
    arrays = {name: encoded.read(0, encoded.rows) for name, encoded in splits.items()}
    log = folder / "spark-training.log"
    with handover.lent(checkpoints, pipeline, state, arrays) as job, _session(pipeline, run, log):
        for attempt in range(pipeline.train.max_failures + 1):
            ended = _distribute(pipeline.train, job, log)
            if ended is None:
                break
            failures.raise_final(folder / "failures")
            if attempt == pipeline.train.max_failures:
                failures.raise_first(folder / "failures", ended)
    failures.raise_final(folder / "failures")
    return collect(pipeline, len(state.classes), run, launched)


@contextmanager
def _session(pipeline: config.Pipeline, run: str, log: Path) -> Iterator[None]:
    """A Spark session with a slot for each worker."""
    # Spark and RayDP take seconds to import: other launchers do without them.
    from rayloom.etl import session

    settings = pipeline.train
    executors = 1 if _fit_on_one_node(settings) else settings.workers
    cores = 1 if settings.local_mode else settings.workers * settings.cpus // executors
    own = {"executors": executors, "executor_cores": cores, "resources": settings.resources, "handoff": "parquet"}
    lent = pipeline.model_copy(update={"etl": pipeline.etl.model_copy(update=own)})
    more = {"spark.task.cpus": str(1 if settings.local_mode else settings.cpus)}
    with session.spark_session(lent, f"rayloom-train-{run}", log, more=more):
        yield


def _fit_on_one_node(settings: config.Train) -> bool:
    needed = cluster.times(room.per_worker(settings), settings.workers)
    return settings.local_mode or cluster.nodes_with(needed) > 0


def _distribute(settings: config.Train, job: Path, log: Path) -> str | None:
    """Runs the workers until they end; returns what ended them, or None where all ended well."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from rayloom.etl import session

    distributor = TorchDistributor(settings.workers, local_mode=settings.local_mode, use_gpu=False)
    try:
        with session.output_in(log):  # it prints all that workers say
            distributor.run(process.__file__, str(job))
    except Exception as error:  # TorchDistributor raises RuntimeError, Spark its own
        return f"TorchDistributor: {str(error).strip().splitlines()[0]:.200}"
    return None
