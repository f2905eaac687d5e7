"""Logits to probabilities, in training and serving alike, and the temperature that makes them honest."""

import math
from collections.abc import Callable

import numpy as np

COLDEST, HOTTEST = 0.05, 20.0
"""Bounds of the temperature: logits that separate validation rows perfectly would have it go to 0."""

MOST_LOGITS = 5_000_000
"""Logits that the temperature is fitted on; of more rows, evenly spaced ones: it is one number."""

CLOSE, MOST_STEPS = 1e-9, 60
"""How narrow the interval of the logarithm of the temperature gets, and after how many steps at most."""


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    """sigmoid(logits / temperature) of logits (n,), softmax over the classes of logits (n, classes); float32 of the same shape.

    The loop and the predictor both call it: the same logits give the same answers bit for bit. It computes in float64.
    """
    scaled = logits.astype(np.float64) / temperature
    if scaled.ndim == 1:
        small = np.exp(-np.abs(scaled))  # never over 1, so nothing overflows
        return (np.where(scaled >= 0, 1.0, small) / (1.0 + small)).astype(np.float32)
    return _softmax(scaled).astype(np.float32)


def _softmax(scaled: np.ndarray) -> np.ndarray:
    powers = np.exp(scaled - scaled.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def fit_temperature(labels: np.ndarray, logits: np.ndarray) -> float:
    """The temperature with the lowest log loss on these rows (validation rows, never test rows): Guo et al., 2017.

    Args:
        labels: (n,) of classes, from 0.
        logits: (n,) or (n, classes).

    Returns:
        1 where no temperature changes anything; else between COLDEST and HOTTEST. The loss is convex in 1 / temperature, so
        its slope changes sign once, and there the minimum is; no randomness, no start value.
    """
    stride = -(-logits.size // MOST_LOGITS)
    labels, logits = labels[::stride].astype(np.int64), logits[::stride].astype(np.float64)
    spread = np.abs(logits) if logits.ndim == 1 else np.ptp(logits, axis=1)
    if not np.isfinite(spread).all() or not spread.any():
        return 1.0
    return math.exp(-_zero(lambda place: _slope(labels, logits, math.exp(place)), math.log(1 / HOTTEST), math.log(1 / COLDEST)))


def _zero(slope: Callable[[float], float], low: float, high: float) -> float:
    """Where a slope that rises is 0, by the method of Ridders (1979), which takes a dozen values of it where halving takes 40;
    the nearer end, where it is 0 outside of the interval."""
    below, above = slope(low), slope(high)
    if below >= 0 or above <= 0:
        return low if below >= 0 else high
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2
        half = slope(middle)
        found = middle + (middle - low) * -half / math.sqrt(half * half - below * above)
        value = slope(found)
        ends = sorted([(low, below), (middle, half), (found, value), (high, above)])
        low, below = max(end for end in ends if end[1] <= 0)
        high, above = min(end for end in ends if end[1] >= 0)
        if high - low < CLOSE:
            break
    return (low + high) / 2


def _slope(labels: np.ndarray, logits: np.ndarray, factor: float) -> float:
    """Derivative of the mean log loss of `factor * logits` by the factor."""
    if logits.ndim == 1:
        return float(np.mean((1 / (1 + np.exp(-np.clip(factor * logits, -700, 700))) - labels) * logits))
    expected = (_softmax(factor * logits) * logits).sum(1)
    return float(np.mean(expected - logits[np.arange(len(labels)), labels]))
