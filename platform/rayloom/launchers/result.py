"""What every launcher returns."""

from dataclasses import dataclass
from pathlib import Path

from rayloom import checkpoints, config, evaluation
from rayloom.checkpoints import Checkpoint
from rayloom.errors import TrainingError


@dataclass(frozen=True)
class Result:
    """A finished training run.

    Attributes:
        history: each epoch's metrics, once and in order.
        best: checkpoint of the epoch that `evaluation.selection` prefers.
        last: checkpoint of the last epoch.
        timeline: seconds from the launch to the first step, by what was reached; the last of them is "first step".
    """

    history: list[dict[str, float]]
    best: Checkpoint
    last: Checkpoint
    timeline: dict[str, float]

    def best_metrics(self) -> dict[str, float]:
        """The chosen epoch's metrics."""
        return self.best.progress()["history"][-1]

    def golden_answers(self) -> list:
        """The chosen epoch's answers for the first validation rows."""
        return self.best.progress()["golden"]


def folder_of(pipeline: config.Pipeline, run: str) -> Path:
    """Where a run's checkpoints lie: on storage that all nodes share."""
    return pipeline.storage.path() / "runs" / run / "checkpoints"


def collect(pipeline: config.Pipeline, classes: int, run: str, launched: float) -> Result:
    """The result of a run that has ended well.

    Args:
        classes: number of the label's.
        launched: time.time() when the launcher was called.

    Raises:
        TrainingError: it left no whole epoch.
    """
    folder = folder_of(pipeline, run)
    metric, sign = evaluation.selection(pipeline.evaluate, classes)
    last, best = checkpoints.last(folder), checkpoints.best(folder, f"validation_{metric}", sign)
    if last is None or best is None:
        raise TrainingError(f"Training ended without a checkpoint of a whole epoch in {folder}; see the workers' logs.")
    progress = last.progress()
    timeline = {name: round(reached - launched, 2) for name, reached in progress["timeline"].items()}
    return Result(progress["history"], best, last, timeline)
