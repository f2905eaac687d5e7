"""What a terminal shows while a sweep runs, live and as plain lines."""

import io
import logging
import math
from dataclasses import replace

import pytest
from rich.console import Console

from rayloom.tuning.records import Trial
from rayloom.tuning.table import MOST_ENDED, MOST_RUNNING, Table
from tests.unit.conftest import Clock

BEST = Trial(4, "complete", {"train.lr": 0.003}, dict.fromkeys(range(1, 9), 0.69), 0.69321, 2, 3.14)


def lines(*trials: Trial, sign: int = 1) -> list[str]:
    """What is printed of trials that end."""
    stream = io.StringIO()
    with Table("auc", 20, stream, sign) as table:
        for trial in trials:
            table.begin(trial.number, trial.params)
            table.end(trial)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "trial   4  auc 0.6932 (best of 8 epochs, 3.1 s)  train.lr=0.003  best so far 0.6932 (trial 4)"),
        (
            {"state": "stopped", "values": {1: 0.6}, "value": 0.6},
            "trial   4  auc 0.6000 (stopped after 1 epoch, 3.1 s)  train.lr=0.003  best so far 0.6000 (trial 4)",
        ),
        (
            {"state": "failed", "values": {}, "value": None, "reason": "the loss is not finite"},
            "trial   4  failed after 0 epochs, 3.1 s: the loss is not finite  train.lr=0.003  none has a value so far",
        ),
        ({"state": "repeat", "repeats": 2}, "trial   4  has the settings of trial 2  train.lr=0.003  none has a value so far"),
    ],
)
def test_a_line_for_each_trial(changes, expected):
    assert lines(replace(BEST, **changes)) == [expected]


@pytest.mark.parametrize(("sign", "best"), [(1, 5), (-1, 6)])
def test_the_best_is_told_in_the_metrics_direction(sign, best):
    trials = [replace(BEST, number=number, value=value) for number, value in ((4, 0.6), (5, 0.7), (6, 0.5))]
    assert lines(*trials, sign=sign)[-1].endswith(f"(trial {best})")


@pytest.mark.parametrize("changes", [{"state": "stopped", "value": 0.9}, {"value": math.nan}, {"value": None}])
def test_what_is_not_the_best(changes):
    assert lines(BEST, replace(BEST, number=5, **changes))[-1].endswith("best so far 0.6932 (trial 4)")


def test_long_settings_are_cut():
    params = {f"model.k{place}": "x" * 50 for place in range(50)}
    assert len(lines(replace(BEST, params=params))[0]) < 220


def test_no_control_character_reaches_the_terminal():
    stream = io.StringIO()
    evil = "\x1b[2J\r\nx"
    with Table(evil, 1, stream) as table:
        table.end(replace(BEST, params={evil: evil}, state="failed", reason=evil))
        table.end(replace(BEST, params={evil: [evil]}))
        table.warn(evil)
    assert len(stream.getvalue().splitlines()) == 3 and not {"\x1b", "\r"} & set(stream.getvalue())


def test_warnings_are_printed():
    stream = io.StringIO()
    with Table("auc", 1, stream) as table:
        table.warn("trial 3 has waited 60 s for 1 GPU")
    assert stream.getvalue() == "warning: trial 3 has waited 60 s for 1 GPU\n"


def test_a_closed_stream_ends_nothing_and_is_told_once(caplog):
    stream = io.StringIO()
    stream.close()
    with caplog.at_level(logging.WARNING), Table("auc", 1, stream) as table:
        table.end(BEST)
        table.warn("something")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("number", [None, "x", 10**30])
def test_what_it_does_not_expect_is_not_raised(number):
    with Table("auc", 1, io.StringIO()) as table:
        table.epoch(number, 1, 0.5)
        table.end(replace(BEST, number=number, value=number))


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, height=60, color_system=None, _environ={"TERM": "xterm"})


def last(console: Console) -> str:
    """The last table that was drawn."""
    return console.file.getvalue().split(" trials in ")[-1]


def test_the_live_table_shows_what_runs_ended_and_waits(console, clock):
    with Table("auc", 20, console=console, clock=clock) as table:
        table.end(BEST)
        table.begin(5, {"train.lr": 0.01})
        table.begin(6, {"train.lr": 0.02})
        table.epoch(5, 3, 0.61)
        clock.now += 75
        table.warn("trial 6 has waited 60 s for 1 GPU")
    shown = [" ".join(line.split()) for line in last(console).splitlines()]
    assert shown[0] == "1 min 15 s: 1 complete, 2 running. best so far 0.6932 (trial 4)"
    for line in (
        "4 complete 0.6932 8 3.1 s train.lr=0.003",
        "5 running 0.6100 3 1 min 15 s train.lr=0.01",
        "6 starting – 0 1 min 15 s train.lr=0.02",
        "1 min 15 s: trial 6 has waited 60 s for 1 GPU",
    ):
        assert line in shown


def test_the_live_table_has_room_for_few(console, clock):
    with Table("auc", 100, console=console, clock=clock) as table:
        for number in range(50):
            table.end(replace(BEST, number=number))
        for number in range(50, 100):
            table.begin(number, {})
    assert last(console).count("complete  ") == MOST_ENDED and last(console).count("starting") == MOST_RUNNING
    assert "and 34 more" in last(console)


def test_a_live_table_gives_the_cursor_back(console, clock):
    with pytest.raises(KeyboardInterrupt), Table("auc", 1, console=console, clock=clock):
        raise KeyboardInterrupt
    assert console.file.getvalue().endswith("\x1b[?25h")


def test_markup_in_names_is_text(console, clock):
    with Table("precision[@10]", 1, console=console, clock=clock) as table:
        table.begin(0, {"model.[bold]": "[/red]"})
    assert "precision[@10]" in last(console) and "model.[bold]=[/red]" in last(console)


def test_what_was_over_before_counts_without_a_line():
    stream = io.StringIO()
    with Table("auc", 20, stream) as table:
        table.recall(BEST)
        table.end(replace(BEST, number=5, value=0.5))
    [line] = stream.getvalue().splitlines()
    assert line.endswith("(trial 4)")
