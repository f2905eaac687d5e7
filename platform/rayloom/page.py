"""What all reports share: the look of an HTML file that needs no other, tables in HTML and Markdown, and numbers for people."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink:#1c2430; --soft:#5d6b7d; --line:#dfe5ec; --page:#f6f8fa; --card:#fff;
  --c0:#4269d0; --c1:#e2993c; --c2:#3ca58a; --c3:#c65b6f; --c4:#8a6fc2; --c5:#7f8b99;
  --v0:#d9e0ec; --v1:#c0cce5; --v2:#a6b8df; --v3:#8aa2d9; --v4:#6c8bd2; --v5:#4e72c8; --v6:#365ab3; --v7:#213f8f }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e6ebf1; --soft:#97a5b6; --line:#2c3643; --page:#12171e; --card:#1a212b;
    --v0:#2b3648; --v1:#33435e; --v2:#3c5278; --v3:#466396; --v4:#5477b8; --v5:#6d90d8; --v6:#92b0ee; --v7:#c0d3fa } }
body { font:14px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--page); max-width:1120px; margin:0 auto;
  padding:20px }
h1 { font-size:22px; margin:0 } h2 { font-size:14px; margin:0 0 8px } .soft { color:var(--soft) }
p { margin:8px 0 0 } ul { margin:0; padding-left:18px; overflow-wrap:anywhere }
section { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:14px 16px; margin-top:14px;
  overflow-x:auto }
.charts { display:grid; grid-template-columns:repeat(auto-fit,minmax(300px,1fr)); column-gap:14px }
.charts section { min-width:0 }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums; white-space:nowrap }
th { color:var(--soft); font-weight:500; white-space:normal; vertical-align:bottom }
th,td { text-align:right; padding:4px 9px } th:first-child,td:first-child { text-align:left }
tr+tr td { border-top:1px solid var(--line) } small { color:var(--soft) }
pre { font:12.5px/1.5 ui-monospace,monospace; margin:0; max-height:420px; overflow:auto }
svg { width:100%; height:auto } svg text { font-size:12px; fill:var(--ink) } svg text.soft { fill:var(--soft) }
svg text.halo { paint-order:stroke; stroke:var(--card); stroke-width:4 }
.grid { stroke:var(--line); stroke-width:1 } .axis { stroke:var(--soft); stroke-width:1 }
.rung { stroke:var(--soft); stroke-width:1; stroke-dasharray:2 4 }
.curve { fill:none; stroke:var(--hue); stroke-width:1.2 } .dot { fill:var(--hue) }
.curve:hover,.dot:hover { stroke:var(--c1); stroke-width:3 }
.v0 { --hue:var(--v0) } .v1 { --hue:var(--v1) } .v2 { --hue:var(--v2) } .v3 { --hue:var(--v3) } .v4 { --hue:var(--v4) }
.v5 { --hue:var(--v5) } .v6 { --hue:var(--v6) } .v7 { --hue:var(--v7) } .c0 { --hue:var(--c0) } .c5 { --hue:var(--c5) }
.best { --hue:var(--c1) } .curve.best { stroke-width:3 } .failed { --hue:var(--c3) } .curve.failed { stroke-dasharray:4 3 }
"""

SHADES = 8
"""The page's --v0 to --v7: from the one that stands out least to the one that stands out most, on light and dark pages."""


def html(title: str, setting: Mapping[str, Any], body: str) -> str:
    """One HTML file that needs no other.

    Args:
        title: text.
        setting: name -> value of what everything on the page has in common; shown below the title.
        body: HTML.
    """
    below = " · ".join(f"{escape(name)} {escape(str(value))}" for name, value in setting.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body>'
        f'<h1>{escape(title)}</h1><div class="soft">{below}</div>{body}</body></html>\n'
    )


def section(content: str, title: str = "", note: str = "") -> str:
    """A card of HTML, with a heading and a remark below, which are text; nothing where it has no content."""
    head = f"<h2>{escape(title)}</h2>" if title else ""
    below = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<section>{head}{content}{below}</section>" if content else ""


def side_by_side(charts: Mapping[str, str], note: str = "") -> str:
    """Charts by title, as many in a row as there is room for, and a remark below, which is text."""
    drawn = "".join(section(chart, title) for title, chart in charts.items())
    below = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<div class="charts">{drawn}</div>{below}' if drawn else ""


def bullets(sentences: Iterable[str]) -> str:
    """An HTML list of sentences, which are text."""
    return f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of cells that are HTML; the header's are text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table of cells that are text."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(map(cell, line)) + " |" for line in lines]


def cell(text: str) -> str:
    """Text that neither ends a Markdown table's cell nor begins HTML.

    >>> cell("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    return " ".join(escape(text, quote=False).replace("|", "\\|").splitlines())


def cut(text: str, most: int) -> str:
    """Text of at most so many characters.

    >>> cut("dropout", 5)
    'drop…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def number(value: float | None, form: str) -> str:
    """A number in the given form; a dash for none, and for what is not finite."""
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def figure(value: float | None) -> str:
    """A metric's value: four decimals where that shows it well, else four digits.

    >>> figure(0.69321), figure(1234.5678), figure(0.0000123)
    ('0.6932', '1235', '1.23e-05')
    """
    plain = value is not None and (value == 0 or 1e-3 <= abs(value) < 100)
    return number(value, ".4f" if plain else ".4g")


def seconds(value: float) -> str:
    """A time for people.

    >>> seconds(3.14), seconds(75), seconds(7300)
    ('3.1 s', '1 min 15 s', '2 h 1 min')
    """
    if not math.isfinite(value):
        return "–"
    if round(value, 1) < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
