"""The leak check: a feature that tells the label by itself was written after the fact."""

import numpy as np

from rayloom.errors import LeakError
from rayloom.evaluation.metrics import Answers, prepare

BINS = 100
"""Ranges of equally many rows that a number is cut into where the label has more than two classes."""


def refuse_leaks(names: list[str], columns: list[np.ndarray], labels: np.ndarray, limit: float) -> None:
    """Refuses a feature that tells the label by itself.

    Args:
        names: what to call each column in the error.
        columns: model inputs (n,) each: float for a number or a missing flag, int for a category.
        labels: (n,) of classes, from 0.
        limit: the ROC-AUC of a single feature from which on it is refused.

    Raises:
        LeakError: names the feature and its ROC-AUC.
    """
    for name, values in zip(names, columns, strict=True):
        auc = single_feature_auc(values, labels)
        if auc >= limit:
            raise LeakError(
                f"The feature '{name}' alone separates the label (ROC-AUC {auc:.4f}, limit {limit}): it is probably known "
                f"only after the fact; remove it from features.columns, or raise features.leak_auc."
            )


def single_feature_auc(values: np.ndarray, labels: np.ndarray) -> float:
    """How well one feature ranks the label: 0.5 not at all, 1.0 perfectly.

    Two classes: a number ranks by its value, in either direction. A category ranks by its share of positives in even rows,
    judged on odd rows, so that a category of many values does not look good by chance. More classes: the same for each class
    against the rest, of which the mean counts; a number is cut into BINS ranges first, since a class may lie in its middle.
    """
    is_category = np.issubdtype(values.dtype, np.integer)
    classes = int(labels.max(initial=0)) + 1
    if classes <= 2:
        return _category_auc(values, labels) if is_category else _directionless_auc(labels, values)
    codes = values if is_category else _bins(values)
    return float(np.mean([_category_auc(codes, (labels == index).astype(np.float64)) for index in range(classes)]))


def _category_auc(codes: np.ndarray, labels: np.ndarray) -> float:
    learn, judge = slice(0, None, 2), slice(1, None, 2)
    rates = _positive_rates(codes[learn], labels[learn], int(codes.max(initial=0)) + 1)
    return _directionless_auc(labels[judge], rates[codes[judge]])


def _bins(values: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])), values)


def _positive_rates(codes: np.ndarray, labels: np.ndarray, size: int) -> np.ndarray:
    counts = np.bincount(codes, minlength=size)
    positives = np.bincount(codes, weights=labels, minlength=size)
    return np.divide(positives, counts, out=np.full(size, labels.mean()), where=counts > 0)


def _directionless_auc(labels: np.ndarray, values: np.ndarray) -> float:
    if not 0 < labels.sum() < len(labels):
        return 0.5
    auc = prepare("auc", Answers(labels, values))(np.ones(len(labels)))
    return max(auc, 1 - auc)
