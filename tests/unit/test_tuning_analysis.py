"""What a sweep's trials say: ranking, Pareto front, rungs, seconds saved."""

import math
from dataclasses import replace

import pytest

from rayloom.config import Param
from rayloom.tuning import analysis
from rayloom.tuning.analysis import Rung
from rayloom.tuning.records import Sweep, Trial


def trial(number: int, value: float | None, seconds: float = 1.0, state: str = "complete", epochs: int = 1, **params) -> Trial:
    """One whose metric is the same in each epoch."""
    values = {} if value is None else dict.fromkeys(range(1, epochs + 1), value)
    return Trial(number, state, params, values, value, epochs, seconds)


def numbers(trials) -> list[int]:
    return [one.number for one in trials]


TRIALS = [
    trial(0, 0.5, 3.0),
    trial(1, 0.7, 5.0, "stopped"),
    trial(2, 0.6, 1.0),
    trial(3, None, 0.1, "failed"),
    trial(4, math.nan, 0.1),
    trial(5, 0.9, 0.0, "repeat"),
    trial(6, 0.7, 9.0),
]


@pytest.mark.parametrize(("sign", "expected"), [(1, [2, 1]), (-1, [2, 0])])
def test_the_front_has_what_none_beats_in_value_and_time(sign, expected):
    assert numbers(analysis.pareto(TRIALS, sign)) == expected


def test_of_equals_the_first_is_on_the_front():
    assert numbers(analysis.pareto([trial(1, 0.5), trial(0, 0.5)], 1)) == [0]


@pytest.mark.parametrize(("sign", "expected"), [(1, [1, 6, 2, 0, 3, 4, 5]), (-1, [0, 2, 1, 6, 3, 4, 5])])
def test_the_ranking_ends_with_what_has_no_value(sign, expected):
    assert numbers(analysis.ranked(TRIALS, sign)) == expected


@pytest.mark.parametrize(("sign", "expected"), [(1, 6), (-1, 0)])
def test_the_best_was_trained_to_its_end_and_is_a_number(sign, expected):
    found = Sweep("flights", {}, "auc", sign, TRIALS).best
    assert found is not None and found.number == expected


def test_where_all_were_stopped_the_best_of_them_counts():
    found = Sweep("flights", {}, "auc", 1, [trial(0, math.nan), trial(1, 0.6, state="stopped")]).best
    assert found is not None and found.number == 1


@pytest.mark.parametrize(("sign", "expected"), [(1, [0, 1]), (-1, [0])])
def test_records_beat_all_before_them(sign, expected):
    assert numbers(analysis.records(TRIALS, sign)) == expected


ASHA = Sweep(
    "flights",
    {},
    "auc",
    1,
    [
        trial(0, 0.7, 8.0, epochs=8),
        trial(1, 0.6, 3.0, "stopped", epochs=3),
        trial(2, 0.5, 1.0, "stopped", epochs=1),
        trial(3, 0.5, 2.0, "failed", epochs=2),
        trial(4, None, 0.0, "failed"),
        trial(5, 0.5, 1.0, "running", epochs=4),
        trial(6, 0.7, 0.0, "repeat"),
    ],
    rungs=[1, 3, 8, 20],
)


def test_each_rung_says_who_went_on():
    expected = [
        Rung(0, went_on=5, failed=1),
        Rung(1, went_on=3, stopped=1, failed=1),
        Rung(3, went_on=1, stopped=1, running=1),
        Rung(8, went_on=1),
    ]
    assert analysis.survival(ASHA) == expected


def test_whoever_went_on_reached_the_next_rung():
    rungs = analysis.survival(ASHA)
    assert [rung.went_on for rung in rungs[:-1]] == [rung.reached for rung in rungs[1:]]


def test_without_rungs_each_epoch_is_one():
    assert [rung.epoch for rung in analysis.survival(replace(ASHA, rungs=[]))] == list(range(9))


def test_of_many_epochs_some_are_shown():
    sweep = replace(ASHA, rungs=[], trials=[trial(0, 0.5, epochs=1000)])
    assert len(analysis.survival(sweep)) <= 13


def test_a_sweep_without_trials_has_one_empty_rung():
    assert analysis.survival(replace(ASHA, trials=[])) == [Rung(0)]


def test_stopping_saves_what_was_left_at_the_trials_own_speed():
    assert analysis.saved_seconds(ASHA.trials) == pytest.approx((8 - 3) * 1.0 + (8 - 1) * 1.0)


def test_a_trials_own_number_of_epochs_is_its_end():
    trials = [trial(0, 0.5, epochs=8), trial(1, 0.5, 4.0, "stopped", epochs=2, **{"train.epochs": 3})]
    assert analysis.saved_seconds(trials) == pytest.approx(2.0)


def test_where_none_is_complete_nothing_is_known_to_be_saved():
    assert analysis.saved_seconds([trial(0, 0.5, state="stopped")]) == 0


def test_the_most_frequent_reason_comes_first():
    trials = [Trial(number, "failed", {}, reason=reason) for number, reason in enumerate(["a", "", "b", "b"])]
    assert list(analysis.reasons(trials).items()) == [("b", [2, 3]), ("a", [0]), ("no reason known", [1])]


SPACE = {
    "lr": Param(loguniform=[1e-5, 1e-1]),
    "dropout": Param(uniform=[0, 0.5]),
    "layers": Param(int=[1, 8]),
    "heads": Param(int=[1, 2]),
    "name": Param(choice=["a", "b"]),
}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"lr": 0.09, "dropout": 0.25, "layers": 4}, ["lr"]),
        ({"lr": 1.1e-5, "dropout": 0.005, "layers": 8}, ["lr", "dropout", "layers"]),
        ({"lr": 1e-3, "heads": 1, "name": "a"}, []),
        ({"lr": 0.0, "dropout": math.nan, "layers": True}, ["lr"]),
        ({"lr": "x"}, []),
    ],
)
def test_keys_at_the_end_of_their_range(params, expected):
    assert analysis.at_the_end(trial(0, 0.5, **params), SPACE) == expected


def test_thinning_keeps_the_best_and_spreads_the_others():
    trials = [trial(number, number / 100) for number in range(100)]
    assert numbers(analysis.thinned(trials, 1, 4)) == [99, 74, 49, 24]


def test_few_trials_are_all_kept():
    assert numbers(analysis.thinned(TRIALS[:2], 1, 4)) == [1, 0]


@pytest.mark.parametrize(
    ("values", "sign", "expected"),
    [
        ([0.6, 0.7, 0.5], 1, (0.5, 0.7)),
        ([0.6, 0.7, 0.65, -1e30], 1, (0.65 - 3 * 0.05, 0.7)),
        ([0.6, 0.7, 1e30], -1, (0.6, 0.7 + 3 * 0.1)),
        ([0.5, 0.5], 1, (0.5, 0.5)),
        ([0.5], -1, (0.5, 0.5)),
    ],
)
def test_a_very_bad_value_does_not_press_the_others_together(values, sign, expected):
    assert analysis.robust_range(values, sign) == pytest.approx(expected)


def test_importance_is_of_numbers():
    assert analysis.importance(replace(ASHA, importance={"a": math.nan, "b": 0.5})) == {"b": 0.5}
