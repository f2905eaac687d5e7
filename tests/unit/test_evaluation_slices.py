"""Slices: how columns are cut, and that the worst comes first; and intervals that hold what they should."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from rayloom import evaluation
from rayloom.errors import ConfigError
from rayloom.evaluation import Answers, bootstrap
from rayloom.evaluation.slices import cut


@pytest.fixture
def answers():
    """600 rows of two classes, ranked well where x is 'good' (every third row), by chance where it is 'bad'."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 600).astype(np.float32)
    is_good = np.arange(600) % 3 == 0
    given = np.where(is_good, 0.5 * labels + 0.5 * rng.random(600), rng.random(600))
    return Answers(labels, given.astype(np.float32))


@pytest.fixture
def rows():
    names = np.where(np.arange(600) % 3 == 0, "good", "bad").astype(object)
    names[:5] = "tiny"
    return pa.table({"x": pa.array(names, pa.string())})


def cells(values: pa.Array) -> dict[str, list[int]]:
    return {text: places.tolist() for text, places in cut("x", pa.chunked_array([values]))}


def test_the_worst_slice_comes_first(answers, rows):
    found = evaluation.slice_rows(rows, ["x"], answers, "auc", 1, 17)
    assert [one.value for one in found if one.n > 5] == ["bad", "good"]


def test_the_highest_loss_is_the_worst(answers, rows):
    found = evaluation.slice_rows(rows, ["x"], answers, "log_loss", 1, 17)
    assert [one.reached for one in found] == sorted((one.reached for one in found), reverse=True)


@pytest.mark.parametrize("metric", ["auc", "accuracy", "log_loss"])
def test_a_slices_metric_is_that_of_its_rows(answers, rows, metric):
    bad = next(one for one in evaluation.slice_rows(rows, ["x"], answers, metric, 1, 17) if one.value == "bad")
    places = np.flatnonzero(rows["x"].to_numpy() == "bad")
    assert bad.reached == evaluation.score(answers.labels[places], answers.probabilities[places])[metric]
    assert (bad.n, bad.low < bad.reached < bad.high) == (len(places), True)


def test_a_small_slice_is_listed_and_not_gated(answers, rows):
    found = evaluation.slice_rows(rows, ["x"], answers, "auc", 100, 17)
    assert {one.value: one.gated for one in found} == {"bad": True, "good": True, "tiny": False}


def test_a_slice_of_one_class_comes_last_and_is_not_gated(rows, answers):
    labels = np.where(rows["x"].to_numpy() == "bad", 1, answers.labels)
    found = evaluation.slice_rows(rows, ["x"], Answers(labels, answers.probabilities), "auc", 1, 17)
    assert (found[-1].value, found[-1].gated) == ("bad", False) and np.isnan(found[-1].reached)


def test_the_same_seed_gives_the_same_intervals(answers, rows):
    assert evaluation.slice_rows(rows, ["x"], answers, "auc", 1, 17) == evaluation.slice_rows(
        rows, ["x"], answers, "auc", 1, 17
    )


def test_text_is_cut_by_value_the_most_frequent_first():
    assert cells(pa.array(["b", "a", None, "b"])) == {"b": [0, 3], "a": [1], "(missing)": [2]}


def test_values_beyond_the_most_frequent_twenty_are_one_slice():
    found = cells(pa.array([f"{number:02}" for number in range(25)] + ["24"]))
    assert (len(found), found["24"], len(found["(other)"])) == (21, [24, 25], 5)


def test_numbers_are_cut_in_quartiles():
    found = cells(pa.array([*map(float, range(1, 41)), None, float("nan")]))
    assert [len(places) for places in found.values()] == [10, 10, 10, 10, 2]
    assert found["1 to 10.75"] == list(range(10)) and found["(missing)"] == [40, 41]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([3, 1, 3]), {"3": [0, 2], "1": [1]}),
        (pa.array([True, False, True]), {"true": [0, 2], "false": [1]}),
        (pa.array([datetime.date(2013, 1, 5), datetime.date(2013, 2, 1)]), {"2013-01": [0], "2013-02": [1]}),
        (pa.array(["a", "b"]).dictionary_encode(), {"a": [0], "b": [1]}),
        (pa.array([0.5, float("nan"), 0.5]), {"0.5": [0, 2], "(missing)": [1]}),
        (pa.array([None, None], pa.string()), {"(missing)": [0, 1]}),
    ],
)
def test_few_numbers_booleans_and_dates_are_cut_by_value_or_month(values, expected):
    assert cells(values) == expected


@pytest.mark.parametrize("values", [pa.array([b"png"]), pa.array([[1, 2]])])
def test_bytes_and_lists_tell_no_slices(values):
    with pytest.raises(ConfigError, match=r"evaluate\.slices: 'x' is of type .*; name another column"):
        cells(values)


def test_wilsons_interval_is_the_one_in_the_books():
    assert bootstrap.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_the_bootstraps_interval_is_as_wide_as_theory_says(seed):
    """A share of 0.8 in 2000 rows has a standard error of 0.00894."""
    right = np.arange(2000) % 5 > 0
    values = bootstrap.resample([lambda weights: float(weights @ right / weights.sum())], 2000, seed)[:, 0]
    low, high = bootstrap.interval(values)
    assert (low + high) / 2 == pytest.approx(0.8, abs=0.002)
    assert (high - low) / 2 == pytest.approx(1.96 * 0.00894, rel=0.15)


def test_resamples_become_fewer_where_rows_are_many(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_DRAWN", 1000)
    assert len(bootstrap.resample([lambda weights: 0.0], 10, 1)) == bootstrap.LEAST_RESAMPLES


def test_resamples_without_a_value_do_not_count():
    assert bootstrap.interval(np.array([np.nan, 1.0, 1.0])) == (1.0, 1.0)


@pytest.fixture
def beside(answers):
    """Makes a comparison of `answers` with a model that has as much noise added to its probabilities."""

    def compare(noise: float, metric: str = "auc") -> evaluation.Comparison:
        other = answers.probabilities + noise * np.random.default_rng(7).normal(size=600)
        return evaluation.compare(metric, answers, Answers(answers.labels, np.clip(other, 0, 1).astype(np.float32)), 17)

    return compare


def test_a_model_beside_itself_has_no_difference(beside):
    found = beside(0.0)
    assert (found.difference, found.low, found.high, found.p_better) == (0.0, 0.0, 0.0, 0.5)


def test_a_better_model_is_better_in_nearly_all_resamples(beside):
    found = beside(3.0)
    assert found.low > 0 and found.p_better > 0.99 and found.difference == pytest.approx(found.model - found.champion)


def test_a_lower_loss_is_better(beside):
    found = beside(3.0, "log_loss")
    assert found.high < 0 and found.p_better > 0.99


def test_pairing_makes_the_interval_narrower_than_that_of_one_model(beside, answers):
    found = beside(0.01)
    alone = bootstrap.interval(bootstrap.resample([evaluation.metrics.prepare("auc", answers)], 600, 17)[:, 0])
    assert found.high - found.low < (alone[1] - alone[0]) / 3
