"""The training loop: one function, `train`, that runs unchanged under every launcher. torch only.

Same seed, data and world size give the same weights, bit for bit on CPU. Every rank takes the same number of steps, every
row is seen once an epoch (unless `train.balance` says otherwise), and validation covers every row of the split once, over all
ranks.

Not here yet: mixed precision, gradient accumulation, resuming inside an epoch.
"""

import json
import math
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from rayloom import config, evaluation, models, parallel
from rayloom.balance import Balanced, Batch, balance
from rayloom.errors import DataError, TrainingError
from rayloom.features import FeatureState
from rayloom.worker import Shard, Worker

GOLDEN_ROWS = 64
"""The first validation rows, whose answers go with every checkpoint and so into the bundle."""

EVALUATION_ROWS = 8192
"""Rows scored at once in validation; bounds memory, does not change an answer."""

SHORTEST = 4
"""Steps of the shortest schedule: OneCycleLR begins at a fraction of the rate, and a run of one step would learn nothing."""


def train(pipeline: config.Pipeline, state: FeatureState, worker: Worker, shards: dict[str, Shard]) -> None:
    """Trains and reports each epoch, with a checkpoint on rank 0.

    Args:
        pipeline: the whole pipeline file.
        state: what the training split taught.
        worker: this rank.
        shards: this rank's rows of "train" and "validation".

    A checkpoint is a folder of `model.safetensors`, `optimizer.pt` (optimizer and schedule) and `progress.json`
    ({"history": [metrics by epoch], "golden": [probabilities of the first validation rows]}).

    Raises:
        DataError: a split has fewer rows than there are ranks, all validation rows have one label, or `train.balance` lacks
            rows of a class.
        TrainingError: the loss is not finite.
    """
    for name, shard in shards.items():
        if shard.total < worker.world_size:
            raise DataError(f"The {name} split has {shard.total} rows for {worker.world_size} workers; lower train.workers.")
    make_deterministic(pipeline.seed)
    settings = pipeline.train
    model = parallel.wrap(models.build(pipeline.model, state), worker)
    data = {name: to_device(shard, worker) for name, shard in shards.items()}
    rows = balance(settings.balance, data["train"], shards["train"].total, len(state.classes), worker, pipeline.seed)
    steps = count_steps(rows.sizes, settings.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=max(SHORTEST, steps * settings.epochs))
    history = resume(worker, model, optimizer, schedule)
    for epoch in range(len(history), settings.epochs):
        began = time.perf_counter()
        seed_rank(pipeline.seed, epoch, worker.rank)
        loss = run_epoch(model, optimizer, schedule, rows, steps, worker)
        metrics, answers = validate(model, data["validation"], shards["validation"].total, worker)
        history.append({"epoch": epoch, "loss": loss, **metrics, **rows.figures, "seconds": time.perf_counter() - began})
        with TemporaryDirectory(prefix="rayloom-checkpoint-") as folder:
            if worker.rank == 0:
                save(Path(folder), model, optimizer, schedule, history, answers[:GOLDEN_ROWS])
            worker.report(history[-1], Path(folder) if worker.rank == 0 else None)


def make_deterministic(seed: int) -> None:
    """Fixes initial weights and allows only kernels that repeat their sums in one order."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with a fixed workspace
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)


def seed_rank(seed: int, epoch: int, rank: int) -> None:
    """Fixes dropout, drawing and shuffling by epoch and rank, so that a resumed epoch is the epoch it replaces."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0]))


def count_steps(sizes: list[int], batch_size: int) -> int:
    """Steps an epoch of ranks with these numbers of rows: enough that no batch is over `batch_size` rows, never so many that
    a rank would have none."""
    return min(math.ceil(sum(sizes) / batch_size), min(sizes))


def run_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler,
    rows: Balanced, steps: int, worker: Worker,
) -> float:  # fmt: skip
    """One pass over the training rows; returns the mean loss of a row, weighted as in training, over all ranks.

    Raises:
        TrainingError: the loss is not finite (on all ranks together, since they agree on it).
    """
    model.train()
    loss_sum = torch.zeros((), dtype=torch.float64, device=worker.device)
    for step, batch in enumerate(rows.batches(steps)):
        weight = None if rows.weights is None else rows.weights[batch["label"].long()]
        losses = binary_cross_entropy_with_logits(model(batch), batch["label"], weight, reduction="sum")
        # DDP averages gradients over ranks; this factor makes that the mean over the whole batch, though ranks' parts of it
        # may differ by a row.
        (losses * worker.world_size / batch_rows(rows.sizes, steps, step)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        loss_sum += losses.detach()
    loss = float(parallel.sum_over_ranks(loss_sum, worker)) / rows.total
    if not math.isfinite(loss):
        raise TrainingError(f"The training loss became {loss}; lower train.lr (now {schedule.base_lrs[0]:g} at the start).")
    return loss


def batch_rows(sizes: list[int], steps: int, step: int) -> int:
    """Rows of a step's batch over all ranks."""
    return sum(rows // steps + (step < rows % steps) for rows in sizes)


def validate(model: nn.Module, data: Batch, total: int, worker: Worker) -> tuple[dict[str, float], list[float]]:
    """Metrics over every validation row once, and the rows' probabilities in the split's order."""
    probabilities = parallel.gather_rows(predict(model, data), total, worker).cpu().numpy()
    labels = parallel.gather_rows(data["label"], total, worker).cpu().numpy()
    evaluation.require_both_classes(labels, "validation")
    metrics = evaluation.score(labels, probabilities, evaluation.best_threshold(labels, probabilities))
    return {f"validation_{name}": value for name, value in metrics.items()}, probabilities.tolist()


def predict(model: nn.Module, data: Batch) -> Tensor:
    """Probabilities (n,) of the rows, without gradients or dropout."""
    model = parallel.unwrap(model)
    model.eval()
    with torch.inference_mode():
        inputs = {name: values for name, values in data.items() if name != "label"}
        parts = zip(*(values.split(EVALUATION_ROWS) for values in inputs.values()), strict=True)
        return torch.cat([torch.sigmoid(model(dict(zip(inputs, part, strict=True)))) for part in parts])


def to_device(shard: Shard, worker: Worker) -> Batch:
    """The shard's arrays as tensors of the worker's device; they stay there for all epochs."""
    return {name: torch.tensor(values, device=worker.device) for name, values in shard.arrays.items()}


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler,
    history: list[dict], golden: list[float],
) -> None:  # fmt: skip
    """Writes a checkpoint into an empty folder."""
    save_file(parallel.unwrap(model).state_dict(), folder / "model.safetensors")
    torch.save({"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, folder / "optimizer.pt")
    (folder / "progress.json").write_text(json.dumps({"history": history, "golden": golden}))


def resume(
    worker: Worker, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LRScheduler
) -> list[dict]:
    """Loads the worker's checkpoint, where there is one; returns the history of the epochs that it has behind it."""
    if worker.checkpoint is None:
        return []
    parallel.unwrap(model).load_state_dict(load_file(worker.checkpoint / "model.safetensors"))
    state = torch.load(worker.checkpoint / "optimizer.pt", weights_only=True, map_location=worker.device)
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return json.loads((worker.checkpoint / "progress.json").read_text())["history"]
