"""Charts as SVG text: sharp at any size, and part of the HTML file that shows them. Colours are the page's --c0 to --c5."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rayloom import page
from rayloom.axes import Axis

WIDTH, LABEL, ROW = 460, 120, 30
"""Pixels: of a chart, of the names at its left, and of a bar with its distance to the next."""

WIDE, TALL = 1080, 340
"""Pixels of a chart as broad as the page."""

COLOURS = 6


@dataclass(frozen=True)
class Mark:
    """A curve or a dot.

    Attributes:
        points: values across and up; of a dot only the first counts.
        look: its class in the page's style.
        title: shown beneath the pointer.
    """

    points: Sequence[tuple[float, float]]
    look: str
    title: str = ""


def bars(values: dict[str, float], unit: str) -> str:
    """A horizontal bar for each value."""
    return stacked({name: {"": value} for name, value in values.items()}, unit, keyed=False)


def stacked(rows: dict[str, dict[str, float]], unit: str, keyed: bool = True, colours: dict[str, int] = {}) -> str:
    """A horizontal bar for each row, of parts one after the other, each with a colour of its own, and a key below.

    Args:
        rows: part -> length by row's name; parts of the same name have the same colour.
        unit: of the sum that is written behind a bar.
        colours: place of a part's colour on the page; default: the next one.
    """
    parts = dict.fromkeys(part for row in rows.values() for part in row)
    hues = {part: colours.get(part, place) for place, part in enumerate(parts)}
    longest = max((sum(row.values()) for row in rows.values()), default=0.0) or 1.0
    scale = (WIDTH - LABEL - 95) / longest
    drawn: list[str] = []
    for place, (name, row) in enumerate(rows.items()):
        drawn += _bar(place, name, row, hues, scale, unit)
    height = len(rows) * ROW + 6
    if keyed:
        drawn += _key(hues, height)
        height += 20 * math.ceil(len(parts) / 3)
    return _svg(drawn, height)


def _bar(place: int, name: str, row: dict[str, float], hues: dict[str, int], scale: float, unit: str) -> list[str]:
    top, left = place * ROW + 4, float(LABEL)
    drawn = [_text(LABEL - 10, top + 15, name, "end")]
    for part, length in row.items():
        colour = hues[part] if part else place
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
    return _svg(
        [*drawn, *_key({name: place for place, name in enumerate(series)}, height)], height + 20 * math.ceil(len(series) / 3)
    )


def scatter(dots: Sequence[Mark], across: Axis, up: Axis, curves: Sequence[Mark] = ()) -> str:
    """A dot for each mark, the later above the earlier, and curves above them; what has no place on an axis is not drawn."""
    frame = _Frame(across, up, WIDTH, 230)
    drawn = [*frame.drawn(), *(frame.dot(mark) for mark in dots), *(frame.curve(mark) for mark in curves)]
    return _svg(drawn, frame.height)


def curves(marks: Sequence[Mark], across: Axis, up: Axis, upright: Sequence[float] = ()) -> str:
    """A broad chart with a curve for each mark, a dot for one of a single point, and dotted lines at some values across."""
    frame = _Frame(across, up, WIDE, TALL)
    drawn = [*frame.drawn(), *(frame.upright(value) for value in upright)]
    drawn += [frame.curve(mark) if len(mark.points) > 1 else frame.dot(mark) for mark in marks]
    return _svg(drawn, frame.height, WIDE)


@dataclass(frozen=True)
class _Frame:
    """The place of a chart's points between its two axes."""

    across: Axis
    up: Axis
    width: int
    height: int

    left, right, top, below = 66, 16, 12, 44

    def x(self, share: float) -> float:
        return self.left + 8 + share * (self.width - self.left - self.right - 16)

    def y(self, share: float) -> float:
        return self.height - self.below - 6 - share * (self.height - self.below - self.top - 12)

    def drawn(self) -> list[str]:
        lines = [_line(self.left, self.y(share), self.width - self.right, self.y(share)) for share, _ in self.up.ticks()]
        sides = [_text(self.left - 8, self.y(share) + 4, page.cut(name, 9), "end") for share, name in self.up.ticks()]
        below = _text(self.width - self.right, self.height - self.below + 36, self.across.name, "end", "soft")
        return [*lines, *sides, *self._feet(), below]

    def _feet(self) -> list[str]:
        """What is written beside the axis across; a long name at an end does not go beyond the chart."""
        ticks, bottom = self.across.ticks(), self.height - self.below + 16
        room = max(3, (self.width - self.left) // (7 * max(1, len(ticks))))
        sides = {0.0: "start", 1.0: "end"}
        return [
            _text(self.x(share), bottom, page.cut(name, room), sides.get(share, "middle") if len(name) > 5 else "middle")
            for share, name in ticks
        ]

    def _places(self, mark: Mark) -> list[tuple[float, float]]:
        shares = [(self.across.at(x), self.up.at(y)) for x, y in mark.points]
        return [(self.x(x), self.y(y)) for x, y in shares if x is not None and y is not None]

    def curve(self, mark: Mark) -> str:
        return _curve(self._places(mark), mark)

    def dot(self, mark: Mark) -> str:
        radius = 6 if mark.look == "best" else 3.2
        return "".join(
            f'<circle class="dot {escape(mark.look)}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{_title(mark.title)}</circle>'
            for x, y in self._places(mark)[:1]
        )

    def upright(self, value: float) -> str:
        share = self.across.at(value)
        if share is None:
            return ""
        return _line(self.x(share), self.top, self.x(share), self.height - self.below, "rung")


def parallel(rows: Sequence[tuple[Sequence[float | None], str, str]], axes: Sequence[Axis]) -> str:
    """A broad chart of upright axes beside each other, and a line across them for each row, the later above the earlier.

    Args:
        rows: for each, where it meets each axis (0 to 1, None where it has no value there: the line then passes below the
            axis), its class in the page's style, and the text beneath the pointer.
    """
    gap = bool(rows) and any(share is None for shares, _, _ in rows for share in shares)
    top, bottom, low = 34, TALL - 44, TALL - 14
    steps = [70 + place * (WIDE - 190) / max(1, len(axes) - 1) for place in range(len(axes))]

    def at(share: float | None) -> float:
        return low if share is None else bottom - share * (bottom - top)

    drawn = [_line(x, top, x, bottom, "axis") for x in steps]
    for shares, look, title in rows:
        places = [(x, at(share)) for x, share in zip(steps, shares, strict=True)]
        drawn.append(_curve(places, Mark([], look, title)))
    for place, (x, axis) in enumerate(zip(steps, axes, strict=True)):
        # names one higher, one lower, so that long ones do not meet
        drawn.append(_text(x, 12 + 13 * (place % 2 if len(axes) > 6 else 1), page.cut(axis.name, 22), "middle"))
        drawn += [_text(x + 6, at(share) + 4, page.cut(name, 12), "start", "halo") for share, name in axis.ticks()]
    if gap:
        drawn.append(_text(4, low + 4, "not set", "start", "soft"))
    return _svg(drawn, TALL, WIDE)


def _curve(places: Sequence[tuple[float, float]], mark: Mark) -> str:
    if not places:
        return ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="curve {escape(mark.look)}" points="{path}">{_title(mark.title)}</polyline>'


def _line(x: float, y: float, to_x: float, to_y: float, look: str = "grid") -> str:
    return f'<line class="{look}" x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _key(hues: dict[str, int], top: int) -> list[str]:
    """Each name beside its colour, three a line."""
    drawn = []
    for place, (name, hue) in enumerate(hues.items()):
        x, y = 4 + place % 3 * (WIDTH / 3), top + 20 * (place // 3)
        drawn.append(f'<rect x="{x:.0f}" y="{y}" width="11" height="11" rx="2" style="fill:{_colour(hue)}"/>')
        drawn.append(_text(x + 17, y + 10, name, "start"))
    return drawn


def _svg(drawn: list[str], height: int, width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(drawn)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, look: str = "") -> str:
    style = f' class="{look}"' if look else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _colour(place: int) -> str:
    return f"var(--c{place % COLOURS})"


def _number(value: float) -> str:
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
