"""What validation rows decide: the temperature, the threshold, and which epoch is best."""

import numpy as np
import pyarrow as pa

from rayloom import config
from rayloom.config.evaluation import BINARY, MULTICLASS, sign
from rayloom.errors import ConfigError, hint
from rayloom.evaluation.calibration import fit_temperature, probabilities
from rayloom.evaluation.metrics import score
from rayloom.evaluation.slices import require_sliceable


def selection(settings: config.Evaluate, classes: int) -> tuple[str, int]:
    """The validation metric that tells which epoch is best, and 1 where higher is better, -1 where lower is."""
    metric = settings.metric or ("auc" if classes == 2 else "accuracy")
    return metric, sign(metric)


def check(settings: config.Evaluate, classes: int, columns: pa.Schema) -> None:
    """Holds the evaluate section against the label and the rows, before training starts.

    Args:
        classes: number of the label's.
        columns: of the dataset version's rows.

    Raises:
        ConfigError: a metric does not exist for so many classes, or a slice's column is not there or tells none.
    """
    known = BINARY if classes == 2 else MULTICLASS
    wanted = {"evaluate.metric": selection(settings, classes)[0]}
    wanted |= {f"{place(settings.gate, index)}.metric": one.metric for index, one in enumerate(settings.gate)}
    for key, metric in wanted.items():
        if metric not in known:
            raise ConfigError(f"{key}: a label of {classes} classes has no metric '{metric}'{hint(metric, known)}")
    for name in settings.slices:
        if name not in columns.names:
            raise ConfigError(f"evaluate.slices: the rows have no column '{name}'{hint(name, columns.names)}")
        require_sliceable(name, columns.field(name).type)


def place(conditions: list[config.Gate], index: int) -> str:
    """The config key of a condition of the gate."""
    return "evaluate.gate" if len(conditions) == 1 else f"evaluate.gate.{index}"


def judge(labels: np.ndarray, logits: np.ndarray, settings: config.Evaluate) -> tuple[dict[str, float], np.ndarray]:
    """Metrics of validation rows, and their answers as the predictor will give them.

    Args:
        labels: (n,) of classes, from 0; several of them.
        logits: float32 (n,) for two classes, (n, classes) for more.

    Returns:
        `metrics.score` with "temperature"; and calibrated probabilities, float32 of the logits' shape.
    """
    temperature = fit_temperature(labels, logits) if settings.calibrate == "temperature" else 1.0
    answers = probabilities(logits, temperature)
    threshold = best_threshold(labels, answers, settings.threshold) if answers.ndim == 1 else 0.5
    return {**score(labels, answers, threshold), "temperature": temperature}, answers


def best_threshold(labels: np.ndarray, answers: np.ndarray, by: str | float = "f1") -> float:
    """The threshold with the best value on these rows (validation rows, never test rows); the lowest of equally good ones.

    Args:
        labels: (n,) of 0 and 1.
        answers: probabilities float32 (n,).
        by: what it is best for: f1, accuracy, or youden (recall + specificity - 1; Youden, 1950). A number is the answer.
    """
    if not isinstance(by, str):
        return float(np.float32(by))
    order = np.argsort(answers, kind="stable")
    candidates, starts = np.unique(answers[order], return_index=True)
    real = labels[order].astype(np.float64)
    missed = np.concatenate([[0.0], np.cumsum(real)])[starts]  # positives below each candidate
    found, wrong = real.sum() - missed, len(real) - starts - (real.sum() - missed)
    match by:
        case "f1":
            values = 2 * found / np.maximum(real.sum() + found + wrong, 1e-12)
        case "accuracy":
            values = found + (starts - missed)
        case _:
            negatives = len(real) - real.sum()
            values = found / max(real.sum(), 1) - wrong / max(negatives, 1)
    return float(candidates[np.argmax(values)])
