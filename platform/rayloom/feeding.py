"""A rank's rows on their way to its device: kept there where they fit, else gathered batch by batch ahead of the loop.

Either way the same indices give the same batches, so that memory decides no weight.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rayloom.worker import Arrays, Shard

Batch = dict[str, Tensor]

AHEAD = 2
"""Batches that are gathered before the loop asks for them."""


class Rows(Protocol):
    """Rows that a loop takes by index."""

    @property
    def labels(self) -> Tensor:
        """(n,) on the CPU."""

    def take(self, parts: Iterable[Tensor]) -> Iterator[Batch]:
        """A batch on the device for each tensor of row numbers."""


def place(shard: Shard, device: str, limit: int) -> Rows:
    """Rows on the device, where they take up to `limit` bytes; else rows that stay where they are."""
    return Resident(shard.arrays, device) if shard.size <= limit else Streamed(shard.arrays, device)


class Resident:
    """Rows as tensors of the device."""

    def __init__(self, arrays: Arrays, device: str):
        self.data = {name: torch.tensor(values, device=device) for name, values in arrays.items()}
        self.device = device

    @property
    def labels(self) -> Tensor:
        return self.data["label"].cpu()

    def take(self, parts: Iterable[Tensor]) -> Iterator[Batch]:
        for rows in parts:
            there = rows.to(self.device)
            # Not values[there]: that asks for far more than whole rows, and takes three times as long.
            yield {name: values.index_select(0, there) for name, values in self.data.items()}


@dataclass
class Streamed:
    """Rows in memory-mapped files or in Ray's object store: a thread gathers the next batches while the loop computes."""

    arrays: Arrays
    device: str

    @property
    def labels(self) -> Tensor:
        return torch.tensor(self.arrays["label"])

    def take(self, parts: Iterable[Tensor]) -> Iterator[Batch]:
        waiting = iter(parts)
        with ThreadPoolExecutor(1, "rayloom-feeding") as thread:
            ahead = deque(thread.submit(self._gather, rows.numpy()) for rows in islice(waiting, AHEAD))
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(thread.submit(self._gather, rows.numpy()) for rows in islice(waiting, 1))
                yield {name: values.to(self.device, non_blocking=True) for name, values in batch.items()}

    def _gather(self, rows: np.ndarray) -> Batch:
        # In the order of the file, then in the batch's: a disk is read forwards.
        order = np.argsort(rows)
        back = torch.from_numpy(np.argsort(order))
        batch = {name: torch.from_numpy(values[rows[order]])[back] for name, values in self.arrays.items()}
        on_gpu = self.device.startswith("cuda")
        return {name: values.pin_memory() for name, values in batch.items()} if on_gpu else batch
