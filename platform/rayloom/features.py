"""Features: what the training split taught (FeatureState) and the one `apply` that training and serving share.

    summarize(spec, table)   one block's counts and moments; blocks are summarised anywhere, in any number
    merge(a, b)              two summaries as one
    fit(spec, summary)       the state, from the training split's summary alone
    apply(state, table)      arrays for the model

`apply` works row by row: a row's arrays do not depend on the rows beside it. NumPy and Arrow only; no Ray, Spark or torch.
Not here: text and images.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from rayloom import config
from rayloom.errors import DataError, hint

DATE_PARTS = {"weekday": 7, "month": 12, "day": 31}
"""Number of values of each part of a date; weekday 0 is Monday, month and day start at 0 as well."""

LARGEST = 1e100
"""Numbers beyond it count as missing: no measurement is that large, and their squares would not be finite."""

CLIP = 10.0
"""Standardised numbers beyond this many deviations are clipped: one absurd value must not make an answer infinite."""


class _State(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NumberState(_State):
    """Standardisation by the training split: (x - mean) / deviation; `flag` adds a 0/1 input that is 1 where missing."""

    kind: Literal["number"] = "number"
    mean: float
    deviation: float = Field(gt=0)
    flag: bool


class CategoryState(_State):
    """Index i + 1 for values[i]; 0 for a value that is missing, rare or unseen in training."""

    kind: Literal["category"] = "category"
    values: list[str]


class DateState(_State):
    """Each part of the date as a category; 0 where the date is missing."""

    kind: Literal["date"] = "date"
    parts: list[Literal["weekday", "month", "day"]]


ColumnState = Annotated[NumberState | CategoryState | DateState, Field(discriminator="kind")]


class FeatureState(_State):
    """All that turns a record into a model's inputs. Written as JSON into the bundle."""

    label: str
    columns: dict[str, ColumnState]

    def cardinalities(self) -> list[int]:
        """Number of indices of each categorical input, in the order of `apply`'s columns."""
        sizes: list[int] = []
        for column in self.columns.values():
            if isinstance(column, CategoryState):
                sizes.append(len(column.values) + 1)
            elif isinstance(column, DateState):
                sizes.extend(DATE_PARTS[part] + 1 for part in column.parts)
        return sizes

    def number_names(self) -> list[str]:
        """What each numeric input is: one a number, and one more for each missing flag."""
        numbers = [(name, column) for name, column in self.columns.items() if isinstance(column, NumberState)]
        return [text for name, column in numbers for text in ([name, f"{name} is missing"] if column.flag else [name])]

    def category_names(self) -> list[str]:
        """What each categorical input is: one a category, and one a part of a date."""
        names: list[str] = []
        for name, column in self.columns.items():
            if isinstance(column, CategoryState):
                names.append(name)
            elif isinstance(column, DateState):
                names.extend(f"{part} of {name}" for part in column.parts)
        return names


Summary = dict[str, dict]
"""By column: count, missing, mean, m2, min and max of a number; {'values': {text: count}} of a category; {} of a date."""


def summarize(spec: config.Features, table: pa.Table) -> Summary:
    """Counts and moments of one block.

    Args:
        spec: the features section of the pipeline file.
        table: rows of the training split, with at least the columns that `spec` names.

    Raises:
        DataError: the table lacks a column of `spec`.
    """
    _require(spec.columns, table)
    return {name: _summarize_column(feature, table[name]) for name, feature in spec.columns.items()}


def _summarize_column(feature: config.Feature, values: pa.ChunkedArray) -> dict:
    if isinstance(feature, config.Category):
        counts = pc.value_counts(pc.drop_null(pc.cast(values, pa.string())))
        return {"values": {item["values"].as_py(): item["counts"].as_py() for item in counts}}
    if isinstance(feature, config.Number):
        numbers = _finite(values)
        present = numbers[~np.isnan(numbers)]
        mean = float(present.mean()) if len(present) else 0.0
        return {
            "count": len(present),
            "missing": len(numbers) - len(present),
            "mean": mean,
            "m2": float(((present - mean) ** 2).sum()),
            "min": float(present.min(initial=LARGEST)),
            "max": float(present.max(initial=-LARGEST)),
        }
    return {}


def merge(left: Summary, right: Summary) -> Summary:
    """Two summaries of disjoint rows as one. Moments by Chan, Golub and LeVeque (1979), equation 2.1."""
    return {name: _merge_column(left[name], right[name]) for name in left}


def _merge_column(left: dict, right: dict) -> dict:
    if "values" in left:
        values = {
            key: left["values"].get(key, 0) + right["values"].get(key, 0) for key in {**left["values"], **right["values"]}
        }
        return {"values": values}
    if "mean" in left:
        count = left["count"] + right["count"]
        delta = right["mean"] - left["mean"]
        share = right["count"] / count if count else 0.0
        return {
            "count": count,
            "missing": left["missing"] + right["missing"],
            "mean": left["mean"] + delta * share,
            "m2": left["m2"] + right["m2"] + delta**2 * left["count"] * share,
            "min": min(left["min"], right["min"]),
            "max": max(left["max"], right["max"]),
        }
    return {}


def fit(spec: config.Features, summary: Summary) -> tuple[FeatureState, list[str]]:
    """The state, and a warning for each column that cannot help: constant or without any value.

    Args:
        spec: the features section of the pipeline file.
        summary: the whole training split's, by `summarize` and `merge`.
    """
    columns: dict[str, ColumnState] = {}
    warnings: list[str] = []
    for name, feature in spec.columns.items():
        columns[name], warning = _fit_column(feature, summary[name])
        if warning:
            warnings.append(f"feature {name} {warning} in the training split; remove it from features.columns")
    return FeatureState(label=spec.label, columns=columns), warnings


def _fit_column(feature: config.Feature, summary: dict) -> tuple[ColumnState, str | None]:
    if isinstance(feature, config.Date):
        return DateState(parts=list(feature.parts)), None
    if isinstance(feature, config.Category):
        frequent = sorted(text for text, count in summary["values"].items() if count >= feature.min_count)
        return CategoryState(values=frequent), None if frequent else f"has no value that occurs {feature.min_count} times"
    count, missing = summary["count"], summary["missing"]
    if not count:
        return NumberState(mean=0.0, deviation=1.0, flag=True), "has no value"
    if summary["min"] == summary["max"]:  # its computed deviation may be 1e-17 and not 0
        return NumberState(mean=_stable(summary["min"]), deviation=1.0, flag=missing > 0), "is constant"
    deviation = _stable(math.sqrt(summary["m2"] / count))
    return NumberState(mean=_stable(summary["mean"]), deviation=deviation, flag=missing > 0), None


def _stable(value: float) -> float:
    """Nine significant digits: the last bits of a sum depend on how the rows were cut into blocks; the state must not."""
    return float(f"{value:.9g}")


def apply(state: FeatureState, table: pa.Table) -> dict[str, np.ndarray]:
    """A model's inputs.

    Args:
        state: what `fit` learned.
        table: n rows with at least the columns of `state`; the label is not needed.

    Returns:
        {"numbers": float32 (n, len(state.number_names())), "categories": int64 (n, len(state.cardinalities()))}

    Raises:
        DataError: the table lacks a column of `state`.
    """
    _require(state.columns, table)
    numbers: list[np.ndarray] = []
    categories: list[np.ndarray] = []
    for name, column in state.columns.items():
        if isinstance(column, NumberState):
            numbers.extend(_apply_number(column, table[name]))
        elif isinstance(column, CategoryState):
            categories.append(_apply_category(column, table[name]))
        else:
            categories.extend(_apply_date(column, table[name]))
    return {
        "numbers": _columns_to_matrix(numbers, len(table), np.float32),
        "categories": _columns_to_matrix(categories, len(table), np.int64),
    }


def labels(state: FeatureState, table: pa.Table) -> np.ndarray:
    """The label as float32 (n,), each 0 or 1.

    Raises:
        DataError: the label's column is missing, or holds something else than 0, 1 and booleans.
    """
    _require([state.label], table)
    kind = table[state.label].type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"The label '{state.label}' is of type {kind}; make it 0 and 1 in the SQL, as in CAST(... AS INT).")
    values = pc.cast(table[state.label], pa.float32(), safe=False).to_numpy()
    if not np.isin(values, (0.0, 1.0)).all():
        raise DataError(f"The label '{state.label}' has values other than 0 and 1; correct the SQL that makes it.")
    return values


def _require(names: Mapping | list[str], table: pa.Table) -> None:
    for name in names:
        if name not in table.column_names:
            raise DataError(f"The rows have no column '{name}'{hint(name, table.column_names)}")


def _finite(values: pa.ChunkedArray) -> np.ndarray:
    """float64, with NaN for values that are missing, NaN or beyond LARGEST."""
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy().astype(np.float64)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)


def _apply_number(column: NumberState, values: pa.ChunkedArray) -> list[np.ndarray]:
    numbers = _finite(values)
    missing = np.isnan(numbers)
    scaled = np.clip((numbers - column.mean) / column.deviation, -CLIP, CLIP)
    scaled[missing] = 0.0
    return [scaled, missing] if column.flag else [scaled]


def _apply_category(column: CategoryState, values: pa.ChunkedArray) -> np.ndarray:
    index = pc.index_in(pc.cast(values, pa.string()), value_set=pa.array(column.values, pa.string()))
    return pc.add(pc.fill_null(index, -1), 1).to_numpy()


def _apply_date(column: DateState, values: pa.ChunkedArray) -> list[np.ndarray]:
    dates = pc.cast(values, pa.date32())
    part_of = {
        "weekday": lambda: pc.day_of_week(dates),
        "month": lambda: pc.subtract(pc.month(dates), 1),
        "day": lambda: pc.subtract(pc.day(dates), 1),
    }
    return [pc.add(pc.fill_null(part_of[part](), -1), 1).to_numpy() for part in column.parts]


def _columns_to_matrix(columns: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    matrix: np.ndarray = np.empty((rows, len(columns)), dtype)
    for index, column in enumerate(columns):
        matrix[:, index] = column
    return matrix
