"""The gate: what passes, that every reason is named, and what the report says of it."""

import json

import numpy as np
import pytest

from rayloom import evaluation
from rayloom.config import Gate
from rayloom.errors import GateError
from rayloom.evaluation import Comparison, Report, Rival, Slice


def judged(conditions: list[Gate], test=None, slices=None, rival=None) -> list[evaluation.Outcome]:
    return evaluation.judge_gate(conditions, test or {}, slices or {}, rival or Rival())


def refusal(*given, **named) -> str:
    with pytest.raises(GateError) as caught:
        evaluation.require(judged(*given, **named))
    return str(caught.value)


def rival(low: float, high: float, metric: str = "auc") -> Rival:
    return Rival("toy v1", {metric: Comparison(metric, 0.70, 0.72, -0.02, low, high, 0.1)})


def part(value: str, reached: float, gated: bool = True) -> Slice:
    return Slice("carrier", value, 150, "auc", reached, reached - 0.05, reached + 0.05, gated)


@pytest.mark.parametrize("reached", [0.7, 0.71, 1.0])
def test_what_reaches_the_limit_passes(reached):
    evaluation.require(judged([Gate(at_least=0.7)], {"auc": reached}))


@pytest.mark.parametrize("reached", [0.6999, 0.0, float("nan")])
def test_what_does_not_reach_the_limit_is_stopped(reached):
    said = refusal([Gate(at_least=0.7)], {"auc": reached})
    assert f"test auc is {reached:.4f}, below evaluate.gate.at_least = 0.7; @champion stays where it was" in said


def test_nan_is_stopped_even_where_nothing_is_asked():
    assert "test auc is nan" in refusal([Gate(at_least=0.0)], {"auc": float("nan")})


def test_a_condition_looks_at_its_own_metric():
    assert "test f1 is 0.1000" in refusal([Gate(metric="f1", at_least=0.5)], {"auc": 0.9, "f1": 0.1})


@pytest.mark.parametrize(("reached", "passed"), [(0.2, True), (0.1, True), (0.21, False), (float("nan"), False)])
def test_a_loss_has_to_be_low(reached, passed):
    assert judged([Gate(metric="brier", at_most=0.2)], {"brier": reached})[0].passed is passed


def test_a_loss_that_is_too_high_is_named():
    said = refusal([Gate(metric="brier", at_most=0.2)], {"brier": 0.3})
    assert "test brier is 0.3000, above evaluate.gate.at_most = 0.2" in said


def test_every_failed_condition_is_named_with_its_place():
    conditions = [Gate(at_least=0.9), Gate(metric="f1", at_least=0.1), Gate(metric="brier", at_most=0.01)]
    said = refusal(conditions, {"auc": 0.8, "f1": 0.5, "brier": 0.2})
    assert "below evaluate.gate.0.at_least = 0.9; test brier is 0.2000, above evaluate.gate.2.at_most = 0.01" in said
    assert "f1" not in said and "\n" not in said


@pytest.mark.parametrize(
    ("low", "high", "by", "passed"),
    [
        (-0.04, 0.01, 0.0, True),  # it may as well be better
        (-0.04, -0.01, 0.0, False),  # it is worse
        (-0.04, -0.01, 0.01, True),  # but perhaps by no more than is allowed
        (-0.04, -0.015, 0.01, False),
        (0.01, 0.02, 0.0, True),
    ],
)
def test_a_model_that_is_shown_to_be_worse_than_the_champion_is_stopped(low, high, by, passed):
    assert judged([Gate(not_worse_than="champion", by=by)], rival=rival(low, high))[0].passed is passed


@pytest.mark.parametrize(("low", "high", "passed"), [(-0.01, 0.04, True), (0.01, 0.04, False), (-0.04, -0.01, True)])
def test_a_loss_that_is_shown_to_be_higher_than_the_champions_is_stopped(low, high, passed):
    condition = Gate(metric="log_loss", not_worse_than="champion")
    assert judged([condition], rival=rival(low, high, "log_loss"))[0].passed is passed


def test_the_champion_that_is_better_is_named():
    said = refusal([Gate(not_worse_than="champion", by=0.002)], rival=rival(-0.03, -0.01))
    assert "test auc is 0.7000, that of toy v1 0.7200 (difference -0.0200, 95 % from -0.0300 to -0.0100)" in said
    assert "worse by more than evaluate.gate.by = 0.002" in said


def test_without_a_champion_nothing_is_worse():
    assert judged([Gate(not_worse_than="champion")])[0].passed


def test_a_champion_that_cannot_be_compared_stops_the_model_and_says_why():
    said = refusal([Gate(not_worse_than="champion")], rival=Rival("toy v1", reason="The rows have no column 'x'."))
    assert "toy v1 cannot be compared, for The rows have no column 'x'" in said


def test_every_slice_below_is_named():
    slices = {"auc": [part("HA", 0.4), part("EV", 0.5), part("AA", 0.9)]}
    said = refusal([Gate(slices=True, at_least=0.55)], slices=slices)
    assert "below evaluate.gate.at_least = 0.55 in 2 slices: carrier HA: 0.4000 (n 150), carrier EV: 0.5000 (n 150)" in said


def test_a_slice_that_is_not_gated_stops_nothing():
    slices = {"auc": [part("HA", 0.4, gated=False), part("AA", 0.9)]}
    assert judged([Gate(slices=True, at_least=0.55)], slices=slices)[0].passed


@pytest.fixture
def report():
    """A report of two classes, in which everything is there."""
    conditions = [Gate(at_least=0.6), Gate(slices=True, at_least=0.5)]
    labels, given = np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.3], np.float32)
    answers = evaluation.Answers(labels, given)
    test = evaluation.score(labels, given)
    slices = {"auc": [part("EV", 0.45), part("AA", 0.9), part("HA", float("nan"), gated=False)]}
    return Report(
        model="toy v2", metric="auc", classes=[0, 1], test=test, per_class=evaluation.score_classes(answers),
        confusion=evaluation.confusion(answers), baseline={"auc": 0.75}, slices=slices, rival=rival(-0.03, 0.01),
        outcomes=judged(conditions, test, slices),
    )  # fmt: skip


def test_the_report_says_it_all_on_a_screen(report):
    text = "\n".join(report.lines())
    for part_of_it in (
        "toy v2 on 4 test rows: auc 1.0000",
        "baseline: auc 0.7500",
        "champion toy v1: auc 0.7200, difference -0.0200 (95 % -0.0300 to +0.0100), better with probability 0.10",
        "worst slices by auc: carrier EV 0.4500 (n 150, 95 % 0.4000 to 0.5000), carrier AA 0.9000",
        "gate: passed: test auc is 1.0000",
        "gate: FAILED: test auc is below evaluate.gate.1.at_least = 0.5 in 1 slice: carrier EV: 0.4500",
    ):
        assert part_of_it in text


def test_slices_are_shown_where_all_are_too_small_for_the_gate(report):
    made = Report(**{**vars(report), "slices": {"auc": [part("HA", 0.4, gated=False)]}})
    assert "  worst slices by auc: carrier HA 0.4000 (n 150, 95 % 0.3500 to 0.4500)" in made.lines()


def test_the_report_is_json_with_null_for_what_is_not_defined(report):
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["slices"]["auc"][2]["reached"] is None
    assert found["gate"]["passed"] is False and found["confusion_matrix"] == [[2, 0], [1, 1]]
    assert found["classes"]["1"]["n"] == 2 and found["champion"]["comparisons"]["auc"]["p_better"] == 0.1


def test_the_summary_of_two_classes_keeps_its_keys(report):
    assert list(report.shown()) == ["auc", "average_precision", "f1", "accuracy", "ece", "n", "baseline_auc"]


def test_the_summary_has_the_metric_that_models_are_compared_by(report):
    assert "brier" in Report(**{**vars(report), "metric": "brier"}).shown()


def test_the_lowest_f1_of_three_classes_is_named():
    answers = evaluation.Answers(np.array([0, 1, 2, 2]), np.eye(3, dtype=np.float32)[[0, 1, 1, 2]])
    made = Report(
        "toy v3", "accuracy", ["tea", "milk", "wine"], evaluation.score(answers.labels, answers.probabilities),
        evaluation.score_classes(answers), evaluation.confusion(answers),
    )  # fmt: skip
    assert "  lowest f1: milk 0.6667 (n 1), wine 0.6667 (n 2), tea 1.0000 (n 1)" in made.lines()
    assert list(made.shown()) == ["accuracy", "f1_macro", "auc", "ece", "n"]
