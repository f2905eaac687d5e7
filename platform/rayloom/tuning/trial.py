"""A trial as Ray Tune runs it: an actor that trains one run after the other, some epochs a step, and stays warm in between.

With one worker the loop runs in the actor; with more, in a gang that the actor keeps. Either way the rows come from the object
store, once.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune import PlacementGroupFactory

from rayloom import checkpoints, config, models
from rayloom.errors import DivergedError, RayloomError
from rayloom.features import FeatureState
from rayloom.launchers import room, session
from rayloom.launchers.gang import Gang, Solo, Splits
from rayloom.training import Epoch
from rayloom.tuning import space

TOGETHER_S = 1.0
"""Seconds of epochs that are told of together, where nothing is decided between them: each telling keeps the trial waiting for
Tune, the study and the table, as long as a small model trains a tenth of an epoch."""


@dataclass(frozen=True)
class Job:
    """What all trials of a sweep have in common.

    Attributes:
        pipeline: the pipeline file; its train section says how a trial runs (`of_trial`), its model section is not resolved.
        splits: "train" and "validation", a block each.
        folder: the sweep's; a trial's checkpoints lie in <folder>/trials/<number>/checkpoints.
        metric: of validation, what a trial is judged by.
        decisive: epochs, counted from 1, after which the scheduler may stop or change a trial; None: after each.
    """

    pipeline: config.Pipeline
    state: FeatureState
    splits: Splits
    folder: Path
    metric: str
    decisive: frozenset[int] | None = None


def of_trial(pipeline: config.Pipeline) -> config.Pipeline:
    """The pipeline with a train section for trials: as many workers as one has, the launcher that gives the same, and no
    checkpoint of each short epoch, since a trial is only gone on with after a crash; population based training copies them."""
    workers = pipeline.tune.workers_per_trial
    apart = 0.0 if pipeline.tune.scheduler == "pbt" else TOGETHER_S
    settings = pipeline.train.model_copy(
        update={
            "launcher": "inline" if workers == 1 else "ray",
            "workers": workers,
            "min_workers": None,
            "local_mode": False,
            "checkpoint": pipeline.train.checkpoint.model_copy(update={"epoch_seconds": apart}),
        }
    )
    return pipeline.model_copy(update={"train": settings})


def per_worker(pipeline: config.Pipeline) -> dict[str, float]:
    """Ray resources of a trial's worker."""
    return room.per_worker(pipeline.train, pipeline.tune.gpu_share)


def resources(pipeline: config.Pipeline) -> PlacementGroupFactory:
    """What a trial asks for: a bundle for each worker; the actor that keeps a gang has none, since it only waits."""
    one, workers = per_worker(pipeline), pipeline.tune.workers_per_trial
    return PlacementGroupFactory([one] if workers == 1 else [{}, *[one] * workers], strategy="PACK")


def folder_of(sweep: Path, number: int) -> Path:
    """Where a trial's checkpoints lie."""
    return sweep / "trials" / f"{number:05d}" / "checkpoints"


def together(run: Iterator[Epoch], decisive: frozenset[int] | None) -> Iterator[Epoch]:
    """The epochs that are told of together: up to the next decisive one, the last one, or for TOGETHER_S; see `Job`."""
    began = time.perf_counter()
    for epoch in run:
        yield epoch
        is_decisive = decisive is None or int(epoch.metrics["epoch"]) + 1 in decisive
        if epoch.is_last or is_decisive or time.perf_counter() - began > TOGETHER_S:
            return


class Training(tune.Trainable):
    """Trains the settings that Tune gives it: {"number", "params"}.

    A step gives {"number", "epochs": [metrics of each epoch since the last step], "epoch" (the last one, from 1), "value",
    "params", "seconds", "done"}. Settings that fail, such as those that diverge, cost no new process: "failed" says why then,
    and "done" is true.
    """

    def setup(self, config: dict[str, Any], job: Job) -> None:  # type: ignore[override]  # tune.with_parameters adds the job
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))  # a relative path in the pipeline file means what it says
        self.job, self.team = job, self._team(job)
        self._take_on(config)

    def _team(self, job: Job) -> Solo | Gang:
        settings = job.pipeline.train
        if settings.workers == 1:
            session.lead()
            return Solo(job.splits, settings.gpu)
        return Gang(ray.util.get_current_placement_group(), per_worker(job.pipeline), settings, job.splits)

    def _take_on(self, config: dict[str, Any]) -> None:
        self.number, self.params = config["number"], config["params"]
        self.folder = folder_of(self.job.folder, self.number)
        self.run: Iterator[Epoch] | None = None
        self.is_told = False
        self.began = time.perf_counter()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next trial's settings, in the same process."""
        self._leave()
        self._take_on(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Epochs, up to the next decisive one or for TOGETHER_S."""
        epochs: list[Epoch] = []
        try:
            if self.run is None:
                self.run = self._start()
            for epoch in together(self.run, self.job.decisive):
                epochs.append(epoch)
            failed = "" if epochs else "it ended without an epoch"
        except DivergedError as error:
            failed = f"diverged: {error}"
        except RayloomError as error:
            failed = str(error)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        return self._result(epochs, failed)

    def _start(self) -> Iterator[Epoch]:
        """The trial's epochs: first those that a sweep before this one has left, then new ones."""
        pipeline = space.apply(self.job.pipeline, self.params)
        pipeline = pipeline.model_copy(update={"model": models.resolve(pipeline.model, self.job.state)})
        past = checkpoints.last(self.folder)
        history = past.progress()["history"] if past else []
        is_over = len(history) >= pipeline.train.epochs
        for metrics in [] if self.is_told else history:
            yield Epoch(metrics, is_over and metrics is history[-1])
        if not is_over:
            yield from self.team.epochs(pipeline, self.job.state, self.folder)

    def _result(self, epochs: list[Epoch], failed: str) -> dict[str, Any]:
        result = {
            "number": self.number,
            "epochs": json.dumps([epoch.metrics for epoch in epochs]),  # Tune takes apart what is no text, and averages it
            "params": json.dumps(self.params),
            "seconds": time.perf_counter() - self.began,
            "done": bool(failed) or epochs[-1].is_last,
        }
        if failed:
            self.run = None
            return {**result, "failed": failed[:1000]}
        last = epochs[-1].metrics
        return {**result, "epoch": int(last["epoch"]) + 1, "value": last[f"validation_{self.job.metric}"]}

    def _leave(self) -> None:
        """Ends the run where it is; its checkpoints are on disk then, where they are still wanted."""
        run, self.run = self.run, None
        if run is not None:
            run.close()  # type: ignore[attr-defined]  # a generator

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Population based training copies a trial's last checkpoint into another's folder."""
        self._leave()
        if last := checkpoints.last(self.folder):
            shutil.copytree(last.folder, Path(checkpoint_dir) / last.folder.name)

    def load_checkpoint(self, checkpoint: str) -> None:  # type: ignore[override]  # a folder, since `save_checkpoint` wrote one
        self._leave()
        self.is_told = True
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(checkpoint, self.folder)

    def cleanup(self) -> None:
        """Ends the gang."""
        self._leave()
        self.team.close()
