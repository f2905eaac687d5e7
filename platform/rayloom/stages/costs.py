"""Stage `compare`: the same config, seed and rows under each launcher, beside peers, and a report on what each costs."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from rayloom import cluster, config, evaluation, launchers, tracking
from rayloom.costs import bare, parameter_server, report, slices
from rayloom.costs.table import Cost, Costs, beside_bare, of_launcher, over_rounds
from rayloom.datasets import DatasetVersion
from rayloom.errors import ConfigError, LeftoverError
from rayloom.runs import Run, say
from rayloom.stages.model import Prepared, prepare, scores

SERVER_STEPS, SERVER_SECONDS = 200, 60.0
"""The most steps and seconds of the parameter server: enough for a steady speed."""


def compare(
    run: Run, dataset: DatasetVersion, names: list[str], mllib: str = "gbt", rounds: int = 1, seconds: float = 300.0
) -> Costs:
    """Trains under each launcher and with each peer, writes report.html and report.md, and logs them to MLflow.

    Args:
        names: of launchers, in the order in which they run.
        rounds: how often launchers and the bare loop run whole.
        seconds: for which they then take turns of a second, where all workers are on this machine's CPUs, so that what the
            machine's own speed does is in no ratio (`rayloom.costs.slices`).
        mllib: 'gbt' or 'lr', the peer on Spark MLlib, which needs numbers or categories and two classes; 'none' for none.

    Raises:
        ConfigError: a launcher is not known, or cannot train as the train section says.
        DataError, LeakError: the rows do not fit the features section.
        LeftoverError: a launcher or peer left processes, actors or CPUs behind.
        RayloomError: as `launchers` says.
    """
    own = {name: _under(run.pipeline, name) for name in names}
    for name, pipeline in own.items():
        launchers.find(name).require_room(pipeline)
    prepared = prepare(run, dataset)
    task = replace(prepared, splits={**prepared.splits, "test": dataset.encode(prepared.state, "test")})
    ran = over_rounds([_round(run, task, own, number) for number in range(rounds)])
    ran = beside_bare(ran, _speeds(run, task, ran, seconds))
    metric, _ = evaluation.selection(run.pipeline.evaluate, len(task.state.classes))
    peers = {"bare": ran.pop("bare")} | {cost.name: cost for cost in _peers(run, task, mllib)}
    setting = _setting(run.pipeline, dataset) | {"rounds": rounds}
    costs = Costs(run.pipeline.name, setting, metric, ran, peers)
    with run.stage("report"):
        _report(run, dataset, costs)
    return costs


def _under(pipeline: config.Pipeline, name: str) -> config.Pipeline:
    """The pipeline with another launcher; what belongs to one launcher alone is left out, so that all do the same."""
    launchers.find(name)
    if name == "inline" and pipeline.train.workers > 1:
        raise ConfigError(
            f"--launchers: inline trains with one worker, and train.workers is {pipeline.train.workers}; leave inline out, or "
            f"set train.workers to 1."
        )
    local = pipeline.train.local_mode and name == "spark"
    settings = pipeline.train.model_copy(update={"launcher": name, "min_workers": None, "local_mode": local})
    return pipeline.model_copy(update={"train": settings})


def _round(run: Run, task: Prepared, own: dict[str, config.Pipeline], number: int) -> dict[str, Cost]:
    """Each launcher and the bare loop once. Each round begins with another of them, so that no place favours one."""
    names, suffix = [*own, "bare"], f" {number + 1}" if number else ""
    first = number % len(names)
    return {
        name: _launch(run, task, name, own[name].train, suffix) if name in own else _bare(run, task, suffix)
        for name in names[first:] + names[:first]
    }


def _launch(run: Run, task: Prepared, name: str, settings: config.Train, suffix: str) -> Cost:
    """Trains under a launcher, in a run of its own whose folder then goes into this run's.

    Args:
        suffix: what is added to the names of the stage and of the folder.
    """
    pipeline = task.pipeline.model_copy(update={"train": settings})
    place = f"{name}{suffix.replace(' ', '-')}"
    training_run = f"{run.id}-{place}"
    with run.stage(name + suffix) as stage, _nothing_left(run, f"launcher {name}"):
        splits = {split: task.splits[split] for split in ("train", "validation")}
        result = launchers.find(name).launch(pipeline, task.state, splits, training_run)
        stage.parts.update(result.timeline)
    metric, _ = evaluation.selection(pipeline.evaluate, len(task.state.classes))
    weights = hashlib.sha256((result.best.folder / "model.safetensors").read_bytes()).hexdigest()
    chosen, test = result.best_metrics(), task.splits["test"]
    auc = scores(task, result.best.folder / "model.safetensors", test.read(0, test.rows), chosen)["auc"]
    validation = chosen[f"validation_{metric}"]
    cost = of_launcher(name, result.history, result.timeline, validation, auc, weights)
    folder = run.folder.with_name(training_run)
    folder.rename(run.folder / place)
    say(f"  first step after {cost.first_step_s:.1f} s, then {cost.samples_per_s:,.0f} samples/s; test AUC {auc:.4f}")
    return cost


@contextmanager
def _nothing_left(run: Run, what: str) -> Iterator[None]:
    """Holds what ran in the block to giving everything back. On a cluster that others use, what is held may be theirs."""
    yield
    if run.local and (left := cluster.held_in_cluster()):
        raise LeftoverError(f"The {what} left behind: {'; '.join(left)}. Report this line.")


def _bare(run: Run, task: Prepared, suffix: str) -> Cost:
    train = task.splits["train"]
    with run.stage(f"bare{suffix}"), TemporaryDirectory(prefix=".bare-", dir=run.folder) as folder:
        cost = bare.measure(task.pipeline, task.state, train.read(0, train.rows), Path(folder))
        say(f"  {cost.samples_per_s:,.0f} samples/s")
        return cost


def _speeds(run: Run, task: Prepared, ran: dict[str, Cost], seconds: float) -> dict[str, list[float]]:
    """Samples a second by turn of the launchers that can take turns with the bare loop, and of that; empty where none can."""
    names = [name for name in ran if name in slices.LAUNCHERS]
    settings, bare_speed = task.pipeline.train, ran["bare"].samples_per_s
    if not names or not seconds or not run.local or settings.gpu or not bare_speed:
        return {}
    needed = (len(names) + 1) * settings.workers * max(ran[name].peak_mb or 0.0 for name in [*names, "bare"])
    if needed * 2**20 > psutil.virtual_memory().available:
        say(f"  speeds are of whole runs: all launchers at once would need {needed:,.0f} MB")
        return {}
    with (
        run.stage("speed"),
        _nothing_left(run, "launchers that took turns"),
        TemporaryDirectory(prefix=".speed-", dir=run.folder) as folder,
    ):
        splits = {name: task.splits[name] for name in ("train", "validation")}
        found = slices.measure(task.pipeline, task.state, splits, names, bare_speed, seconds, Path(folder))
        say(f"  {len(found['bare'])} turns of {', '.join(found)}")
        return found


def _peers(run: Run, task: Prepared, mllib: str) -> Iterator[Cost]:
    with run.stage("param server"), _nothing_left(run, "parameter server"):
        cost = parameter_server.measure(task.pipeline, task.state, task.splits["train"], SERVER_STEPS, SERVER_SECONDS)
        say(f"  {cost.samples_per_s:,.0f} samples/s")
        yield cost
    if mllib != "none" and len(task.state.classes) == 2 and task.pipeline.model.family == "tabular":
        with run.stage("mllib"), _nothing_left(run, "peer mllib"):
            yield _mllib(run, task, mllib)


def _mllib(run: Run, task: Prepared, kind: str) -> Cost:
    # Spark and RayDP take seconds to import: the launchers before this do without them.
    from rayloom.costs import mllib
    from rayloom.etl import session

    spark_only = task.pipeline.etl.model_copy(update={"handoff": "parquet"})
    pipeline = task.pipeline.model_copy(update={"etl": spark_only})
    splits = {name: task.splits[name].read(0, task.splits[name].rows) for name in ("train", "test")}
    log = run.folder / "spark-mllib.log"
    with (
        TemporaryDirectory(prefix=".mllib-", dir=run.folder) as folder,
        session.spark_session(pipeline, f"rayloom-mllib-{run.id}", log) as spark,
    ):
        cost = mllib.measure(spark, kind, splits, task.state.cardinalities(), pipeline.seed, Path(folder))
        say(f"  {cost.about}: test AUC {cost.auc:.4f} after {cost.seconds:.1f} s")
        return cost


def _setting(pipeline: config.Pipeline, dataset: DatasetVersion) -> dict[str, str | int]:
    settings = pipeline.train
    return {
        "dataset": dataset.manifest.id,
        "training rows": f"{dataset.manifest.splits['train'].rows:,}",
        "model": pipeline.model.family,
        "workers": settings.workers,
        "CPUs a worker": settings.cpus,
        "GPU": "one a worker" if settings.gpu else "none",
        "batch": settings.batch_size,
        "epochs": settings.epochs,
        "seed": pipeline.seed,
        "precision": settings.precision,
    }


def _report(run: Run, dataset: DatasetVersion, costs: Costs) -> None:
    written = {"report.html": report.html(costs), "report.md": report.markdown(costs)}
    for name, text in written.items():
        (run.folder / name).write_text(text)
    files = [run.folder / name for name in written]
    tracking.record_report(run.pipeline, run.id, dataset.manifest.id, report.figures(costs), files)
    run.summary |= {cost.name: report.short(cost) for cost in costs.rows()}
    run.summary["equal"] = {"weights": costs.equal_weights, "losses": costs.equal_losses}
    run.summary["report"] = str(files[0])
