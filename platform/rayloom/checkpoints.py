"""Checkpoints of a training run: where it is, so that it can go on from there, inside an epoch too.

    <run>/checkpoints/epoch-00002-step-00000120/
        model.safetensors    the weights that are the model: the moving average, where train.ema asks for one
        training.pt          optimizer, scaler, random generators of all ranks, and what else the loop goes on from
        progress.json        {"epoch", "step", "world_size", "history": [metrics by epoch], "golden": [answers], ...}

A folder appears whole, by one rename: what has another name is half a checkpoint and is not looked at. Epochs and steps count
from 0 and tell what comes next; step 0 stands at an epoch's beginning, so its history has all epochs before. The best such ones
are kept, and the last of all. Rank 0 writes, in a thread of its own, while the loop goes on.
"""

import json
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NAME = re.compile(r"epoch-(\d+)-step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    folder: Path

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and the step that come next."""
        epoch, step = NAME.fullmatch(self.folder.name).groups()  # type: ignore[union-attr]
        return int(epoch), int(step)

    def progress(self) -> dict[str, Any]:
        return json.loads((self.folder / "progress.json").read_text())

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.folder / "model.safetensors")

    def training(self, device: str) -> dict[str, Any]:
        """What was given to `write`. Only tensors and plain values are read: loading runs no code from the file."""
        return torch.load(self.folder / "training.pt", weights_only=True, map_location=device)


def found(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of a run, in the order in which they were reached."""
    folders = folder.iterdir() if folder.is_dir() else []
    return sorted((Checkpoint(one) for one in folders if NAME.fullmatch(one.name)), key=lambda one: one.place)


def last(folder: Path) -> Checkpoint | None:
    """Where the run goes on; None where it has to begin."""
    return next(reversed(found(folder)), None)


def best(folder: Path, metric: str, sign: int) -> Checkpoint | None:
    """The first checkpoint at an epoch's end with the highest `sign` * history's last `metric`."""
    return next(iter(_ranked(folder, metric, sign)), None)


def _ranked(folder: Path, metric: str, sign: int) -> list[Checkpoint]:
    ends = [one for one in found(folder) if one.place[0] and not one.place[1]]
    return sorted(ends, key=lambda one: -sign * one.progress()["history"][-1][metric])


def remove(folder: Path) -> None:
    """Removes a folder that a writer may be at work in: at once, by its name, so that none finds half of it."""
    gone = folder.with_name(f".{folder.name}.gone")
    with suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


class Writer:
    """Writes a run's checkpoints, one after the other. Nobody misses what it cannot write because `remove` took the folder.

    Args:
        folder: the run's folder of checkpoints.
        keep: how many of the best to keep.
        metric: key of an epoch's metrics that tells which are best.
        sign: 1 where a higher metric is better, -1 where a lower one is.
    """

    def __init__(self, folder: Path, keep: int, metric: str, sign: int):
        self.folder, self.keep, self.metric, self.sign = folder, keep, metric, sign
        for half in folder.glob(".epoch-*"):  # left by a process that was killed
            shutil.rmtree(half)
        self.thread = ThreadPoolExecutor(1, "rayloom-checkpoints")
        self.pending: Future[None] | None = None

    def write(self, place: tuple[int, int], weights: dict[str, Tensor], training: dict[str, Any], progress: dict) -> None:
        """Takes a copy of what it is given, and writes it while the loop goes on.

        Raises:
            OSError: the checkpoint before could not be written.
        """
        self.wait()
        self.pending = self.thread.submit(self._write, place, _copied(weights), _copied(training), json.dumps(progress))

    def wait(self) -> None:
        """Returns when all that was given is on disk; raises OSError where it could not be written."""
        if self.pending:
            self.pending.result()
            self.pending = None

    def close(self) -> None:
        """As `wait`, for the last time."""
        self.thread.shutdown()
        self.wait()

    def _write(self, place: tuple[int, int], weights: dict[str, Tensor], training: dict[str, Any], progress: str) -> None:
        target = self.folder / f"epoch-{place[0]:05d}-step-{place[1]:08d}"
        if target.exists():
            return
        try:
            self._stage(target, weights, training, progress)
            self._forget()
        except Exception:  # safetensors has errors of its own
            if self.folder.exists():
                raise

    def _stage(self, target: Path, weights: dict[str, Tensor], training: dict[str, Any], progress: str) -> None:
        staging = self.folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        save_file(weights, staging / "model.safetensors")
        torch.save(training, staging / "training.pt")
        (staging / "progress.json").write_text(progress)
        for file in staging.iterdir():
            _to_disk(file)
        staging.rename(target)

    def _forget(self) -> None:
        """Removes all but the best and the last."""
        kept = {one.folder for one in _ranked(self.folder, self.metric, self.sign)[: self.keep]}
        for checkpoint in found(self.folder)[:-1]:
            if checkpoint.folder not in kept:
                shutil.rmtree(checkpoint.folder)


def _to_disk(file: Path) -> None:
    """A rename may reach the disk before the file's bytes do, unless they are there already."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _copied(value: Any) -> Any:
    """The value with its tensors copied to the CPU: the loop changes its own in place."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(inner) for inner in value)
    return value
