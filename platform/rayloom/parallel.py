"""How a model is spread over ranks and computed on its device, and what ranks tell each other. Model code knows one device and
nothing of this.

Not here yet: FSDP, tensor and pipeline parallelism.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from rayloom import config
from rayloom.errors import ConfigError, DivergedError, TrainingError
from rayloom.worker import Worker, shard_sizes

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

ROLL_CALL = timedelta(seconds=5)
"""How long a rank may take to answer when others ask who is still there."""


def on_gpu(worker: Worker) -> bool:
    return worker.device.startswith("cuda")


def wrap(model: nn.Module, worker: Worker, settings: config.Train) -> nn.Module:
    """The model on the worker's device, with gradients averaged over ranks where there are several.

    Raises:
        ConfigError: `train.gradient_checkpointing` is set, and the family has none.
    """
    model = model.to(worker.device)
    if settings.gradient_checkpointing:
        checkpoint_activations(model)
    if settings.compile:
        model.compile()
    if worker.world_size == 1:
        return model
    return DistributedDataParallel(model, device_ids=[worker.device] if on_gpu(worker) else None, gradient_as_bucket_view=True)


def checkpoint_activations(model: nn.Module) -> None:
    """Has the model compute activations again in the backward pass (Chen et al., 2016); a family says how."""
    checkpoint = getattr(model, "checkpoint_activations", None)
    if not callable(checkpoint):
        raise ConfigError(
            f"train.gradient_checkpointing: {type(model).__name__} has no method checkpoint_activations; set it to false."
        )
    checkpoint()


def unwrap(model: nn.Module) -> nn.Module:
    """The module that `wrap` was given."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def autocast(worker: Worker, precision: str) -> AbstractContextManager:
    """Computes matrix products in `precision`; weights and sums stay fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast("cuda" if on_gpu(worker) else "cpu", DTYPES[precision])


def unsynchronised(model: nn.Module) -> AbstractContextManager:
    """Keeps gradients on this rank: an inner part of a step sends nothing."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


def sum_over_ranks(value: Tensor, worker: Worker) -> Tensor:
    """The elementwise sum of every rank's tensor."""
    if worker.world_size > 1:
        distributed.all_reduce(value)
    return value


def gather(value: Tensor, worker: Worker) -> Tensor:
    """Every rank's tensor, of equal shapes, as (world_size, ...)."""
    if worker.world_size == 1:
        return value[None]
    gathered = [torch.empty_like(value) for _ in range(worker.world_size)]
    distributed.all_gather(gathered, value.contiguous())
    return torch.stack(gathered)


def gather_rows(rows: Tensor, total: int, worker: Worker) -> Tensor:
    """All ranks' rows in the split's order.

    Args:
        rows: (n, ...), this rank's values, one a row of its shard.
        total: rows of the split over all ranks; shards are cut by `rayloom.worker.shard_sizes`.
    """
    sizes = shard_sizes(total, worker.world_size)
    # Collectives want equal sizes: shards differ by one row at most, so each is padded to the largest.
    padded = torch.cat([rows, rows.new_zeros((max(sizes) - len(rows), *rows.shape[1:]))])
    return torch.cat([part[:size] for part, size in zip(gather(padded, worker), sizes, strict=True)])


def share(value: Any, worker: Worker) -> Any:
    """Rank 0's value, JSON-able, on every rank."""
    if worker.world_size == 1:
        return value
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=worker.device)
    length = torch.tensor([len(text)], device=worker.device)
    distributed.broadcast(length, 0)
    text = text if worker.rank == 0 else torch.empty(int(length), dtype=torch.uint8, device=worker.device)
    distributed.broadcast(text, 0)
    return json.loads(bytes(text.tolist()))


def wire_bytes(model: nn.Module, world_size: int) -> int:
    """Bytes that a rank sends in a step: a ring all-reduce sends each gradient 2 (world_size - 1) / world_size times
    (Patarasuk and Yuan, 2009)."""
    gradients = sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)
    return math.ceil(gradients * 2 * (world_size - 1) / world_size)


@contextmanager
def naming_hung_ranks(worker: Worker, timeout_s: float) -> Iterator[None]:
    """Where a collective waits in vain, asks all ranks and says who does not answer.

    Raises:
        TrainingError: names the ranks that are late; in place of the backend's time-out, which names none.
    """
    # Of its own: after a time-out the training's group is in no state to be asked.
    roll = distributed.new_group(backend="gloo", timeout=ROLL_CALL) if worker.world_size > 1 else None
    try:
        yield
        _close(roll)
    except (GeneratorExit, DivergedError):  # nobody wants a further epoch, or ranks have agreed to end
        _close(roll)
        raise
    except RuntimeError as error:
        if roll is None or not re.search(r"timed? ?out", str(error), re.I):
            raise
        late = _roll_call(roll)
        raise TrainingError(
            f"{late} came to a collective within train.timeout_s ({timeout_s:g} s): such a rank hangs, or needs longer for its "
            f"part of a step; look at its log, or raise train.timeout_s."
        ) from error


def _close(group: distributed.ProcessGroup | None) -> None:
    """Lets go of a group: ranks that train one run after the other would gather them."""
    if group is not None:
        distributed.destroy_process_group(group)


def _roll_call(roll: distributed.ProcessGroup) -> str:
    """'Not rank 1', or what is known where nobody is late any more."""
    try:
        distributed.monitored_barrier(roll, ROLL_CALL, wait_all_ranks=True)
    except RuntimeError as error:
        if found := re.search(r"[Rr]anks? ([\d, ]+) failed to (?:pass|join)", str(error)):
            return f"Not rank {found[1].strip(', ')}"
        if distributed.get_rank():  # rank 0 alone hears who is there; to the others it is silent while it waits
            return "Not rank 0, or one that it waits for,"
    return "Not every rank"
