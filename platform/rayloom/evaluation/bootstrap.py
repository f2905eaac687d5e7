"""The bootstrap (Efron, 1979): how far a metric would move with other rows of the same kind, and how two models compare."""

from dataclasses import dataclass

import numpy as np

from rayloom.config.evaluation import sign
from rayloom.evaluation.metrics import Answers, Statistic, prepare

RESAMPLES, LEAST_RESAMPLES = 1000, 200
MOST_DRAWN = 100_000_000
"""Rows drawn over all resamples: of over 100,000 rows there are fewer resamples, but never under LEAST_RESAMPLES."""

Z95 = 1.959963984540054


def resample(statistics: list[Statistic], rows: int, seed: int, count: int = RESAMPLES, passes: int = 1) -> np.ndarray:
    """Values float64 (count or fewer, statistics) on resamples of all rows with replacement; the same ones for each statistic.

    Metrics are prepared once, so a resample of an auc costs the drawing and a running sum, no sorting: 1,000 of 54,000 rows
    take about a second for two models. `passes` says how often a statistic goes over the rows; more of them lower the number of
    resamples as more rows do.
    """
    generator = np.random.default_rng(seed)
    draws = max(min(count, LEAST_RESAMPLES), min(count, MOST_DRAWN // (rows * passes)))
    values = np.empty((draws, len(statistics)))
    for draw in range(draws):
        drawn = generator.integers(0, rows, rows)
        weights = np.bincount(drawn, minlength=rows).astype(np.float64)
        values[draw] = [statistic(weights) for statistic in statistics]
    return values


def interval(values: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of resampled values; those that are NaN (a resample without a class) do not count."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    share, spread = right / n, Z95**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * np.sqrt(share * (1 - share) / n + spread / (4 * n))
    return float(middle - half), float(middle + half)


@dataclass(frozen=True)
class Comparison:
    """A model beside the champion on the same rows.

    Attributes:
        model, champion: the metric of each.
        difference: model - champion, with its 95 % interval from `low` to `high` by the paired bootstrap.
        p_better: share of resamples in which the model is better; ties count one half.
    """

    metric: str
    model: float
    champion: float
    difference: float
    low: float
    high: float
    p_better: float


def compare(metric: str, model: Answers, champion: Answers, seed: int) -> Comparison:
    """Holds two models' answers for the same rows against each other: each resample draws the same rows for both."""
    statistics = [prepare(metric, model), prepare(metric, champion)]
    ones = np.ones(len(model.labels))
    ours, theirs = (statistic(ones) for statistic in statistics)
    is_by_class = model.classes > 2 and metric in ("auc", "average_precision")
    values = resample(statistics, len(ones), seed, passes=model.classes if is_by_class else 1)
    differences = values[:, 0] - values[:, 1]
    low, high = interval(differences)
    gains = sign(metric) * differences[~np.isnan(differences)]
    better = float((gains > 0).mean() + (gains == 0).mean() / 2) if len(gains) else float("nan")
    return Comparison(metric, ours, theirs, ours - theirs, low, high, better)
