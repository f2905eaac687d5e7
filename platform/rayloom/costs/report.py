"""A comparison for people: what it found in sentences, then its table and charts, as Markdown and as one HTML file."""

import math
from collections.abc import Callable
from html import escape

from rayloom.costs import charts
from rayloom.costs.table import Cost, Costs

STYLE = """
:root { color-scheme: light dark; --ink:#1c2430; --soft:#5d6b7d; --line:#dfe5ec; --page:#f6f8fa; --card:#fff;
  --c0:#4269d0; --c1:#e2993c; --c2:#3ca58a; --c3:#c65b6f; --c4:#8a6fc2; --c5:#7f8b99 }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6ebf1; --soft:#97a5b6; --line:#2c3643; --page:#12171e; --card:#1a212b } }
body { font:14px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--page); max-width:1120px; margin:0 auto;
  padding:20px }
h1 { font-size:22px; margin:0 } h2 { font-size:14px; margin:0 0 8px } .soft { color:var(--soft) }
ul { margin:0; padding-left:18px }
section { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:14px 16px; margin-top:14px;
  overflow-x:auto }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(300px,1fr)); column-gap:14px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; white-space:nowrap }
th { color:var(--soft); font-weight:500; white-space:normal; vertical-align:bottom }
th,td { text-align:right; padding:4px 9px } th:first-child,td:first-child { text-align:left }
tr+tr td { border-top:1px solid var(--line) } small { color:var(--soft) }
svg { width:100%; height:auto } svg text { font-size:12px; fill:var(--ink) }
"""


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
        "seconds to first step": lambda cost: _number(cost.first_step_s, ".1f"),
        "samples a second": lambda cost: _number(cost.samples_per_s, ",.0f"),
        "of bare": lambda cost: _number(costs.part_of_bare(cost), ".1%"),
        "seconds an epoch": lambda cost: _number(cost.epoch_s, ".2f"),
        "peak MB a worker": lambda cost: _number(cost.peak_mb, ",.0f"),
        "kB on the wire a step": lambda cost: _number(None if cost.wire_bytes is None else cost.wire_bytes / 1e3, ",.0f"),
        f"validation {costs.metric}": lambda cost: _number(cost.validation, ".4f"),
        "test AUC": lambda cost: _number(cost.auc, ".4f"),
        "seconds of training": lambda cost: _number(cost.seconds, ".1f"),
        "weights": lambda cost: (cost.weights or "–")[:8],
    }


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, form)


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
    parts = {cost.name: costs.part_of_bare(cost) for cost in costs.launchers.values()}
    told = [f"{name} {part:.1%}" for name, part in parts.items() if part is not None]
    if not told:
        return ""
    return f"Once under way, they train at this part of a bare PyTorch loop's speed over tensors in memory: {', '.join(told)}."


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
    header = ["", *shown]
    lines = [[f"{cost.name} ({cost.about})", *(say(cost) for say in shown.values())] for cost in costs.rows()]
    table = [header, ["---", *["---:"] * len(shown)], *lines]
    parts = {name: _spans(cost) for name, cost in costs.launchers.items() if cost.timeline}
    return "\n".join(
        [
            f"# What launchers cost: {_cell(costs.title)}",
            "",
            ", ".join(f"{name} {_cell(str(value))}" for name, value in costs.setting.items()) + ".",
            "",
            *(f"- {_cell(sentence)}" for sentence in findings(costs)),
            "",
            *("| " + " | ".join(map(_cell, row)) + " |" for row in table),
            "",
            *(
                f"- {_cell(name)}, seconds to the first step: "
                + ", ".join(f"{_cell(part)} {seconds:.2f}" for part, seconds in spans.items())
                for name, spans in parts.items()
            ),
            *(
                f"- {_cell(name)}, loss by epoch: " + ", ".join(f"{loss:.6f}" for loss in cost.losses)
                for name, cost in costs.launchers.items()
            ),
            "",
        ]
    )


def _cell(text: str) -> str:
    """Text that neither ends a table's cell nor begins HTML."""
    return escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def html(costs: Costs) -> str:
    """The report as one HTML file that needs no other."""
    setting = " · ".join(f"{escape(name)} {escape(str(value))}" for name, value in costs.setting.items())
    told = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(costs))
    drawn = "".join(f"<section><h2>{escape(title)}</h2>{chart}</section>" for title, chart in _charts(costs).items())
    title = f"What launchers cost: {escape(costs.title)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body>'
        f'<h1>{title}</h1><div class="soft">{setting}</div><section><ul>{told}</ul></section>'
        f'<section><table>{_rows(costs)}</table></section><div class="charts">{drawn}</div></body></html>\n'
    )


def _rows(costs: Costs) -> str:
    shown = columns(costs)
    header = "<tr><th></th>" + "".join(f"<th>{escape(name)}</th>" for name in shown) + "</tr>"
    rows = [
        f"<tr><td>{escape(cost.name)} <small>{escape(cost.about)}</small></td>"
        + "".join(f"<td>{escape(say(cost))}</td>" for say in shown.values())
        + "</tr>"
        for cost in costs.rows()
    ]
    return header + "".join(rows)


def _charts(costs: Costs) -> dict[str, str]:
    speeds = {cost.name: cost.samples_per_s for cost in costs.rows() if cost.samples_per_s}
    return {
        "Seconds to the first step, by what they go into": charts.stacked(
            {name: _spans(cost) for name, cost in costs.launchers.items() if cost.timeline}, "s"
        ),
        "Samples a second": charts.bars(speeds, "/s"),
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
