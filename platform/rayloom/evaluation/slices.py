"""Slices: how good a model is on test rows told apart by a column's values, worst first."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom.config.evaluation import sign
from rayloom.errors import ConfigError
from rayloom.evaluation.bootstrap import interval, resample, wilson
from rayloom.evaluation.metrics import Answers, prepare

MOST_VALUES = 20
"""Values of a column that are slices of their own; the rows of the others are one slice together."""

RESAMPLES = 200
SHOWN = 40
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Slice:
    """The test rows with one value, or one range of values, of a column.

    Attributes:
        n: its rows.
        reached: the metric; NaN where it is not defined, as the auc of rows of one class is.
        low, high: the metric's 95 % interval: Wilson's for accuracy, else by the bootstrap.
        gated: whether a gate looks at it: it is large enough and the metric is defined.
    """

    column: str
    value: str
    n: int
    metric: str
    reached: float
    low: float
    high: float
    gated: bool

    def __str__(self) -> str:
        return f"{self.column} {self.value:.{SHOWN}}"


def slice_rows(rows: pa.Table, columns: list[str], answers: Answers, metric: str, least: int, seed: int) -> list[Slice]:
    """The metric on each slice, worst first; slices where it is not defined come last.

    Args:
        rows: the answered rows, with at least `columns`.
        columns: whose values tell rows apart; see `cut`.
        least: a slice of fewer rows is not gated.
        seed: of the bootstrap.

    Raises:
        ConfigError: a column's values cannot be told apart, as images cannot.
    """
    found = [
        _measure(column, value, answers.take(places), metric, least, seed)
        for column in columns
        for value, places in cut(column, rows[column])
    ]
    return sorted(found, key=lambda one: (np.isnan(one.reached), sign(metric) * np.nan_to_num(one.reached), str(one)))


def _measure(column: str, value: str, answers: Answers, metric: str, least: int, seed: int) -> Slice:
    n = len(answers.labels)
    statistic = prepare(metric, answers)
    reached = statistic(np.ones(n))
    if metric == "accuracy":
        low, high = wilson(int((answers.decided == answers.truth).sum()), n)
    elif np.isnan(reached):
        low = high = float("nan")
    else:
        low, high = interval(resample([statistic], n, seed, RESAMPLES)[:, 0])
    return Slice(column, value, n, metric, reached, low, high, n >= least and not np.isnan(reached))


def cut(name: str, values: pa.ChunkedArray) -> list[tuple[str, np.ndarray]]:
    """Each slice's value and the places of its rows, int64.

    Numbers with over MOST_VALUES different values are cut in quartiles, dates by month. Of all else, the MOST_VALUES most
    frequent values are slices, and '(other)' is the rest. Missing values are '(missing)'.

    Raises:
        ConfigError: as `require_sliceable`.
    """
    require_sliceable(name, values.type)
    keys = _keys(values)
    counts = pc.value_counts(keys.drop_null()).to_pylist()
    kept = sorted(counts, key=lambda cell: (-cell["counts"], cell["values"]))[:MOST_VALUES]
    known = pa.array([cell["values"] for cell in kept], pa.string())
    codes = pc.fill_null(pc.index_in(keys.drop_null(), value_set=known), len(kept)).to_numpy()
    present = np.flatnonzero(pc.is_valid(keys).to_numpy())
    places = [(text, present[codes == code]) for code, text in enumerate([*known.to_pylist(), "(other)"])]
    places.append(("(missing)", np.flatnonzero(pc.is_null(keys).to_numpy())))
    return [(text, where) for text, where in places if len(where)]


def _keys(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """What tells a value's slice, as text; null where it is missing."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _keys(values.cast(kind.value_type))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pc.strftime(values, "%Y-%m")
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if is_number and pc.count_distinct(values).as_py() > MOST_VALUES:
        return _quartiles(pc.cast(values, pa.float64(), safe=False))
    if pa.types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), None, values)
    return pc.cast(values, pa.string())


def require_sliceable(name: str, kind: pa.DataType) -> None:
    """Raises ConfigError where a column's values tell no slices: bytes, lists and the like."""
    kinds = pa.types
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_nested(kind) or kinds.is_duration(kind):
        raise ConfigError(f"evaluate.slices: '{name}' is of type {kind}, whose values tell no slices; name another column.")


def _quartiles(values: pa.ChunkedArray) -> pa.ChunkedArray:
    numbers = pc.fill_null(values, float("nan")).to_numpy()
    known = numbers[np.isfinite(numbers)]
    edges = np.unique(np.quantile(known, [0, 0.25, 0.5, 0.75, 1])) if len(known) else np.zeros(1)
    names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
    codes = np.clip(np.searchsorted(edges, numbers, "left") - 1, 0, max(len(names) - 1, 0))
    return pa.chunked_array([pa.array(np.array(names, object)[codes], pa.string(), mask=np.isnan(numbers))])
