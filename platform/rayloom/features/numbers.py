"""Numbers: imputed, scaled, flagged where missing."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom import sketch
from rayloom.config.features import Number
from rayloom.errors import DataError
from rayloom.features.columns import Column
from rayloom.features.state import CLIP, USELESS, ConstantState, NumberState, RankState

LARGEST = 1e100
"""Numbers beyond it count as missing: no measurement is that large, and their squares would not be finite."""

UNSCALED_LIMIT = 1e30
"""Numbers under `scale: none` are clipped to it: sums of their products with weights stay finite in float32."""

KNOTS = 101
"""Quantiles that stand for a distribution under `scale: quantile`, evenly spaced from the smallest to the largest value."""

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


def apply(state: Numbers, column: Column) -> dict[str, list[np.ndarray]]:
    numbers = _finite(column.values)
    missing = np.isnan(numbers)
    if isinstance(state, ConstantState):
        scaled = np.zeros(len(numbers))
    else:
        numbers[missing] = state.impute
        scaled = _rank(state, numbers) if isinstance(state, RankState) else _scale(state, numbers)
    return {"numbers": [scaled, missing] if state.flag else [scaled]}


def _scale(state: NumberState, numbers: np.ndarray) -> np.ndarray:
    return np.clip((numbers - state.center) / state.spread, -state.limit, state.limit)


def _rank(state: RankState, numbers: np.ndarray) -> np.ndarray:
    """Piecewise linear between knots. A value that fills several knots gets the middle of their ranks, as the mean of both
    one-sided interpolations, which scikit-learn's QuantileTransformer takes as well."""
    knots, ranks = np.array(state.knots), np.linspace(-1, 1, len(state.knots))
    from_left = np.interp(numbers, knots, ranks)
    from_right = -np.interp(-numbers, -knots[::-1], -ranks[::-1])
    return (from_left + from_right) / 2


def _finite(values: pa.ChunkedArray) -> np.ndarray:
    """float64, with NaN for values that are missing, NaN or beyond LARGEST."""
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy().astype(np.float64)
    return np.where(np.abs(numbers) <= LARGEST, numbers, np.nan)
