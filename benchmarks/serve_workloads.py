"""What `benchmarks.serve` asks of the servers: a registered model, records of its test split, and the right answers."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import torch
from safetensors.torch import save_file

from rayloom import bundle, config, datasets, features, models, tracking, versions
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.errors import RegistryError
from rayloom.serving.predictor import Predictor
from rayloom.tracking import ModelVersion

RECORDS = 256
"""Different requests, sent in turn."""

FIT_ROWS, GOLDEN_ROWS = 400, 64
"""Training rows that a fresh model's features are fitted on, and its golden rows."""


@dataclass(frozen=True)
class Workload:
    """A model and what is asked of it.

    Attributes:
        config: the pipeline file.
        root: the workspace.
        version: of the model in the workspace's registry.
        folder: the version's bundle.
        records: each is a request.
        answers: what the predictor says of each of them alone.
    """

    config: str
    root: Path
    version: ModelVersion
    folder: Path
    records: list[dict[str, Any]]
    answers: list[dict[str, Any]]


def tabular(root: Path) -> Workload:
    """The workspace's flights model. Raises SystemExit where it has none."""
    pipeline = config.load(["configs/flights.yaml"], [f"storage.root={root}"])
    try:
        return _workload("configs/flights.yaml", root, pipeline, _registered(pipeline))
    except RegistryError as error:
        raise SystemExit(
            f"{error} For the benchmark: python -m jobs.pipeline --config configs/flights.yaml --set storage.root={root}"
        ) from None


def minilm(root: Path) -> Workload:
    """The workspace's news model; where it has none, the pretrained encoder with a fresh head, which is registered there."""
    pipeline = config.load(["configs/news.yaml"], [f"storage.root={root}"])
    try:
        version = _registered(pipeline)
    except RegistryError:
        version = _register_fresh(pipeline, root)
    return _workload("configs/news.yaml", root, pipeline, version)


WORKLOADS: dict[str, Callable[[Path], Workload]] = {"tabular": tabular, "minilm": minilm}


def _registered(pipeline: config.Pipeline) -> ModelVersion:
    """The champion, else the version trained last. Raises RegistryError where there is neither."""
    return tracking.champion(pipeline) or tracking.resolve(pipeline, f"@{tracking.CHALLENGER}")


def _workload(file: str, root: Path, pipeline: config.Pipeline, version: ModelVersion) -> Workload:
    loaded = bundle.load(tracking.download(pipeline, version, root))
    folder = versions.get(pipeline, version.dataset).folder
    records = _records(_spread(folder, "test", list(loaded.state.columns), RECORDS))
    predictor = Predictor(loaded)
    answers = [answer for record in records for answer in predictor.answer([record])]
    return Workload(file, root, version, loaded.folder, records, answers)


def _spread(folder: Path, split: str, columns: list[str], count: int) -> pa.Table:
    """About `count` rows of a dataset version's split, evenly spaced."""
    rows = pads.dataset([str(file) for file in datasets.files(folder, split)]).to_table(columns=columns)
    return rows.take(np.unique(np.linspace(0, len(rows) - 1, count).astype(int)))


def _records(rows: pa.Table) -> list[dict[str, Any]]:
    return [datasets.record(row, rows.column_names) for row in rows.to_pylist()]


def _register_fresh(pipeline: config.Pipeline, root: Path) -> ModelVersion:
    """Registers a model that nothing was trained for but its encoder: it costs as much to serve as a trained one."""
    try:
        dataset = versions.newest(pipeline)
    except RegistryError:
        command = [sys.executable, "-m", "jobs.etl", "--config", "configs/news.yaml", "--set", f"storage.root={root}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        dataset = versions.newest(pipeline)
    spec = pipeline.features
    rows = _spread(dataset.folder, "train", [*spec.columns, spec.label], FIT_ROWS)
    state, _ = features.fit(spec, features.summarize(spec, rows))
    golden = _records(_spread(dataset.folder, "validation", list(spec.columns), GOLDEN_ROWS))
    with TemporaryDirectory(prefix="rayloom-fresh-") as folder:
        made = _write_fresh(Path(folder), pipeline, dataset.manifest.id, state, golden)
        return tracking.record_training(pipeline, "benchmark", dataset.manifest.id, [], made)


def _write_fresh(
    folder: Path, pipeline: config.Pipeline, dataset: str, state: features.FeatureState, records: list[dict]
) -> Bundle:
    model = models.resolve(pipeline.model, state)
    torch.manual_seed(pipeline.seed)
    network = models.build(model, state)
    models.load_pretrained(network, model)
    save_file(network.state_dict(), folder / "weights.safetensors")
    about = BundleConfig(name=pipeline.name, seed=pipeline.seed, dataset=dataset, model=model, features=pipeline.features)
    parts = (about, state, folder / "weights.safetensors", {"validation_temperature": 1.0})
    answers = Predictor(bundle.write(folder / "draft", *parts, [])).predict_records(records).tolist()
    golden = [Golden(record=record, answer=answer) for record, answer in zip(records, answers, strict=True)]
    return bundle.write(folder / "bundle", *parts, golden)
