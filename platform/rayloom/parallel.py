"""How a model is spread over ranks, and what ranks tell each other. Model code knows one device and nothing of this.

Not here yet: FSDP, tensor and pipeline parallelism, mixed precision.
"""

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rayloom.worker import Worker, shard_sizes


def wrap(model: nn.Module, worker: Worker) -> nn.Module:
    """The model on the worker's device, with gradients averaged over ranks where there are several."""
    model = model.to(worker.device)
    if worker.world_size == 1:
        return model
    return DistributedDataParallel(model, device_ids=[worker.device] if worker.device.startswith("cuda") else None)


def unwrap(model: nn.Module) -> nn.Module:
    """The module that `wrap` was given."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def sum_over_ranks(value: Tensor, worker: Worker) -> Tensor:
    """The elementwise sum of every rank's tensor."""
    if worker.world_size > 1:
        distributed.all_reduce(value)
    return value


def gather_rows(rows: Tensor, total: int, worker: Worker) -> Tensor:
    """All ranks' rows in the split's order.

    Args:
        rows: this rank's values, one a row of its shard.
        total: rows of the split over all ranks; shards are cut by `rayloom.worker.shard_sizes`.
    """
    if worker.world_size == 1:
        return rows
    sizes = shard_sizes(total, worker.world_size)
    # Collectives want equal sizes: shards differ by one row at most, so each is padded to the largest.
    padded = torch.nn.functional.pad(rows, (0, max(sizes) - len(rows)))
    gathered = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(gathered, padded)
    return torch.cat([part[:size] for part, size in zip(gathered, sizes, strict=True)])
