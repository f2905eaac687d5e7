"""Numbers: imputed, scaled, flagged where missing."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom import sketch
from rayloom.config.features import Number
from rayloom.errors import DataError
from rayloom.features.columns import Column, Inputs
from rayloom.features.state import CLIP, USELESS, ConstantState, NumberState, RankState

LARGEST = 1e100
"""Numbers beyond it count as missing: no measurement is that large, and their squares would not be finite."""

UNSCALED_LIMIT = 1e30
"""Numbers under `scale: none` are clipped to it: sums of their products with weights stay finite in float32."""

KNOTS = 101
"""Quantiles that stand for a distribution under `scale: quantile`, evenly spaced from the smallest to the largest value."""

FEW = 1024
"""Rows up to which all columns are scaled together."""

FLOAT64 = pa.float64()
UNSCALED = NumberState(center=0.0, spread=1.0, impute=0.0, flag=False)

Numbers = NumberState | RankState | ConstantState


def summarize(feature: Number, column: Column) -> dict:
    kind = column.values.type
    decimal = str(kind) if pa.types.is_decimal(kind) else None
    return {"sketch": sketch.sketch(_finite(column.values)), "decimal": decimal}


def merge(name: str, left: dict, right: dict) -> dict:
    return {"sketch": sketch.merge(left["sketch"], right["sketch"]), "decimal": left["decimal"] or right["decimal"]}


def fit(name: str, feature: Number, summary: dict) -> tuple[Numbers, list[str]]:
    """The state, and what to warn about: no value, one value, or decimals that become float64."""
    found = summary["sketch"]
    notices = []
    if summary["decimal"]:
        notices.append(f"is {summary['decimal']}: it is read as float64, which keeps 15 significant digits")
    if not found["count"]:
        return ConstantState(flag=False), [*notices, f"has no value {USELESS}"]
    flag = found["missing"] > 0
    if found["min"] == found["max"]:
        return ConstantState(flag=flag), [*notices, f"is constant {USELESS}"]
    impute = _imputation(name, feature, found)
    if feature.scale == "quantile":
        knots = sketch.quantiles(found, np.linspace(0, 1, KNOTS).tolist())
        return RankState(knots=knots, impute=impute, flag=flag), notices
    center, spread = _center_and_spread(feature, found)
    limit = UNSCALED_LIMIT if feature.scale == "none" else CLIP
    return NumberState(center=center, spread=spread, impute=impute, flag=flag, limit=limit), notices


def _imputation(name: str, feature: Number, found: sketch.Sketch) -> float:
    if isinstance(feature.impute, int | float):
        return float(feature.impute)
    if feature.impute == "mean":
        return _stable(found["mean"])
    if feature.impute == "median":
        return sketch.quantiles(found, [0.5])[0]
    frequent = sketch.most_frequent(found)
    if frequent is None:
        raise DataError(
            f"The feature '{name}' has over {sketch.EXACT:,} different values: too many to tell the most frequent; set its "
            f"impute to mean or median."
        )
    return frequent


def _center_and_spread(feature: Number, found: sketch.Sketch) -> tuple[float, float]:
    if feature.scale == "none":
        return 0.0, 1.0
    deviation = _stable(sketch.deviation(found)) or 1.0  # squares of tiny differences may be too small for a float
    if feature.scale == "standard":
        return _stable(found["mean"]), deviation
    lower, median, upper = sketch.quantiles(found, [0.25, 0.5, 0.75])
    return median, (upper - lower) or deviation  # where half of the values are equal, the quartiles say nothing


def _stable(value: float) -> float:
    """Nine significant digits: the last bits of a sum depend on how the rows were cut into blocks; the state must not."""
    return float(f"{value:.9g}")


class Scaler:
    """All columns of numbers. Of few rows they are scaled together, which costs as much as one by itself; of many each alone,
    so that memory is bounded. What is done to a number is the same.

    Args:
        columns: at least one.
    """

    def __init__(self, columns: Mapping[str, Numbers]):
        self.columns = columns
        self.floats = pa.schema([(name, FLOAT64) for name in columns])
        scales = [column if isinstance(column, NumberState) else UNSCALED for column in columns.values()]
        self.center, self.spread, self.limit = (
            np.array([[getattr(scale, key)] for scale in scales]) for key in ("center", "spread", "limit")
        )
        self.impute = np.array([[getattr(column, "impute", 0.0)] for column in columns.values()])

    def apply(self, table: pa.Table) -> dict[str, Inputs]:
        """What each column gives: the scaled numbers, and where they are missing."""
        names = list(self.columns)
        size = len(names) if len(table) <= FEW else 1
        found: dict[str, Inputs] = {}
        for start in range(0, len(names), size):
            part = slice(start, start + size)
            found |= self._scale(part, names[part], self._floats(table, names[part]))
        return found

    def _floats(self, table: pa.Table, names: list[str]) -> np.ndarray:
        """float64 (columns, n), with NaN for values that are missing; at once where the rows are as a request's are."""
        chosen = table.select(names)
        if len(names) > 1 and chosen.schema.equals(self.floats) and len(batches := chosen.to_batches()) == 1:
            return batches[0].to_tensor(null_to_nan=True, row_major=False).to_numpy().T
        return np.stack([_floats(values) for values in chosen.columns])

    def _scale(self, part: slice, names: list[str], numbers: np.ndarray) -> dict[str, Inputs]:
        """Numbers (columns, n), with NaN where they are missing."""
        present = np.abs(numbers) <= LARGEST
        numbers = np.where(present, numbers, self.impute[part])
        limit = self.limit[part]
        scaled = np.clip((numbers - self.center[part]) / self.spread[part], -limit, limit)
        missing = ~present
        found: dict[str, Inputs] = {}
        for row, name in enumerate(names):
            column = self.columns[name]
            if isinstance(column, RankState):
                scaled[row] = _rank(column, numbers[row])
            elif isinstance(column, ConstantState):
                scaled[row] = 0.0
            found[name] = {"numbers": [scaled[row], missing[row]] if column.flag else [scaled[row]]}
        return found


def prepare(columns: Mapping[str, Numbers]) -> Scaler:
    return Scaler(columns)


def _rank(state: RankState, numbers: np.ndarray) -> np.ndarray:
    """Piecewise linear between knots. A value that fills several knots gets the middle of their ranks, as the mean of both
    one-sided interpolations, which scikit-learn's QuantileTransformer takes as well."""
    knots, ranks = np.array(state.knots), np.linspace(-1, 1, len(state.knots))
    from_left = np.interp(numbers, knots, ranks)
    from_right = -np.interp(-numbers, -knots[::-1], -ranks[::-1])
    return (from_left + from_right) / 2


def _finite(values: pa.ChunkedArray) -> np.ndarray:
    """float64, with NaN for values that are missing, NaN or beyond LARGEST."""
    numbers = _floats(values)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)


def _floats(values: pa.ChunkedArray) -> np.ndarray:
    """float64, with NaN for values that are missing."""
    if values.type != FLOAT64:
        values = pc.cast(values, FLOAT64, safe=False)
    return values.to_numpy().astype(np.float64, copy=False)
