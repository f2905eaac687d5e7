"""The answers that were most wrong."""

import numpy as np

from rayloom.evaluation.metrics import Answers


def worst(answers: Answers, count: int) -> np.ndarray:
    """Places int64 (at most `count`,) of wrongly decided rows, those first whose true class was given the least probability."""
    wrong = np.flatnonzero(answers.decided != answers.truth)
    given = answers.matrix[wrong, answers.truth[wrong]]
    return wrong[np.argsort(given, kind="stable")][:count]
