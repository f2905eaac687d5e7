"""Stages `tune` and `retrain`: from a dataset version to the best of many settings, and to a registered model of them.

runs/<sweep>/report.html, report.md   what the sweep found
runs/<sweep>/best.yaml                the best settings, an overlay for --config
runs/<sweep>/study.journal            what it goes on from, with the trials' checkpoints
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

import pyarrow as pa
import yaml

from rayloom import config, evaluation, models, tracking, training
from rayloom.datasets import DatasetVersion, Encoded
from rayloom.errors import ConfigError, TrainingError
from rayloom.runs import Run, say
from rayloom.stages.model import Fit, Prepared, Trained, answers, launch, prepare, register, scores
from rayloom.tuning import records, report, space, stopping, study, sweep, trial
from rayloom.tuning.recording import Recording
from rayloom.tuning.sweep import Listener
from rayloom.tuning.table import Table


@dataclass(frozen=True)
class Found:
    """A sweep's best settings.

    Attributes:
        pipeline: with the best trial's values; the model section is not resolved.
        prepared: the rows.
        best: the trial.
    """

    pipeline: config.Pipeline
    prepared: Prepared
    best: records.Trial


def check_sweep(run: Run) -> None:
    """Refuses, within seconds, a sweep that the cluster has no room for or whose settings no trial could have.

    Raises:
        ConfigError: the tune section does not fit the rest of the file.
        ResourceError: there is no room for a trial.
    """
    if not run.pipeline.tune.space:
        raise ConfigError("tune.space is empty; name keys to search, as in train.lr: {loguniform: [1e-4, 1e-1]}.")
    space.check(run.pipeline)
    sweep.require_searchable(run.pipeline)
    sweep.require_room(trial.of_trial(run.pipeline))


def tune(run: Run, dataset: DatasetVersion, resume: str | None = None) -> Found:
    """Sweeps, writes the report, and gives the best settings.

    Args:
        resume: id of a run whose sweep was interrupted; its trials are kept, and those that were running go on.

    Raises:
        ConfigError, ResourceError: as `check_sweep`, or the sweep to resume is not there or is of other rows or settings.
        TrainingError: no trial ended well, or more than `tune.max_failed` of them failed.
    """
    check_sweep(run)
    folder = _folder(run, resume)
    prepared = prepare(run, dataset)
    with run.stage("tune") as stage, sweep.held(folder):
        swept = sweep_rows(run.pipeline, dataset.manifest.id, prepared, folder)
        stage.parts["trials"] = round(sum(one.seconds for one in swept.trials), 1)
        _report(run, swept, folder)
    _require_enough(swept, run.pipeline.tune.max_failed)
    best = swept.best
    assert best is not None
    return Found(space.apply(run.pipeline, best.params), prepared, best)


def _folder(run: Run, resume: str | None) -> Path:
    if resume is None:
        return run.folder
    runs = run.pipeline.storage.path() / "runs"
    known = sorted(file.parent.name for file in runs.glob("*/.sweep.lock") if not file.parent.is_symlink())
    if resume == "latest" and known:
        resume = known[-1]
    if resume not in known:
        there = f"there are {', '.join(known[-5:])}" if known else "there is none"
        raise ConfigError(f"--resume {resume:.80}: no such sweep in {runs}: {there}; name one of them, or leave --resume out.")
    return runs / resume


def sweep_rows(
    pipeline: config.Pipeline, dataset: str, prepared: Prepared, folder: Path, also: Sequence[Listener] = ()
) -> records.Sweep:
    """Sweeps over prepared rows, shown on the terminal and recorded in MLflow; goes on where the folder has such a sweep.

    Args:
        dataset: id of the rows' dataset version.
        folder: the sweep's; its name is the sweep's id.
        also: hear of each trial as well.
    """
    own = trial.of_trial(pipeline)
    metric, sign = _judged_by(pipeline, prepared)
    slots, arithmetic = sweep.require_room(own)
    say(f"  {arithmetic}")
    about = {"dataset": dataset, "seed, features, model or train section": _fingerprint(own)}
    memory = study.open_study(own, folder, folder.name, about, metric, sign)
    try:
        if memory.trials():
            say(f"  goes on: {len(memory.trials())} trials were given out, {memory.adopt()} of them were running")
        decisive = stopping.decisive(own.tune)
        job = trial.Job(own, prepared.state, sweep.consolidated(prepared.splits), folder, metric, decisive)
        tags = {tracking.DATASET_TAG: dataset, tracking.OUTCOME_TAG: "sweep"}
        with _resumable(folder), Recording(pipeline, folder.name, tags) as recording:
            with Table(metric, own.tune.trials, sign=sign) as table:
                for known in memory.trials():
                    if known.state != "running":
                        table.recall(known)
                wall = sweep.run(job, memory, slots, [table, recording, *also])
            swept = records.Sweep(
                title=pipeline.name,
                setting={"dataset": dataset, "model": pipeline.model.family, "epochs": own.train.epochs},
                metric=metric,
                sign=sign,
                trials=memory.trials(),
                rungs=stopping.rungs(own.tune, own.train.epochs),
                importance=memory.importance(),
                wall_s=wall,
                slots=slots,
            )
            recording.finish(swept)
        return swept
    finally:
        memory.close()


def _fingerprint(pipeline: config.Pipeline) -> str:
    """Tells pipelines apart whose trials of the same settings would not be equal."""
    text = pipeline.model_dump_json(include={"seed", "features", "model", "train"})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _judged_by(pipeline: config.Pipeline, prepared: Prepared) -> tuple[str, int]:
    """The metric of validation that judges trials, and 1 where a higher one is better."""
    chosen = config.Evaluate(metric=pipeline.tune.metric or pipeline.evaluate.metric)
    evaluation.check(chosen, len(prepared.state.classes), pa.schema([]))
    metric, sign = evaluation.selection(chosen, len(prepared.state.classes))
    return metric, {"max": 1, "min": -1, None: sign}[pipeline.tune.mode]


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Says how an interrupted sweep goes on."""
    try:
        yield
    except BaseException:
        say(f"  the sweep stopped; it goes on with: python -m jobs.tune --resume {folder.name} and the same config")
        raise


def _report(run: Run, swept: records.Sweep, folder: Path) -> None:
    keys = run.pipeline.tune.space
    best = swept.best
    overlay = _overlay(best.params) if best else ""
    written = {"report.html": report.html(swept, keys, overlay), "report.md": report.markdown(swept, keys, overlay)}
    for name, text in {**written, **({"best.yaml": overlay} if best else {})}.items():
        staged = folder / f".{name}.{os.getpid()}"
        staged.write_text(text)
        staged.rename(folder / name)
    for line in report.findings(swept, keys):
        say(f"  {line}")
    run.summary["sweep"] = {
        "trials": len(swept.trials),
        "distinct": f"{swept.distinct} distinct of {len(swept.trials)}",
        "complete": swept.count("complete"),
        "stopped": swept.count("stopped"),
        "failed": swept.count("failed"),
        **({f"best {swept.metric}": best.value, "best trial": best.number} if best else {}),
    }
    run.summary["report"] = str(folder / "report.html")


def _overlay(params: dict) -> str:
    """Dotted keys as the YAML of an overlay.

    >>> print(_overlay({"train.lr": 0.01, "model.hidden": [64]}), end="")
    train: {lr: 0.01}
    model:
      hidden: [64]
    """
    data: dict = {}
    for key, value in params.items():
        place = data
        *parents, last = key.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return yaml.safe_dump(data, sort_keys=False, default_flow_style=None)


def _require_enough(swept: records.Sweep, most: float) -> None:
    failed = [one for one in swept.trials if one.state == "failed"]
    if swept.best is not None and len(failed) <= most * len(swept.trials):
        return
    first = f" The first: {failed[0].reason}" if failed else ""
    raise TrainingError(
        f"{len(failed)} of {len(swept.trials)} trials of the sweep failed, of which tune.max_failed allows {most:.0%}.{first}"
        if swept.best
        else f"No trial of the sweep ended well.{first or ' None began: raise tune.time_budget_s or tune.cost_budget.'}"
    )


def retrain(run: Run, dataset: DatasetVersion, found: Found) -> Trained:
    """Trains the best settings on training and validation rows together, once a seed, and registers the first seed's model.

    It trains as many epochs as the best trial needed. Temperature, threshold and validation metrics are the trial's own: of
    rows that its weights had not seen. Test metrics by seed say how much of a difference is chance.

    Raises:
        TrainingError: a training did not end well.
    """
    prepared = _with_validation(run, found)
    with run.stage("retrain") as stage:
        say("  validation rows are trained on as well: what it says of them below is no measure")
        fits = {}
        for seed in range(run.pipeline.seed, run.pipeline.seed + run.pipeline.tune.seeds):
            with stage.part(f"seed {seed}"):
                fits[seed] = _fit(run, dataset, prepared, found.best, seed)
        _say_spread(run, dataset, prepared, fits)
    with run.stage("register"):
        return register(run, dataset, prepared, fits[run.pipeline.seed])


def _with_validation(run: Run, found: Found) -> Prepared:
    """The rows and settings to train once more with."""
    given, splits = found.prepared, found.prepared.splits
    both = Encoded(splits["train"].blocks + splits["validation"].blocks, splits["train"].sizes + splits["validation"].sizes)
    own = trial.of_trial(found.pipeline) if run.pipeline.tune.workers_per_trial == 1 else found.pipeline
    settings = own.train.model_copy(update={"epochs": found.best.best_epoch, "patience": None})
    pipeline = own.model_copy(update={"train": settings, "model": models.resolve(own.model, given.state)})
    return replace(given, pipeline=pipeline, splits={"train": both, "validation": splits["validation"]})


def _fit(run: Run, dataset: DatasetVersion, prepared: Prepared, best: records.Trial, seed: int) -> Fit:
    seeded = replace(prepared, pipeline=prepared.pipeline.model_copy(update={"seed": seed}))
    training_run = run.id if seed == run.pipeline.seed else f"{run.id}-seed-{seed}"
    result = launch(run, dataset, seeded, training_run)
    rows = prepared.splits["validation"].read(0, min(training.GOLDEN_ROWS, prepared.splits["validation"].rows))
    weights = result.last.folder / "model.safetensors"
    return Fit(weights, best.metrics, answers(prepared, weights, rows, best.metrics).tolist(), result.history)


def _say_spread(run: Run, dataset: DatasetVersion, prepared: Prepared, fits: dict[int, Fit]) -> None:
    """The test metric by seed: what another seed changes is no merit of the settings. It chooses nothing."""
    test = dataset.encode(prepared.state, "test")
    rows = test.read(0, test.rows)
    metric, _ = evaluation.selection(run.pipeline.evaluate, len(prepared.state.classes))
    found = []
    for seed, fit in fits.items():
        found.append(scores(prepared, fit.weights, rows, fit.metrics)[metric])
        say(f"  seed {seed}: test {metric} {found[-1]:.4f}")
    spread = stdev(found) if len(found) > 1 else 0.0
    run.summary["seeds"] = {f"test {metric}": mean(found), "standard deviation": spread, "seeds": len(found)}
