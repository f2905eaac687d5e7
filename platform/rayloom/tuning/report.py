"""A sweep for people: what it found in sentences, the best config, charts and trials, as Markdown and as one HTML file."""

from collections import Counter
from collections.abc import Sequence
from html import escape

from rayloom import page
from rayloom.axes import said
from rayloom.config import Param
from rayloom.tuning import analysis, pictures
from rayloom.tuning.records import Sweep, Trial

MOST_ROWS = 300
"""Trials in the HTML file's table at most; in Markdown a sixth of them."""

STATES = {
    "complete": "trained to the end",
    "stopped": "stopped early",
    "failed": "failed",
    "repeat": "with an earlier trial's settings, not trained again",
    "running": "still running",
}


def findings(sweep: Sweep, space: dict[str, Param]) -> list[str]:
    """What the sweep found, a sentence or two on each matter."""
    matters = [_best(sweep), _counts(sweep), _failures(sweep), _time(sweep), _saved(sweep), _importance(sweep), _cheaper(sweep)]
    return list(filter(None, [*matters, _ends(sweep, space)]))


def _best(sweep: Sweep) -> str:
    best = sweep.best
    if best is None:
        return f"No trial has a value of {sweep.metric}: there is no best config."
    epoch = f" in epoch {best.best_epoch} of {max(best.values)}" if best.best_epoch and best.values else ""
    early = "" if best.state == "complete" else " It was stopped early: no trial was trained to its end."
    given = f", with {pictures.settings(best)}" if best.params else ""
    return f"Trial {best.number} is the best: {sweep.metric} {page.figure(best.value)}{epoch}{given}.{early}"


def _counts(sweep: Sweep) -> str:
    counts = Counter[str](trial.state for trial in sweep.trials)
    told = ", ".join(f"{counts[state]:,} {words}" for state, words in STATES.items() if counts[state])
    return f"{sweep.distinct:,} distinct of {len(sweep.trials):,} trials{': ' if told else ''}{told}."


def _failures(sweep: Sweep, most: int = 3) -> str:
    found = list(analysis.reasons(sweep.trials).items())
    if not found:
        return ""
    told = [f"{page.cut(reason, 200)} ({_numbers(numbers)})" for reason, numbers in found[:most]]
    rest = sum(len(numbers) for _, numbers in found[most:])
    return "Why trials failed: " + "; ".join([*told, f"{rest} more for other reasons"] if rest else told) + "."


def _numbers(numbers: Sequence[int], most: int = 5) -> str:
    named = ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
    return f"trial{'s' if len(numbers) > 1 else ''} {named}"


def _time(sweep: Sweep) -> str:
    trained = sum(trial.seconds for trial in sweep.trials)
    at_once = f" with {sweep.slots} trials at once" if sweep.slots > 1 else ""
    part = trained / (sweep.wall_s * sweep.slots) if sweep.wall_s > 0 else 0.0
    busy = f", {part:.0%} of the time that its places had" if 0 < part <= 1 else ""
    return f"It took {page.seconds(sweep.wall_s)}{at_once}, for {page.seconds(trained)} of training{busy}."


def _saved(sweep: Sweep) -> str:
    saved = analysis.saved_seconds(sweep.trials)
    if saved <= 0:
        return ""
    trained = sum(trial.seconds for trial in sweep.trials)
    return (
        f"Stopping trials early saved about {page.seconds(saved)} of training: to the end, all would have taken about "
        f"{page.seconds(trained + saved)} ({saved / (trained + saved):.0%} saved)."
    )


def _importance(sweep: Sweep) -> str:
    known = analysis.importance(sweep)
    if not known:
        return ""
    named = ", ".join(f"{key} {part:.0%}" for key, part in list(known.items())[:3])
    return f"Of what the searched keys explain in {sweep.metric}, most is due to {named}."


def _cheaper(sweep: Sweep) -> str:
    """The best of the trials that took at most half of the best one's time."""
    best = sweep.best
    if best is None:
        return ""
    quick = [trial for trial in analysis.pareto(sweep.trials, sweep.sign) if trial.seconds <= best.seconds / 2]
    if not quick:
        return ""
    cheap = quick[-1]
    away = page.figure(abs(best.value - cheap.value))  # type: ignore[operator]
    return (
        f"At half the cost: trial {cheap.number} comes to {page.figure(cheap.value)}, {away} from the best, in "
        f"{page.seconds(cheap.seconds)} of training instead of {page.seconds(best.seconds)}."
    )


def _ends(sweep: Sweep, space: dict[str, Param]) -> str:
    best = sweep.best
    # with few trials the best value lies near an end by chance
    keys = analysis.at_the_end(best, space) if best and len(analysis.judged(sweep.trials)) >= 10 else []
    if not keys or best is None:
        return ""
    named = ", ".join(f"{key} ({said(best.params[key])})" for key in keys)
    return f"The best trial is at the end of the range of {named}: a wider range may hold a better one."


def html(sweep: Sweep, space: dict[str, Param], best_yaml: str) -> str:
    """The report as one HTML file that needs no other and has no scripts.

    Args:
        space: the searched keys, with their ranges.
        best_yaml: the best trial's whole config; empty where there is none.
    """
    parts = [
        page.section(page.bullets(findings(sweep, space)), "What it found"),
        page.section(f"<pre>{escape(best_yaml)}</pre>" if best_yaml.strip() else "", "The best config"),
        pictures.parallel(sweep, space),
        page.side_by_side(pictures.small(sweep)),
        pictures.curves(sweep),
        page.side_by_side(pictures.slices(sweep, space), pictures.DOTS),
        _table(sweep, space),
    ]
    return page.html(f"Sweep: {sweep.title}", sweep.setting, "".join(parts))


def columns(sweep: Sweep, space: dict[str, Param]) -> list[str]:
    return ["trial", "state", sweep.metric, "epochs", "seconds", *space]


def row(trial: Trial, space: dict[str, Param]) -> list[str]:
    """A trial's cells, as text; the reason of a failure stands beside its state."""
    more = f": {page.cut(trial.reason, 120)}" if trial.reason else f" of {trial.repeats}" if trial.repeats is not None else ""
    shown = (said(trial.params[key]) if key in trial.params else "–" for key in space)
    epochs = str(max(trial.values, default=0)) if trial.state != "repeat" else "–"
    return [str(trial.number), trial.state + more, page.figure(trial.value), epochs, page.number(trial.seconds, ".1f"), *shown]


def listed(sweep: Sweep, most: int) -> tuple[list[Trial], str]:
    """The trials that a table shows, best first, and a sentence on those it leaves out.

    Of too many trials two thirds of the places go to the best and the others to the first without a value.
    """
    order = analysis.ranked(sweep.trials, sweep.sign)
    if len(order) <= most:
        return order, ""
    judged = len(analysis.judged(order))
    lost = min(len(order) - judged, max(most // 3, most - judged))
    shown = [*order[: most - lost], *order[judged : judged + lost]]
    numbers = {trial.number for trial in shown}
    states = Counter(trial.state for trial in order if trial.number not in numbers)
    named = ", ".join(f"{count:,} {state}" for state, count in states.items())
    return shown, f"{len(order) - len(shown):,} trials are left out: {named}."


def _table(sweep: Sweep, space: dict[str, Param]) -> str:
    trials, left = listed(sweep, MOST_ROWS)
    rows = (map(escape, row(trial, space)) for trial in trials)
    return page.section(page.table(columns(sweep, space), map(list, rows)), "Trials, best first", left) if trials else ""


def markdown(sweep: Sweep, space: dict[str, Param], best_yaml: str) -> str:
    """The report as Markdown, without charts; see `html`."""
    fence = "`" * max(3, 1 + _longest_run(best_yaml))
    setting = ", ".join(f"{page.cell(name)} {page.cell(str(value))}" for name, value in sweep.setting.items())
    lines = [f"# Sweep: {page.cell(sweep.title)}", "", *([f"{setting}.", ""] if setting else [])]
    lines += [*(f"- {page.cell(sentence)}" for sentence in findings(sweep, space)), ""]
    if best_yaml.strip():
        lines += ["## The best config", "", f"{fence}yaml", best_yaml.rstrip(), fence, ""]
    for title, (header, rows) in _tables(sweep).items():
        lines += [f"## {title}", "", *page.markdown_table(header, rows), ""] if rows else []
    trials, left = listed(sweep, MOST_ROWS // 6)
    if trials:
        rows = [row(trial, space) for trial in trials]
        lines += ["## Trials, best first", "", *page.markdown_table(columns(sweep, space), rows), "", left]
    return "\n".join(lines).rstrip() + "\n"


def _tables(sweep: Sweep) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Header and rows by title, of what the HTML file shows as charts."""
    reached = analysis.survival(sweep)
    rungs = [[str(x) for x in (rung.epoch, rung.reached, rung.went_on, rung.stopped, rung.failed)] for rung in reached]
    front = analysis.pareto(sweep.trials, sweep.sign)
    return {
        "Importance": (["searched key", "part"], [[key, f"{part:.1%}"] for key, part in analysis.importance(sweep).items()]),
        "Rungs": (["epoch", "reached", "went on", "stopped", "failed"], rungs if len(rungs) > 1 else []),
        "Pareto front": (
            ["trial", "seconds", sweep.metric],
            [[str(trial.number), page.number(trial.seconds, ".1f"), page.figure(trial.value)] for trial in front],
        ),
    }


def _longest_run(text: str) -> int:
    """Length of the longest run of backticks, which a fence around the text must exceed."""
    return max((len(run) for run in "".join(c if c == "`" else " " for c in text).split()), default=0)
