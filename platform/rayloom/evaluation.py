"""Metrics over all rows, the decision threshold, the leak check, the baseline and the gate."""

import numpy as np
from sklearn import metrics as sk

from rayloom import config
from rayloom.errors import DataError, GateError, LeakError
from rayloom.worker import Arrays


def score(labels: np.ndarray, probabilities: np.ndarray, threshold: float) -> dict[str, float]:
    """Binary metrics by scikit-learn's definitions.

    Args:
        labels: (n,) of 0 and 1.
        probabilities: (n,) of the positive class.
        threshold: probabilities at or above it count as positive for f1, accuracy, precision and recall.

    Returns:
        auc, average_precision, log_loss, brier, f1, accuracy, precision, recall, threshold and n. The auc of rows of a
        single class is not defined: it is NaN.
    """
    decided = probabilities >= threshold
    both_classes = 0 < labels.sum() < len(labels)
    return {
        "auc": float(sk.roc_auc_score(labels, probabilities)) if both_classes else float("nan"),
        "average_precision": float(sk.average_precision_score(labels, probabilities)) if both_classes else float("nan"),
        "log_loss": float(sk.log_loss(labels, probabilities, labels=[0, 1])),
        "brier": float(sk.brier_score_loss(labels, probabilities, pos_label=1)),
        "f1": float(sk.f1_score(labels, decided, zero_division=0)),
        "accuracy": float(sk.accuracy_score(labels, decided)),
        "precision": float(sk.precision_score(labels, decided, zero_division=0)),
        "recall": float(sk.recall_score(labels, decided, zero_division=0)),
        "threshold": float(threshold),
        "n": len(labels),
    }


def require_both_classes(labels: np.ndarray, split: str) -> None:
    """Raises DataError where all rows of a split have the same label: ranking metrics are not defined there."""
    if labels.min() == labels.max():
        raise DataError(
            f"All {len(labels):,} rows of the {split} split have the label {labels[0]:g}; correct etl.splits.{split}."
        )


def selection(settings: config.Evaluate, classes: int) -> tuple[str, int]:
    """The validation metric that tells which epoch is best, and 1 where higher is better, -1 where lower is."""
    return ("auc" if classes == 2 else "accuracy"), 1


def require_several_classes(labels: np.ndarray, split: str) -> None:
    """Raises DataError where all rows of a split have the same label."""
    require_both_classes(labels, split)


def judge(labels: np.ndarray, logits: np.ndarray, settings: config.Evaluate) -> tuple[dict[str, float], np.ndarray]:
    """Validation metrics of logits (n,) or (n, classes), and the rows' probabilities."""
    probabilities = 1 / (1 + np.exp(-logits))
    return score(labels, probabilities, best_threshold(labels, probabilities)), probabilities


def best_threshold(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold with the highest F1 on these rows (validation rows, never test rows)."""
    precision, recall, thresholds = sk.precision_recall_curve(labels, probabilities)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return float(thresholds[np.argmax(f1[:-1])])


def refuse_leaks(names: list[str], columns: list[np.ndarray], labels: np.ndarray, limit: float) -> None:
    """Refuses a feature that tells the label by itself: such a column was written after the fact.

    Args:
        names: what to call each column in the error.
        columns: model inputs (n,) each: float for a number or a missing flag, int for a category.
        labels: (n,) of 0 and 1.
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
    """How well one feature ranks the label, in either direction: 0.5 not at all, 1.0 perfectly.

    A number ranks by its value. A category ranks by its share of positives in even rows, judged on odd rows, so that a
    category of many values does not look good by chance.
    """
    if not np.issubdtype(values.dtype, np.integer):
        return _directionless_auc(labels, values)
    learn, judge = slice(0, None, 2), slice(1, None, 2)
    rates = _positive_rates(values[learn], labels[learn], int(values.max(initial=0)) + 1)
    return _directionless_auc(labels[judge], rates[values[judge]])


def _positive_rates(codes: np.ndarray, labels: np.ndarray, size: int) -> np.ndarray:
    counts = np.bincount(codes, minlength=size)
    positives = np.bincount(codes, weights=labels, minlength=size)
    return np.divide(positives, counts, out=np.full(size, labels.mean()), where=counts > 0)


def _directionless_auc(labels: np.ndarray, values: np.ndarray) -> float:
    if not 0 < labels.sum() < len(labels):
        return 0.5
    auc = float(sk.roc_auc_score(labels, values))
    return max(auc, 1 - auc)


def baseline_auc(train: Arrays, test: Arrays, seed: int) -> float:
    """Test ROC-AUC of scikit-learn's HistGradientBoostingClassifier with its defaults on the same rows and features."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # a second to import: only the evaluating process pays

    def inputs(arrays: Arrays) -> np.ndarray:
        return np.hstack([arrays["numbers"], arrays["categories"].astype(np.float32)])

    model = HistGradientBoostingClassifier(random_state=seed).fit(inputs(train), train["label"])
    return float(sk.roc_auc_score(test["label"], model.predict_proba(inputs(test))[:, 1]))


def require(gate: config.Gate, test: dict[str, float]) -> None:
    """Raises GateError where the test metrics are below what the gate asks; NaN is below everything."""
    reached = test[gate.metric]
    if not reached >= gate.at_least:
        raise GateError(
            f"The model's test {gate.metric} is {reached:.4f}, below evaluate.gate.at_least = {gate.at_least}; @champion stays "
            f"where it was. Improve the model, or lower the gate."
        )
