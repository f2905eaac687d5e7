"""Metrics by scikit-learn's definitions, in NumPy: a training worker need not import scikit-learn, which takes seconds.

A metric is prepared once on rows (sorted, binned, counted) and is then a function of the rows' weights: of ones for the metric
itself, and of how often a row was drawn for a bootstrap.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rayloom.config.evaluation import BINARY, MULTICLASS
from rayloom.errors import DataError

Statistic = Callable[[np.ndarray], float]
"""Row weights, float64 (n,), to the metric's value; NaN where it is not defined, as the auc of rows of one class is."""

BINS = 15


@dataclass(frozen=True)
class Answers:
    """What a model answers for labelled rows.

    Attributes:
        labels: (n,), the place of each row's class.
        probabilities: (n,) of the second of two classes, or (n, classes) of more.
        threshold: two classes: probabilities at or above it are decided to be the second class.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    threshold: float = 0.5

    @property
    def classes(self) -> int:
        return 2 if self.probabilities.ndim == 1 else self.probabilities.shape[1]

    @property
    def truth(self) -> np.ndarray:
        return self.labels.astype(np.int64)

    @property
    def decided(self) -> np.ndarray:
        """int64 (n,): by the threshold, or the most probable of more classes."""
        if self.classes == 2:
            return (self.probabilities >= self.threshold).astype(np.int64)
        return self.probabilities.argmax(1)

    @property
    def matrix(self) -> np.ndarray:
        """Probabilities float64 (n, classes), for two classes as well."""
        given = self.probabilities.astype(np.float64)
        return np.column_stack([1 - given, given]) if self.classes == 2 else given

    def take(self, rows: np.ndarray) -> "Answers":
        return Answers(self.labels[rows], self.probabilities[rows], self.threshold)


def score(labels: np.ndarray, probabilities: np.ndarray, threshold: float = 0.5) -> dict[str, float]:
    """All metrics of rows.

    Args:
        labels: (n,) of classes, from 0.
        probabilities: (n,) of the second of two classes, or (n, classes) of more.
        threshold: see `Answers`; without meaning for more than two classes.

    Returns:
        config's BINARY metrics with `threshold`, or its MULTICLASS metrics; and n. auc and average_precision of more than two
        classes are means over the classes (one against the rest) that have rows; macro means are over classes that have rows or
        were answered. Where all rows are of one class, auc and average_precision are NaN.
    """
    answers = Answers(labels, probabilities, threshold)
    ones = np.ones(len(labels))
    names = BINARY if answers.classes == 2 else MULTICLASS
    found = {name: prepare(name, answers)(ones) for name in names}
    return found | ({"threshold": float(threshold)} if answers.classes == 2 else {}) | {"n": len(labels)}


def score_classes(answers: Answers) -> list[dict[str, float]]:
    """precision, recall, f1 and n (test rows) of each class, in the classes' order."""
    counts = confusion(answers)
    per_class = zip(*_rates(counts.astype(np.float64)), counts.sum(1), strict=True)
    return [{"precision": float(p), "recall": float(r), "f1": float(f), "n": int(n)} for p, r, f, n in per_class]


def confusion(answers: Answers) -> np.ndarray:
    """Rows by class and decision: int64 (classes, classes)."""
    size = answers.classes
    return np.bincount(answers.truth * size + answers.decided, minlength=size * size).reshape(size, size)


def require_several_classes(labels: np.ndarray, split: str) -> None:
    """Raises DataError where all rows of a split have the same label: ranking metrics are not defined there."""
    if labels.min() == labels.max():
        raise DataError(
            f"All {len(labels):,} rows of the {split} split have the label {labels[0]:g}; correct etl.splits.{split}."
        )


def prepare(metric: str, answers: Answers) -> Statistic:
    """The metric as a function of row weights; `metric` is one that `answers.classes` have."""
    match metric:
        case "auc" | "average_precision":
            ranked = _auc if metric == "auc" else _average_precision
            if answers.classes == 2:
                return ranked(answers.truth == 1, answers.probabilities)
            columns = enumerate(answers.probabilities.T)
            return _mean_over([ranked(answers.truth == index, column) for index, column in columns])
        case "log_loss" | "brier":
            return _average((_log_losses if metric == "log_loss" else _squares)(answers))
        case "ece":
            return _ece(answers)
    return _counted(metric, answers)


def _auc(positive: np.ndarray, scores: np.ndarray) -> Statistic:
    """The share of (positive, negative) pairs in the right order, ties counting one half."""
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
    negatives = negatives[np.argsort(scores[negatives], kind="stable")]
    positives = positives[np.argsort(scores[positives], kind="stable")]
    below, not_above = (np.searchsorted(scores[negatives], scores[positives], side) for side in ("left", "right"))

    def value(weights: np.ndarray) -> float:
        passed, own = _running(weights[negatives]), weights[positives]
        pairs = float(passed[-1] * own.sum())
        return _dot(own, passed[below] + passed[not_above]) / 2 / pairs if pairs else float("nan")

    return value


def _average_precision(positive: np.ndarray, scores: np.ndarray) -> Statistic:
    """The mean over positives of the precision at their score: of the share of positives among rows with no lower one."""
    positives, negatives = np.flatnonzero(positive), np.flatnonzero(~positive)
    positives, negatives = (rows[np.argsort(-scores[rows], kind="stable")] for rows in (positives, negatives))
    found, wrong = (np.searchsorted(-scores[rows], -scores[positives], "right") for rows in (positives, negatives))

    def value(weights: np.ndarray) -> float:
        own, other = weights[positives], weights[negatives]
        hits, misses = _running(own)[found], _running(other)[wrong]
        if not own.sum() or not other.sum():
            return float("nan")
        return _dot(own, hits / np.maximum(hits + misses, 1e-300)) / float(own.sum())

    return value


def _running(values: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, … n values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _mean_over(parts: list[Statistic]) -> Statistic:
    def value(weights: np.ndarray) -> float:
        found = np.array([part(weights) for part in parts])
        return float(found[~np.isnan(found)].mean()) if not np.isnan(found).all() else float("nan")

    return value


def _average(values: np.ndarray) -> Statistic:
    return lambda weights: _dot(weights, values) / float(weights.sum())


def _dot(left: np.ndarray, right: np.ndarray) -> float:
    """Not `@`: for vectors as long as these BLAS wakes threads, which costs more than the sum where CPUs are shared."""
    return float(np.einsum("i,i->", left, right))


def _log_losses(answers: Answers) -> np.ndarray:
    """-log of the true class's probability, which is held off 0 and 1 by the precision of float32, as scikit-learn does."""
    given = answers.matrix[np.arange(len(answers.labels)), answers.truth]
    tiny = float(np.finfo(np.float32).eps)
    return -np.log(np.clip(given, tiny, 1 - tiny))


def _squares(answers: Answers) -> np.ndarray:
    """Brier (1950): (p - y)^2 of the second of two classes, or the sum over more classes, which goes up to 2."""
    off = answers.matrix - np.eye(answers.classes)[answers.truth]
    return (off**2).sum(1) / (2 if answers.classes == 2 else 1)


def reliability(answers: Answers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bin int64 (n,), confidence and whether it was right, float64 (n,) each, of the most probable class of each row.

    Bin m of M = BINS holds confidences in (m / M, (m + 1) / M].
    """
    matrix = answers.matrix
    confidence = matrix.max(1)
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    return bins, confidence, (matrix.argmax(1) == answers.truth).astype(np.float64)


def _ece(answers: Answers) -> Statistic:
    """Expected calibration error: the sum over bins B of |B| / n * |accuracy(B) - mean confidence(B)| (Guo et al., 2017).

    It looks at the most probable class, so the decision threshold of two classes plays no part in it.
    """
    bins, confidence, right = reliability(answers)
    gaps = right - confidence
    return lambda weights: float(np.abs(np.bincount(bins, weights * gaps, BINS)).sum() / weights.sum())


def _counted(metric: str, answers: Answers) -> Statistic:
    """Metrics of the confusion matrix."""
    size = answers.classes
    cells = answers.truth * size + answers.decided

    def value(weights: np.ndarray) -> float:
        counts = np.bincount(cells, weights, size * size).reshape(size, size)
        if metric == "accuracy":
            return float(counts.trace() / counts.sum())
        name, _, mean = metric.partition("_")
        rates = _rates(counts)[("precision", "recall", "f1").index(name)]
        support = counts.sum(1)
        if not mean:
            return float(rates[1])
        shares = support if mean == "weighted" else (support + counts.sum(0) > 0).astype(np.float64)
        return float(rates @ shares / shares.sum())

    return value


def _rates(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and f1 of each class, 0 where there is nothing to divide by."""
    right, real, answered = counts.diagonal(), counts.sum(1), counts.sum(0)

    def share(of: np.ndarray, total: np.ndarray) -> np.ndarray:
        return np.divide(of, total, out=np.zeros(len(of)), where=total > 0)

    return share(right, answered), share(right, real), share(2 * right, real + answered)
