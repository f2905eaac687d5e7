"""The stages of a pipeline, each a function of a run: etl -> train, or tune and retrain -> evaluate -> deploy.

Each says what it does, records its seconds, and adds its figures to the run's summary.
"""

from rayloom import launchers
from rayloom.datasets import DatasetVersion
from rayloom.runs import Run
from rayloom.stages.batch import BatchRequest, predict_batch
from rayloom.stages.dataset import etl
from rayloom.stages.deployment import deploy, require_room_for_replicas, serve
from rayloom.stages.model import Trained, load, train
from rayloom.stages.verdict import evaluate

__all__ = [
    "BatchRequest",
    "Trained",
    "check_room",
    "deploy",
    "etl",
    "evaluate",
    "load",
    "predict_batch",
    "serve",
    "train",
    "train_best",
]


def check_room(run: Run) -> None:
    """Refuses, before minutes of work that would be for nothing, what the cluster has no room for later.

    Raises:
        ResourceError: training or serving asks for more than there is.
    """
    if run.pipeline.tune.enabled:
        from rayloom.stages import search  # Tune and Optuna take a second to import

        search.check_sweep(run)
    else:
        launchers.find(run.pipeline.train.launcher).require_room(run.pipeline)
    require_room_for_replicas(run.pipeline)


def train_best(run: Run, dataset: DatasetVersion) -> Trained:
    """Trains; where `tune.enabled` says so, the best of the sweep's settings."""
    if not run.pipeline.tune.enabled:
        return train(run, dataset)
    from rayloom.stages import search

    return search.retrain(run, dataset, search.tune(run, dataset))
