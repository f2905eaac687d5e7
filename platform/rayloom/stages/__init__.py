"""The stages of a pipeline, each a function of a run: etl -> train -> evaluate -> deploy.

Each says what it does, records its seconds, and adds its figures to the run's summary.
"""

from rayloom import launchers
from rayloom.runs import Run
from rayloom.stages.dataset import etl
from rayloom.stages.deployment import deploy, require_room_for_replicas, serve_until_interrupted
from rayloom.stages.model import Trained, load, train
from rayloom.stages.verdict import evaluate

__all__ = ["Trained", "check_room", "deploy", "etl", "evaluate", "load", "serve_until_interrupted", "train"]


def check_room(run: Run) -> None:
    """Refuses, before minutes of work that would be for nothing, what the cluster has no room for later.

    Raises:
        ResourceError: training or serving asks for more than there is.
    """
    launchers.find(run.pipeline.train.launcher).require_room(run.pipeline)
    require_room_for_replicas(run.pipeline)
