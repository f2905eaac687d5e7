"""Stage `evaluate`: how good a model is on the test split, and whether it becomes `@champion`.

runs/<id>/evaluation.json   everything that was measured
runs/<id>/slices.csv        each slice of evaluate.slices, worst first
runs/<id>/mistakes.csv      the test rows whose true class was given the least probability
"""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rayloom import bundle, cluster, datasets, evaluation, features, tracking
from rayloom.datasets import DatasetVersion
from rayloom.errors import RayloomError
from rayloom.evaluation import Answers, Report, Rival
from rayloom.features import ImageState, TextState
from rayloom.runs import Run, say
from rayloom.stages.model import Trained, summarize_registry

MISTAKES = 20
LONGEST_CELL = 200
"""Characters of a value in mistakes.csv."""


def evaluate(run: Run, dataset: DatasetVersion, trained: Trained, dry_run: bool = False) -> np.ndarray:
    """Scores every test row, beside a baseline, by slices and against the champion; moves @champion if the gate agrees.

    Args:
        dry_run: measure and print, but record nothing in MLflow and move no alias.

    Returns:
        Probabilities float32 (n,) of the second of two classes, or (n, classes), of the test rows in the split's order.

    Raises:
        ConfigError: evaluate names a metric that so many classes do not have, or a column that is not there.
        GateError: the model is not good enough; @champion stays.
    """
    pipeline, state = run.pipeline, trained.bundle.state
    with run.stage("evaluate") as stage:
        cluster.require({"CPU": 1.0}, "evaluate", "join another cluster", pipeline.cluster)
        evaluation.check(pipeline.evaluate, len(state.classes), datasets.schema_of(dataset.folder))
        with stage.part("predict"):
            answers = _answers(trained.bundle, dataset)
        with stage.part("baseline"):
            baseline = _baseline(run, dataset, trained, answers) if pipeline.evaluate.baseline else {}
        with stage.part("compare"):
            report = _report(run, dataset, trained, answers, baseline)
        files = _write(run.folder, report, answers, dataset)
        for line in report.lines():
            say(line)
        run.summary["test"] = report.shown()
        if not dry_run:
            with stage.part("record"):
                from rayloom import plots  # Matplotlib is slow to import, and after it a baseline's threads would not sleep

                drawn = plots.draw(answers, state.classes, report.model, run.folder)
                tracking.record_evaluation(pipeline, trained.version, {**report.test, **report.shown()}, drawn, files)
        evaluation.require(report.outcomes)
        run.summary["gate"] = "passed"
        if not dry_run:
            tracking.promote(pipeline, trained.version)
            summarize_registry(run, trained.version, tracking.CHAMPION)
        return answers.probabilities


def _answers(model: bundle.Bundle, dataset: DatasetVersion) -> Answers:
    """The model's answers for the test rows.

    Raises:
        DataError: they are all of one class, or are not as the model needs them.
    """
    labels, probabilities = datasets.predict(model.folder, dataset.split("test"))
    evaluation.require_several_classes(labels, "test")
    return Answers(labels, probabilities, model.metrics.get("validation_threshold", 0.5))


def _report(run: Run, dataset: DatasetVersion, trained: Trained, answers: Answers, baseline: dict[str, float]) -> Report:
    settings, seed, classes = run.pipeline.evaluate, run.pipeline.seed, trained.bundle.state.classes
    metric, _ = evaluation.selection(settings, len(classes))
    temperature = trained.bundle.metrics.get("validation_temperature", 1.0)
    test = {**evaluation.score(answers.labels, answers.probabilities, answers.threshold), "temperature": temperature}
    by_slice = [one.metric for one in settings.gate if one.slices] or [metric]
    slices = {}
    if settings.slices:
        rows = _read(dataset, "test", settings.slices)
        for name in dict.fromkeys(by_slice):
            slices[name] = evaluation.slice_rows(rows, settings.slices, answers, name, settings.slice_rows, seed)
    against = dict.fromkeys([metric, *(one.metric for one in settings.gate if one.not_worse_than)])
    rival = _rival(run, dataset, trained, answers, list(against))
    return Report(
        model=str(trained.version),
        metric=metric,
        classes=list(classes),
        test=test,
        per_class=evaluation.score_classes(answers),
        confusion=evaluation.confusion(answers),
        baseline=baseline,
        slices=slices,
        rival=rival,
        outcomes=evaluation.judge_gate(settings.gate, test, slices, rival),
    )


def _rival(run: Run, dataset: DatasetVersion, trained: Trained, answers: Answers, metrics: list[str]) -> Rival:
    """The champion's answers for the same rows, by its own predictor, held against these."""
    champion = tracking.champion(run.pipeline)
    if champion is None or champion.version == trained.version.version:
        return Rival()
    try:
        loaded = bundle.load(tracking.download(run.pipeline, champion, run.folder / "champion"))
        if reason := _other_task(loaded.state, trained.bundle.state):
            return Rival(str(champion), reason=reason)
        theirs = _answers(loaded, dataset)
    except RayloomError as error:
        return Rival(str(champion), reason=str(error))
    return Rival(str(champion), {name: evaluation.compare(name, answers, theirs, run.pipeline.seed) for name in metrics})


def _other_task(champion: features.FeatureState, model: features.FeatureState) -> str:
    """Why two models' answers cannot be held against each other; empty where they can."""
    if champion.label != model.label:
        return f"its label is '{champion.label}', this model's is '{model.label}'"
    if list(champion.classes) != list(model.classes):
        return f"its classes are {list(champion.classes)!s:.100}, this model's are {list(model.classes)!s:.100}"
    return ""


def _baseline(run: Run, dataset: DatasetVersion, trained: Trained, answers: Answers) -> dict[str, float]:
    """Metrics of a plain model on the same rows: those that need no threshold, which was not chosen for it."""
    metric, _ = evaluation.selection(run.pipeline.evaluate, answers.classes)
    found = evaluation.score(answers.labels, _plain_answers(run, dataset, trained))
    names = ["auc"] if answers.classes == 2 else ["accuracy", "f1_macro"]
    has_threshold = answers.classes == 2 and metric in ("accuracy", "f1", "precision", "recall")
    return {name: found[name] for name in dict.fromkeys(names if has_threshold else [*names, metric])}


def _plain_answers(run: Run, dataset: DatasetVersion, trained: Trained) -> np.ndarray:
    state = trained.bundle.state
    texts = [name for name, column in state.columns.items() if isinstance(column, TextState)]
    if texts:
        train, test = (_read(dataset, split, columns) for split, columns in (("train", [*texts, state.label]), ("test", texts)))
        return evaluation.words(_joined(train, texts), features.labels(state, train), _joined(test, texts))
    encoded = trained.inputs or dataset.encode(state, "train")
    tested = dataset.encode(state, "test")
    inputs = encoded.read(0, encoded.rows), tested.read(0, tested.rows)
    if any(isinstance(column, ImageState) for column in state.columns.values()):
        return evaluation.pixels(*inputs)
    return evaluation.boosted_trees(*inputs, run.pipeline.seed)


def _joined(rows: pa.Table, columns: list[str]) -> list[str]:
    return [" ".join(text or "" for text in row.values()) for row in rows.select(columns).to_pylist()]


def _read(dataset: DatasetVersion, split: str, columns: list[str]) -> pa.Table:
    """These columns of a split's rows, in its order."""
    return pa.concat_tables([pq.read_table(file, columns=columns) for file in datasets.files(dataset.folder, split)])


def _records(dataset: DatasetVersion, places: np.ndarray) -> dict[int, dict[str, Any]]:
    """Whole test rows by their places; one file's rows are in memory at a time."""
    records: dict[int, dict[str, Any]] = {}
    start = 0
    for file in datasets.files(dataset.folder, "test"):
        end = start + pq.read_metadata(file).num_rows
        inside = places[(start <= places) & (places < end)]
        if len(inside):
            records |= dict(zip(inside.tolist(), pq.read_table(file).take(inside - start).to_pylist(), strict=True))
        start = end
    return records


def _write(folder: Path, report: Report, answers: Answers, dataset: DatasetVersion) -> list[Path]:
    """Writes the run folder's files about the evaluation; returns their paths."""
    measured = folder / "evaluation.json"
    measured.write_text(json.dumps(report.to_json(), indent=2))
    slices = [dataclasses.asdict(one) for found in report.slices.values() for one in found]
    tables = {"slices.csv": slices, "mistakes.csv": _mistakes(answers, report.classes, dataset)}
    return [measured, *(_write_csv(folder / name, rows) for name, rows in tables.items() if rows)]


def _mistakes(answers: Answers, classes: list, dataset: DatasetVersion) -> list[dict[str, Any]]:
    """The worst answers with their records, a row each."""
    places = evaluation.worst(answers, MISTAKES)
    records, given = _records(dataset, places), answers.matrix
    return [
        {
            "row": place,
            "label": classes[answers.truth[place]],
            "answer": classes[answers.decided[place]],
            "probability": round(float(given[place, answers.decided[place]]), 6),
            "probability_of_label": round(float(given[place, answers.truth[place]]), 6),
            **{f"record.{name}": _cell(value) for name, value in records[place].items()},
        }
        for place in places.tolist()
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    return value[:LONGEST_CELL] if isinstance(value, str) else value


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
