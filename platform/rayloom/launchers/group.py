"""The process group of a training run: made where there is none, and closed by who made it."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import Store


@contextmanager
def process_group(rank: int, world_size: int, device: str, timeout_s: float, store: Store | None = None) -> Iterator[None]:
    """Joins all ranks for the length of the block: gloo on CPUs, NCCL on GPUs. A single rank needs no group.

    A block that fails leaves the group as it is: NCCL would wait for the others before it lets go, and nobody would hear of the
    failure meanwhile. It ends with the process.

    Args:
        timeout_s: how long a collective may wait for a rank.
        store: where ranks find each other; one rank needs none.
    """
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    if world_size == 1 or distributed.is_initialized():
        yield
        return
    distributed.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        timeout=timedelta(seconds=timeout_s),
        rank=rank,
        world_size=world_size,
        store=store,
    )
    yield
    distributed.destroy_process_group()
