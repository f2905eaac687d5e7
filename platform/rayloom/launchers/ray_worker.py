"""What a Ray Train worker does: joins the others, takes its rows from Ray's object store, and runs the training loop."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import ray
import ray.train
from torch.distributed import TCPStore

from rayloom import config, training
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.launchers import failures, ray_backend, session
from rayloom.launchers.group import process_group
from rayloom.worker import Worker


@dataclass(frozen=True)
class Given:
    """What all ranks are given.

    Attributes:
        splits: "train" and "validation" as model inputs in Ray's object store.
        folder: the run's checkpoints.
    """

    pipeline: config.Pipeline
    state: FeatureState
    splits: dict[str, Encoded]
    folder: Path


def run(given: dict[str, ray.ObjectRef]) -> None:
    """Trains what is `Given` by reference, as the rank that Ray Train gave this process."""
    job: Given = ray.get(given["job"])
    timeline = {"worker started": time.time()}
    session.lead()
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    with failures.noted(job.folder.parent / "failures", rank):
        device = _device(job.pipeline.train)
        store = _store(rank, world_size) if world_size > 1 else None
        with process_group(rank, world_size, device, job.pipeline.train.timeout_s, store):
            timeline["group joined"] = time.time()
            shards = {name: encoded.shard(rank, world_size) for name, encoded in job.splits.items()}
            timeline["rows read"] = time.time()
            worker = Worker(rank, world_size, device, job.folder, ray_backend.report, timeline)
            training.train(job.pipeline, job.state, worker, shards)


def _device(settings: config.Train) -> str:
    if not settings.gpu:
        return "cpu"
    from ray.train.torch import get_device  # seconds to import, and only GPUs need it

    return str(get_device())


def _store(rank: int, world_size: int) -> TCPStore:
    """Where ranks find each other; rank 0 already listens (`ray_backend.listen`)."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank > 0:
        return TCPStore(host, port, world_size, is_master=False)
    taken = ray_backend.listening.pop().detach()
    return TCPStore(host, port, world_size, is_master=True, wait_for_workers=False, master_listen_fd=taken)
