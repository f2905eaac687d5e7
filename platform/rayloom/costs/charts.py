"""Charts as SVG text: sharp at any size, and part of the HTML file that shows them. Colours are the page's --c0 to --c5."""

import math
from html import escape

WIDTH, LABEL, ROW = 460, 120, 30
"""Pixels: of a chart, of the names at its left, and of a bar with its distance to the next."""

COLOURS = 6


def bars(values: dict[str, float], unit: str) -> str:
    """A horizontal bar for each value."""
    return stacked({name: {"": value} for name, value in values.items()}, unit, keyed=False)


def stacked(rows: dict[str, dict[str, float]], unit: str, keyed: bool = True) -> str:
    """A horizontal bar for each row, of parts one after the other, each with a colour of its own, and a key below.

    Args:
        rows: part -> length by row's name; parts of the same name have the same colour.
        unit: of the sum that is written behind a bar.
    """
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    longest = max((sum(row.values()) for row in rows.values()), default=0.0) or 1.0
    scale = (WIDTH - LABEL - 95) / longest
    drawn: list[str] = []
    for place, (name, row) in enumerate(rows.items()):
        drawn += _bar(place, name, row, parts, scale, unit)
    height = len(rows) * ROW + 6
    if keyed:
        drawn += _key(parts, height)
        height += 20 * math.ceil(len(parts) / 3)
    return _svg(drawn, height)


def _bar(place: int, name: str, row: dict[str, float], parts: list[str], scale: float, unit: str) -> list[str]:
    top, left = place * ROW + 4, float(LABEL)
    drawn = [_text(LABEL - 10, top + 15, name, "end")]
    for part, length in row.items():
        colour = parts.index(part) if part else place
        title = f"<title>{escape(part or name)}: {_number(length)} {escape(unit)}</title>"
        box = f'x="{left:.1f}" y="{top}" width="{max(0.0, length * scale):.1f}" height="{ROW - 9}"'
        drawn.append(f'<rect {box} style="fill:{_colour(colour)}">{title}</rect>')
        left += length * scale
    return [*drawn, _text(left + 7, top + 15, f"{_number(sum(row.values()))} {unit}", "start")]


def lines(series: dict[str, list[float]], below: str) -> str:
    """A curve for each series over 1, 2, 3 …; the first are drawn broad, so that equal ones are seen beneath each other.

    Args:
        below: what the horizontal axis counts.
    """
    values = [value for curve in series.values() for value in curve if math.isfinite(value)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span, steps = (high - low) or 1.0, max(len(curve) for curve in series.values())
    height, left, bottom = 200, 60, 160

    def at(step: int, value: float) -> tuple[float, float]:
        across = (step / (steps - 1) if steps > 1 else 0.5) * (WIDTH - left - 20)
        return left + across, bottom - (value - low) / span * (bottom - 12)

    drawn = [_text(left - 8, at(0, value)[1] + 4, f"{value:.4f}", "end") for value in dict.fromkeys((low, high))]
    drawn += [_text(at(step, low)[0], bottom + 20, str(step + 1), "middle") for step in range(0, steps, max(1, steps // 8))]
    drawn.append(_text(WIDTH - 18, bottom + 36, below, "end"))
    for place, curve in enumerate(series.values()):
        points = [at(step, value) for step, value in enumerate(curve) if math.isfinite(value)]
        width = max(1.5, 2.5 * (len(series) - place))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        drawn.append(f'<polyline points="{path}" style="fill:none;stroke:{_colour(place)};stroke-width:{width}"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{width}" style="fill:{_colour(place)}"/>' for x, y in points]
    return _svg([*drawn, *_key(list(series), height)], height + 20 * math.ceil(len(series) / 3))


def _key(names: list[str], top: int) -> list[str]:
    """Each name beside its colour, three a line."""
    drawn = []
    for place, name in enumerate(names):
        x, y = 4 + place % 3 * (WIDTH / 3), top + 20 * (place // 3)
        drawn.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" rx="2" style="fill:{_colour(place)}"/>')
        drawn.append(_text(x + 17, y + 10, name, "start"))
    return drawn


def _svg(drawn: list[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(drawn)}</svg>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _colour(place: int) -> str:
    return f"var(--c{place % COLOURS})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
