"""A comparison for people: what it found in sentences, then its table and charts, as Markdown and as one HTML file."""

import math
from collections.abc import Callable
from html import escape
from statistics import quantiles

from rayloom import charts, page
from rayloom.costs.table import Cost, Costs

REACHED = {
    "process started": "starting processes",
    "worker started": "starting and imports",
    "group joined": "meeting of ranks",
    "rows read": "reading rows",
    "model built": "building the model",
    "first step": "the first step",
}
"""What passes until a worker reaches a point of its timeline."""


def columns(costs: Costs) -> dict[str, Callable[[Cost], str]]:
    """What a table's columns are called, and what they say of a row."""
    return {
        "seconds to first step": lambda cost: page.number(cost.first_step_s, ".1f"),
        "samples a second": lambda cost: page.number(cost.samples_per_s, ",.0f"),
        "of bare": lambda cost: _of_bare(costs, cost),
        "seconds an epoch": lambda cost: page.number(cost.epoch_s, ".2f"),
        "peak MB a worker": lambda cost: page.number(cost.peak_mb, ",.0f"),
        "kB on the wire a step": lambda cost: page.number(None if cost.wire_bytes is None else cost.wire_bytes / 1e3, ",.0f"),
        f"validation {costs.metric}": lambda cost: page.number(cost.validation, ".4f"),
        "test AUC": lambda cost: page.number(cost.auc, ".4f"),
        "seconds of training": lambda cost: page.number(cost.seconds, ".1f"),
        "weights": lambda cost: (cost.weights or "–")[:8],
    }


def _of_bare(costs: Costs, cost: Cost) -> str:
    """The row's part of the bare loop's speed, and its interval where there were turns enough."""
    interval, shown = costs.interval(cost), page.number(costs.part_of_bare(cost), ".1%")
    return f"{shown} ({interval[0]:.1%} to {interval[1]:.1%})" if interval and cost.name in costs.launchers else shown


def findings(costs: Costs) -> list[str]:
    """What the figures say, a sentence or two on each matter."""
    return list(filter(None, [_equality(costs), _start(costs), _speed(costs), _wire(costs), _trees(costs)]))


def _equality(costs: Costs) -> str:
    if costs.equal_weights is None:
        return ""
    names = _names(costs)
    if costs.equal_weights and costs.equal_losses:
        return f"{names} give the same loss in every epoch and the same weights, bit for bit: the launcher decides costs alone."
    weights = "the same weights" if costs.equal_weights else "weights that differ"
    losses = "the same losses" if costs.equal_losses else "losses that differ"
    return f"{names} give {weights} and {losses}. On CPUs both should be the same; on GPUs they may differ."


def _names(costs: Costs) -> str:
    *most, last = costs.launchers
    return f"{', '.join(most)} and {last}"


def _start(costs: Costs) -> str:
    known = [cost for cost in costs.launchers.values() if cost.first_step_s is not None]
    if not known:
        return ""
    order = sorted(known, key=lambda cost: cost.first_step_s or 0.0)
    starts = ", ".join(f"{cost.name} after {cost.first_step_s:.1f} s" for cost in order)
    longest = max(_spans(order[-1]).items(), key=lambda item: item[1], default=None)
    most = f" {order[-1].name} waits longest for {longest[0]}: {longest[1]:.1f} s." if longest else ""
    return f"The first step is done: {starts}.{most}"


def _spans(cost: Cost) -> dict[str, float]:
    """Seconds to the first step, by what they go into; points that are not known keep their names."""
    spans = cost.spans()
    names = {**REACHED, **({"worker started": "imports"} if "process started" in spans else {})}
    return {names.get(point, point): seconds for point, seconds in spans.items()}


def _speed(costs: Costs) -> str:
    launchers = list(costs.launchers.values())
    told = [
        f"{cost.name} {_of_bare(costs, cost)}, {_turns(cost)}" for cost in launchers if costs.part_of_bare(cost) is not None
    ]
    if not told:
        return ""
    return (
        f"Once under way, they train at this part of a bare PyTorch loop's speed over tensors in memory: {'; '.join(told)}. "
        f"Of several turns, the mean and its 95 % interval; one whole run may be off by what the machine's own speed did."
    )


def _turns(cost: Cost) -> str:
    return f"in {len(cost.of_bare)} turns" if len(cost.of_bare) > 1 else "in one run"


def _wire(costs: Costs) -> str:
    server = costs.peers.get("parameter_server")
    sent = next((cost.wire_bytes for cost in costs.launchers.values() if cost.wire_bytes is not None), None)
    if server is None or server.wire_bytes is None or sent is None:
        return ""
    part = costs.part_of_bare(server)
    speed = f" It trains at {part:.1%} of the bare loop's speed." if part else ""
    return (
        f"A parameter server moves {server.wire_bytes / 1e3:,.0f} kB a step in and out of one process, and more with every "
        f"worker; in a ring all-reduce each worker sends {sent / 1e3:,.0f} kB, and never more than twice its gradients, "
        f"however many workers there are.{speed}"
    )


def _trees(costs: Costs) -> str:
    peer, known = costs.peers.get("mllib"), [cost.auc for cost in costs.launchers.values() if cost.auc is not None]
    if peer is None or peer.auc is None or peer.seconds is None or not known:
        return ""
    return (
        f"Spark MLlib ({peer.about}) reaches a test AUC of {peer.auc:.4f} in {peer.seconds:.1f} s of training on the same "
        f"features; the network {max(known):.4f}."
    )


def markdown(costs: Costs) -> str:
    """The report as Markdown, without charts."""
    shown = columns(costs)
    rows = [[f"{cost.name} ({cost.about})", *(say(cost) for say in shown.values())] for cost in costs.rows()]
    parts = {name: _spans(cost) for name, cost in costs.launchers.items() if cost.timeline}
    return "\n".join(
        [
            f"# What launchers cost: {page.cell(costs.title)}",
            "",
            ", ".join(f"{name} {page.cell(str(value))}" for name, value in costs.setting.items()) + ".",
            "",
            *(f"- {page.cell(sentence)}" for sentence in findings(costs)),
            "",
            *page.markdown_table(["", *shown], rows),
            "",
            *(
                f"- {page.cell(name)}, seconds to the first step: "
                + ", ".join(f"{page.cell(part)} {seconds:.2f}" for part, seconds in spans.items())
                for name, spans in parts.items()
            ),
            *(f"- {page.cell(name)}, part of bare by turn: " + _spread(parts) for name, parts in _by_turn(costs).items()),
            *(
                f"- {page.cell(name)}, loss by epoch: " + ", ".join(f"{loss:.6f}" for loss in cost.losses)
                for name, cost in costs.launchers.items()
            ),
            "",
        ]
    )


def html(costs: Costs) -> str:
    """The report as one HTML file that needs no other."""
    shown = columns(costs)
    rows = [
        [f"{escape(cost.name)} <small>{escape(cost.about)}</small>", *(escape(say(cost)) for say in shown.values())]
        for cost in costs.rows()
    ]
    body = page.section(page.bullets(findings(costs))) + page.section(page.table(["", *shown], rows))
    return page.html(f"What launchers cost: {costs.title}", costs.setting, body + page.side_by_side(_charts(costs)))


def _spread(parts: list[float]) -> str:
    """
    >>> _spread([0.9, 0.95, 1.0])
    '95.0 % in the middle, a tenth of them below 91.0 % and one above 99.0 %'
    """
    slow, *_, middle, _, _, _, fast = (f"{100 * part:.1f} %" for part in quantiles(parts, n=10, method="inclusive"))
    return f"{middle} in the middle, a tenth of them below {slow} and one above {fast}"


def _by_turn(costs: Costs) -> dict[str, list[float]]:
    return {name: cost.of_bare for name, cost in costs.launchers.items() if len(cost.of_bare) > 1}


def _charts(costs: Costs) -> dict[str, str]:
    speeds = {cost.name: cost.samples_per_s for cost in costs.rows() if cost.samples_per_s}
    return {
        "Seconds to the first step, by what they go into": charts.stacked(
            {name: _spans(cost) for name, cost in costs.launchers.items() if cost.timeline}, "s"
        ),
        "Samples a second": charts.bars(speeds, "/s"),
        **({"Part of the bare loop, by turn": charts.lines(parts, "turn")} if (parts := _by_turn(costs)) else {}),
        "Training loss": charts.lines({name: cost.losses for name, cost in costs.launchers.items()}, "epoch"),
    }


def figures(costs: Costs) -> dict[str, float]:
    """All finite figures by 'row.figure', as MLflow records them."""
    names = ("first_step_s", "samples_per_s", "epoch_s", "peak_mb", "wire_bytes", "validation", "auc", "seconds")
    found = {f"{cost.name}.{name}": getattr(cost, name) for cost in costs.rows() for name in names}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def short(cost: Cost) -> dict[str, float]:
    """A row's main figures, for a screen."""
    shown = {"first step s": cost.first_step_s, "samples/s": cost.samples_per_s, "auc": cost.auc, "seconds": cost.seconds}
    return {name: round(value) if value >= 100 else round(value, 4) for name, value in shown.items() if value is not None}
