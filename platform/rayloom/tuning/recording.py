"""A sweep in MLflow: a parent run, and below it a run a trial with its params and its curve, by the one writer of them all."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from rayloom import config, tracking
from rayloom.recorder import Recorder
from rayloom.tuning import records

STATUS: dict[records.State, str] = {"complete": "FINISHED", "stopped": "FINISHED", "repeat": "FINISHED", "failed": "FAILED"}
"""MLflow's word for how a trial ended; how exactly is in the tag `rayloom.outcome`."""
SETTINGS = ("trials", "sampler", "scheduler", "grace", "reduction", "workers_per_trial")
"""Of the tune section, for the parent's params."""


WAIT_SECONDS = 10.0
"""How long a point may wait for others of its trial: a writing costs as much CPU as 20 steps of a small model."""


class Recording:
    """Writes what a sweep's trials do, in a thread of its own: the sweep does not wait for MLflow.

    The trials' results all come to the sweep's driver, so it is their one writer; where many processes write for themselves,
    `rayloom.recorder.start` makes an actor of it.

    Args:
        sweep: the sweep's id, the parent's name; a sweep that goes on finds its runs again.
        tags: of the parent.
    """

    def __init__(self, pipeline: config.Pipeline, sweep: str, tags: dict[str, Any]):
        self.sweep, self.recorder = sweep, Recorder(pipeline, WAIT_SECONDS)
        self.thread = ThreadPoolExecutor(1, "rayloom-recording")
        searched = {f"tune.space.{key}": str(getattr(one, one.kind)) for key, one in pipeline.tune.space.items()}
        settings = pipeline.tune.model_dump(include=set(SETTINGS))
        params = {f"tune.{key}": value for key, value in settings.items()} | searched
        self.errors: list[Exception] = []
        self.parent = self._later(self.recorder.open, sweep, None, params, tags)
        self.runs: dict[int, Future] = {}

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Waits until all is written; raises RegistryError where a part was not, unless another error is on its way."""
        if kind is not None:
            self._later(lambda: self.recorder.close(self.parent.result(), "KILLED"))
        self._later(self.recorder.stop)
        self.thread.shutdown()
        if kind is None and self.errors:
            raise self.errors[0]

    def _later(self, call: Callable, *given: Any) -> Future:
        """Calls in the thread, one after the other; an error is kept for the end."""
        called = self.thread.submit(call, *given)
        called.add_done_callback(self._note)
        return called

    def _note(self, called: Future) -> None:
        error = called.exception()
        if isinstance(error, Exception):
            self.errors.append(error)

    def begin(self, number: int, params: dict[str, Any]) -> None:
        """A trial starts, or goes on."""
        name = f"{self.sweep}/trial-{number:05d}"
        tags = {"rayloom.trial": number}
        self.runs[number] = self._later(lambda: self.recorder.open(name, self.parent.result(), params, tags))

    def epoch(self, number: int, epoch: int, value: float, metrics: dict[str, float]) -> None:
        """A trial has trained an epoch, counted from 1."""
        now, run = int(time.time() * 1000), self.runs[number]
        points = [(name, figure, epoch, now) for name, figure in metrics.items() if name != "epoch"]
        self._later(lambda: self.recorder.log(run.result(), points))

    def end(self, ended: records.Trial) -> None:
        """A trial is over."""
        if ended.number not in self.runs:
            self.begin(ended.number, ended.params)
        run = self.runs.pop(ended.number)
        tags = {tracking.OUTCOME_TAG: ended.state, **({"mlflow.note.content": ended.reason} if ended.reason else {})}
        figures = {"best_value": ended.value, "best_epoch": ended.best_epoch, "trial_seconds": ended.seconds}
        now = int(time.time() * 1000)
        points = [(name, float(figure), 0, now) for name, figure in figures.items() if figure is not None]
        self._later(lambda: self.recorder.log(run.result(), points))
        self._later(lambda: self.recorder.close(run.result(), STATUS.get(ended.state, "KILLED"), tags))

    def finish(self, sweep: records.Sweep) -> None:
        """The sweep is over: the trials that were not trained again, and the parent's figures."""
        for trial in sweep.trials:
            if trial.state == "repeat":
                self.end(trial)
        best = {} if sweep.best is None or sweep.best.value is None else {"best_value": sweep.best.value}
        counts = {f"trials_{state}": float(sweep.count(state)) for state in STATUS}
        self._later(lambda: self.recorder.close(self.parent.result(), "FINISHED", {}, {**best, **counts}))

    def warn(self, text: str) -> None:
        """MLflow keeps no warnings."""
