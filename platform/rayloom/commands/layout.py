"""Text for a screen of WIDTH columns: aligned tables, numbers, shares, sizes."""

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

WIDTH = 100


def table(rows: list[list[str]], right: Iterable[int] = ()) -> list[str]:
    """Lines of a table whose columns stand two spaces apart; those whose index is in `right` end together."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    sides = [str.rjust if index in set(right) else str.ljust for index in range(len(widths))]
    return ["  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip() for row in rows]


def section(title: str, texts: Iterable[str], indent: int = 12) -> list[str]:
    """A title with its texts beside it, wrapped; nothing where there are no texts."""
    return [
        line
        for index, text in enumerate(texts)
        for line in textwrap.wrap(
            text,
            WIDTH,
            initial_indent=(title if index == 0 else "").ljust(indent),
            subsequent_indent=" " * (indent + 2),
            break_on_hyphens=False,
        )
    ]


def titled(title: str, lines: list[str], indent: int = 12) -> list[str]:
    """A title with lines beside it as they are."""
    return [(title if index == 0 else "").ljust(indent) + line for index, line in enumerate(lines)]


def counts(of: Mapping[str, int]) -> list[str]:
    """Counts by name as one text, those of 0 left out; an empty list where there are none."""
    return ["  ".join(f"{name} {count:,}" for name, count in of.items() if count)] if any(of.values()) else []


def number(value: Any) -> str:
    """A number in few characters; another value as its text, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"
    return str(value)


def share(part: float) -> str:
    """A share in percent; one that is not 0 never reads as 0."""
    percent = 100 * part
    if percent == 0 or percent >= 10:
        return f"{percent:.0f} %" if part in (0, 1) else f"{min(percent, 99.9):.1f} %"
    return f"{percent:.2g} %" if percent >= 0.01 else "<0.01 %"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def shorten(text: str, width: int) -> str:
    """A text on one line, its end cut off where it is longer than `width`."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
