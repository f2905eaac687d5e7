"""The table of a comparison, its report, and the bare loop that launchers are held against."""

import json
import math
from dataclasses import replace

import pytest

from rayloom import charts, config
from rayloom.costs import bare, report
from rayloom.costs.table import Cost, Costs, beside_bare, of_launcher, over_rounds, overall

HISTORY = [
    {"epoch": 0, "loss": 0.7, "samples_per_s": 100.0, "seconds": 9.0, "peak_mb": 300.0, "wire_bytes": 800},
    {"epoch": 1, "loss": 0.6, "samples_per_s": 900.0, "seconds": 1.0, "peak_mb": 320.0, "wire_bytes": 800},
    {"epoch": 2, "loss": 0.5, "samples_per_s": 1000.0, "seconds": 1.2, "peak_mb": 310.0, "wire_bytes": 800},
]
TIMELINE = {"worker started": 2.0, "group joined": 2.5, "first step": 4.0}
RAY = of_launcher("ray", HISTORY, TIMELINE, 0.71, 0.7, "abc123def456")
PEERS = {
    "bare": Cost("bare", samples_per_s=1000.0),
    "mllib": Cost("mllib", "trees", auc=0.65, seconds=30.0),
    "parameter_server": Cost("parameter_server", samples_per_s=250.0, wire_bytes=3200),
}


@pytest.fixture
def costs() -> Costs:
    """Two launchers that agree, and all peers."""
    launchers = {"ray": RAY, "torchrun": replace(RAY, name="torchrun", timeline={"first step": 3.0}, first_step_s=3.0)}
    return Costs("flights", {"workers": 2}, "auc", launchers, PEERS)


def changed(costs: Costs, **changes) -> Costs:
    """The same, where torchrun's row is another."""
    other = replace(costs.launchers["torchrun"], **changes)
    return replace(costs, launchers={**costs.launchers, "torchrun": other})


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("first_step_s", 4.0),
        ("samples_per_s", 2 / (1 / 900 + 1 / 1000)),
        ("epoch_s", 1.1),
        ("peak_mb", 320.0),
        ("wire_bytes", 800),
        ("losses", [0.7, 0.6, 0.5]),
    ],
)
def test_a_launchers_row_leaves_the_first_epoch_out_of_speeds(figure, expected):
    assert getattr(RAY, figure) == pytest.approx(expected)


def test_an_only_epoch_counts():
    assert overall([5.0]) == 5.0


def beside(costs: Costs, ray: list[float], bare: list[float]) -> tuple[Costs, Cost]:
    """The comparison of one launcher that had these speeds in the bare loop's turns, and its row."""
    rows = beside_bare({"ray": RAY, "bare": Cost("bare")}, {"ray": ray, "bare": bare})
    return replace(costs, launchers={"ray": rows["ray"]}, peers={"bare": rows["bare"]}), rows["ray"]


def test_rounds_give_the_mean_speed_and_the_median_of_what_else_varies():
    runs = [replace(RAY, samples_per_s=speed, first_step_s=None, peak_mb=speed) for speed in (4.0, 1.0, 2.0)]
    found = over_rounds([{"ray": ran, "bare": Cost("bare", samples_per_s=4.0)} for ran in runs])["ray"]
    expected = {"samples_per_s": pytest.approx(2.0), "first_step_s": None, "peak_mb": 2.0, "of_bare": [1.0, 0.25, 0.5]}
    assert found == replace(RAY, **expected)


def test_a_machine_that_becomes_faster_changes_no_ratio_and_widens_no_interval(costs):
    found, ray = beside(costs, [90.0, 180.0, 450.0], [100.0, 200.0, 500.0])
    assert [found.part_of_bare(ray), *found.interval(ray)] == pytest.approx([0.9] * 3)


def test_rows_that_took_no_turns_keep_the_ratio_of_their_whole_runs(costs):
    rows = over_rounds([{"spark": replace(RAY, name="spark", samples_per_s=80.0), "bare": Cost("bare", samples_per_s=100.0)}])
    rows = beside_bare(rows, {"bare": [500.0, 600.0]})
    found = replace(costs, launchers={"spark": rows["spark"]}, peers={"bare": rows["bare"]})
    assert found.part_of_bare(rows["spark"]) == pytest.approx(0.8)


def test_the_interval_is_students(costs):
    """Ratios e^-0.1, 1 and e^0.1: their logarithms scatter by 0.1, and t(2) is 4.3027 at 97.5 %."""
    found, ray = beside(costs, [100 * math.exp(change) for change in (-0.1, 0.0, 0.1)], [100.0, 100.0, 100.0])
    half = 4.302653 * 0.1 / math.sqrt(3)
    assert found.interval(ray) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-6)
    assert found.line()["launchers"]["ray"]["of_bare_interval"] == [0.78, 1.282]
    assert "ray 100.0% (78.0% to 128.2%), in 3 turns." in " ".join(report.findings(found))
    told = "ray, part of bare by turn: 100.0 % in the middle, a tenth of them below 92.4 % and one above 108.4 %"
    assert told in report.markdown(found)
    assert "Part of the bare loop, by turn" in report.html(found)


def test_one_turn_has_no_interval(costs):
    found, ray = beside(costs, [90.0], [100.0])
    assert found.interval(ray) is None and "ray 90.0%, in one run." in " ".join(report.findings(found))


def test_spans_add_up_to_the_first_step():
    assert RAY.spans() == {"worker started": 2.0, "group joined": 0.5, "first step": 1.5}


def test_a_process_that_was_there_before_took_no_time_to_start():
    cost = replace(RAY, timeline={"process started": -7.0, **TIMELINE})
    assert cost.spans() == {"process started": 0.0, **RAY.spans()}


def test_imports_are_told_from_starting_where_both_are_known(costs):
    both = changed(costs, timeline={"process started": 1.0, "worker started": 2.5, "first step": 3.0})
    assert "torchrun, seconds to the first step: starting processes 1.00, imports 1.50" in report.markdown(both)


def test_the_line_has_the_promised_figures(costs):
    beside = {"of_bare": 0.9474, "of_bare_interval": None}
    assert costs.line() == {
        "launchers": {
            "ray": {"first_step_s": 4.0, "samples_per_s": 947.3684, "peak_mb": 320.0, "auc": 0.7, **beside},
            "torchrun": {"first_step_s": 3.0, "samples_per_s": 947.3684, "peak_mb": 320.0, "auc": 0.7, **beside},
        },
        "bare": {"samples_per_s": 1000.0},
        "mllib": {"auc": 0.65, "seconds": 30.0},
        "parameter_server": {"samples_per_s": 250.0, "wire_bytes": 3200},
        "equal_losses": True,
        "equal_weights": True,
    }


def test_what_does_not_apply_or_is_no_number_is_null(costs):
    line = replace(changed(costs, auc=math.nan), peers={}).line()
    assert json.loads(json.dumps(line, allow_nan=False))["launchers"]["torchrun"]["auc"] is None
    assert line["mllib"] == {"auc": None, "seconds": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (True, True)),
        ({"weights": "0"}, (False, True)),
        ({"losses": [0.7, 0.6, 0.5 + 1e-15]}, (True, False)),
        ({"losses": [0.7, 0.6]}, (True, False)),
    ],
)
def test_equality_is_to_the_last_digit(costs, changes, expected):
    found = changed(costs, **changes)
    assert (found.equal_weights, found.equal_losses) == expected


def test_one_launcher_alone_is_equal_to_nothing(costs):
    assert replace(costs, launchers={"ray": RAY}).equal_weights is None


@pytest.mark.parametrize("made", [report.markdown, report.html])
@pytest.mark.parametrize("figure", ["4.0", "947", "94.7%", "25.0%", "0.7100", "0.7000", "0.6500", "30.0", "abc123de", "320"])
def test_the_report_has_the_figures(costs, made, figure):
    assert figure in made(costs)


@pytest.mark.parametrize("made", [report.markdown, report.html])
def test_names_do_not_become_html(costs, made):
    evil = "<script>alert(1)</script>"
    peers = {**PEERS, "bare": replace(PEERS["bare"], about=evil)}
    timeline = {evil: 1.0, "first step": 2.0}
    found = replace(changed(costs, name=evil, timeline=timeline), title=evil, metric=evil, setting={"model": evil}, peers=peers)
    assert "<script" not in made(found) and "&lt;script&gt;" in made(found)


def test_a_bar_does_not_end_a_cell_of_the_table(costs):
    line = next(line for line in report.markdown(changed(costs, about="a|b")).splitlines() if "torchrun (" in line)
    assert line.count("|") - line.count("\\|") == len(report.columns(costs)) + 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "ray and torchrun give the same loss in every epoch and the same weights, bit for bit"),
        ({"weights": "0"}, "ray and torchrun give weights that differ and the same losses."),
    ],
)
def test_the_findings_say_whether_launchers_agree(costs, changes, sentence):
    assert report.findings(changed(costs, **changes))[0].startswith(sentence)


def test_the_findings_name_the_fastest_first_and_where_the_slowest_waits(costs):
    expected = (
        "The first step is done: torchrun after 3.0 s, ray after 4.0 s. ray waits longest for starting and imports: 2.0 s."
    )
    assert report.findings(costs)[1] == expected


def test_bars_are_as_long_as_their_values():
    drawn = charts.bars({"a": 50.0, "b": 100.0}, "/s")
    assert f'width="{(charts.WIDTH - charts.LABEL - 95) / 2:.1f}"' in drawn and "100 /s" in drawn


def test_a_curve_goes_from_the_highest_to_the_lowest_loss():
    assert 'points="60.0,12.0 440.0,160.0"' in charts.lines({"ray": [0.7, 0.5]}, "epoch")


@pytest.mark.parametrize("losses", [[], [0.5], [0.5, 0.5], [math.nan, 0.5]])
def test_a_short_or_flat_curve_is_drawn_without_an_error(losses):
    assert "NaN" not in charts.lines({"ray": losses}, "epoch")


@pytest.fixture(scope="module")
def measured(training_pipeline, training_state, make_arrays, tmp_path_factory) -> tuple[config.Pipeline, Cost]:
    """Two ranks that take two steps an epoch."""
    pipeline = training_pipeline({"train.workers": 2, "train.batch_size": 51, "train.epochs": 6})
    return pipeline, bare.measure(pipeline, training_state, make_arrays(101, 101), tmp_path_factory.mktemp("bare"))


def test_the_bare_loop_trains(measured):
    losses = measured[1].losses
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.1


def test_the_bare_loop_tells_its_speed_and_memory(measured):
    assert measured[1].samples_per_s > 10 and measured[1].peak_mb > 50


def test_two_ranks_send_each_gradient_once(measured):
    embedding, first, last = 3 * 2, (2 + 2) * 16 + 16, 16 + 1
    assert measured[1].wire_bytes == 4 * (embedding + first + last)
