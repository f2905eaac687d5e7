"""What a training run needs of the cluster and of its data, said before a worker starts."""

from rayloom import cluster, config
from rayloom.datasets import Encoded
from rayloom.errors import DataError


def per_worker(settings: config.Train, gpu_share: float = 1.0) -> dict[str, float]:
    """Ray resources of one worker."""
    cpus = settings.cpus if settings.reserved_cpus is None else settings.reserved_cpus
    return {"CPU": float(cpus), **({"GPU": gpu_share} if settings.gpu else {}), **settings.resources}


def require(pipeline: config.Pipeline, workers: int | None = None) -> None:
    """Raises ResourceError where the cluster has no room for `workers`, or for all of them."""
    settings = pipeline.train
    needed = cluster.times(per_worker(settings), workers or settings.workers)
    cluster.require(needed, "train", "lower train.workers", pipeline.cluster)


def require_rows(splits: dict[str, Encoded], workers: int) -> None:
    """Raises DataError where a split has fewer rows than there are workers: said here, it costs no start of workers."""
    for name, encoded in splits.items():
        if encoded.rows < workers:
            raise DataError(f"The {name} split has {encoded.rows} rows for {workers} workers; lower train.workers.")
