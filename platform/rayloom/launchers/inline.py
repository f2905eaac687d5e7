"""Launcher `inline`: one worker, in this process. Starts at once; for small runs and for sweeps."""

import time

from rayloom import config, training
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.launchers import room
from rayloom.launchers.result import Result, collect, folder_of
from rayloom.worker import Worker


def require_room(pipeline: config.Pipeline) -> None:
    """Needs nothing of the cluster."""


def launch(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], run: str) -> Result:
    """Trains in this process; see `rayloom.launchers`."""
    launched = time.time()
    room.require_rows(splits, 1)
    shards = {name: encoded.shard(0, 1) for name, encoded in splits.items()}
    timeline = {"worker started": launched, "rows read": time.time()}
    device = "cuda:0" if pipeline.train.gpu else "cpu"
    training.train(pipeline, state, Worker(0, 1, device, folder_of(pipeline, run), timeline=timeline), shards)
    return collect(pipeline, len(state.classes), run, launched)
