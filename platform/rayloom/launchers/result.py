"""What every launcher returns."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """A finished training run.

    Attributes:
        history: each epoch's metrics, once and in order.
        best: checkpoint folder of the epoch with the highest validation AUC.
    """

    history: list[dict[str, float]]
    best: Path

    def best_metrics(self) -> dict[str, float]:
        """The chosen epoch's metrics."""
        return self._progress()["history"][-1]

    def golden_answers(self) -> list[float]:
        """The chosen epoch's probabilities of the first validation rows."""
        return self._progress()["golden"]

    def _progress(self) -> dict:
        return json.loads((self.best / "progress.json").read_text())
