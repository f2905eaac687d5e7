"""Pictures of a classifier's test answers, as PNG files."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import ConfusionMatrixDisplay, PrecisionRecallDisplay, RocCurveDisplay

from rayloom import evaluation
from rayloom.evaluation import Answers
from rayloom.evaluation.metrics import BINS

matplotlib.use("Agg")  # files only: a job has no screen
import matplotlib.pyplot as plt

MOST_NUMBERS = 15
"""Classes up to which a confusion matrix has its numbers written in."""

MOST_NAMES = 60
"""Classes up to which each has its name at an axis."""


def draw(answers: Answers, classes: list, name: str, folder: Path) -> list[Path]:
    """Draws two classes' ROC and precision-recall curves, calibration and confusion matrix, or more classes' reliability, f1 by
    class and confusion matrix.

    Args:
        answers: of rows of several classes.
        classes: their names.
        name: the model's name and version, for the legends.
        folder: an existing folder.
    """
    displays = _of_two(answers, name) if len(classes) == 2 else _of_more(answers, list(map(str, classes)), name)
    return [_save(title, display, folder / f"{title}.png") for title, display in displays.items()]


def _of_two(answers: Answers, name: str) -> dict[str, Callable]:
    given = answers.labels, answers.probabilities
    return {
        "roc": lambda ax: RocCurveDisplay.from_predictions(*given, name=name, plot_chance_level=True, ax=ax),
        "precision_recall": lambda ax: PrecisionRecallDisplay.from_predictions(*given, name=name, ax=ax),
        "calibration": lambda ax: CalibrationDisplay.from_predictions(*given, n_bins=15, name=name, ax=ax),
        "confusion_matrix": lambda ax: ConfusionMatrixDisplay(evaluation.confusion(answers)).plot(ax=ax),
    }


def _of_more(answers: Answers, classes: list[str], name: str) -> dict[str, Callable]:
    return {
        "confusion_matrix": lambda ax: _draw_confusion(answers, classes, ax),
        "reliability": lambda ax: _draw_reliability(answers, name, ax),
        "f1_by_class": lambda ax: _draw_f1(answers, classes, ax),
    }


def _draw_confusion(answers: Answers, classes: list[str], axes) -> None:
    counts = evaluation.confusion(answers)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = classes if len(classes) <= MOST_NAMES else None
    display = ConfusionMatrixDisplay(shares, display_labels=labels)
    display.plot(ax=axes, include_values=len(classes) <= MOST_NUMBERS, values_format=".2f", xticks_rotation="vertical")


def _draw_reliability(answers: Answers, name: str, axes) -> None:
    """Share of right answers by confidence; on the diagonal, confidence is what it says (Guo et al., 2017)."""
    bins, confidence, right = evaluation.reliability(answers)
    rows = np.bincount(bins, minlength=BINS)
    filled = rows > 0
    means = [np.bincount(bins, values, BINS)[filled] / rows[filled] for values in (confidence, right)]
    axes.plot([0, 1], [0, 1], "k:", label="calibrated")
    axes.plot(*means, "s-", label=name)
    axes.set(xlabel="confidence", ylabel="share of right answers", xlim=(0, 1), ylim=(0, 1))
    axes.legend()


def _draw_f1(answers: Answers, classes: list[str], axes) -> None:
    values = [one["f1"] for one in evaluation.score_classes(answers)]
    axes.barh(range(len(values)), values)
    axes.set(xlabel="f1", xlim=(0, 1))
    axes.invert_yaxis()
    if len(classes) <= MOST_NAMES:
        axes.set_yticks(range(len(classes)), classes)


def _save(title: str, display: Callable, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    display(axes)
    axes.set_title(title.replace("_", " ").capitalize())
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
