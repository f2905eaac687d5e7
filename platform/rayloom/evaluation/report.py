"""All that a test split tells about a model: as JSON for files, and as lines for a screen."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayloom.evaluation.gate import Outcome, Rival
from rayloom.evaluation.slices import Slice

SHOWN = {2: ("auc", "average_precision", "f1", "accuracy", "ece", "n")}
SHOWN_OF_MORE = ("accuracy", "f1_macro", "auc", "ece", "n")
"""Metrics that the summary shows, of two classes and of more."""

WORST = 3
"""Slices that the screen shows."""


@dataclass(frozen=True)
class Report:
    """What was measured on a model's test rows.

    Attributes:
        model: its name and version.
        metric: the one that models are compared by.
        classes: the label's.
        test: metrics, by name.
        per_class: precision, recall, f1 and n, in the classes' order.
        confusion: int64 (classes, classes), rows by class and decision.
        baseline: metrics of a plain model on the same rows.
        slices: by metric, worst first.
        rival: the champion on the same rows.
        outcomes: of the gate's conditions.
    """

    model: str
    metric: str
    classes: list
    test: dict[str, float]
    per_class: list[dict[str, float]]
    confusion: np.ndarray
    baseline: dict[str, float] = field(default_factory=dict)
    slices: dict[str, list[Slice]] = field(default_factory=dict)
    rival: Rival = field(default_factory=Rival)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(outcome.passed for outcome in self.outcomes)

    def shown(self) -> dict[str, float]:
        """The metrics for one line: the usual ones, the one that models are compared by, and the baseline's."""
        names = SHOWN.get(len(self.classes), SHOWN_OF_MORE)
        chosen = {name: self.test[name] for name in dict.fromkeys([*names, self.metric])}
        return chosen | {f"baseline_{name}": value for name, value in self.baseline.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain values; null where a metric is not defined."""
        return _plain(
            {
                "model": self.model,
                "metric": self.metric,
                "test": self.test,
                "classes": {str(name): values for name, values in zip(self.classes, self.per_class, strict=True)},
                "confusion_matrix": self.confusion.tolist(),
                "baseline": self.baseline,
                "slices": {metric: list(map(dataclasses.asdict, found)) for metric, found in self.slices.items()},
                "champion": dataclasses.asdict(self.rival),
                "gate": {"passed": self.passed, "conditions": list(map(dataclasses.asdict, self.outcomes))},
            }
        )

    def lines(self) -> list[str]:
        """The verdict for a screen: metrics, baseline, champion, worst slices, gate."""
        said = [f"  {self.model} on {self.test['n']:,} test rows: {_listed(_without_n(self.test))}"]
        if len(self.classes) > 2:
            worst = sorted(zip(self.per_class, self.classes, strict=True), key=lambda pair: pair[0]["f1"])[:WORST]
            said.append("  lowest f1: " + ", ".join(f"{name} {one['f1']:.4f} (n {one['n']:,})" for one, name in worst))
        if self.baseline:
            said.append(f"  baseline: {_listed(self.baseline)}")
        return [*said, *_champion_lines(self.rival), *self._slice_lines(), *self._gate_lines()]

    def _slice_lines(self) -> list[str]:
        return [
            f"  worst slices by {metric}: "
            + ", ".join(f"{one} {one.reached:.4f} (n {one.n:,}, 95 % {one.low:.4f} to {one.high:.4f})" for one in worst[:WORST])
            for metric, found in self.slices.items()
            if (worst := [one for one in found if one.gated] or found)
        ]

    def _gate_lines(self) -> list[str]:
        return [f"  gate: {'passed' if outcome.passed else 'FAILED'}: {outcome.found}" for outcome in self.outcomes]


def _champion_lines(rival: Rival) -> list[str]:
    if rival.name and rival.reason:
        return [f"  champion {rival.name} cannot be compared: {rival.reason}"]
    return [
        f"  champion {rival.name}: {metric} {one.champion:.4f}, difference {one.difference:+.4f} (95 % {one.low:+.4f} to "
        f"{one.high:+.4f}), better with probability {one.p_better:.2f}"
        for metric, one in rival.comparisons.items()
    ]


def _without_n(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "n"}


def _listed(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
