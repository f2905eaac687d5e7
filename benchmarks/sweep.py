"""What a sweep costs beyond its computing, beside the same epochs run bare and beside Tune over TorchTrainer as documented.

  python -m benchmarks.sweep
  python -m benchmarks.sweep --trials 20 --rounds 1 --soak 2 --root FOLDER      # quick; the dataset there is found again

Trials of the flights model on 50,000 rows, up to 8 epochs, ASHA and Optuna, on 2 CPUs. The last line is JSON:
{epochs, best_auc, wall_s, s_per_trial, bare_s, bare_warm_s, vs_bare, overhead_s, documented_s_per_trial, vs_documented, trials,
vs_bare_rounds, vs_documented_rounds, gang_overhead_s, soak: {sweeps, seconds, hangs}, leaks}.

Sweep, bare loop and documented pattern take turns, since a machine's own speed drifts; figures are medians over the turns, of
ratios taken within a turn.

wall_s      of the sweep, from before its actors start to after they have ended, MLflow and the study's database included
bare_s      a plain PyTorch loop over the same settings for as many epochs, with validation AUC, in 2 processes, their start
            included as wall_s includes that of the actors; bare_warm_s: from when they are up and have trained an epoch
overhead_s  (wall_s - bare_warm_s) * 2 / trials: what a trial costs a CPU beyond its computing, all starts included
documented  4 trials a turn of a function trainable that fits a TorchTrainer of one worker, reporting by TuneReportCallback,
            Ray's defaults and the rows as a Ray Dataset, as many epochs a trial as the sweep's had on average; one trial after
            the other, from when Ray runs and the rows are in it
gang        trials of two workers; seconds a trial beyond its epochs, after the first trial
soak        sweeps of 12 short trials in a row; a leak is what the cluster still holds after one
"""

import argparse
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rayloom import config, environment

ROWS, VALIDATION_ROWS = 50_000, 10_000
DOCUMENTED_TRIALS = 4
"""A turn."""

SWEEP = ["train.epochs=8", "tune.scheduler=asha", "tune.wait_s=30"]
HANG_SECONDS = 120


@dataclass
class Rows:
    """The flights, encoded: what every side trains on."""

    pipeline: config.Pipeline
    prepared: Any

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        found = {name: encoded.read(0, encoded.rows) for name, encoded in self.prepared.splits.items()}
        most = {"train": ROWS, "validation": VALIDATION_ROWS}
        # Copies: the object store goes with its cluster, and each turn has one of its own.
        return {name: {key: array[: most[name]].copy() for key, array in arrays.items()} for name, arrays in found.items()}


def swept(rows: Rows, splits: dict, folder: Path, settings: list[str], also: Any = ()) -> tuple[Any, float]:
    """A sweep as jobs.tune runs it; its record and the seconds it took in all."""
    from rayloom.stages import search
    from rayloom.stages.model import Prepared

    pipeline = loaded(rows.pipeline.storage.root, settings)
    prepared = Prepared(rows.prepared.pipeline, rows.prepared.state, splits, rows.prepared.records)
    # A sweep's name is its alone: of one with a name that MLflow knows, it would read all runs of the last time, and go on.
    folder = folder.with_name(f"{folder.parent.name}-{folder.name}")
    folder.mkdir(parents=True)
    began = time.perf_counter()
    record = search.sweep_rows(pipeline, "benchmark", prepared, folder, also)
    return record, time.perf_counter() - began


def loaded(root: str | None, settings: list[str]) -> config.Pipeline:
    return config.load(["configs/flights.yaml"], [f"storage.root={root}", *SWEEP, *settings])


def bare(record: Any, pipeline: config.Pipeline, state: Any, arrays: dict) -> tuple[float, float]:
    """Seconds of a plain loop over the record's trials, each for as many epochs as it had, in two processes: with their start,
    and from when both are up and warm."""
    from rayloom.tuning import space

    jobs = []
    for trial in record.trials:
        one = space.apply(pipeline, trial.params)
        jobs.append((one.model_dump_json(), state.model_dump_json(), len(trial.values)))
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(2, _get_ready, (arrays,)) as pool:
        pool.map(_train_bare, [(*job[:2], 1) for job in jobs[:2]], 1)
        began = time.perf_counter()
        for _ in pool.imap_unordered(_train_bare, jobs, 1):
            pass
        ended = time.perf_counter()
    del pool
    gc.collect()  # its semaphores leave through the tracker, which must not be what the next turn's audit finds
    resource_tracker._resource_tracker._stop()
    return ended - started, ended - began


_HERE: dict[str, Any] = {}


def _get_ready(arrays: dict) -> None:
    import torch

    torch.set_num_threads(1)
    _HERE.update({name: {key: torch.tensor(array) for key, array in split.items()} for name, split in arrays.items()})


def _train_bare(job: tuple[str, str, int]) -> float:
    import torch
    from sklearn.metrics import roc_auc_score
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    from rayloom import models
    from rayloom.features import FeatureState

    pipeline, state = config.Pipeline.model_validate_json(job[0]), FeatureState.model_validate_json(job[1])
    settings, train, validation = pipeline.train, _HERE["train"], _HERE["validation"]
    model = models.build(pipeline.model, state)
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
    steps = -(-len(train["label"]) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * settings.epochs)
    auc = 0.0
    for _ in range(job[2]):
        model.train()
        for part in torch.randperm(len(train["label"])).tensor_split(steps):
            batch = {name: values[part] for name, values in train.items()}
            cross_entropy(model(batch), batch["label"].float()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        model.eval()
        with torch.inference_mode():
            auc = roc_auc_score(validation["label"].numpy(), model(validation).numpy())
    return float(auc)


def documented(folder: str, epochs: int) -> None:
    """The peer's side, in a process and a Ray of its own, with Ray's defaults; prints its seconds a trial."""
    import ray
    from ray import tune
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    data = np.load(Path(folder) / "rows.npz")
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)
    columns = {name: list(data[name]) if data[name].ndim > 1 else data[name] for name in data.files}
    rows = ray.data.from_items(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    ).materialize()
    pipeline, state = (Path(folder, name).read_text() for name in ("pipeline.json", "state.json"))

    def fit(settings: dict) -> None:
        TorchTrainer(
            _documented_loop,
            train_loop_config={**settings, "epochs": epochs, "pipeline": pipeline, "state": state},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name=f"trial-{time.time_ns()}", storage_path=folder, callbacks=[TuneReportCallback()]),
            datasets={"train": rows},
        ).fit()

    began = time.perf_counter()
    tune.Tuner(
        tune.with_resources(fit, {"CPU": 0.1}),
        param_space={"lr": tune.loguniform(3e-4, 1e-2)},
        tune_config=tune.TuneConfig(num_samples=DOCUMENTED_TRIALS, max_concurrent_trials=1, metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=folder, name="documented", verbose=0),
    ).fit()
    print(json.dumps({"seconds": (time.perf_counter() - began) / DOCUMENTED_TRIALS}), flush=True)
    ray.shutdown()


def _documented_loop(settings: dict) -> None:
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

    from rayloom import models
    from rayloom.features import FeatureState

    pipeline = config.Pipeline.model_validate_json(settings["pipeline"])
    model = prepare_model(models.build(pipeline.model, FeatureState.model_validate_json(settings["state"])))
    optimizer = torch.optim.AdamW(model.parameters(), settings["lr"])
    shard = ray.train.get_dataset_shard("train")
    for _ in range(settings["epochs"]):
        for batch in shard.iter_torch_batches(batch_size=pipeline.train.batch_size):
            loss = cross_entropy(model(batch), batch["label"].float())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ray.train.report({"loss": float(loss)})


def run_documented(rows: Rows, arrays: dict, epochs: int) -> float:
    """Seconds a trial of the documented pattern."""
    with tempfile.TemporaryDirectory(prefix="rayloom-documented-") as folder:
        np.savez(Path(folder) / "rows.npz", **arrays["train"])
        Path(folder, "pipeline.json").write_text(rows.prepared.pipeline.model_dump_json())
        Path(folder, "state.json").write_text(rows.prepared.state.model_dump_json())
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        command = [sys.executable, "-m", "benchmarks.sweep", "--documented", folder, str(epochs)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"The documented pattern ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return json.loads(done.stdout.splitlines()[-1])["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="of the main sweep (default: 100)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of sweep and peers (default: 3)")
    parser.add_argument("--soak", type=int, default=20, metavar="N", help="sweeps of 12 short trials in a row (default: 20)")
    parser.add_argument("--root", help="workspace with the flights' dataset (default: a new one, built first)")
    parser.add_argument("--documented", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.documented:
        documented(parsed.documented[0], int(parsed.documented[1]))
        return
    with tempfile.TemporaryDirectory(prefix="rayloom-sweep-") as folder:
        print(json.dumps(measure(Path(parsed.root or folder), parsed.trials, parsed.rounds, parsed.soak)), flush=True)


def measure(root: Path, trials: int, rounds: int, soak: int) -> dict[str, Any]:
    environment.prepare()
    from rayloom import cluster, runs, stages
    from rayloom.etl.check import check
    from rayloom.stages.model import prepare

    pipeline = loaded(str(root), [])
    leaks: list[str] = []
    with cluster.connect(root) as connected:
        run = runs.start(pipeline, check(pipeline))
        rows = Rows(pipeline, prepare(run, stages.etl(run)))
        arrays = rows.arrays()
        splits = _put(arrays)
        gang = _gang(rows, splits, run.folder / "gang")
        leaks += cluster.held_in_cluster()
        soaked = _soak(rows, _put(arrays, 2000), run.folder, soak, leaks)
    leaks += connected.leftovers
    turns = [_turn(rows, arrays, run.folder / f"main-{number}", trials, leaks) for number in range(rounds)]
    medians = {name: median(turn[name] for turn in turns) for name in turns[0]}
    ratios = {f"{name}_rounds": [turn[name] for turn in turns] for name in ("vs_bare", "vs_documented")}
    return rounded({**medians, "trials": trials, **ratios, "gang_overhead_s": gang, "soak": soaked, "leaks": leaks})


def _put(arrays: dict, most: int | None = None) -> dict:
    """The splits, or their first rows, where the cluster's workers find them."""
    import ray

    from rayloom.datasets import Encoded

    cut = {name: {key: values[:most] for key, values in split.items()} for name, split in arrays.items()}
    return {name: Encoded([ray.put(split)], [len(split["label"])]) for name, split in cut.items()}


def _turn(rows: Rows, arrays: dict, folder: Path, trials: int, leaks: list[str]) -> dict[str, Any]:
    """The main sweep on a cluster of its own; what it did bare as soon as that has ended; then the documented pattern."""
    from rayloom import cluster

    with cluster.connect(Path(rows.pipeline.storage.root)) as connected:
        record, wall = swept(rows, _put(arrays), folder, [f"tune.trials={trials}"])
        leaks += cluster.held_in_cluster()
    leaks += connected.leftovers
    cold, warm = bare(record, rows.pipeline, rows.prepared.state, arrays)
    epochs = sum(len(trial.values) for trial in record.trials)
    per_trial = run_documented(rows, arrays, round(epochs / trials))
    print(f"  vs_bare {wall / cold:.3f}, vs_documented {per_trial * trials / wall:.1f}", flush=True)
    return {
        "epochs": epochs,
        "best_auc": record.best.value,
        "wall_s": wall,
        "s_per_trial": wall / trials,
        "bare_s": cold,
        "bare_warm_s": warm,
        "vs_bare": wall / cold,
        "overhead_s": (wall - warm) * 2 / trials,
        "documented_s_per_trial": per_trial,
        "vs_documented": per_trial * trials / wall,
    }


def _soak(rows: Rows, splits: dict, folder: Path, sweeps: int, leaks: list[str]) -> dict[str, Any]:
    """Sweeps of 12 short trials in a row."""
    from rayloom import cluster

    began, hangs = time.perf_counter(), 0
    for number in range(sweeps):
        _, seconds = swept(rows, splits, folder / f"soak-{number}", ["tune.trials=12", "train.epochs=4"])
        hangs += seconds > HANG_SECONDS
        leaks += cluster.held_in_cluster()
    return {"sweeps": sweeps, "seconds": time.perf_counter() - began, "hangs": hangs}


def rounded(figures: Any) -> Any:
    if isinstance(figures, dict):
        return {name: rounded(one) for name, one in figures.items()}
    if isinstance(figures, list):
        return [rounded(one) for one in figures]
    return round(figures, 3) if isinstance(figures, float) else figures


class Stopwatch:
    """Notes when each trial ended, and the seconds of its epochs."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.epochs: list[float] = []
        self.running = 0.0

    def begin(self, number: int, params: dict[str, Any]) -> None:
        self.running = 0.0

    def epoch(self, number: int, epoch: int, value: float, metrics: dict[str, float]) -> None:
        self.running += metrics["seconds"]

    def end(self, ended: Any) -> None:
        self.ends.append(time.perf_counter())
        self.epochs.append(self.running)

    def warn(self, text: str) -> None:
        pass


def _gang(rows: Rows, splits: dict, folder: Path) -> float:
    """Seconds a two-worker trial beyond its epochs, after the first; one runs at a time."""
    watch = Stopwatch()
    settings = ["tune.trials=8", "tune.workers_per_trial=2", "tune.concurrency=1", "train.epochs=4"]
    swept(rows, splits, folder, settings, [watch])
    return (watch.ends[-1] - watch.ends[0] - sum(watch.epochs[1:])) / (len(watch.ends) - 1)


if __name__ == "__main__":
    main()
