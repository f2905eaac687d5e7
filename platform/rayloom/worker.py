"""What a training loop needs of its launcher, and which rows are its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
"""Equal numbers of rows by name: "numbers" (n, k), "categories" (n, c), "tokens", "mask", "image" and "label" (n,)."""


def _silent(metrics: dict[str, float]) -> None:
    pass


@dataclass(frozen=True)
class Worker:
    """One rank of a training run.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: the number of ranks.
        device: a torch device, such as 'cpu' or 'cuda:0'.
        checkpoints: the run's folder of checkpoints (`rayloom.checkpoints`): rank 0 writes it, all ranks go on from it.
        report: called by every rank with each epoch's metrics; the launcher passes them on.
        timeline: when this rank reached what, as time.time(); the loop adds to it up to the first step.
    """

    rank: int
    world_size: int
    device: str
    checkpoints: Path
    report: Callable[[dict[str, float]], None] = _silent
    timeline: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Shard:
    """One rank's rows of a split.

    Attributes:
        arrays: this rank's rows; may be memory-mapped files.
        total: rows of the split over all ranks.
    """

    arrays: Arrays
    total: int

    @property
    def size(self) -> int:
        """Bytes of this rank's rows."""
        return sum(array.nbytes for array in self.arrays.values())


def bounds(total: int, world_size: int) -> list[int]:
    """Where each rank's rows begin: rank r owns rows bounds[r] to bounds[r + 1], sizes differ by one at most.

    >>> bounds(101, 4)
    [0, 25, 50, 75, 101]
    """
    return [total * rank // world_size for rank in range(world_size + 1)]


def shard_sizes(total: int, world_size: int) -> list[int]:
    """Rows of each rank.

    >>> shard_sizes(101, 4)
    [25, 25, 25, 26]
    """
    return [end - start for start, end in pairwise(bounds(total, world_size))]
