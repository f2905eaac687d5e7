"""Stages `features`, `train` and `register`: from a dataset version to a registered model."""

from dataclasses import dataclass

from rayloom import bundle, config, datasets, evaluation, features, launchers, models, tracking, training
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.datasets import DatasetVersion
from rayloom.runs import Run, say
from rayloom.tracking import ModelVersion

LEAK_ROWS = 100_000
"""Training rows that the leak check looks at, evenly spaced."""


@dataclass(frozen=True)
class Trained:
    """A registered model, its bundle on this machine, and the training split as model inputs, for a baseline."""

    version: ModelVersion
    bundle: Bundle
    inputs: datasets.Encoded | None = None


def train(run: Run, dataset: DatasetVersion) -> Trained:
    """Fits features on the training split, trains, writes the bundle, and registers it as @challenger."""
    pipeline = run.pipeline
    launcher = launchers.find(pipeline.train.launcher)
    launcher.require_room(pipeline)
    with run.stage("features"):
        features.check_types(pipeline.features, datasets.schema_of(dataset.folder))
        state, warnings = datasets.fit_features(pipeline.features, dataset.split("train"))
        pipeline = pipeline.model_copy(update={"model": models.resolve(pipeline.model, state)})
        for warning in warnings:
            say(f"  warning: {warning}")
        splits = {name: dataset.encode(state, name) for name in ("train", "validation")}
        _refuse_leaks(pipeline, state, splits["train"])
        raw = datasets.first_rows(dataset.split("validation"), training.GOLDEN_ROWS, list(state.columns))
    with run.stage("train"):
        result = launcher.launch(pipeline, state, splits, run.id)
        for metrics in result.history:
            say("  epoch {epoch}: loss {loss:.4f}, validation AUC {validation_auc:.4f}, {seconds:.1f} s".format(**metrics))
    with run.stage("register"):
        golden = [
            Golden(record=record, probability=answer) for record, answer in zip(raw, result.golden_answers(), strict=True)
        ]
        about = BundleConfig(
            name=pipeline.name,
            seed=pipeline.seed,
            dataset=dataset.manifest.id,
            model=pipeline.model,
            features=pipeline.features,
        )
        weights = result.best.folder / "model.safetensors"
        made = bundle.write(run.folder / "bundle", about, state, weights, result.best_metrics(), golden)
        version = tracking.record_training(pipeline, run.id, dataset.manifest.id, result.history, made)
        summarize_registry(run, version, tracking.CHALLENGER)
        return Trained(version, made, splits["train"])


def _refuse_leaks(pipeline: config.Pipeline, state, encoded: datasets.Encoded) -> None:
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
