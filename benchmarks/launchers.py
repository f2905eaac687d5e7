"""How fast the launchers train beside a plain PyTorch loop, to about a percent on a machine whose own speed drifts by ten.

  python -m benchmarks.launchers
  python -m benchmarks.launchers --slices 100 --root FOLDER      # quick; the dataset there is found again

Whole runs, as `jobs.compare` takes them, lie a minute apart, and a shared machine is another one by then. Here `ray`,
`torchrun` and the plain loop train the flights model at the same time, two workers each, and take turns of a third of a second:
the others are stopped (SIGSTOP). A slice counts optimizer steps; those into which a validation fell are left out, since the
plain loop has none. The last line is JSON:
{slices, samples_per_s: {ray, torchrun, bare}, of_bare: {ray, torchrun}, ray_of_torchrun}; ratios are {mean, low, high}: the
geometric mean over the slices, and its 95 % interval.
"""

import argparse
import json
import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from rayloom import config, environment

WORKERS = 2
REPEATED = 8
"""Times that the rows are repeated: an epoch takes ten seconds of slices, so that few have a validation in them."""

WARM_STEPS = 500
SLICE_S, SETTLE_S, START_S = 0.3, 0.05, 120.0
STEPS, VALIDATIONS, IS_OVER = range(3)
"""What a worker's shared counters are."""


def counters(file: Path, mode: Any) -> np.ndarray:
    return np.memmap(file, np.int64, mode, shape=(3,))


def build(model: config.Own, state: Any) -> Any:
    """The tabular network, which counts its steps in a file that others see. Every side trains it."""
    import torch

    from rayloom.models import tabular

    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = tabular.build(config.Tabular.model_validate(model.settings["tabular"]), state)
            self.counts = counters(Path(model.settings["folder"]) / str(os.getpid()), "w+")

        def forward(self, batch: dict) -> Any:
            if self.counts[IS_OVER]:
                raise RuntimeError("measured")
            self.counts[STEPS if self.training else VALIDATIONS] += 1
            return self.network(batch)

    return Counted()


@dataclass
class Side:
    """A way to train that is under way: its workers, and their counters."""

    name: str
    workers: dict[int, np.ndarray]
    ended: Future

    def is_warm(self) -> bool:
        return len(self.workers) == WORKERS and all(one[STEPS] > WARM_STEPS for one in self.workers.values())

    def signal(self, what: int) -> None:
        for worker in self.workers:
            os.kill(worker, what)

    def count(self) -> tuple[int, int]:
        """Steps of the first worker, and validations of all."""
        counts = list(self.workers.values())
        return int(counts[0][STEPS]), sum(int(one[VALIDATIONS]) for one in counts)

    def slice(self, batch: int) -> float | None:
        """Samples a second over SLICE_S in which only this side runs; None where it did not only train."""
        self.signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        (first, validations), began = self.count(), time.perf_counter()
        time.sleep(SLICE_S)
        (last, since), seconds = self.count(), time.perf_counter() - began
        self.signal(signal.SIGSTOP)
        return batch * (last - first) / seconds if since == validations and last > first else None


def begin(name: str, training: Any, folder: Path, stack: ExitStack) -> Side:
    """Starts a side, waits until it is warm, and stops it; ends it with the stack, also where it does not get warm."""
    known = set(folder.iterdir())
    side = Side(name, {}, stack.enter_context(ThreadPoolExecutor(1)).submit(training))
    stack.callback(end, side)
    deadline = time.monotonic() + START_S
    while not side.is_warm():
        if side.ended.done() or time.monotonic() > deadline:
            raise SystemExit(f"{name} did not come to train: {side.ended.exception() if side.ended.done() else 'no steps'}")
        time.sleep(0.1)
        files = set(folder.iterdir()) - known
        side.workers = {int(file.name): counters(file, "r+") for file in files if file.stat().st_size}
    side.signal(signal.SIGSTOP)
    return side


def end(side: Side) -> None:
    for one in side.workers.values():
        one[IS_OVER] = 1
    side.signal(signal.SIGCONT)
    side.ended.exception(START_S)  # that it was measured


def measure(root: Path, slices: int) -> dict[str, Any]:
    """All sides at once on one cluster, which is told that it has CPUs for both launchers."""
    environment.prepare()
    pipeline, state, arrays = prepared(root)
    with tempfile.TemporaryDirectory(prefix="rayloom-launchers-") as scratch, started(2 * WORKERS), ExitStack() as stack:
        folder = Path(scratch) / "workers"
        folder.mkdir()
        settings = {"folder": str(folder), "tabular": pipeline.model.model_dump(mode="json")}
        counted = pipeline.model_copy(update={"model": config.Own(family="benchmarks.launchers:build", settings=settings)})
        ways = trainings(counted, state, arrays, Path(scratch))
        sides = [begin(name, training, folder, stack) for name, training in ways.items()]
        speeds = list(turns(sides, slices, pipeline.train.batch_size))
    by_name = {side.name: [turn[place] for turn in speeds] for place, side in enumerate(sides)}
    return {
        "slices": len(speeds),
        "samples_per_s": {name: round(geometric_mean(values)) for name, values in by_name.items()},
        "of_bare": {name: ratio(by_name[name], by_name["bare"]) for name in by_name if name != "bare"},
        "ray_of_torchrun": ratio(by_name["ray"], by_name["torchrun"]),
    }


def prepared(root: Path) -> tuple[config.Pipeline, Any, dict[str, dict[str, np.ndarray]]]:
    """The pipeline file, the feature state, and training and validation rows."""
    from rayloom import cluster, runs, stages
    from rayloom.etl.check import check
    from rayloom.stages.model import prepare

    endless = ["train.epochs=100000", f"train.workers={WORKERS}", "train.max_failures=0", "train.min_workers=null"]
    pipeline = config.load(["configs/flights.yaml"], [f"storage.root={root}", *endless])
    with cluster.connect(root):
        run = runs.start(pipeline, check(pipeline))
        found = prepare(run, stages.etl(run))
        arrays = {name: encoded.read(0, encoded.rows) for name, encoded in found.splits.items()}
        arrays = {name: {key: values.copy() for key, values in split.items()} for name, split in arrays.items()}
        arrays["train"] = {key: np.concatenate([values] * REPEATED) for key, values in arrays["train"].items()}
        return found.pipeline, found.state, arrays


@contextmanager
def started(cpus: int) -> Iterator[None]:
    import ray

    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        yield
    finally:
        ray.shutdown()


def trainings(pipeline: config.Pipeline, state: Any, arrays: dict, scratch: Path) -> dict[str, Any]:
    """What trains, by name; each blocks until it ends."""
    import ray

    from rayloom import launchers
    from rayloom.costs import bare
    from rayloom.datasets import Encoded

    splits = {name: Encoded([ray.put(split)], [len(split["label"])]) for name, split in arrays.items()}

    def launched(name: str) -> Any:
        settings = pipeline.train.model_copy(update={"launcher": name})
        storage = pipeline.storage.model_copy(update={"root": str(scratch)})
        own = pipeline.model_copy(update={"train": settings, "storage": storage})
        return lambda: launchers.find(name).launch(own, state, splits, name)

    place = scratch / "bare"
    place.mkdir()
    return {
        "ray": launched("ray"),
        "torchrun": launched("torchrun"),
        "bare": lambda: bare.measure(pipeline, state, arrays["train"], place),
    }


def turns(sides: list[Side], slices: int, batch: int) -> Iterator[list[float]]:
    """A slice of each side, beginning with another side each time."""
    for number in range(slices):
        first = number % len(sides)
        found = {side.name: side.slice(batch) for side in sides[first:] + sides[:first]}
        if None not in found.values():
            yield [found[side.name] for side in sides]  # type: ignore[misc]


def ratio(own: list[float], beside: list[float]) -> dict[str, float]:
    from rayloom.costs import table

    found = table.mean_ratio([one / other for one, other in zip(own, beside, strict=True)])
    return {name: round(value, 4) for name, value in zip(("mean", "low", "high"), found, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=400, metavar="N", help="of each side, 0.3 s each (default: 400)")
    parser.add_argument("--root", help="workspace with the flights' dataset (default: a new one, built first)")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayloom-launchers-") as folder:
        print(json.dumps(measure(Path(parsed.root or folder), parsed.slices)), flush=True)


if __name__ == "__main__":
    main()
