"""A sweep of a text model on one GPU, several trials at once: how busy the GPU is. Run by hand where there is one.

  python -m benchmarks.sweep_gpu
  python -m benchmarks.sweep_gpu --share 0.5 --trials 16

Trials fine-tune a BERT of MiniLM's shape (6 layers, 384 wide; random weights cost what trained ones do) in bf16 on texts of 64
tokens. Java, Spark and MLflow are not needed. The last line is JSON: {trials, share, at_once, wall_s, gpu_busy, gpu_busy_whole,
s_per_trial, rows_per_s, failed}; gpu_busy is the mean of nvidia-smi's utilization while all places are taken, gpu_busy_whole
from the first trial's begin to the last one's end.
"""

import argparse
import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rayloom import config
from rayloom.datasets import Encoded
from rayloom.features import FeatureState, TextState
from rayloom.tuning import records, stopping, study, sweep, trial

VOCABULARY, LENGTH, CLASSES = 1000, 64, 4
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def rows(count: int) -> dict[str, np.ndarray]:
    """Texts whose first word tells the class."""
    rng = np.random.default_rng(count)
    tokens = rng.integers(1, VOCABULARY, (count, LENGTH)).astype(np.int32)
    empty = np.zeros((count, 0), np.float32)
    label = (tokens[:, 0] % CLASSES).astype(np.int64)
    mask = np.ones((count, LENGTH), np.uint8)
    return {"tokens": tokens, "mask": mask, "numbers": empty, "categories": empty.astype(np.int64), "label": label}


def state() -> FeatureState:
    """Of a text column with a tokenizer of whole words."""
    from tokenizers import Tokenizer, models

    words = {"[PAD]": 0, **{f"w{number}": number for number in range(1, VOCABULARY)}}
    column = TextState(tokenizer=Tokenizer(models.WordLevel(words, "[PAD]")).to_str(), max_tokens=LENGTH, vocabulary=VOCABULARY)
    return FeatureState(label="kind", columns={"text": column}, classes=[str(number) for number in range(CLASSES)])


def encoder(folder: Path) -> Path:
    """A BERT with random weights, in a folder as the hub has them."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    BertModel(
        BertConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, **SIZES), add_pooling_layer=False
    ).save_pretrained(folder)
    return folder


class Watch:
    """Notes when trials begin and end, and the GPU's utilization twice a second."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self.busy: list[tuple[float, float]] = []
        self.rows = 0.0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def _sample(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0"]
        while not self.over.wait(0.5):
            said = subprocess.run(command, capture_output=True, text=True).stdout
            self.busy.append((time.monotonic(), float(said.split()[0])))

    def begin(self, number: int, params: dict[str, Any]) -> None:
        self.events.append((time.monotonic(), 1))

    def epoch(self, number: int, epoch: int, value: float, metrics: dict[str, float]) -> None:
        self.rows += metrics["samples_per_s"] * metrics["seconds"]

    def end(self, ended: records.Trial) -> None:
        self.events.append((time.monotonic(), -1))
        print(f"trial {ended.number}: {ended.state} {ended.value} after {ended.seconds:.1f} s {ended.reason}", flush=True)

    def warn(self, text: str) -> None:
        print(text, flush=True)

    def mean(self, start: float, end: float) -> float:
        inside = [value for at, value in self.busy if start <= at <= end]
        return sum(inside) / max(1, len(inside)) / 100


def full(events: list[tuple[float, int]], places: int) -> tuple[float, float]:
    """From when all places are taken for the first time to when they are for the last."""
    taken, times = 0, []
    for at, change in events:
        if taken == places and change < 0:
            times.append(at)
        taken += change
        if taken == places:
            times.append(at)
    return (times[0], times[-1]) if times else (events[0][0], events[-1][0])


def pipeline_of(root: Path, trials: int, share: float, epochs: int) -> config.Pipeline:
    return config.Pipeline.model_validate(
        {
            "name": "gpu-sweep",
            "storage": {"root": str(root)},
            "etl": {
                "sources": {"raw": {"path": "raw.csv", "columns": "text STRING, kind STRING"}},
                "splits": {"train": "true", "validation": "false", "test": "false"},
                "order_by": ["text"],
            },
            "features": {"label": "kind", "columns": {"text": {"kind": "text", "tokenizer": "none.json"}}},
            "model": {"family": "text", "encoder": str(encoder(root / "encoder"))},
            "train": {"gpu": True, "epochs": epochs, "batch_size": 128, "precision": "bf16", "deterministic": False},
            "tune": {
                "trials": trials,
                "gpu_share": share,
                "space": {"train.lr": {"loguniform": [1e-5, 1e-3]}, "model.dropout": {"uniform": [0.0, 0.3]}},
            },
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=32, metavar="N")
    parser.add_argument("--share", type=float, default=0.25, metavar="PART", help="of a GPU, a trial (default: 0.25)")
    parser.add_argument("--rows", type=int, default=40_000, metavar="N")
    parser.add_argument("--epochs", type=int, default=4, metavar="N")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rayloom-gpu-") as folder:
        root = Path(folder)
        ray.init(log_to_driver=False, include_dashboard=False)
        pipeline = trial.of_trial(pipeline_of(root, parsed.trials, parsed.share, parsed.epochs))
        slots, said = sweep.require_room(pipeline)
        print(said, flush=True)
        splits = {
            name: Encoded([ray.put(rows(count))], [count]) for name, count in {"train": parsed.rows, "validation": 2000}.items()
        }
        memory = study.open_study(pipeline, root, "gpu", {"dataset": "made"}, "accuracy", 1)
        watch = Watch()
        decisive = stopping.decisive(pipeline.tune)
        wall = sweep.run(trial.Job(pipeline, state(), splits, root, "accuracy", decisive), memory, slots, [watch])
        watch.over.set()
        trials = memory.trials()
        figures = {
            "trials": len(trials),
            "share": parsed.share,
            "at_once": slots,
            "wall_s": wall,
            "gpu_busy": watch.mean(*full(watch.events, slots)),
            "gpu_busy_whole": watch.mean(watch.events[0][0], watch.events[-1][0]),
            "s_per_trial": wall / len(trials),
            "rows_per_s": watch.rows / wall,
            "failed": sum(one.state == "failed" for one in trials),
        }
        ray.shutdown()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
