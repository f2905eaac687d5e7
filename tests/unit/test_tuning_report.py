"""A sweep's report: its sentences, tables and charts, for no trial and for thousands."""

import math
import random
import re
from dataclasses import replace

import pytest

from rayloom.config import Param
from rayloom.tuning import pictures, report
from rayloom.tuning.records import Sweep, Trial

SPACE = {
    "train.lr": Param(loguniform=[1e-5, 1e-1]),
    "model.hidden": Param(choice=[[32], [64, 32]]),
    "train.optimizer": Param(choice=["adamw", "sgd"]),
    "train.momentum": Param(uniform=[0, 0.99], when={"train.optimizer": "sgd"}),
    "model.layers": Param(int=[1, 8]),
}
YAML = "train:\n  lr: 0.003\n"
EVIL = "<script>alert(1)</script>|`````\n"
MADE = [report.html, report.markdown]


def drawn_trial(number: int, source: random.Random) -> Trial:
    """A trial of any state, with params from SPACE."""
    state = source.choice(["complete", "stopped", "stopped", "failed", "repeat", "running"])
    optimizer = source.choice(["adamw", "sgd"])
    params = {
        "train.lr": 10 ** source.uniform(-5, -1),
        "model.hidden": source.choice([[32], [64, 32]]),
        "train.optimizer": optimizer,
    }
    params |= {"train.momentum": source.uniform(0, 0.99)} if optimizer == "sgd" else {}
    epochs = {"complete": 8, "repeat": 0}.get(state, source.randint(1, 7))
    values = {epoch: source.choice([math.nan, source.random(), source.random()]) for epoch in range(1, epochs + 1)}
    judged = values[epochs] if state in ("complete", "stopped") else None
    reason = "the loss is not finite" if state == "failed" else ""
    return Trial(
        number, state, params, values, judged, epochs or None, source.random() * 9, reason, 0 if state == "repeat" else None
    )


def sweep_of(count: int) -> Sweep:
    source = random.Random(count)
    trials = [drawn_trial(number, source) for number in range(count)]
    return Sweep("flights", {"dataset": "3f2a"}, "auc", 1, trials, [1, 3], {"train.lr": 0.7, "model.hidden": 0.3}, 60.0, 2)


BEST = Trial(0, "complete", {"train.lr": 0.003}, {1: 0.6, 2: 0.69321, 3: 0.69}, 0.69321, 2, 9.0)
SWEEP = Sweep(
    "flights",
    {"dataset": "3f2a"},
    "auc",
    1,
    [
        BEST,
        Trial(1, "stopped", {"train.lr": 0.01}, {1: 0.65}, 0.65, 1, 3.0),
        Trial(2, "failed", {"train.lr": 0.1}, {1: math.nan}, None, None, 1.0, "the loss is not finite"),
        Trial(3, "failed", {"train.lr": 0.09}, {}, None, None, 1.0, "the loss is not finite"),
        Trial(4, "repeat", {"train.lr": 0.003}, {}, 0.69321, 2, 0.0, repeats=0),
    ],
    [1, 3],
    {"train.lr": 0.8, "model.hidden": 0.2},
    10.0,
    2,
)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("count", [0, 1, 2, 30, 1000])
def test_a_report_of_any_size_has_no_nan(made, count):
    assert not re.search(r"\b(nan|inf|None)\b", made(sweep_of(count), SPACE, YAML))


@pytest.mark.parametrize("made", MADE)
def test_ten_thousand_trials_make_a_report_of_bounded_size(made):
    text = made(sweep_of(10_000), SPACE, YAML)
    assert len(text) < 3e6 and "trials are left out: " in text


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("values", [[math.nan], [math.inf, 0.5], [1e308, -1e308, 0.0], [0.5, 0.5]])
def test_any_values_can_be_shown(made, values, sign):
    trials = [Trial(number, "complete", {"train.lr": 0.1}, {1: value}, value, 1, 0.0) for number, value in enumerate(values)]
    assert not re.search(r"\b(nan|inf)\b", made(replace(SWEEP, trials=trials, sign=sign), SPACE, YAML))


@pytest.mark.parametrize("made", MADE)
def test_a_sweep_in_which_all_failed_says_why(made):
    text = made(replace(SWEEP, trials=SWEEP.trials[2:4]), SPACE, "")
    assert "No trial has a value of auc" in text and "the loss is not finite (trials 2, 3)" in text


def evil_sweep() -> tuple[Sweep, dict[str, Param]]:
    params = {EVIL: EVIL}
    trials = [
        Trial(0, "complete", params, {1: 0.5}, 0.5, 1, 1.0),
        Trial(1, "stopped", params, {1: 0.4, 2: 0.3}, 0.4, 1, 2.0),
        Trial(2, "failed", params, {1: 0.4}, None, None, 1.0, EVIL),
    ]
    return Sweep(EVIL, {EVIL: EVIL}, EVIL, 1, trials, [1], {EVIL: 1.0}, 1.0), {EVIL: Param(choice=[EVIL, "b"])}


def test_nothing_becomes_html():
    text = report.html(*evil_sweep(), best_yaml=EVIL)
    assert "<script" not in text and "&lt;script&gt;" in text


def test_nothing_becomes_html_or_a_cell_in_markdown():
    text = report.markdown(*evil_sweep(), best_yaml="a: 1\n")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "complete" in line]
    assert "<script" not in text and [line.count("|") - line.count("\\|") for line in rows] == [7]


def test_backticks_do_not_end_the_yaml():
    assert "\n``````yaml\na: '`````'\n``````\n" in report.markdown(SWEEP, SPACE, "a: '`````'\n")


@pytest.mark.parametrize(
    "sentence",
    [
        "Trial 0 is the best: auc 0.6932 in epoch 2 of 3, with train.lr 0.003.",
        "4 distinct of 5 trials: 1 trained to the end, 1 stopped early, 2 failed, "
        "1 with an earlier trial's settings, not trained again.",
        "Why trials failed: the loss is not finite (trials 2, 3).",
        "It took 10.0 s with 2 trials at once, for 14.0 s of training, 70% of the time that its places had.",
        "Stopping trials early saved about 6.0 s of training: to the end, all would have taken about 20.0 s (30% saved).",
        "Of what the searched keys explain in auc, most is due to train.lr 80%, model.hidden 20%.",
        "At half the cost: trial 1 comes to 0.6500, 0.0432 from the best, in 3.0 s of training instead of 9.0 s.",
    ],
)
def test_the_findings_say(sentence):
    assert sentence in report.findings(SWEEP, SPACE)


def test_many_reasons_are_counted_together():
    trials = [Trial(number, "failed", {}, reason=f"reason {number}") for number in range(9)]
    assert "reason 2 (trial 2); 6 more for other reasons." in " ".join(report.findings(replace(SWEEP, trials=trials), SPACE))


def test_a_best_trial_that_was_stopped_is_said_to_be():
    found = report.findings(replace(SWEEP, trials=SWEEP.trials[1:]), SPACE)[0]
    assert found.endswith("It was stopped early: no trial was trained to its end.")


@pytest.mark.parametrize(("count", "expected"), [(9, False), (10, True)])
def test_enough_trials_tell_that_a_range_is_too_narrow(count, expected):
    trials = [replace(BEST, number=number, params={"train.lr": 0.0999}) for number in range(count)]
    found = report.findings(replace(SWEEP, trials=trials), SPACE)
    assert any("at the end of the range of train.lr (0.0999)" in sentence for sentence in found) == expected


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("shown", ["lr: 0.003", "0.6932", "failed: the loss is not finite", "repeat of 0", "3f2a"])
def test_the_report_has(made, shown):
    assert shown in made(SWEEP, SPACE, YAML)


@pytest.mark.parametrize(
    "title",
    [
        "What it found",
        "The best config",
        "All searched keys",
        "Importance of the searched keys",
        "Trials that reached each rung, and who went on",
        "Best auc so far, by trial",
        "auc against seconds of training, with the Pareto front",
        "auc by epoch",
        "auc over train.lr",
        "Trials, best first",
    ],
)
def test_the_html_has_its_parts(title):
    assert f"<h2>{title}</h2>" in report.html(SWEEP, SPACE, YAML)


def test_a_key_that_no_trial_has_is_no_slice():
    assert list(pictures.slices(SWEEP, SPACE)) == ["auc over train.lr"]


def test_the_best_line_is_drawn_last():
    lines = re.findall(r'<polyline class="curve (\w+)', pictures.parallel(sweep_of(100), SPACE))
    assert lines.count("best") == 1 and lines[-1] == "best"


def test_better_trials_stand_out_more():
    trials = [replace(BEST, number=number, value=number / 10) for number in range(4)]
    lines = re.findall(r'<polyline class="curve (\w+)', pictures.parallel(replace(SWEEP, trials=trials), SPACE))
    assert lines == ["v0", "v1", "v4", "best"]


def test_of_many_trials_some_are_drawn_and_that_is_said():
    trials = [replace(BEST, number=number, value=number / 1000) for number in range(700)]
    text = pictures.parallel(replace(SWEEP, trials=trials), SPACE)
    assert text.count("<polyline") == pictures.MOST_LINES and "500 of 700 trials are drawn." in text


def test_the_front_is_drawn_also_where_others_are_not():
    trials = [replace(BEST, number=number, value=number / 5000, seconds=5.0) for number in range(5000)]
    trials[2] = replace(trials[2], seconds=1.0)
    chart = pictures.small(replace(SWEEP, trials=trials))["auc against seconds of training, with the Pareto front"]
    assert "<title>trial 2: " in chart and "<title>trial 3: " not in chart


def test_of_many_keys_the_most_important_are_drawn():
    space = {f"model.k{place}": Param(uniform=[0, 1]) for place in range(20)}
    trials = [replace(BEST, params=dict.fromkeys(space, 0.5))]
    text = pictures.parallel(replace(SWEEP, trials=trials, importance={"model.k19": 0.9}), space)
    assert ">model.k19<" in text and ">model.k15<" not in text and "12 of 20 searched keys are drawn." in text


def test_a_failed_trials_curve_is_marked():
    trials = [BEST, Trial(1, "failed", {}, {1: 0.5, 2: 0.4}, None, None, 1.0, "died")]
    assert 'class="curve failed"' in pictures.curves(replace(SWEEP, trials=trials))


def test_rungs_are_marked_among_the_curves():
    assert pictures.curves(SWEEP).count('class="rung"') == 2


def test_the_table_keeps_room_for_what_failed():
    judged = [replace(BEST, number=number, value=number / 1000) for number in range(500)]
    failed = [Trial(500 + number, "failed", {}, reason="died") for number in range(200)]
    shown, left = report.listed(replace(SWEEP, trials=[*judged, *failed]), 300)
    assert (shown[0].number, shown[199].number, shown[200].number, len(shown)) == (499, 300, 500, 300)
    assert left == "400 trials are left out: 300 complete, 100 failed."


@pytest.mark.parametrize(("judged", "failed"), [(500, 0), (0, 500), (500, 3), (3, 500)])
def test_a_table_that_is_too_long_is_full(judged, failed):
    trials = [replace(BEST, number=number) for number in range(judged)]
    trials += [Trial(judged + number, "failed", {}) for number in range(failed)]
    shown, _ = report.listed(replace(SWEEP, trials=trials), 300)
    assert len({trial.number for trial in shown}) == 300
