"""Tests and intervals that stay valid however often one looks (always valid, or anytime valid).

Each test gives a process of evidence E whose mean is at most 1 at any stopping time while the null hypothesis is true: "the
candidate's mean is at most `margin` above the stable version's". So E reaches 1 / alpha at any of all looks with probability
at most alpha (Ville's inequality), and min(1, 1 / E) is an always-valid p-value (Johari, Koomen, Pekelis and Walsh, "Always
Valid Inference", Operations Research 2022; Ramdas, Gruenwald, Vovk and Shafer, "Game-Theoretic Statistics and Safe
Anytime-Valid Inference", Statistical Science 2023).

Values lie in [0, 1]. Neither test knows how requests are shared out, nor that the shares stay the same; both take means
that stay the same while they are compared, or that change for both versions alike.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

HALVINGS = 45
"""Of an interval of length 1 or 2 in a search: to 1e-13."""

RATES = 0.9 * 2.0 ** -np.arange(10.0)
"""Rates lambda that `mean_evidence` mixes: the best one is near sqrt(2 log(1 / alpha) / sum of squares)."""

CENTRES = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
"""Guesses of the mean around which `mean_evidence` takes squares, mixed as well: one is at most 0.1 off."""


class Sample(NamedTuple):
    """Values in [0, 1]: how many, their sum, and their sum of squares. Numbers, or arrays of one shape, an element a look."""

    count: Any
    total: Any
    squares: Any = 0.0


class Interval(NamedTuple):
    """A difference of two means (candidate less stable), and an interval that contains the true one at all looks at once."""

    low: float
    estimate: float
    high: float


Test = Callable[[Sample, Sample, float], np.ndarray]


def p_value(evidence: float, tests: int = 1) -> float:
    """Always-valid p-value of log(E), multiplied by the number of tests that are made (Bonferroni)."""
    return min(1.0, tests * math.exp(-max(evidence, 0.0)))


def share_evidence(candidate: Sample, stable: Sample, margin: float) -> np.ndarray:
    """log(E), at least 0, against "the candidate's share is at most `margin` above the stable one's".

    E is the likelihood of both samples under Jeffreys' mixture of shares, Beta(1/2, 1/2) for each version, over their greatest
    likelihood under the null hypothesis (Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 2020, section 8; the
    mixture: Robbins, "Statistical methods related to the law of the iterated logarithm", 1970). It also holds for means of any
    values in [0, 1], whose sums stand for the numbers of successes: x -> (q/p)^x ((1-q)/(1-p))^(1-x) is convex, so its
    expectation is at most that of a coin with the same mean.

    Args:
        candidate, stable: `squares` is not read.
        margin: in (-1, 1).
    """
    from scipy.special import betaln, xlogy  # 0.2 s that a replica need not pay

    n, k, m, j = (np.atleast_1d(np.asarray(part, float)) for part in (*candidate[:2], *stable[:2]))
    evidence = np.zeros(np.broadcast_shapes(n.shape, m.shape))
    worse = k / np.maximum(n, 1) - j / np.maximum(m, 1) > margin
    worse &= (n > 0) & (m > 0)  # else the likeliest shares are in the null hypothesis
    n, k, m, j = (np.broadcast_to(part, evidence.shape)[worse] for part in (n, k, m, j))
    p = _likeliest_share(n, k, m, j, margin)
    null = xlogy(j, p) + xlogy(m - j, 1 - p) + xlogy(k, p + margin) + xlogy(n - k, np.maximum(1 - p - margin, 0))
    mixture = betaln(k + 0.5, n - k + 0.5) + betaln(j + 0.5, m - j + 0.5) - 2 * math.log(math.pi)
    evidence[worse] = np.maximum(mixture - null, 0)
    return evidence


def _likeliest_share(n, k, m, j, margin: float) -> np.ndarray:
    """The stable version's likeliest share where the candidate's is `margin` above it: the log-likelihood is concave."""
    low, high = np.full(n.shape, max(0.0, -margin)), np.full(n.shape, min(1.0, 1.0 - margin))
    for _ in range(HALVINGS):
        p = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            rises = j / p - (m - j) / (1 - p) + k / (p + margin) - (n - k) / (1 - p - margin) > 0
        low, high = np.where(rises, p, low), np.where(rises, high, p)
    return (low + high) / 2


def excess_evidence(sample: Sample, bound: float) -> float:
    """log(E), at least 0, against "the share is at most `bound`", of one sample: Jeffreys' mixture over the likelihood of
    `bound` (Robbins, 1970)."""
    from scipy.special import betaln, xlogy

    n, k = float(sample.count), float(sample.total)
    if k <= n * bound:
        return 0.0
    mixture = betaln(k + 0.5, n - k + 0.5) - math.log(math.pi)
    return max(float(mixture - xlogy(k, bound) - xlogy(n - k, 1 - bound)), 0.0)


def mean_evidence(candidate: Sample, stable: Sample, margin: float) -> np.ndarray:
    """log(E), at least 0, against "the candidate's mean is at most `margin` above the stable one's"; values in [0, 1].

    For each version exp(rate * (sum - n * mean) - psi(rate) * sum of (x - centre)^2), psi(r) = -log(1 - r) - r, is a
    supermartingale (the empirical Bernstein bound: Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric,
    nonasymptotic confidence sequences", Annals of Statistics 2021, theorem 4), for the stable one with the signs turned round.
    Both are mixed over RATES and CENTRES and multiplied; E is the least product that means of the null hypothesis give.
    It needs far fewer values than `share_evidence` where they vary less than a coin's.
    """
    parts = [np.atleast_1d(np.asarray(part, float)) for part in (*candidate, *stable)]
    evidence = np.zeros(np.broadcast_shapes(*(part.shape for part in parts)))
    parts = [np.broadcast_to(part, evidence.shape) for part in parts]
    higher = parts[1] / np.maximum(parts[0], 1) - parts[4] / np.maximum(parts[3], 1) > margin
    higher &= (parts[0] > 0) & (parts[3] > 0)
    n, total, squares, m, base, base_squares = (part[higher] for part in parts)
    up, down = _penalty(n, total, squares), _penalty(m, base, base_squares)
    low, high = np.full(n.shape, max(0.0, -margin)), np.full(n.shape, min(1.0, 1.0 - margin))
    for _ in range(HALVINGS):  # the logarithm is convex in the stable version's mean
        mean = (low + high) / 2
        falls = m * _tilt(m * mean - base, down)[1] < n * _tilt(total - n * (mean + margin), up)[1]
        low, high = np.where(falls, mean, low), np.where(falls, high, mean)
    mean = (low + high) / 2
    least = _tilt(total - n * (mean + margin), up)[0] + _tilt(m * mean - base, down)[0]
    evidence[higher] = np.maximum(least, 0)
    return evidence


def _penalty(n, total, squares) -> np.ndarray:
    """log of the mean over CENTRES of exp(-psi(rate) * sum of squares around it): (looks, rates)."""
    around = squares[:, None] - 2 * CENTRES * total[:, None] + n[:, None] * CENTRES**2
    exponent = (np.log1p(-RATES) + RATES)[None, :, None] * around[:, None, :]
    return np.logaddexp.reduce(exponent, axis=2) - math.log(len(CENTRES))


def _tilt(deviation, penalty) -> tuple[np.ndarray, np.ndarray]:
    """log of the mean over RATES of exp(rate * deviation + penalty), and its derivative by the deviation: (looks,) each."""
    exponent = RATES * deviation[:, None] + penalty
    top = exponent.max(axis=1, keepdims=True)
    weights = np.exp(exponent - top)
    sums = weights.sum(axis=1)
    return top[:, 0] + np.log(sums / len(RATES)), (weights * RATES).sum(axis=1) / sums


def interval(test: Test, candidate: Sample, stable: Sample, alpha: float) -> Interval | None:
    """The differences of two means that neither direction of a test contradicts: a confidence sequence of level 1 - alpha.

    Args:
        test: share_evidence or mean_evidence.

    Returns:
        None where a version has no values.
    """
    if not (candidate.count and stable.count):
        return None
    estimate = candidate.total / candidate.count - stable.total / stable.count
    low = _lower_bound(test, candidate, stable, alpha / 2, estimate)
    high = -_lower_bound(test, stable, candidate, alpha / 2, -estimate)
    return Interval(low, estimate, high)


def _lower_bound(test: Test, candidate: Sample, stable: Sample, alpha: float, estimate: float) -> float:
    """The greatest margin that is exceeded for certain: evidence falls with the margin."""
    low, high = -1.0, estimate
    for _ in range(HALVINGS // 2):
        margin = (low + high) / 2
        shown = float(test(candidate, stable, margin)[0]) >= -math.log(alpha)
        low, high = (margin, high) if shown else (low, margin)
    return low
