"""Pictures of a binary classifier's test answers, as PNG files."""

from pathlib import Path

import matplotlib
import numpy as np
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import ConfusionMatrixDisplay, PrecisionRecallDisplay, RocCurveDisplay

matplotlib.use("Agg")  # files only: a job has no screen
import matplotlib.pyplot as plt


def draw(labels: np.ndarray, probabilities: np.ndarray, threshold: float, name: str, folder: Path) -> list[Path]:
    """Draws the ROC and precision-recall curves, the calibration and the confusion matrix.

    Args:
        labels: (n,) of 0 and 1, both present.
        probabilities: (n,) of the positive class.
        threshold: where the confusion matrix decides.
        name: the model's name and version, for the legends.
        folder: an existing folder.
    """
    displays = {
        "roc": lambda ax: RocCurveDisplay.from_predictions(labels, probabilities, name=name, plot_chance_level=True, ax=ax),
        "precision_recall": lambda ax: PrecisionRecallDisplay.from_predictions(labels, probabilities, name=name, ax=ax),
        "calibration": lambda ax: CalibrationDisplay.from_predictions(labels, probabilities, n_bins=15, name=name, ax=ax),
        "confusion_matrix": lambda ax: ConfusionMatrixDisplay.from_predictions(labels, probabilities >= threshold, ax=ax),
    }
    return [_save(title, display, folder / f"{title}.png") for title, display in displays.items()]


def _save(title: str, display, path: Path) -> Path:
    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    display(axes)
    axes.set_title(title.replace("_", " ").capitalize())
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
