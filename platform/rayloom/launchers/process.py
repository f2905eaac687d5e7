"""A training process that torchrun started, on its own or for Spark: `python -m rayloom.launchers.process FOLDER`.

It knows its rank by RANK and WORLD_SIZE, finds the others by MASTER_ADDR and MASTER_PORT, and its job in the folder. Neither
Ray nor Spark is imported.
"""

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from rayloom import training
from rayloom.launchers import failures, handover
from rayloom.launchers.group import process_group
from rayloom.worker import Worker

PR_SET_PDEATHSIG = 1


def main() -> None:
    timeline = {"worker started": time.time()}
    _end_with_parent()
    job = handover.read(Path(sys.argv[1]))
    sys.path += [folder for folder in job.modules if folder not in sys.path]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    settings = job.pipeline.train
    device = f"cuda:{os.environ['LOCAL_RANK']}" if settings.gpu else "cpu"
    with (
        _ended_at_once(),
        failures.noted(job.checkpoints.parent / "failures", rank),
        process_group(rank, world_size, device, settings.timeout_s, _store(rank, world_size)),
    ):
        timeline["group joined"] = time.time()
        shards = job.shards(rank, world_size)
        timeline["rows read"] = time.time()
        worker = Worker(rank, world_size, device, job.checkpoints, timeline=timeline)
        training.train(job.pipeline, job.state, worker, shards)


def _store(rank: int, world_size: int) -> Store:
    """Where ranks find each other, as torchrun says, with a place of its own for each attempt: the agent keeps its store over
    restarts, and a rank that looks there before another has written would call on the one that died."""
    store, _, _ = next(rendezvous("env://", rank, world_size))
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Ends this process where the block fails: Python's own way out could wait for a process group that others have left."""
    try:
        yield
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _end_with_parent() -> None:
    """Asks Linux to end this process with the agent that started it: an agent that is killed cannot do it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
