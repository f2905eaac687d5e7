"""Sketches of numbers: NumPy's figures, exact or within the promised accuracy, and the same for every order of merges."""

import json
from functools import reduce

import numpy as np
import pytest

from rayloom import sketch

SHARES = [index / 100 for index in range(101)]

FEW = np.random.default_rng(1).normal(0, 50, 20_000).round(0)
MANY = {
    "normal": np.random.default_rng(2).normal(0, 1, 20_000),
    "skewed": np.random.default_rng(3).lognormal(0, 3, 20_000),
    "mostly zero": np.concatenate([np.zeros(12_000), np.random.default_rng(4).exponential(1, 8_000)]),
    "large": np.random.default_rng(5).normal(0, 1e99, 20_000),
}


def merged(numbers: np.ndarray, parts: int, seed: int) -> dict:
    """The sketch of numbers cut into parts, which are merged in a random order."""
    rng = np.random.default_rng(seed)
    pieces = np.split(numbers, np.sort(rng.integers(0, len(numbers) + 1, parts - 1)))
    return reduce(sketch.merge, [sketch.sketch(pieces[index]) for index in rng.permutation(parts)])


def test_counts_and_ends_are_the_numbers_own():
    found = sketch.sketch(np.array([3.0, np.nan, -1.0, 7.0]))
    assert [found[name] for name in ("count", "missing", "min", "max")] == [3, 1, -1.0, 7.0]


@pytest.mark.parametrize("numbers", [FEW, *MANY.values()], ids=["few", *MANY])
def test_moments_are_numpys_however_the_numbers_are_cut(numbers):
    found = merged(numbers, 7, 0)
    assert found["mean"] == pytest.approx(numbers.mean(), rel=1e-9, abs=1e-9 * numbers.std())
    assert sketch.deviation(found) == pytest.approx(numbers.std(), rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 99, 100, 101, 4096])
def test_quantiles_of_few_values_are_numpys(count):
    numbers = FEW[:count]
    assert sketch.quantiles(sketch.sketch(numbers), SHARES) == np.quantile(numbers, SHARES, method="inverted_cdf").tolist()


@pytest.mark.parametrize("numbers", MANY.values(), ids=MANY)
def test_quantiles_of_many_values_are_within_the_accuracy(numbers):
    found = np.array(sketch.quantiles(sketch.sketch(numbers), SHARES))
    expected = np.quantile(numbers, SHARES, method="inverted_cdf")
    assert (np.abs(found - expected) <= 1.0001 * sketch.ACCURACY * np.abs(expected)).all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("numbers", [FEW, *MANY.values()], ids=["few", *MANY])
def test_any_order_of_merges_counts_the_same(numbers, seed):
    whole = sketch.sketch(numbers)
    found = merged(numbers, 12, seed)
    assert [found[name] for name in ("count", "exact", "buckets", "min", "max")] == [
        whole[name] for name in ("count", "exact", "buckets", "min", "max")
    ]


def test_values_are_counted_up_to_the_limit_and_not_beyond():
    assert sketch.sketch(np.arange(sketch.EXACT, dtype=float))["buckets"] == {}
    assert sketch.sketch(np.arange(sketch.EXACT + 1, dtype=float))["exact"] is None


def test_a_sketch_of_any_numbers_is_small():
    size = np.random.default_rng(6).uniform(-12, 100, 300_000)
    assert len(sketch.sketch(np.concatenate([10**size, -(10**size)]))["buckets"]) < 300_000


def test_a_sketch_is_the_same_after_json():
    found = merged(MANY["skewed"], 3, 0)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("numbers", "expected"), [([1.0, 2.0, 2.0], 2.0), ([3.0, 1.0], 1.0), ([-0.0, 0.0, 5.0], 0.0), ([], None)]
)
def test_the_most_frequent_is_the_smallest_of_equals(numbers, expected):
    assert sketch.most_frequent(sketch.sketch(np.array(numbers))) == expected


def test_too_many_values_have_no_most_frequent():
    assert sketch.most_frequent(sketch.sketch(MANY["normal"])) is None


@pytest.mark.parametrize("value", [0.1, 0.3, 1e9 + 0.1])
def test_a_constant_has_no_deviation(value):
    assert sketch.deviation(merged(np.full(101, value), 5, 0)) == 0


def test_no_numbers_merge_into_nothing_and_change_nothing():
    none, some = sketch.sketch(np.array([np.nan])), sketch.sketch(np.array([1.0, 2.0]))
    assert sketch.merge(none, none)["count"] == 0
    assert {**sketch.merge(none, some), "missing": 0} == {**sketch.merge(some, none), "missing": 0} == some


def test_no_numbers_have_no_quantiles():
    with pytest.raises(ValueError, match="without numbers"):
        sketch.quantiles(sketch.sketch(np.array([])), [0.5])
