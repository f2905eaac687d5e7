"""How fast launchers train beside the bare loop, to a percent or two on a machine whose own speed drifts by ten.

Whole runs lie a minute apart, and a shared machine is another one by then. Here all are up at once and train in turns of a
second or more: the others are stopped (SIGSTOP). Rows are counted in memory that workers share with us. A slice into which a
validation falls is left out, since the bare loop has none. It takes workers on this machine, on CPUs.
"""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from torch import nn

from rayloom import config, environment, launchers, models
from rayloom.costs import bare
from rayloom.datasets import Encoded
from rayloom.errors import RayloomError, TrainingError
from rayloom.features import FeatureState
from rayloom.launchers import ray_backend

LAUNCHERS = ("ray", "torchrun")
"""Those that can share the CPUs: Spark gives whole cores, and `inline` trains in this process, which must not be stopped."""

SLICE_S, SLICE_STEPS, EPOCH_SLICES = 1.0, 8, 20
"""The shortest slice, in seconds and in optimizer steps; and the fewest slices of an epoch, whose last has its validation."""

SETTLE_S, START_S, WARM_STEPS = 0.25, 120.0, 20
"""Seconds before a slice counts, in which timers that came due while the side stood still have their say; seconds in which a
side must come to train; and the steps after which it is warm."""

ROWS, VALIDATIONS = range(2)
"""What a worker's shared counters are, in a file that has its process id as its name."""

OVER = "over"
"""The file that is not zero where a side's workers shall end."""


def measure(
    pipeline: config.Pipeline,
    state: FeatureState,
    splits: dict[str, Encoded],
    names: list[str],
    speed: float,
    seconds: float,
    folder: Path,
) -> dict[str, list[float]]:
    """Samples a second of each launcher and of 'bare', by turn.

    Args:
        splits: "train" and "validation".
        names: of launchers, all in LAUNCHERS; the cluster must have room for the workers of one.
        speed: samples a second, about; slices and epochs are made long enough for it.
        seconds: how long turns are taken, once all are warm.
        folder: an empty one, for what they write.

    Raises:
        TrainingError: one of them did not come to train.
    """
    length = max(SLICE_S, SLICE_STEPS * pipeline.train.batch_size / speed)
    times = max(1, round(EPOCH_SLICES * length * speed / splits["train"].rows))
    longer = {**splits, "train": Encoded(splits["train"].blocks * times, splits["train"].sizes * times)}
    sides = [_Side(name, folder / name) for name in [*names, "bare"]]
    # A worker's wait for something to tell Ray Train goes on while it is stopped: so much longer, it is as rare as in a run.
    patience = {ray_backend.POLL: str(len(sides) * ray_backend.POLL_S)}
    with ExitStack() as stack, environment.variables(patience):
        for side in sides:
            endless = _endless(pipeline, side, len(names))
            side.ended = stack.enter_context(ThreadPoolExecutor(1)).submit(_train, endless, state, longer, side)
            stack.callback(side.end)
        for side in sides:
            side.warm_up(pipeline.train)
        turns = list(_turns(sides, length, seconds))[1:]  # the first still warms up
    return {side.name: [turn[side.name] for turn in turns] for side in sides}


def _endless(pipeline: config.Pipeline, side: "_Side", sharers: int) -> config.Pipeline:
    """The pipeline that trains until it is told to stop, counts its rows, and takes its part of the CPUs."""
    side.counters.mkdir(parents=True)
    side.runs.mkdir()
    _shared(side.counters / OVER, "w+")
    changes = {
        "launcher": side.name,
        "epochs": 100_000,
        "patience": None,
        "max_failures": 0,
        "min_workers": None,
        "reserved_cpus": pipeline.train.cpus / sharers,
    }
    counted = {"folder": str(side.counters), "model": pipeline.model.model_dump(mode="json")}
    return pipeline.model_copy(
        update={
            "train": pipeline.train.model_copy(update=changes),
            "model": config.Own(family=f"{__name__}:build", settings=counted),
            "storage": pipeline.storage.model_copy(update={"root": str(side.runs)}),
        }
    )


def build(model: config.Own, state: FeatureState) -> nn.Module:
    """The network of another model section, which counts its rows in a file that we see."""
    network = models.build(TypeAdapter(config.Model).validate_python(model.settings["model"]), state)
    folder = Path(model.settings["folder"])
    counts, over = _shared(folder / str(os.getpid()), "w+"), _shared(folder / OVER, "r")

    def count(module: nn.Module, given: tuple) -> None:
        if over[0]:
            raise TrainingError("Its speed is measured.")
        if module.training:
            counts[ROWS] += len(next(iter(given[0].values())))
        else:
            counts[VALIDATIONS] += 1

    network.register_forward_pre_hook(count)
    return network


def _shared(file: Path, mode: Any) -> np.ndarray:
    return np.memmap(file, np.int64, mode, shape=(2,))


def _train(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], side: "_Side") -> None:
    """Trains until it is ended."""
    if side.name in LAUNCHERS:
        launchers.find(side.name).launch(pipeline, state, splits, side.name)
    else:
        train = splits["train"]
        bare.measure(pipeline, state, train.read(0, train.rows), side.runs)


@dataclass
class _Side:
    """A way to train that is under way.

    Attributes:
        folder: its own, for counters, and for what training writes.
        workers: process id -> counters.
        ended: is done where training ended, which it should not.
    """

    name: str
    folder: Path
    workers: dict[int, np.ndarray] = field(default_factory=dict)
    ended: Future = field(default_factory=Future)

    @property
    def counters(self) -> Path:
        return self.folder / "counters"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def warm_up(self, settings: config.Train) -> None:
        """Waits until it has trained a while, and stops it."""
        deadline = time.monotonic() + START_S
        while len(self.workers) < settings.workers or self.counted(ROWS) < WARM_STEPS * settings.batch_size:
            if self.ended.done() or time.monotonic() > deadline:
                why = self.ended.exception() if self.ended.done() else f"no steps in {START_S:g} s"
                raise TrainingError(f"{self.name} did not come to train beside the others: {why}")
            time.sleep(0.1)
            files = [file for file in self.counters.iterdir() if file.name != OVER and file.stat().st_size]
            self.workers = {int(file.name): _shared(file, "r") for file in files}
        self.stop()

    def send(self, what: signal.Signals) -> None:
        for worker in self.workers:
            with suppress(ProcessLookupError):  # its launcher tells
                os.kill(worker, what)

    def stop(self) -> None:
        """Stops the workers, and waits until they have: threads that the kernel has not told yet train on."""
        self.send(signal.SIGSTOP)
        deadline = time.monotonic() + START_S
        while not all(_stands_still(worker) for worker in self.workers):
            if time.monotonic() > deadline:
                raise TrainingError(f"{self.name} could not be stopped for another's turn in {START_S:g} s")
            time.sleep(0.001)

    def counted(self, counter: int) -> int:
        return sum(int(counts[counter]) for counts in self.workers.values())

    def slice(self, length: float) -> float | None:
        """Samples a second over `length` seconds in which only this side runs; None where it did not only train."""
        if self.ended.done():
            raise TrainingError(f"{self.name} ended while it took turns: {self.ended.exception()}")
        self.send(signal.SIGCONT)
        time.sleep(SETTLE_S)
        rows, validations, began = self.counted(ROWS), self.counted(VALIDATIONS), time.perf_counter()
        time.sleep(length)
        more, seconds = self.counted(ROWS) - rows, time.perf_counter() - began
        self.stop()
        return more / seconds if more and self.counted(VALIDATIONS) == validations else None

    def end(self) -> None:
        """Has the workers end with an error, which is how the launcher ends."""
        _shared(self.counters / OVER, "r+")[:] = 1
        self.send(signal.SIGCONT)
        failed = self.ended.exception(START_S)
        if failed is not None and not isinstance(failed, RayloomError):
            raise failed


def _stands_still(process: int) -> bool:
    """Whether each thread of a process has stopped or ended."""
    threads = []
    for thread in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            threads.append(thread.read_text())
    return all(thread.rpartition(")")[2].split()[0] in "TtXZ" for thread in threads)


def _turns(sides: list[_Side], length: float, seconds: float) -> Iterator[dict[str, float]]:
    """Samples a second by side. Each turn begins with another side."""
    deadline, number = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        first, number = number % len(sides), number + 1
        found = {side.name: side.slice(length) for side in sides[first:] + sides[:first]}
        whole = {name: speed for name, speed in found.items() if speed is not None}
        if len(whole) == len(sides):
            yield whole
