"""The training loop: one function, `train`, that runs unchanged under every launcher. torch only.

Same seed, data and world size give the same weights, bit for bit on CPU. Every rank takes the same number of steps, every
row is seen once an epoch (unless `train.balance` says otherwise), and validation covers every row of the split once, over all
ranks. A run goes on from its last checkpoint, inside an epoch too, to the weights that it would have had without a stop.
"""

import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from rayloom import checkpoints, config, evaluation, feeding, models, optimization, parallel
from rayloom.balance import balance
from rayloom.checkpoints import Checkpoint, Writer
from rayloom.errors import DataError, DivergedError
from rayloom.features import FeatureState
from rayloom.feeding import Batch, Rows
from rayloom.worker import Shard, Worker

GOLDEN_ROWS = 64
"""The first validation rows, whose answers go with every checkpoint and so into the bundle."""

EVALUATION_ROWS = 8192
"""The most rows scored at once in validation; bounds memory, does not change an answer."""

LOOK_S, MOST_STEPS = 1.0, 200
"""Seconds, and the most steps, after which ranks agree whether the loss is finite and whether to save: rarely enough to cost
nothing, soon enough for whoever waits."""


class Epoch(NamedTuple):
    """An epoch that is over: its metrics, and whether it is the run's last."""

    metrics: dict[str, float]
    is_last: bool


def train(pipeline: config.Pipeline, state: FeatureState, worker: Worker, shards: dict[str, Shard]) -> None:
    """Trains to the end, and reports each epoch as `worker` says; for the rest, see `epochs`."""
    for epoch in epochs(pipeline, state, worker, shards):
        worker.report(epoch.metrics)


def epochs(pipeline: config.Pipeline, state: FeatureState, worker: Worker, shards: dict[str, Shard]) -> Iterator[Epoch]:
    """Trains from the run's last checkpoint, or from the beginning, and leaves checkpoints; see `rayloom.checkpoints`.

    Each epoch is given out when it is over; whoever takes no further one ends the run there. All ranks take the same number.

    Args:
        pipeline: the whole pipeline file, with `model` as `rayloom.models.resolve` gave it.
        state: what the training split taught.
        worker: this rank.
        shards: this rank's rows of "train" and "validation".

    Raises:
        DataError: a split has fewer rows than there are ranks, all validation rows have one label, or `train.balance` lacks
            rows of a class.
        DivergedError: the loss is not finite; on all ranks together.
        TrainingError: a rank does not come to a collective within `train.timeout_s`; the sentence names it.
    """
    for name, shard in shards.items():
        if shard.total < worker.world_size:
            raise DataError(f"The {name} split has {shard.total} rows for {worker.world_size} workers; lower train.workers.")
    prepare(pipeline)
    with parallel.naming_hung_ranks(worker, pipeline.train.timeout_s):
        yield from Loop(pipeline, state, worker, shards).run()


def prepare(pipeline: config.Pipeline) -> None:
    """Sets torch's threads, fixes initial weights, and allows only kernels that repeat their sums in one order."""
    torch.set_num_threads(pipeline.train.cpus)
    if pipeline.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with a fixed workspace
        torch.set_deterministic_debug_mode("error")  # unlike use_deterministic_algorithms, it does not import the compiler
    torch.manual_seed(pipeline.seed)


class Loop:
    """A rank's part of a run. `run` is to be taken on all ranks, once."""

    def __init__(self, pipeline: config.Pipeline, state: FeatureState, worker: Worker, shards: dict[str, Shard]):
        settings = pipeline.train
        self.pipeline, self.settings, self.worker = pipeline, settings, worker
        network = models.build(pipeline.model, state)
        if checkpoints.last(worker.checkpoints) is None:
            models.load_pretrained(network, pipeline.model)
        self.model = parallel.wrap(network, worker, settings)
        self.average = optimization.Average(network, settings.ema) if settings.ema else None
        places = {
            name: feeding.place(shard, worker.device, config.count_bytes(settings.memory)) for name, shard in shards.items()
        }
        self.validation, self.validation_rows = places["validation"], shards["validation"].total
        self.rows = balance(settings.balance, places["train"], shards["train"].total, len(state.classes), worker, pipeline.seed)
        self.steps = count_steps(self.rows.sizes, settings.batch_size)
        self.schedule = optimization.schedule(settings, worker.world_size, self.steps * settings.epochs)
        self.optimizer = optimization.optimizer(network, settings, self.schedule.highest)
        self.weights = [*network.parameters()]
        self.scaler = torch.amp.GradScaler("cuda", enabled=settings.precision == "fp16")
        self.metric, self.sign = evaluation.selection(pipeline.evaluate, len(state.classes))
        self.history: list[dict[str, float]] = []
        self.golden: list = []
        self.unsaved_s = 0.0
        self.between_looks = 1
        self.timeline = worker.timeline
        self.timeline["model built"] = time.time()
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=worker.device)
        self.writer = self._writer() if worker.rank == 0 else None

    def _writer(self) -> Writer:
        return Writer(self.worker.checkpoints, self.settings.checkpoint.keep, f"validation_{self.metric}", self.sign)

    def run(self) -> Iterator[Epoch]:
        """Trains to the last epoch, or until `train.patience` is at its end."""
        try:
            epoch, step, generators = self.resume()
            while not self.is_over(epoch):
                self.run_epoch(epoch, step, generators)
                epoch, step, generators = epoch + 1, 0, None
                yield Epoch(self.history[-1], self.is_over(epoch))
        finally:  # after an error too: what was handed over is whole, and nobody writes once this returns
            if self.writer:
                self.writer.close()

    def is_over(self, epoch: int) -> bool:
        """Whether the run ends before this epoch."""
        return epoch >= self.settings.epochs or self.is_stalled()

    def is_stalled(self) -> bool:
        """Whether the best epoch lies `train.patience` epochs back; ranks agree, since they share the history."""
        if not self.settings.patience:
            return False
        reached = [self.sign * metrics[f"validation_{self.metric}"] for metrics in self.history]
        return len(reached) - reached.index(max(reached)) > self.settings.patience if reached else False

    def run_epoch(self, epoch: int, start: int, generators: dict[str, Tensor] | None) -> None:
        """Trains the steps of an epoch from `start` on, validates and saves."""
        seed_rank(self.pipeline.seed, epoch, self.worker.rank)
        order = self.rows.order()
        if generators:
            self.restore_generators(generators)
        self.model.train()
        began = self.looked_at = time.perf_counter()
        self.looked, self.since_saved = start, 0.0
        for step, batch in enumerate(self.rows.batches(order, self.steps, start), start + 1):
            self.schedule.set(self.optimizer, epoch * self.steps + step - 1)
            self.take_step(batch, batch_rows(self.rows.sizes, self.steps, step - 1))
            if step < self.steps:
                self.look(epoch, step)
        loss = self.agreed_loss() / self.rows.total
        self.require_finite_weights()
        seconds = time.perf_counter() - began
        metrics = self.validate()
        self.loss_sum.zero_()
        speed = self.rows.total * (self.steps - start) / self.steps / seconds
        self.history.append(
            self.agree({"epoch": epoch, "loss": loss, **metrics, **self.rows.figures, **self.costs(speed, began)})
        )
        self.unsaved_s += self.history[-1]["seconds"]  # which ranks share, so that they agree
        if self.is_over(epoch + 1) or self.unsaved_s >= self.settings.checkpoint.epoch_seconds:
            self.save(epoch + 1, 0)
            self.unsaved_s = 0.0

    def take_step(self, batch: Batch, rows: int) -> None:
        """One optimizer step on this rank's part of a batch that has `rows` rows over all ranks."""
        parts = split(batch, self.settings.accumulate)
        for inner in parts[:-1]:
            with parallel.unsynchronised(self.model):
                self.backward(inner, rows)
        self.backward(parts[-1], rows)
        if self.settings.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.weights, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for weight in self.weights:  # the optimizer's own zero_grad has a profiler look on
            weight.grad = None
        if self.average:
            self.average.update(parallel.unwrap(self.model))
        self.timeline.setdefault("first step", time.time())

    def backward(self, batch: Batch, rows: int) -> None:
        with parallel.autocast(self.worker, self.settings.precision):
            logits = self.model(batch)
        loss = summed_loss(logits.float(), batch["label"], self.rows.weights, self.settings.label_smoothing)
        # DDP averages gradients over ranks; this factor makes that the mean over the whole batch, though ranks' parts of it
        # may differ by a row.
        self.scaler.scale(loss).backward(loss.new_full((), self.worker.world_size / rows))
        self.loss_sum += loss.detach()

    def look(self, epoch: int, step: int) -> None:
        """Between steps: stops where the loss is not finite, and saves where it is time. Ranks agree on both, and on how many
        steps it is to the next look."""
        wanted, steps = self.settings.checkpoint, step - self.looked
        is_due = wanted.every_steps is not None and step % wanted.every_steps == 0
        if not is_due and steps < self.between_looks:
            return
        self.agreed_loss()
        seconds = self.agree(time.perf_counter() - self.looked_at)
        self.looked, self.looked_at, self.between_looks = step, time.perf_counter(), between_looks(steps, seconds)
        self.since_saved += seconds
        if is_due or (wanted.every_seconds and self.since_saved >= wanted.every_seconds):
            self.require_finite_weights()
            self.save(epoch, step)
            self.since_saved = 0.0

    def agreed_loss(self) -> float:
        """The summed loss of the epoch's rows so far, over all ranks.

        Raises:
            DivergedError: it is not finite; on all ranks together.
        """
        loss = float(parallel.sum_over_ranks(self.loss_sum.clone(), self.worker))
        if not math.isfinite(loss):
            raise self.diverged(f"training loss became {loss}")
        return loss

    def require_finite_weights(self) -> None:
        """A gradient may overflow where the loss did not. Each step that follows would show it in the loss; this is for where
        none follows before weights are used. Ranks agree without asking, since their weights are equal.

        Raises:
            DivergedError: a weight is not finite.
        """
        if not is_finite(parallel.unwrap(self.model)):
            raise self.diverged("weights are no longer finite")

    def diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"The {what} in epoch {len(self.history)}: the run diverged; lower train.lr (now {self.settings.lr:g}), raise "
            f"train.warmup, or set train.clip_norm."
        )

    def agree(self, value: Any) -> Any:
        """Rank 0's value on all ranks."""
        return parallel.share(value, self.worker)

    def costs(self, speed: float, began: float) -> dict[str, float]:
        """What the epoch cost: rows a second over all ranks, seconds with validation, and a worker's peak memory."""
        peak = torch.tensor([peak_bytes(self.worker) / 2**20], device=self.worker.device)
        return {
            "samples_per_s": speed,
            "seconds": time.perf_counter() - began,
            "peak_mb": float(parallel.gather(peak, self.worker).max()),
            "wire_bytes": parallel.wire_bytes(self.model, self.worker.world_size),
        }

    def network(self) -> nn.Module:
        """The module whose weights are the model."""
        return self.average.model if self.average else parallel.unwrap(self.model)

    def validate(self) -> dict[str, float]:
        """Metrics over every validation row once, on rank 0 (empty on others); keeps the first rows' answers as golden ones."""
        most = min(EVALUATION_ROWS, 4 * self.settings.batch_size)
        logits = parallel.gather_rows(predict(self.network(), self.validation, most), self.validation_rows, self.worker)
        labels = self.validation.labels.to(self.worker.device)
        labels = parallel.gather_rows(labels, self.validation_rows, self.worker)
        if self.worker.rank:
            return {}
        known = labels.cpu().numpy()
        evaluation.require_several_classes(known, "validation")
        metrics, answers = evaluation.judge(known, logits.cpu().numpy(), self.pipeline.evaluate)
        self.golden = answers[:GOLDEN_ROWS].tolist()
        return {f"validation_{name}": value for name, value in metrics.items()}

    def save(self, epoch: int, step: int) -> None:
        """Hands a checkpoint to the writer; `epoch` and `step` come next. On all ranks: each has generators of its own."""
        sums = parallel.gather(self.loss_sum, self.worker)
        generators = {name: parallel.gather(one, self.worker).cpu() for name, one in self.generators().items()}
        if self.writer is None:
            return
        training = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "model": parallel.unwrap(self.model).state_dict() if self.average else {},
            "average_steps": self.average.steps if self.average else 0,
            "loss_sums": sums,
            "generators": generators,
        }
        progress = {
            "epoch": epoch, "step": step, "world_size": self.worker.world_size,
            "timeline": self.timeline, "history": self.history, "golden": self.golden,
        }  # fmt: skip
        self.writer.write((epoch, step), self.network().state_dict(), training, progress)

    def generators(self) -> dict[str, Tensor]:
        """The states of this rank's random generators, on its device."""
        states = {"cpu": torch.get_rng_state()}
        if parallel.on_gpu(self.worker):
            states["cuda"] = torch.cuda.get_rng_state(self.worker.device)
        return {name: state.to(self.worker.device) for name, state in states.items()}

    def restore_generators(self, states: dict[str, Tensor]) -> None:
        # A copy: torch wants the state at the beginning of its memory.
        torch.set_rng_state(states["cpu"][self.worker.rank].cpu().clone())
        if "cuda" in states and parallel.on_gpu(self.worker):
            torch.cuda.set_rng_state(states["cuda"][self.worker.rank].cpu().clone(), self.worker.device)

    def resume(self) -> tuple[int, int, dict[str, Tensor] | None]:
        """Goes on from the last checkpoint; returns the epoch and step that come next, and generators inside an epoch.

        With another number of ranks than the checkpoint's, the interrupted epoch goes on at its step with the new shards.
        """
        checkpoint = checkpoints.last(self.worker.checkpoints)
        if checkpoint is None:
            return 0, 0, None
        training, progress = checkpoint.training(self.worker.device), checkpoint.progress()
        self.load(checkpoint, training)
        self.history, self.golden, self.timeline = (progress[name] for name in ("history", "golden", "timeline"))
        epoch, step = checkpoint.place
        if not step:
            return epoch, 0, None
        if progress["world_size"] == self.worker.world_size:
            self.loss_sum += training["loss_sums"][self.worker.rank]
            return epoch, step, training["generators"]
        self.loss_sum += training["loss_sums"].sum() / self.worker.world_size
        return epoch, min(step, self.steps - 1), None

    def load(self, checkpoint: Checkpoint, training: dict[str, Any]) -> None:
        weights = checkpoint.weights()
        if self.average:
            self.average.load(weights, training["average_steps"])
        parallel.unwrap(self.model).load_state_dict(training["model"] if self.average else weights)
        optimization.restore(self.optimizer, training["optimizer"])
        self.scaler.load_state_dict(training["scaler"])


def seed_rank(seed: int, epoch: int, rank: int) -> None:
    """Fixes dropout, drawing and shuffling by epoch and rank, so that a resumed epoch is the epoch it replaces."""
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1)[0]))


def count_steps(sizes: list[int], batch_size: int) -> int:
    """Steps an epoch of ranks with these numbers of rows: enough that no batch is over `batch_size` rows, never so many that
    a rank would have none."""
    return min(math.ceil(sum(sizes) / batch_size), min(sizes))


def between_looks(steps: int, seconds: float) -> int:
    """Steps to the next look, where these took so long.

    >>> [between_looks(10, 2.0), between_looks(1, 30.0), between_looks(100, 0.1)]
    [5, 1, 200]
    """
    return min(MOST_STEPS, max(1, round(LOOK_S * steps / max(seconds, 1e-9))))


def batch_rows(sizes: list[int], steps: int, step: int) -> int:
    """Rows of a step's batch over all ranks."""
    return sum(rows // steps + (step < rows % steps) for rows in sizes)


def split(batch: Batch, parts: int) -> list[Batch]:
    """The batch's rows in `parts` parts, or in as many as it has rows."""
    if parts == 1:
        return [batch]
    cut = {name: values.tensor_split(min(parts, len(values))) for name, values in batch.items()}
    return [dict(zip(cut, part, strict=True)) for part in zip(*cut.values(), strict=True)]


def is_finite(model: nn.Module) -> bool:
    """Whether all weights are."""
    return all(bool(weight.isfinite().all()) for weight in model.parameters())


def summed_loss(logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """The rows' cross-entropies, summed.

    Args:
        logits: (n,) for two classes, (n, classes) for more.
        labels: (n,) of classes from 0.
        weights: (classes,), what a row of each class counts; None for one each.
        smoothing: part of the target that is spread evenly over all classes (Szegedy et al., 2016).
    """
    reduction = "sum" if weights is None else "none"
    if logits.dim() == 1:
        targets = labels * (1 - smoothing) + smoothing / 2 if smoothing else labels
        losses = binary_cross_entropy_with_logits(logits, targets, reduction=reduction)
    else:
        losses = cross_entropy(logits, labels.long(), label_smoothing=smoothing, reduction=reduction)
    return losses if weights is None else (losses * weights[labels.long()]).sum()


def predict(model: nn.Module, rows: Rows, most: int = EVALUATION_ROWS) -> Tensor:
    """Logits (n,) or (n, classes) of all rows in fp32, as they are served: no gradients, dropout or lower precision."""
    model.eval()
    with torch.inference_mode():
        return torch.cat([model(batch).float() for batch in _in_order(rows, most)])


def _in_order(rows: Rows, most: int) -> Iterator[Batch]:
    parts: Iterable[Tensor] = torch.arange(len(rows.labels)).split(most)
    return rows.take(parts)


def peak_bytes(worker: Worker) -> int:
    """The most memory that this process has held, on its GPU where it has one."""
    if parallel.on_gpu(worker):
        return torch.cuda.max_memory_allocated(worker.device)
    # Not getrusage: its peak is the parent's, where a process has forked from a larger one.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.M)[1])  # type: ignore[index]
