"""Axes of charts: where a value lies between an axis' ends, and which values are written beside it."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MOST_NAMES = 12
"""Categories up to which each is written beside its axis."""


def said(value: Any) -> str:
    """A setting's value in short, as JSON writes it; text stays as it is.

    >>> said(0.00312345), said(True), said([64, 32]), said("adamw")
    ('0.003123', 'true', '[64, 32]', 'adamw')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, default=str)


@dataclass(frozen=True)
class Axis:
    """An axis of numbers, or of categories where it has names.

    Attributes:
        name: what it shows.
        low, high: its ends; values beyond them are drawn at the end.
        log: whether equal factors are equally far apart; low is then above 0.
        whole: whether only whole numbers are written beside it.
        names: its categories, as `said` writes them; they are equally far apart.
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    whole: bool = False
    names: tuple[str, ...] = ()

    def at(self, value: Any) -> float | None:
        """Where a value lies, from 0 at the low end to 1; None for what has no place: no finite number, no known category."""
        if self.names:
            return self._of_category(said(value))
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        value = min(max(value, self.low), self.high)
        return self._share(value) if self.high > self.low else 0.5

    def _of_category(self, name: str) -> float | None:
        if name not in self.names:
            return None
        return self.names.index(name) / (len(self.names) - 1) if len(self.names) > 1 else 0.5

    def _share(self, value: float) -> float:
        # half of each: the difference of the largest numbers is none
        low, high, here = (math.log(x) if self.log else x / 2 for x in (self.low, self.high, value))
        return (here - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """What is written beside the axis, and where: round numbers, or the categories, of many only some."""
        values: Iterable[Any]
        if self.names:
            values = self.names[:: math.ceil(len(self.names) / MOST_NAMES)]
        else:
            values = dict.fromkeys((self._decades() if self.log else self._steps()) or (self.low, self.high))
        return [(place, said(value)) for value in values if (place := self.at(value)) is not None]

    def _decades(self) -> list[float]:
        """Powers of ten, of many only some; where there are fewer than two, also 2 and 5 times."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last > first:
            return [float(f"1e{power}") for power in range(first, last + 1, math.ceil((last - first + 1) / 6))]
        finer = [float(f"{digit}e{power}") for power in (first - 1, first) for digit in (1, 2, 5)]
        within = [value for value in finer if self.low <= value <= self.high]
        return within if len(within) > 1 else []

    def _steps(self) -> list[float]:
        """Multiples of 1, 2 or 5 times a power of ten, three to seven."""
        span = self.high - self.low
        if not 1e-300 < span < math.inf or span < 1e-12 * max(abs(self.low), abs(self.high)):
            return []
        longest = span / 3 * (1 + 1e-9)
        power = 10.0 ** math.floor(math.log10(longest))
        step = max((digit * power for digit in (1, 2, 5) if digit * power <= longest), default=power)
        step = max(1.0, step) if self.whole else step
        counts = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [float(f"{count * step:.10g}") for count in counts]


def of_numbers(
    name: str,
    values: Iterable[Any],
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    whole: bool = False,
) -> Axis:
    """An axis that has room for the given ends and for all finite values; not `log` where there is a value of 0 or less."""
    given = [*values, low, high]
    known = [float(value) for value in given if isinstance(value, int | float) and math.isfinite(value)] or [0.0, 1.0]
    return Axis(name, min(known), max(known), log and min(known) > 0, whole)


def of_categories(name: str, values: Iterable[Any]) -> Axis:
    """An axis of each different value, in the order in which they first come."""
    return Axis(name, names=tuple(dict.fromkeys(map(said, values))))
