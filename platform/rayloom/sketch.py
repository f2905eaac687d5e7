"""A mergeable summary of a column's numbers, in bounded memory and independent of how the rows were cut into blocks.

Counts and moments are exact. Values are counted one by one while there are at most EXACT different ones, so that quantiles
and the most frequent value are exact, too; beyond that, in logarithmic buckets (DDSketch: Masson, Rim and Lee, VLDB 2019),
whose quantiles are within ACCURACY of a true one, relatively. Buckets are a function of the value alone and their counts are
added, so any order of merges gives the same sketch.

A sketch is a plain JSON-able dict: {"count", "missing", "mean", "m2", "min", "max", "exact": {text of value: count} or None,
"buckets": {"sign * index": count}}.
"""

import math

import numpy as np

EXACT = 4096
"""Different values up to which each is counted."""

ACCURACY = 0.001
"""Relative error of a quantile beyond EXACT different values."""

SMALLEST = 1e-12
"""Values nearer to zero count as zero in a bucket."""

_LOG_BASE = math.log((1 + ACCURACY) / (1 - ACCURACY))

Sketch = dict


def sketch(numbers: np.ndarray) -> Sketch:
    """The summary of one block: float64 (n,), NaN where missing; infinities are not allowed."""
    present = numbers[~np.isnan(numbers)]
    mean = float(present.mean()) if len(present) else 0.0
    values, counts = np.unique(present + 0.0, return_counts=True)  # + 0.0: -0.0 is 0.0
    few = len(values) <= EXACT
    return {
        "count": len(present),
        "missing": len(numbers) - len(present),
        "mean": mean,
        "m2": float(((present - mean) ** 2).sum()),
        "min": float(values[0]) if len(values) else None,
        "max": float(values[-1]) if len(values) else None,
        "exact": {repr(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)} if few else None,
        "buckets": {} if few else _buckets(values, counts),
    }


def _buckets(values: np.ndarray, counts: np.ndarray) -> dict[str, int]:
    """Counts by bucket: 0 for zero, else sign * (1 + i), which holds sizes in SMALLEST * (base^(i - 1), base^i]."""
    size = np.abs(values)
    logs = np.log(np.maximum(size, SMALLEST) / SMALLEST) / _LOG_BASE
    index = np.where(size < SMALLEST, 0, np.sign(values) * (np.ceil(logs) + 1)).astype(np.int64)
    keys, places = np.unique(index, return_inverse=True)
    sums = np.bincount(places, weights=counts).astype(np.int64)
    return {str(key): total for key, total in zip(keys.tolist(), sums.tolist(), strict=True)}


def _value(bucket: int) -> float:
    """The value that stands for a bucket: within ACCURACY of all in it."""
    if bucket == 0:
        return 0.0
    upper = SMALLEST * math.exp((abs(bucket) - 1) * _LOG_BASE)
    return math.copysign(upper * (1 - ACCURACY), bucket)


def merge(left: Sketch, right: Sketch) -> Sketch:
    """Two sketches of disjoint rows as one. Moments by Chan, Golub and LeVeque (1979), equation 2.1."""
    count = left["count"] + right["count"]
    delta = right["mean"] - left["mean"]
    share = right["count"] / count if count else 0.0
    exact = None
    if left["exact"] is not None and right["exact"] is not None:
        exact = add(left["exact"], right["exact"])
        exact = exact if len(exact) <= EXACT else None
    return {
        "count": count,
        "missing": left["missing"] + right["missing"],
        "mean": left["mean"] + delta * share,
        "m2": left["m2"] + right["m2"] + delta**2 * left["count"] * share,
        "min": _of_present(min, left["min"], right["min"]),
        "max": _of_present(max, left["max"], right["max"]),
        "exact": exact,
        "buckets": {} if exact is not None else add(_in_buckets(left), _in_buckets(right)),
    }


def add(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Two dicts of counts as one."""
    total = dict(left)
    for key, count in right.items():
        total[key] = total.get(key, 0) + count
    return total


def _of_present(choose, left: float | None, right: float | None) -> float | None:
    present = [value for value in (left, right) if value is not None]
    return choose(present) if present else None


def _in_buckets(of: Sketch) -> dict[str, int]:
    if of["exact"] is None:
        return of["buckets"]
    values = np.array([float(text) for text in of["exact"]])
    return _buckets(values, np.array(list(of["exact"].values()))) if len(values) else {}


def quantiles(of: Sketch, shares: list[float]) -> list[float]:
    """Values at these shares of the sorted numbers: the nearest rank below (NumPy's `inverted_cdf`).

    Raises:
        ValueError: the sketch has no number.
    """
    if not of["count"]:
        raise ValueError("a sketch without numbers has no quantiles")
    if of["exact"] is not None:
        pairs = sorted((float(text), count) for text, count in of["exact"].items())
    else:
        pairs = [(_value(int(bucket)), n) for bucket, n in sorted(of["buckets"].items(), key=lambda item: int(item[0]))]
    values = np.array([value for value, _ in pairs])
    ranks = np.cumsum([count for _, count in pairs])
    wanted = np.maximum(1, np.ceil(np.array(shares) * of["count"]))
    found = values[np.searchsorted(ranks, wanted)]
    return np.clip(found, of["min"], of["max"]).tolist()


def most_frequent(of: Sketch) -> float | None:
    """The most frequent number (the smallest of equals); None where there are none or too many different ones to count."""
    if not of["exact"]:
        return None
    text, _ = min(of["exact"].items(), key=lambda item: (-item[1], float(item[0])))
    return float(text)


def deviation(of: Sketch) -> float:
    """Population standard deviation; 0 for a constant, whatever rounding says."""
    return math.sqrt(of["m2"] / of["count"]) if of["count"] and of["min"] != of["max"] else 0.0
