"""A sweep's charts, as HTML. Each is empty where it has nothing to show, and draws a part of the trials if there are many."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from rayloom import axes, charts, page
from rayloom.axes import Axis, said
from rayloom.charts import Mark
from rayloom.config import Param
from rayloom.tuning import analysis
from rayloom.tuning.records import Sweep, Trial

MOST_DOTS, MOST_LINES, MOST_CURVES = 1000, 500, 300
"""Trials drawn at most: as dots, as lines across all searched keys, and as learning curves."""

MOST_AXES, MOST_SLICES = 12, 24
"""Searched keys drawn at most: in one chart, and as charts of their own."""

DOTS = "A dot is a trial. Blue: trained to the end. Grey: stopped early. Orange: the best."
"""What the dots of `small` and `slices` are."""


def settings(trial: Trial) -> str:
    """The searched keys' values."""
    return ", ".join(f"{key} {said(value)}" for key, value in trial.params.items())


def parallel(sweep: Sweep, space: dict[str, Param]) -> str:
    """All searched keys and the metric beside each other, a line a trial, the best one last and above all."""
    known = analysis.judged(sweep.trials)
    drawn = analysis.thinned(known, sweep.sign, MOST_LINES)
    if not drawn:
        return ""
    keys = _foremost(sweep, space, MOST_AXES)
    across = [_axis(key, space[key], drawn) for key in keys]
    up, looks = _upward(sweep, drawn), _looks(sweep, drawn)
    rows = [
        ([*_shares(trial, across), up.at(trial.value)], looks[trial.number], _told(sweep, trial))
        for trial in _last(sweep, drawn)
    ]
    notes = [
        "A line is a trial; the better its rank, the more it stands out. Orange: the best.",
        _part(len(known), len(drawn), "trials"),
        _part(len(space), len(keys), "searched keys"),
        _beyond(up, [trial.value for trial in drawn if trial.value is not None]),
    ]
    return page.section(charts.parallel(rows, [*across, up]), "All searched keys", " ".join(filter(None, notes)))


def _shares(trial: Trial, across: Sequence[Axis]) -> list[float | None]:
    return [axis.at(trial.params[axis.name]) if axis.name in trial.params else None for axis in across]


def _foremost(sweep: Sweep, space: dict[str, Param], most: int) -> list[str]:
    """The most important searched keys, in the order of the space."""
    parts = analysis.importance(sweep)
    order = sorted(space, key=lambda key: -parts.get(key, 0.0))[:most]
    return [key for key in space if key in order]


def _axis(key: str, param: Param, trials: Sequence[Trial]) -> Axis:
    """A searched key's axis: its range, made wider where a trial has a value outside."""
    values = [trial.params[key] for trial in trials if key in trial.params]
    if param.choice is not None:
        return axes.of_categories(key, [*param.choice, *values])
    low, high = param.uniform or param.loguniform or param.int  # type: ignore[misc]
    return axes.of_numbers(key, values, low, high, log=param.kind == "loguniform", whole=param.kind == "int")


def _upward(sweep: Sweep, trials: Sequence[Trial]) -> Axis:
    """The metric's axis."""
    values = [trial.value for trial in trials if trial.value is not None]
    return axes.of_numbers(sweep.metric, analysis.robust_range(values, sweep.sign))


def _looks(sweep: Sweep, trials: Sequence[Trial]) -> dict[int, str]:
    """Classes by number of the given trials, best first: by rank, since a few bad values would leave all others alike."""
    best, steps = sweep.best, max(1, len(trials) - 1)
    looks = {trial.number: f"v{round((page.SHADES - 1) * (1 - place / steps) ** 1.5)}" for place, trial in enumerate(trials)}
    looks |= {trial.number: "failed" for trial in trials if trial.state == "failed"}
    return looks | ({best.number: "best"} if best else {})


def _last(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    """The given trials, best first, in the order in which they are drawn: the best above all others."""
    best = sweep.best
    return sorted(reversed(trials), key=lambda trial: best is not None and trial.number == best.number)


def _told(sweep: Sweep, trial: Trial) -> str:
    """What is shown of a trial beneath the pointer."""
    spent = page.seconds(trial.seconds)
    return f"trial {trial.number} ({trial.state}): {sweep.metric} {page.figure(trial.value)}, {spent}, {settings(trial)}"


def _part(whole: int, drawn: int, what: str) -> str:
    return f"{drawn:,} of {whole:,} {what} are drawn." if drawn < whole else ""


def _beyond(up: Axis, values: Sequence[float]) -> str:
    far = sum(not up.low <= value <= up.high for value in values)
    return f"{far:,} values lie beyond the axis of {up.name} and are drawn at its end." if far else ""


def small(sweep: Sweep) -> dict[str, str]:
    """The charts that stand side by side, by title; those with nothing to show are missing."""
    parts = {key: {"importance": 100 * part} for key, part in list(analysis.importance(sweep).items())[:MOST_AXES]}
    found = {
        "Importance of the searched keys": charts.stacked(parts, "%", keyed=False) if parts else "",
        "Trials that reached each rung, and who went on": _survival(sweep),
        f"Best {sweep.metric} so far, by trial": _progress(sweep),
        f"{sweep.metric} against seconds of training, with the Pareto front": _front(sweep),
    }
    return {title: chart for title, chart in found.items() if chart}


def _survival(sweep: Sweep) -> str:
    fates = ("went_on", "stopped", "failed", "running")
    rungs = analysis.survival(sweep)
    seen = [fate for fate in fates if any(getattr(rung, fate) for rung in rungs)]
    rows = {
        f"epoch {rung.epoch}" if rung.epoch else "started": {
            fate.replace("_", " "): float(getattr(rung, fate)) for fate in seen
        }
        for rung in rungs
    }
    return charts.stacked(rows, "", colours={"stopped": 5, "failed": 3, "running": 2}) if len(rows) > 1 else ""


def _progress(sweep: Sweep) -> str:
    known = analysis.judged(sweep.trials)
    if not known:
        return ""
    end = max(trial.number for trial in sweep.trials)
    records = analysis.records(known, sweep.sign)
    stairs = _stairs([(float(trial.number), trial.value or 0.0) for trial in records], end)
    return charts.scatter(
        _dots(sweep, known, lambda trial: trial.number, records),
        axes.of_numbers("trial", [0, end], whole=True),
        _upward(sweep, known),
        [Mark(stairs, "best", f"best {sweep.metric} so far")],
    )


def _stairs(points: Sequence[tuple[float, float]], end: float) -> list[tuple[float, float]]:
    """A line that keeps each value until the next point, the last until `end`.

    >>> _stairs([(0.0, 1.0), (2.0, 5.0)], 3.0)
    [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0), (3.0, 5.0)]
    """
    found: list[tuple[float, float]] = []
    for x, y in points:
        found += [(x, found[-1][1])] if found else []
        found.append((x, y))
    return [*found, (end, found[-1][1])]


def _front(sweep: Sweep) -> str:
    known = analysis.judged(sweep.trials)
    if not known:
        return ""
    times = [trial.seconds for trial in known]
    across = axes.of_numbers("seconds", times, log=min(times) > 0 and max(times) > 20 * min(times))
    front = analysis.pareto(known, sweep.sign)
    line = Mark(_stairs([(trial.seconds, trial.value or 0.0) for trial in front], max(times)), "best", "Pareto front")
    return charts.scatter(_dots(sweep, known, lambda trial: trial.seconds, front), across, _upward(sweep, known), [line])


def _dots(sweep: Sweep, trials: Sequence[Trial], across: Callable[[Trial], Any], always: Sequence[Trial] = ()) -> list[Mark]:
    """A dot for each judged trial: those trained to the end above the stopped ones, the best above all.

    Args:
        across: a trial's value on the axis across.
        always: trials that are drawn also where there are so many that others are not.
    """
    best = sweep.best
    looks = {"complete": "c0", "stopped": "c5"}
    drawn = {trial.number: trial for trial in [*analysis.thinned(trials, sweep.sign, MOST_DOTS), *always]}
    order = sorted(
        drawn.values(), key=lambda trial: (best is not None and trial.number == best.number, trial.state == "complete")
    )
    return [
        Mark(
            [(across(trial), trial.value or 0.0)],
            "best" if best is not None and trial.number == best.number else looks[trial.state],
            f"trial {trial.number}: {page.figure(trial.value)}",  # in short: there are many such charts
        )
        for trial in order
    ]


def curves(sweep: Sweep) -> str:
    """The metric by epoch, a curve a trial, failed ones among them, the best last and above all."""
    known = [trial for trial in sweep.trials if trial.state != "repeat" and any(map(math.isfinite, trial.values.values()))]
    drawn = analysis.thinned(known, sweep.sign, MOST_CURVES)
    if not drawn:
        return ""
    values = [value for trial in drawn for value in trial.values.values() if math.isfinite(value)]
    across = axes.of_numbers("epoch", [epoch for trial in drawn for epoch in trial.values], whole=True)
    up = axes.of_numbers(sweep.metric, analysis.robust_range(values, sweep.sign))
    looks = _looks(sweep, drawn)
    marks = [Mark(sorted(trial.values.items()), looks[trial.number], _told(sweep, trial)) for trial in _last(sweep, drawn)]
    notes = [
        "A curve is a trial; the better its rank, the more it stands out. Orange: the best. Dashed: failed. Dotted: the rungs.",
        _part(len(known), len(drawn), "trials"),
        _beyond(up, values),
    ]
    return page.section(
        charts.curves(marks, across, up, sweep.rungs), f"{sweep.metric} by epoch", " ".join(filter(None, notes))
    )


def slices(sweep: Sweep, space: dict[str, Param]) -> dict[str, str]:
    """The metric over each searched key, by title."""
    known = analysis.judged(sweep.trials)
    found = {}
    for key in _foremost(sweep, space, MOST_SLICES):
        having = [trial for trial in known if key in trial.params]
        if having:
            dots = _dots(sweep, having, lambda trial, key=key: trial.params[key])  # type: ignore[misc]
            found[f"{sweep.metric} over {key}"] = charts.scatter(dots, _axis(key, space[key], having), _upward(sweep, known))
    return found
