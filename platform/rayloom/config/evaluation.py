"""The evaluate section of the pipeline file: what is measured, and what a model must reach to become @champion."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rayloom.config.base import Section
from rayloom.errors import hint

LOSSES = ("log_loss", "brier", "ece")
"""Metrics that are better the lower they are."""

EITHER = ("auc", "average_precision", "accuracy", *LOSSES)
BINARY = (*EITHER, "f1", "precision", "recall")
"""Metrics of a label with two classes."""

MULTICLASS = (*EITHER, *(f"{name}_{mean}" for name in ("f1", "precision", "recall") for mean in ("macro", "weighted")))
"""Metrics of a label with more than two classes."""

THRESHOLDS = ("f1", "accuracy", "youden")


def sign(metric: str) -> int:
    """1 where a higher value of the metric is better, -1 where a lower one is."""
    return -1 if metric in LOSSES else 1


def _known(metric: str) -> str:
    if metric not in {*BINARY, *MULTICLASS}:
        raise ValueError(f"unknown metric '{metric:.80}'{hint(metric, {*BINARY, *MULTICLASS})}".rstrip("."))
    return metric


class Gate(Section):
    """One condition on the test split. It has exactly one of `at_least`, `at_most` and `not_worse_than`."""

    metric: str = "auc"
    at_least: float | None = Field(default=None, ge=0, le=1)
    at_most: float | None = Field(default=None, ge=0, description="for log_loss, brier and ece, which are better the lower")
    not_worse_than: Literal["champion"] | None = Field(
        default=None, description="fails where @champion is shown to be better by more than `by` on the same rows"
    )
    by: float = Field(default=0.0, ge=0, description="with not_worse_than: how much worse is still no matter")
    slices: bool = Field(default=False, description="hold each slice of evaluate.slices against it, not the whole split")

    _metric = field_validator("metric")(_known)

    @model_validator(mode="after")
    def _one_condition(self) -> "Gate":
        given = [name for name in ("at_least", "at_most", "not_worse_than") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a condition of the gate has {' and '.join(given) or 'no limit'}; write one of at_least, at_most and "
                f"not_worse_than"
            )
        if given != ["not_worse_than"] and (given == ["at_most"]) != (sign(self.metric) < 0):
            other = "at_least" if given == ["at_most"] else "at_most"
            raise ValueError(f"{given[0]} does not go with {self.metric}; write {other}")
        if self.by and not self.not_worse_than:
            raise ValueError("by goes with not_worse_than; remove it")
        if self.slices and self.not_worse_than:
            raise ValueError("slices goes with at_least or at_most, not with not_worse_than; write two conditions")
        return self

    @property
    def limit(self) -> str:
        """The key that says how good is good enough."""
        return next(name for name in ("at_least", "at_most", "not_worse_than") if getattr(self, name) is not None)


def _as_list(conditions: Any) -> Any:
    return conditions if isinstance(conditions, list) else [conditions]


class Evaluate(Section):
    """How models are measured. The first choices are made on validation rows, the gate judges test rows."""

    metric: str | None = Field(
        default=None, description="which epoch is the best; default: auc for two classes, accuracy for more"
    )
    calibrate: Literal["temperature", "none"] = Field(
        default="temperature", description="temperature: logits are divided by one number, found on validation rows"
    )
    threshold: str | float = Field(
        default="f1",
        description="two classes: what the decision threshold is best for on validation rows (f1, accuracy, youden), or itself",
    )
    slices: list[str] = Field(default=[], description="columns of the dataset version by whose values test rows are told apart")
    slice_rows: int = Field(default=100, ge=1, description="a slice of fewer test rows is listed, and no gate looks at it")
    baseline: bool = Field(
        default=True,
        description="also train a plain scikit-learn model on the same rows: HistGradientBoosting, or logistic regression on "
        "TF-IDF (text) or pixels (images)",
    )
    gate: Annotated[list[Gate], BeforeValidator(_as_list)] = Field(
        default=[Gate(at_least=0.5)], description="one condition or a list; all must hold"
    )

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, metric: str | None) -> str | None:
        return metric if metric is None else _known(metric)

    @field_validator("threshold", mode="before")
    @classmethod
    def _usable(cls, threshold: Any) -> Any:
        is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if threshold not in THRESHOLDS and not (is_number and 0 < threshold < 1):
            raise ValueError(f"threshold is {threshold!r:.80}; write {', '.join(THRESHOLDS)} or a number between 0 and 1")
        return threshold

    @model_validator(mode="after")
    def _slices_for_the_gate(self) -> "Evaluate":
        if not self.slices and any(condition.slices for condition in self.gate):
            raise ValueError("the gate has a condition on slices, and evaluate.slices names no column; add some")
        return self
