"""Metrics held against small examples worked out by hand, the leak check, and the gate."""

import math

import numpy as np
import pytest

from rayloom import config, evaluation
from rayloom.errors import GateError, LeakError

LABELS = np.array([0, 0, 1, 1, 1], np.float32)
PROBABILITIES = np.array([0.1, 0.6, 0.4, 0.7, 0.9], np.float32)

BY_HAND = {
    "auc": 5 / 6,  # of 3 x 2 pairs only (0.4, 0.6) is the wrong way round
    "average_precision": (1 + 1 + 3 / 4) / 3,  # precision where each positive is found: 1/1, 2/2, 3/4
    "log_loss": -(math.log(0.9) + math.log(0.4) + math.log(0.4) + math.log(0.7) + math.log(0.9)) / 5,
    "brier": (0.01 + 0.36 + 0.36 + 0.09 + 0.01) / 5,
    "precision": 2 / 3,  # positive at 0.5: 0.6 (wrong), 0.7, 0.9
    "recall": 2 / 3,
    "f1": 2 / 3,
    "accuracy": 3 / 5,
    "threshold": 0.5,
    "n": 5,
}


@pytest.fixture
def coin():
    """4000 labels by a coin."""
    return np.random.default_rng(2).integers(0, 2, 4000).astype(np.float32)


@pytest.mark.parametrize("metric", BY_HAND)
def test_a_metric_is_what_it_is_by_hand(metric):
    assert evaluation.score(LABELS, PROBABILITIES, 0.5)[metric] == pytest.approx(BY_HAND[metric], rel=1e-6)


def test_score_gives_no_other_metric():
    assert evaluation.score(LABELS, PROBABILITIES, 0.5).keys() == BY_HAND.keys()


def test_a_probability_at_the_threshold_is_positive():
    assert evaluation.score(np.array([1.0, 0.0]), np.array([0.5, 0.4]), 0.5)["recall"] == 1.0


@pytest.mark.parametrize("label", [0, 1])
def test_the_auc_of_a_single_class_is_nan(label):
    assert math.isnan(evaluation.score(np.full(4, label, np.float32), PROBABILITIES[:4], 0.5)["auc"])


@pytest.mark.parametrize("label", [0, 1])
def test_the_other_metrics_of_a_single_class_are_numbers(label):
    metrics = evaluation.score(np.full(4, label, np.float32), PROBABILITIES[:4], 0.5)
    assert all(math.isfinite(value) for name, value in metrics.items() if name not in ("auc", "average_precision"))


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.filterwarnings("ignore:No positive class")
def test_a_single_class_has_a_threshold(label):
    assert math.isfinite(evaluation.best_threshold(np.full(4, label, np.float32), PROBABILITIES[:4]))


def test_certain_answers_have_a_finite_loss():
    assert math.isfinite(evaluation.score(np.array([0.0, 1.0]), np.array([1.0, 0.0], np.float32), 0.5)["log_loss"])


def test_the_best_threshold_is_the_one_by_hand():
    # F1 at 0.1: 6/8, at 0.4: 6/7, at 0.6: 4/6, at 0.7: 4/5, at 0.9: 2/4
    assert evaluation.best_threshold(LABELS, PROBABILITIES) == pytest.approx(0.4)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_threshold_has_a_higher_f1(seed):
    rng = np.random.default_rng(seed)
    labels, probabilities = rng.integers(0, 2, 12).astype(np.float32), rng.random(12).astype(np.float32)
    best = evaluation.score(labels, probabilities, evaluation.best_threshold(labels, probabilities))["f1"]
    assert best >= max(evaluation.score(labels, probabilities, other)["f1"] for other in probabilities)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_is_the_label_ranks_perfectly_in_either_direction(coin, sign):
    assert evaluation.single_feature_auc(sign * coin, coin) == 1.0


def test_noise_does_not_rank(coin):
    noise = np.random.default_rng(3).normal(size=len(coin)).astype(np.float32)
    assert evaluation.single_feature_auc(noise, coin) == pytest.approx(0.5, abs=0.03)


def test_a_constant_does_not_rank(coin):
    assert evaluation.single_feature_auc(np.zeros_like(coin), coin) == 0.5


def test_a_category_that_is_the_label_ranks_perfectly(coin):
    assert evaluation.single_feature_auc(1 - coin.astype(np.int64), coin) == 1.0


def test_a_category_ranks_by_its_rate_not_by_its_index(coin):
    codes = 2 * np.random.default_rng(4).integers(0, 50, len(coin)) + coin.astype(np.int64)
    assert evaluation.single_feature_auc(codes, coin) == 1.0


@pytest.mark.parametrize("size", [3, 300, 4000, 40_000])
def test_a_category_of_many_values_does_not_look_good_by_chance(coin, size):
    codes = np.random.default_rng(size).integers(0, size, len(coin))
    assert evaluation.single_feature_auc(codes, coin) < 0.6


def test_a_category_that_is_the_rows_number_does_not_rank(coin):
    assert evaluation.single_feature_auc(np.arange(len(coin)), coin) == 0.5


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_labels_of_a_single_class_are_ranked_by_nothing(kind):
    assert evaluation.single_feature_auc(np.arange(4).astype(kind), np.ones(4, np.float32)) == 0.5


def test_a_leak_is_refused_by_name(coin):
    noise = np.random.default_rng(3).normal(size=len(coin))
    with pytest.raises(LeakError, match=r"The feature 'arr_delay' alone separates the label \(ROC-AUC 1.0000, limit 0.98\)"):
        evaluation.refuse_leaks(["wind", "arr_delay"], [noise, coin], coin, 0.98)


def test_honest_features_are_not_refused(coin):
    honest = coin + np.random.default_rng(3).normal(size=len(coin))
    evaluation.refuse_leaks(["wind"], [honest], coin, 0.98)


def test_the_limit_itself_is_refused(coin):
    with pytest.raises(LeakError):
        evaluation.refuse_leaks(["y"], [coin], coin, 1.0)


@pytest.mark.parametrize("reached", [0.7, 0.71, 1.0])
def test_the_gate_passes_what_reaches_it(reached):
    evaluation.require(config.Gate(metric="auc", at_least=0.7), {"auc": reached})


@pytest.mark.parametrize("reached", [0.6999, 0.0, float("nan")])
def test_the_gate_stops_what_does_not_reach_it(reached):
    with pytest.raises(GateError, match=r"test auc is .*, below evaluate.gate.at_least = 0.7"):
        evaluation.require(config.Gate(metric="auc", at_least=0.7), {"auc": reached})


def test_the_gate_stops_nan_even_where_it_asks_nothing():
    with pytest.raises(GateError):
        evaluation.require(config.Gate(metric="auc", at_least=0.0), {"auc": float("nan")})


def test_the_gate_looks_at_its_own_metric():
    with pytest.raises(GateError, match=r"test f1 is 0\.1000"):
        evaluation.require(config.Gate(metric="f1", at_least=0.5), {"auc": 0.9, "f1": 0.1})
