"""Metrics held against small examples worked out by hand and against scikit-learn, and the leak check."""

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn import metrics as sk

from rayloom import evaluation
from rayloom.errors import DataError, LeakError
from rayloom.evaluation import Answers
from rayloom.evaluation.metrics import BINARY, MULTICLASS, prepare

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
    # 15 bins: confidences 0.9 (bin 14; twice, both right), 0.6 (bin 9; twice, both wrong), 0.7 (bin 11; right)
    "ece": (2 * 0.1 + 2 * 0.6 + 0.3) / 5,
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


@pytest.fixture
def three():
    """60 labels of three classes and the probabilities of a model that has learned a little."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 60)
    powers = np.exp(rng.normal(size=(60, 3)) + np.eye(3)[labels])
    return labels, (powers / powers.sum(1, keepdims=True)).astype(np.float32)


def by_scikit_learn(labels, given) -> dict[str, float]:
    decided, one_hot = given.argmax(1), np.eye(given.shape[1])[labels]
    found = {
        "auc": sk.roc_auc_score(labels, given / given.sum(1, keepdims=True, dtype=np.float64), multi_class="ovr"),
        "average_precision": sk.average_precision_score(one_hot, given, average="macro"),
        "log_loss": sk.log_loss(labels, given),
        "brier": ((given - one_hot) ** 2).sum(1).mean(),
        "accuracy": sk.accuracy_score(labels, decided),
    }
    for mean in ("macro", "weighted"):
        values = sk.precision_recall_fscore_support(labels, decided, average=mean, zero_division=0)
        found |= {f"{name}_{mean}": value for name, value in zip(("precision", "recall", "f1"), values, strict=False)}
    return found


@pytest.mark.parametrize("metric", [name for name in MULTICLASS if name != "ece"])
def test_a_metric_of_three_classes_is_scikit_learns(three, metric):
    assert evaluation.score(*three)[metric] == pytest.approx(by_scikit_learn(*three)[metric], abs=1e-6)


@pytest.mark.parametrize("metric", ["auc", "average_precision"])
@pytest.mark.parametrize("decimals", [1, 7])
def test_ties_count_as_in_scikit_learn(coin, metric, decimals):
    given = np.round(np.random.default_rng(1).random(4000) + coin / 4, decimals).astype(np.float32)
    expected = {"auc": sk.roc_auc_score, "average_precision": sk.average_precision_score}[metric](coin, given)
    assert evaluation.score(coin, given)[metric] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", BINARY)
def test_a_row_of_weight_two_counts_as_two_rows(metric):
    rows = np.array([0, 0, 1, 2, 4])
    weighted = prepare(metric, Answers(LABELS, PROBABILITIES))(np.bincount(rows, minlength=5).astype(float))
    assert weighted == pytest.approx(evaluation.score(LABELS[rows], PROBABILITIES[rows])[metric], abs=1e-12)


@pytest.mark.parametrize("metric", MULTICLASS)
def test_a_row_of_weight_two_counts_as_two_rows_of_three_classes(three, metric):
    labels, given = three
    rows = np.random.default_rng(9).integers(0, 60, 60)
    weighted = prepare(metric, Answers(labels, given))(np.bincount(rows, minlength=60).astype(float))
    assert weighted == pytest.approx(evaluation.score(labels[rows], given[rows])[metric], abs=1e-12)


def test_the_calibration_error_of_three_classes_is_the_one_by_hand():
    given = np.array([[0.5, 0.3, 0.2], [0.2, 0.49, 0.31], [0.05, 0.05, 0.9]], np.float32)
    # The first two are in bin 8 of 15, (7/15, 8/15], one of them right: |1 - 0.99| of two rows; the third: |1 - 0.9| of one.
    assert evaluation.score(np.array([0, 2, 2]), given)["ece"] == pytest.approx((0.01 + 0.1) / 3, abs=1e-6)


def test_a_class_without_rows_leaves_means_that_exist(three):
    labels, given = three
    found = evaluation.score(np.minimum(labels, 1), given)
    assert math.isfinite(found["auc"]) and math.isfinite(found["f1_macro"])


def test_each_class_has_its_own_metrics(three):
    labels, given = three
    expected = sk.precision_recall_fscore_support(labels, given.argmax(1))
    found = evaluation.score_classes(Answers(labels, given))
    assert [list(one.values()) for one in found] == [pytest.approx(list(row)) for row in zip(*expected, strict=True)]


def test_the_confusion_matrix_has_decisions_beside_classes(three):
    labels, given = three
    assert evaluation.confusion(Answers(labels, given)).tolist() == sk.confusion_matrix(labels, given.argmax(1)).tolist()


def test_two_classes_are_decided_by_the_threshold():
    assert evaluation.confusion(Answers(LABELS, PROBABILITIES, 0.65)).tolist() == [[2, 0], [1, 2]]


def test_the_worst_mistake_comes_first():
    assert evaluation.worst(Answers(LABELS, PROBABILITIES), 5).tolist() == [1, 2]  # 0.4 for the truth in both: in rows' order


def test_no_more_mistakes_come_than_asked_for(three):
    labels, given = three
    found = evaluation.worst(Answers(labels, given), 3)
    wrong = np.flatnonzero(given.argmax(1) != labels)
    assert given[found, labels[found]].tolist() == sorted(given[wrong, labels[wrong]].tolist())[:3]


def test_rows_of_one_class_are_refused():
    with pytest.raises(DataError, match=r"All 3 rows of the test split have the label 2; correct etl\.splits\.test"):
        evaluation.require_several_classes(np.full(3, 2), "test")


@pytest.mark.parametrize("direction", [1, -1])
def test_a_number_in_whose_ranges_three_classes_lie_is_a_leak(direction):
    labels = np.random.default_rng(3).integers(0, 3, 3000)
    assert evaluation.single_feature_auc(direction * labels.astype(np.float32), labels) == pytest.approx(1.0)


def test_a_number_by_chance_tells_no_class_of_three():
    rng = np.random.default_rng(3)
    assert evaluation.single_feature_auc(rng.normal(size=3000), rng.integers(0, 3, 3000)) < 0.6


def test_the_loop_starts_without_scikit_learn():
    program = (
        "import sys, rayloom.training; print([name for name in ('sklearn', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "[]"


def test_baselines_learn(three):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200).astype(np.float32)
    numbers = (rng.normal(size=(200, 2)) + 3 * labels[:, None]).astype(np.float32)
    tabular = {"numbers": numbers, "categories": np.zeros((200, 1), np.int64), "label": labels}
    images = {"image": numbers.reshape(200, 1, 1, 2), "label": labels}
    texts = ["a bad flight" if label else "the good train" for label in labels]
    for given in (evaluation.boosted_trees(tabular, tabular, 1), evaluation.pixels(images, images)):
        assert given.shape == (200,) and evaluation.score(labels, given)["auc"] > 0.95
    assert evaluation.score(labels, evaluation.words(texts, labels, texts))["auc"] == 1.0


def test_a_baselines_threads_sleep_while_they_wait_and_no_others():
    program = """if True:
        import os, numpy as np
        from rayloom import evaluation
        from rayloom.stages import verdict
        labels = np.arange(200) % 2
        rows = {"numbers": labels[:, None] * 1.0, "categories": labels[:, None], "label": labels}
        evaluation.boosted_trees(rows, rows, 1)
        print(os.environ.get("OMP_WAIT_POLICY"))
    """
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | {"OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True, check=True)
    torchs, scikit_learns = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert int(torchs) > 0 and scikit_learns == "0" and done.stdout == "None\n"


def test_a_baseline_of_three_classes_gives_a_probability_for_each():
    labels = np.arange(60) % 3
    found = evaluation.words([["tea", "milk", "wine"][label] for label in labels], labels, ["wine", "tea"])
    assert found.argmax(1).tolist() == [2, 0]


def test_texts_without_words_have_no_baseline():
    with pytest.raises(DataError, match=r"have no words.*set evaluate\.baseline to false"):
        evaluation.words(["!", "?"], np.array([0, 1]), ["!"])
