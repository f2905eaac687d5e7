"""What a training loop needs of its launcher, and which rows are its own."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
"""Equal numbers of rows by name: "numbers" (n, k), "categories" (n, c) and "label" (n,)."""


@dataclass(frozen=True)
class Worker:
    """One rank of a training run.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: the number of ranks.
        device: a torch device, such as 'cpu' or 'cuda:0'.
        report: called by every rank at each epoch's end with its metrics and, on rank 0, a checkpoint folder.
        checkpoint: the folder to go on from, or None for a fresh start.
    """

    rank: int
    world_size: int
    device: str
    report: Callable[[dict[str, float], Path | None], None]
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Shard:
    """One rank's rows of a split.

    Attributes:
        arrays: this rank's rows.
        total: rows of the split over all ranks.
    """

    arrays: Arrays
    total: int


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
