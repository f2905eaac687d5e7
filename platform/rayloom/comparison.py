"""What changed from one dataset version to another: what made them, columns, counts, and the columns' statistics.

Measures of a column's change, each with its value before and after where both mean something:
    shift       difference of the means, in deviations of the earlier version
    psi         population stability index, sum of (after - before) * ln(after / before) over shares of rows: by value where
                both versions count all values, else over the frequent values of both; of numbers with many values between the
                earlier version's quantiles, by linear interpolation, so roughly. Below 0.1 little, above 0.25 much has changed.
    new, lost   values that came among the most frequent ones, or left them
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rayloom.statistics import SHARES, TOP, ColumnStatistics, Numbers, Texts
from rayloom.versions import Manifest

SMALLEST_SHARE = 1e-4
"""Stands for a share of 0 in the stability index, which would be infinite."""

Change = dict[str, Any]
"""What differs, by measure: [before, after], or one figure or list."""


@dataclass(frozen=True)
class Comparison:
    """All that differs, except `counts`, which has all counts as [before, after].

    Attributes:
        inputs: sha256 by source; None where the source is not there.
        config: values by dotted key; None where the key is not there.
        added, removed: types by column.
        retyped: types by column, [before, after].
        counts: rows by what became of them.
        split: the split whose statistics were compared.
        statistics: by column, the most changed first.
    """

    inputs: Change
    config: Change
    added: dict[str, str]
    removed: dict[str, str]
    retyped: Change
    counts: Change
    split: str
    statistics: dict[str, Change]


def compare(before: Manifest, after: Manifest, split: str = "train") -> Comparison:
    """What changed from one version to another; statistics of the columns that both have, in one split."""
    old, new = before.statistics.get(split, {}), after.statistics.get(split, {})
    changes = {name: column_change(old[name], new[name]) for name in old if name in new}
    ranked = sorted((name for name in changes if changes[name]), key=lambda name: -_size(changes[name]))
    return Comparison(
        inputs=_differing(before.inputs, after.inputs),
        config=_differing(_flat(before.config), _flat(after.config)),
        added={name: kind for name, kind in after.columns.items() if name not in before.columns},
        removed={name: kind for name, kind in before.columns.items() if name not in after.columns},
        retyped={name: pair for name, pair in _differing(before.columns, after.columns).items() if None not in pair},
        counts=_paired(_counts(before), _counts(after), 0),
        split=split,
        statistics={name: changes[name] for name in ranked},
    )


def _paired(before: dict, after: dict, absent: Any = None) -> Change:
    return {name: [before.get(name, absent), after.get(name, absent)] for name in {**before, **after}}


def _differing(before: dict, after: dict) -> Change:
    return {name: pair for name, pair in _paired(before, after).items() if pair[0] != pair[1]}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested values by dotted key; an item of a list by its `name` where it has one, so that one put between moves none."""
    if isinstance(value, dict) and value:
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = ((item.get("name", index) if isinstance(item, dict) else index, item) for index, item in enumerate(value))
    else:
        return {path: value}
    return {key: leaf for name, inner in items for key, leaf in _flat(inner, f"{path}.{name}" if path else str(name)).items()}


def _counts(of: Manifest) -> dict[str, int]:
    return {
        "in": of.rows_in,
        "accepted": of.accepted,
        **{split: content.rows for split, content in of.splits.items()},
        **{f"rejected: {rule}": rows for rule, rows in of.rejected.items()},
        **{f"deduplicated: {kind}": rows for kind, rows in of.deduplicated.items()},
        **{f"warned: {rule}": rows for rule, rows in of.warned.items()},
        **{f"clipped: {column}": values for column, values in of.clipped.items()},
    }


def column_change(before: ColumnStatistics, after: ColumnStatistics) -> Change:
    """What changed in a column's statistics; empty where nothing did."""
    if before.kind != after.kind:
        return {"kind": [before.kind, after.kind]}
    change = _differing({"missing": _missing(before)}, {"missing": _missing(after)})
    left, right = before.model_dump(), after.model_dump()
    own = [name for name in left if name not in ("rows", "missing", "kind", "top", "quantiles")]
    change |= _differing({name: left[name] for name in own}, {name: right[name] for name in own})
    if isinstance(before, Numbers) and isinstance(after, Numbers):
        change |= {"shift": shift} if (shift := _shift(before, after)) else {}
        change |= _differing({"median": before.quantiles.get("50%")}, {"median": after.quantiles.get("50%")})
    if isinstance(before, Numbers | Texts) and isinstance(after, Numbers | Texts):
        change |= {"psi": psi} if (psi := stability(before, after)) else {}
        change |= _frequent(before, after)
    return change


def _missing(of: ColumnStatistics) -> float:
    return of.missing / of.rows if of.rows else 0.0


def _shift(before: Numbers, after: Numbers) -> float | None:
    if before.mean is None or after.mean is None or not before.deviation:
        return None
    return (after.mean - before.mean) / before.deviation


def _frequent(before: Numbers | Texts, after: Numbers | Texts) -> Change:
    if before.top is None or after.top is None or (isinstance(before, Numbers) and not (_whole(before) and _whole(after))):
        return {}
    lists = {"new": [v for v in after.top if v not in before.top], "lost": [v for v in before.top if v not in after.top]}
    return {name: values for name, values in lists.items() if values}


def _whole(of: Numbers | Texts) -> bool:
    """Whether `top` counts all values that there are."""
    return of.top is not None and of.distinct is not None and of.distinct <= TOP


def stability(before: Numbers | Texts, after: Numbers | Texts) -> float:
    """The population stability index of a column's values; 0 where it cannot be had."""
    if before.top is not None and after.top is not None and not (isinstance(before, Numbers) and not _whole(before)):
        whole = _whole(before) and _whole(after)
        values = {**before.top, **after.top} if whole else [value for value in before.top if value in after.top]
        return _index(_shares(before, values), _shares(after, values))
    if isinstance(before, Numbers) and isinstance(after, Numbers) and before.quantiles and after.quantiles:
        edges = list(before.quantiles.values())
        return _index(np.diff(_cumulated(before, edges)), np.diff(_cumulated(after, edges)))
    return 0.0


def _shares(of: Numbers | Texts, values: Iterable[str]) -> np.ndarray:
    """Shares of the present rows that have each value, and of the rest."""
    top = of.top or {}
    present = max(1, of.rows - of.missing)
    shares = np.array([top.get(value, 0) / present for value in values])
    return np.append(shares, max(0.0, 1 - shares.sum()))


def _cumulated(of: Numbers, edges: list[float]) -> np.ndarray:
    """Share of the numbers up to each edge, from 0 at minus infinity to 1."""
    values = np.array([of.min, *of.quantiles.values(), of.max], float)
    return np.concatenate([[0.0], np.interp(edges, values, [0.0, *SHARES.values(), 1.0], left=0.0, right=1.0), [1.0]])


def _index(before: np.ndarray, after: np.ndarray) -> float:
    before, after = np.maximum(before, SMALLEST_SHARE), np.maximum(after, SMALLEST_SHARE)
    return float(((after - before) * np.log(after / before)).sum())


def _size(change: Change) -> float:
    """How far a change is up in the list."""
    missing = change.get("missing", [0.0, 0.0])
    if "kind" in change:
        return math.inf
    return max(abs(change.get("shift", 0.0)), change.get("psi", 0.0), abs(missing[1] - missing[0]))
