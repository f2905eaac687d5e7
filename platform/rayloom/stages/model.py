"""Stages `features`, `train` and `register`: from a dataset version to a registered model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO

import numpy as np
from safetensors.torch import load_file

from rayloom import bundle, checkpoints, config, datasets, evaluation, features, feeding, launchers, models, tracking, training
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.datasets import DatasetVersion, Encoded
from rayloom.errors import DivergedError, TrainingError
from rayloom.features import FeatureState
from rayloom.launchers.result import Result, folder_of
from rayloom.runs import Run, say
from rayloom.tracking import ModelVersion
from rayloom.worker import Arrays

LEAK_ROWS = 100_000
"""Training rows that the leak check looks at, evenly spaced."""

WATCH_SECONDS = 0.5
"""How often a watcher looks whether an epoch has ended."""


@dataclass(frozen=True)
class Trained:
    """A registered model, its bundle on this machine, and the training split as model inputs, for a baseline."""

    version: ModelVersion
    bundle: Bundle
    inputs: Encoded | None = None


@dataclass(frozen=True)
class Prepared:
    """A dataset version ready to train on.

    Attributes:
        pipeline: the pipeline file, with its model section resolved.
        state: what the training split taught.
        splits: "train" and "validation" as model inputs.
        records: the first validation rows as records, for golden answers.
    """

    pipeline: config.Pipeline
    state: FeatureState
    splits: dict[str, Encoded]
    records: list[dict[str, Any]]


@dataclass(frozen=True)
class Fit:
    """What a training has come to.

    Attributes:
        weights: the model's safetensors file.
        metrics: what the bundle says of it: of rows that the weights have not seen.
        golden: answers for the first validation rows.
        history: each epoch's metrics.
    """

    weights: Path
    metrics: dict[str, float]
    golden: list
    history: list[dict[str, float]]


def prepare(run: Run, dataset: DatasetVersion) -> Prepared:
    """Fits features on the training split and encodes the rows.

    Raises:
        DataError, LeakError: the rows do not fit the features section.
        ConfigError: the model or the metrics do not fit the features.
    """
    pipeline = run.pipeline
    with run.stage("features"):
        schema = datasets.schema_of(dataset.folder)
        features.check_types(pipeline.features, schema)
        state, warnings = datasets.fit_features(pipeline.features, dataset.split("train"))
        pipeline = pipeline.model_copy(update={"model": models.resolve(pipeline.model, state)})
        evaluation.check(pipeline.evaluate, len(state.classes), schema)
        for warning in warnings:
            say(f"  warning: {warning}")
        splits = {name: dataset.encode(state, name) for name in ("train", "validation")}
        _refuse_leaks(pipeline, state, splits["train"])
        records = datasets.first_rows(dataset.folder, "validation", training.GOLDEN_ROWS, list(state.columns))
        return Prepared(pipeline, state, splits, records)


def train(run: Run, dataset: DatasetVersion) -> Trained:
    """Prepares, trains, writes the bundle, and registers it as @challenger.

    Raises:
        TrainingError: it did not end well; MLflow has the run as failed, or as diverged.
    """
    launchers.find(run.pipeline.train.launcher).require_room(run.pipeline)
    prepared = prepare(run, dataset)
    with run.stage("train") as stage:
        result = launch(run, dataset, prepared, run.id)
        stage.parts.update(result.timeline)
    best = Fit(result.best.folder / "model.safetensors", result.best_metrics(), result.golden_answers(), result.history)
    with run.stage("register"):
        return register(run, dataset, prepared, best)


def launch(run: Run, dataset: DatasetVersion, prepared: Prepared, training_run: str) -> Result:
    """Trains, and says each epoch when it is over; a training that does not end well is recorded in MLflow as such.

    Args:
        training_run: id of the run whose folder has the checkpoints.
    """
    settings = prepared.pipeline.train
    say(f"  {settings.workers} workers by {settings.launcher}, {prepared.splits['train'].rows:,} rows an epoch")
    folder = folder_of(prepared.pipeline, training_run)
    try:
        with _epochs_said(folder, evaluation.selection(prepared.pipeline.evaluate, len(prepared.state.classes))[0]):
            return launchers.find(settings.launcher).launch(prepared.pipeline, prepared.state, prepared.splits, training_run)
    except TrainingError as error:
        outcome = "diverged" if isinstance(error, DivergedError) else "failed"
        tracking.record_failure(prepared.pipeline, run.id, dataset.manifest.id, _history(folder), outcome, str(error))
        raise


def _history(folder: Path) -> list[dict[str, float]]:
    """The epochs that a run has behind it."""
    last = checkpoints.last(folder)
    return last.progress()["history"] if last else []


@contextmanager
def _epochs_said(folder: Path, metric: str) -> Iterator[None]:
    """Says each epoch when its checkpoint appears, whichever process trains."""
    ended = Event()
    with os.fdopen(os.dup(1), "w") as screen:  # Spark's launcher sends stdout to a file meanwhile
        thread = Thread(target=_say_epochs, args=(folder, metric, ended, screen), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _say_epochs(folder: Path, metric: str, ended: Event, screen: TextIO) -> None:
    said = 0
    while said >= 0:
        last_look = ended.wait(WATCH_SECONDS)
        history: list[dict] = []
        with suppress(OSError):  # an old checkpoint goes when a new one comes
            history = _history(folder)
        for epoch in history[said:]:
            figures = f"loss {epoch['loss']:.4f}, validation {metric} {epoch[f'validation_{metric}']:.4f}"
            speed = f"{epoch['samples_per_s']:,.0f} rows/s, {epoch['seconds']:.1f} s"
            print(f"  epoch {epoch['epoch']:.0f}: {figures}, {speed}", file=screen, flush=True)
        said = -1 if last_look else max(said, len(history))


def register(run: Run, dataset: DatasetVersion, prepared: Prepared, fit: Fit) -> Trained:
    """Writes the bundle and registers it as @challenger."""
    pipeline = prepared.pipeline
    golden = [Golden(record=record, answer=answer) for record, answer in zip(prepared.records, fit.golden, strict=True)]
    about = BundleConfig(
        name=pipeline.name,
        seed=pipeline.seed,
        dataset=dataset.manifest.id,
        model=pipeline.model,
        features=pipeline.features,
    )
    made = bundle.write(run.folder / "bundle", about, prepared.state, fit.weights, fit.metrics, golden)
    version = tracking.record_training(pipeline, run.id, dataset.manifest.id, fit.history, made)
    summarize_registry(run, version, tracking.CHALLENGER)
    return Trained(version, made, prepared.splits["train"])


def answers(prepared: Prepared, weights: Path, rows: Arrays, metrics: dict[str, float]) -> np.ndarray:
    """Calibrated probabilities of rows, as the bundle of these weights would give them.

    Args:
        weights: a safetensors file.
        metrics: of the epoch that chose the temperature.
    """
    network = models.build(prepared.pipeline.model, prepared.state)
    network.load_state_dict(load_file(weights))
    logits = training.predict(network, feeding.Streamed(rows, "cpu"), training.EVALUATION_ROWS).numpy()
    return evaluation.probabilities(logits, metrics["validation_temperature"])


def scores(prepared: Prepared, weights: Path, rows: Arrays, metrics: dict[str, float]) -> dict[str, float]:
    """Metrics of those answers, at the threshold of that epoch."""
    given = answers(prepared, weights, rows, metrics)
    return evaluation.score(rows["label"], given, metrics.get("validation_threshold", 0.5))


def _refuse_leaks(pipeline: config.Pipeline, state: FeatureState, encoded: Encoded) -> None:
    sample = encoded.sample(LEAK_ROWS)
    names = state.number_names() + state.category_names()
    columns = [*sample["numbers"].T, *sample["categories"].T]
    evaluation.refuse_leaks(names, columns, sample["label"], pipeline.features.leak_auc)


def summarize_registry(run: Run, version: ModelVersion, alias: str) -> None:
    """Says in the run's summary which version has which alias."""
    run.summary["registry"] = {"model": version.name, "version": version.version, "alias": alias}


def load(run: Run, wanted: str) -> Trained:
    """A registered model by alias ('@challenger') or version ('3'), with its bundle on this machine."""
    version = tracking.resolve(run.pipeline, wanted)
    return Trained(version, bundle.load(tracking.download(run.pipeline, version, run.folder)))
