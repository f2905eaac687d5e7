"""Classes of different sizes in training: what each mode makes of a rank's rows.

    none               nothing
    class_weights      the loss of a row of class c counts n / (classes * n_c), scikit-learn's "balanced"
    weighted_sampling  each epoch draws as many rows as there are, with replacement, as many of each class
    down_sampling      each class keeps as many rows as the smallest has, the same ones in every epoch

n and n_c count the whole training split, over all ranks, so that ranks agree. What was done is in `figures`, which training
writes into every epoch's metrics.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from rayloom import parallel
from rayloom.errors import DataError
from rayloom.feeding import Batch, Rows
from rayloom.worker import Worker, shard_sizes


@dataclass(frozen=True)
class Balanced:
    """A rank's training rows after balancing.

    Attributes:
        rows: this rank's rows.
        sizes: rows that an epoch takes on each rank.
        weights: float32 (classes,), what the loss of a class's row counts; None for one each.
        classes: the number of classes to draw evenly from; 0 where each row is taken once.
        kept: numbers of the rows that an epoch takes; None for all.
        figures: numbers for the epochs' metrics.
    """

    rows: Rows
    sizes: list[int]
    weights: Tensor | None = None
    classes: int = 0
    kept: Tensor | None = None
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rows of an epoch over all ranks."""
        return sum(self.sizes)

    def order(self) -> Tensor:
        """Numbers of the rows of an epoch, in a new order by torch's generator."""
        if self.classes:
            drawn = draw_evenly(self.rows.labels, self.classes)
        else:
            drawn = torch.arange(len(self.rows.labels)) if self.kept is None else self.kept
        return drawn[torch.randperm(len(drawn))]

    def batches(self, order: Tensor, steps: int, start: int = 0) -> Iterator[Batch]:
        """An epoch's rows in `steps` parts whose sizes differ by one at most, from part `start` on."""
        return self.rows.take(torch.tensor_split(order, steps)[start:])


def balance(mode: str, rows: Rows, total: int, classes: int, worker: Worker, seed: int) -> Balanced:
    """What `train.balance` makes of this rank's training rows.

    Args:
        rows: this rank's rows, with labels from 0 to classes - 1.
        total: rows of the split over all ranks; shards are cut by `rayloom.worker.shard_sizes`.

    Raises:
        DataError: a class has no row, or a rank has none of a class that it must draw from. All ranks raise together.
    """
    if mode == "none":
        return Balanced(rows, shard_sizes(total, worker.world_size))
    return arrange(mode, rows, count_classes(rows.labels, classes, worker), worker, seed)


def arrange(mode: str, rows: Rows, counts: np.ndarray, worker: Worker, seed: int) -> Balanced:
    """As `balance`, from the rows (world_size, classes) of each class on each rank."""
    totals, sizes, classes = counts.sum(0), counts.sum(1).tolist(), counts.shape[1]
    if not totals.all():
        empty = int(totals.argmin())
        raise DataError(f"train.balance: the training split has no row of the label's class {empty}; correct etl.splits.train.")
    figures = _by_class("rows", totals)
    if mode == "class_weights":
        weights = class_weights(totals)
        on_device = torch.tensor(weights, dtype=torch.float32, device=worker.device)
        return Balanced(rows, sizes, on_device, figures={**figures, **_by_class("weight", weights)})
    if mode == "weighted_sampling":
        _require_every_class(counts)
        drawn = np.array([even_parts(size, classes) for size in sizes]).sum(0)
        return Balanced(rows, sizes, classes=classes, figures={**figures, **_by_class("drawn", drawn)})
    kept = kept_rows(counts)
    _require_rows(kept)
    taken = keep(rows.labels, kept[worker.rank], seed, worker.rank)
    return Balanced(rows, kept.sum(1).tolist(), kept=taken, figures={**figures, **_by_class("kept", kept.sum(0))})


def _by_class(what: str, values: np.ndarray) -> dict[str, float]:
    """Names such as balance_rows_0: the number is the class's place in the feature state's `classes`."""
    return {f"balance_{what}_{index}": float(value) for index, value in enumerate(values)}


def count_classes(labels: Tensor, classes: int, worker: Worker) -> np.ndarray:
    """Rows int64 (world_size, classes) of each class on each rank; the same on all ranks."""
    counts = torch.zeros((worker.world_size, classes), dtype=torch.int64, device=worker.device)
    counts[worker.rank] = torch.tensor(np.bincount(labels.numpy().astype(np.int64), minlength=classes))
    return parallel.sum_over_ranks(counts, worker).cpu().numpy()


def class_weights(counts: np.ndarray) -> np.ndarray:
    """n / (classes * n_c) for each class; the mean weight of a row is 1.

    >>> class_weights(np.array([90, 10])).round(4).tolist()
    [0.5556, 5.0]
    """
    return counts.sum() / (len(counts) * counts)


def _require_every_class(counts: np.ndarray) -> None:
    if not counts.all():
        rank, label = np.argwhere(counts == 0)[0]
        raise DataError(
            f"train.balance: rank {rank} has no row of the label's class {label} to draw; set train.balance to class_weights, "
            f"or lower train.workers."
        )


def _require_rows(kept: np.ndarray) -> None:
    if not kept.sum(1).all():
        bare = int(kept.sum(1).argmin())
        raise DataError(f"train.balance: down_sampling keeps {kept.sum():,} rows, none on rank {bare}; lower train.workers.")


def even_parts(size: int, classes: int) -> list[int]:
    """How many of `size` rows are drawn from each class.

    >>> even_parts(7, 2)
    [4, 3]
    """
    return [size // classes + (index < size % classes) for index in range(classes)]


def draw_evenly(labels: Tensor, classes: int) -> Tensor:
    """Places (n,) of rows drawn with replacement, of each class as many, by torch's generator."""
    of_class = [torch.nonzero(labels == index)[:, 0] for index in range(classes)]
    parts = zip(of_class, even_parts(len(labels), classes), strict=True)
    return torch.cat([rows[torch.randint(len(rows), (count,))] for rows, count in parts])


def kept_rows(counts: np.ndarray) -> np.ndarray:
    """Rows (world_size, classes) that each rank keeps: of each class as many in all as the smallest has, shared out in
    proportion.

    >>> kept_rows(np.array([[50, 4], [40, 6]])).tolist()
    [[5, 4], [5, 6]]
    """
    least = int(counts.sum(0).min())
    kept = np.empty_like(counts)
    for label, column in enumerate(counts.T.tolist()):
        starts = [least * before // sum(column) for before in accumulate(column, initial=0)]
        kept[:, label] = [end - start for start, end in pairwise(starts)]
    return kept


def keep(labels: Tensor, counts: np.ndarray, seed: int, rank: int) -> Tensor:
    """Places of the rows that a rank keeps, in their order: counts[c] of each class c, by a draw of their own."""
    rng = np.random.default_rng([seed, rank])
    found = labels.numpy()
    rows = [rng.choice(np.flatnonzero(found == label), count, replace=False) for label, count in enumerate(counts.tolist())]
    return torch.from_numpy(np.sort(np.concatenate(rows)))
