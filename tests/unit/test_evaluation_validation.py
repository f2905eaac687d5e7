"""What validation rows decide: temperature, threshold and the best epoch; and answers that are the predictor's."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from rayloom import config, evaluation
from rayloom.errors import ConfigError

LABELS = np.array([0, 0, 1, 1, 1], np.float32)
SCHEMA = pa.schema({"carrier": pa.string(), "origin": pa.string(), "photo": pa.binary()})
ANSWERS = np.array([0.1, 0.6, 0.4, 0.7, 0.9], np.float32)


def settings(**changes) -> config.Evaluate:
    return config.Evaluate.model_validate(changes)


def drawn(temperature: float, classes: int, rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from a model's own probabilities, and its logits times `temperature`."""
    rng = np.random.default_rng(8)
    logits = 2 * rng.normal(size=(rows, classes))
    labels = (np.cumsum(np.exp(logits), 1) < rng.random((rows, 1)) * np.exp(logits).sum(1, keepdims=True)).sum(1)
    given = logits[:, 1] - logits[:, 0] if classes == 2 else logits
    return labels, (temperature * given).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_a_known_temperature_is_recovered(temperature, classes):
    assert evaluation.fit_temperature(*drawn(temperature, classes)) == pytest.approx(temperature, rel=0.04)


@pytest.mark.parametrize("classes", [2, 3])
def test_no_other_temperature_has_a_lower_loss(classes):
    labels, logits = drawn(3.0, classes, 300)
    best = evaluation.fit_temperature(labels, logits)
    losses = [
        evaluation.score(labels, evaluation.probabilities(logits, best * factor))["log_loss"] for factor in (0.9, 1.0, 1.1)
    ]
    assert losses[1] == min(losses)


def test_perfect_separation_is_as_cold_as_it_gets():
    assert evaluation.fit_temperature(np.array([0, 1]), np.array([-1.0, 1.0])) == pytest.approx(0.05)


def test_logits_that_are_always_wrong_are_as_hot_as_it_gets():
    assert evaluation.fit_temperature(np.array([1, 0]), np.array([-1.0, 1.0])) == pytest.approx(20.0)


@pytest.mark.parametrize("logits", [np.zeros(4), np.ones((4, 3)), np.array([0, 1, np.nan, 2])])
def test_logits_that_no_temperature_changes_keep_it_at_1(logits):
    assert evaluation.fit_temperature(np.array([0, 1, 0, 1]), logits.astype(np.float32)) == 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_probabilities_are_torchs(temperature):
    logits = torch.tensor([-1000.0, -3.2, 0.0, 0.7, 90.0])
    expected = torch.sigmoid(logits / temperature).numpy()
    assert evaluation.probabilities(logits.numpy(), temperature) == pytest.approx(expected, abs=1e-7)
    rows = torch.stack([logits, logits.flip(0)])
    expected = torch.softmax(rows / temperature, 1).numpy()
    assert evaluation.probabilities(rows.numpy(), temperature) == pytest.approx(expected, abs=1e-7)


def test_a_rows_probability_does_not_depend_on_its_place():
    logits = np.random.default_rng(0).normal(size=1001).astype(np.float32)
    whole = evaluation.probabilities(logits, 1.7)
    assert all(whole[place] == evaluation.probabilities(logits[place : place + 1], 1.7)[0] for place in range(1001))


@pytest.mark.parametrize("classes", [2, 3])
def test_answers_are_what_the_temperature_and_the_logits_give(classes):
    labels, logits = drawn(2.0, classes, 500)
    metrics, answers = evaluation.judge(labels, logits, settings())
    assert answers.dtype == np.float32
    assert answers.tolist() == evaluation.probabilities(logits, metrics["temperature"]).tolist()


@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_are_those_of_the_answers(classes):
    labels, logits = drawn(2.0, classes, 500)
    metrics, answers = evaluation.judge(labels, logits, settings())
    expected = evaluation.score(labels, answers, metrics.get("threshold", 0.5))
    assert metrics == {**expected, "temperature": metrics["temperature"]}


def test_without_calibration_the_temperature_is_1():
    assert evaluation.judge(*drawn(3.0, 2, 500), settings(calibrate="none"))[0]["temperature"] == 1.0


def test_calibration_lowers_the_calibration_error():
    rows = drawn(4.0, 3)
    raw, calibrated = (evaluation.judge(*rows, settings(calibrate=one))[0]["ece"] for one in ("none", "temperature"))
    assert raw > 0.1 and calibrated < 0.02


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("f1", 0.4),  # at 0.1: 6/8, at 0.4: 6/7, at 0.6: 4/6, at 0.7: 4/5, at 0.9: 2/4
        ("accuracy", 0.4),  # right: 3, 4, 3, 4, 3 of 5; the lowest of two best
        ("youden", 0.7),  # at 0.4: 1 - 1/2, at 0.7: 2/3 - 0
        (0.3, 0.3),
    ],
)
def test_the_threshold_is_the_one_by_hand(by, expected):
    assert evaluation.best_threshold(LABELS, ANSWERS, by) == pytest.approx(expected)


@pytest.mark.parametrize("by", ["f1", "accuracy", "youden"])
def test_no_other_threshold_is_better(by):
    rng = np.random.default_rng(6)
    labels, answers = rng.integers(0, 2, 30), np.round(rng.random(30), 1).astype(np.float32)

    def value(threshold: float) -> float:
        if by != "youden":
            return evaluation.score(labels, answers, threshold)[by]
        return (answers >= threshold)[labels == 1].mean() + (answers < threshold)[labels == 0].mean()

    assert value(evaluation.best_threshold(labels, answers, by)) == pytest.approx(max(map(value, answers)))


@pytest.mark.parametrize(
    ("metric", "classes", "expected"),
    [(None, 2, ("auc", 1)), (None, 5, ("accuracy", 1)), ("log_loss", 2, ("log_loss", -1)), ("f1_macro", 3, ("f1_macro", 1))],
)
def test_the_best_epoch_is_picked_by(metric, classes, expected):
    assert evaluation.selection(settings(metric=metric), classes) == expected


@pytest.mark.parametrize(
    ("changes", "classes", "said"),
    [
        ({"metric": "f1"}, 3, "evaluate.metric: a label of 3 classes has no metric 'f1'. Known: accuracy, auc,"),
        ({"metric": "f1_macro"}, 2, "evaluate.metric: a label of 2 classes has no metric 'f1_macro'. Known: accuracy, auc,"),
        (
            {"gate": {"metric": "recall", "at_least": 0.5}},
            3,
            "evaluate.gate.metric: a label of 3 classes has no metric 'recall'",
        ),
        (
            {"gate": [{"at_least": 0.5}, {"metric": "f1", "at_least": 0.5}]},
            3,
            "evaluate.gate.1.metric: a label of 3 classes has no metric 'f1'",
        ),
        (
            {"slices": ["photo"]},
            2,
            "evaluate.slices: 'photo' is of type binary, whose values tell no slices; name another column",
        ),
        ({"slices": ["carier"]}, 2, "evaluate.slices: the rows have no column 'carier'; did you mean 'carrier'?"),
    ],
)
def test_what_the_label_or_the_rows_do_not_have_is_refused(changes, classes, said):
    with pytest.raises(ConfigError) as caught:
        evaluation.check(settings(**changes), classes, SCHEMA)
    assert str(caught.value).startswith(said)


def test_what_the_label_and_the_rows_have_is_accepted():
    evaluation.check(settings(metric="brier", slices=["origin"]), 2, SCHEMA)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "acuracy"}, "unknown metric 'acuracy'; did you mean 'accuracy'?"),
        ({"threshold": "best"}, "threshold is 'best'; write f1, accuracy, youden or a number between 0 and 1"),
        ({"threshold": 1.0}, "threshold is 1.0; write"),
        ({"threshold": True}, "threshold is True; write"),
        ({"gate": {"metric": "f1"}}, "a condition of the gate has no limit; write one of"),
        ({"gate": {"at_least": 0.5, "at_most": 0.6}}, "a condition of the gate has at_least and at_most; write one of"),
        ({"gate": {"metric": "brier", "at_least": 0.5}}, "at_least does not go with brier; write at_most"),
        ({"gate": {"metric": "auc", "at_most": 0.5}}, "at_most does not go with auc; write at_least"),
        ({"gate": {"at_least": 0.5, "by": 0.1}}, "by goes with not_worse_than; remove it"),
        (
            {"gate": {"slices": True, "at_least": 0.5}},
            "the gate has a condition on slices, and evaluate.slices names no column",
        ),
        ({"gate": {"slices": True, "not_worse_than": "champion"}}, "slices goes with at_least or at_most"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(changes, said):
    with pytest.raises(ValueError, match=r"Value error") as caught:
        settings(**changes)
    assert said in str(caught.value)


def test_a_single_condition_is_a_list_of_one():
    assert settings(gate={"metric": "f1", "at_least": 0.4}).gate == [config.Gate(metric="f1", at_least=0.4)]
