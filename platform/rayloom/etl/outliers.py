"""Outliers: values outside two quantiles of the accepted training rows, clipped, or their rows rejected.

NULL and NaN are no outliers. Where the two quantiles are one value, as of a constant, nothing is an outlier: there is no spread
to measure a distance by.
"""

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rayloom import config
from rayloom.errors import ConfigError, DataError
from rayloom.etl.columns import quoted
from rayloom.etl.rules import RULE
from rayloom.etl.splits import SPLIT


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value of a column that are no outliers; infinite where nothing is one."""

    settings: config.Outliers
    least: float
    most: float

    def outside(self) -> Column:
        """Whether a value is an outlier; never NULL."""
        value = F.col(quoted(self.settings.column)).cast("double")
        return F.coalesce(~F.isnan(value) & ((value < self.least) | (value > self.most)), F.lit(False))

    @property
    def note(self) -> str | None:
        """What a user should know about it."""
        if math.isinf(self.least) and math.isinf(self.most):
            return f"etl.outliers ({self.settings.column}): both quantiles are the same value, so nothing is an outlier"
        return None


def learn(tagged: DataFrame, settings: list[config.Outliers]) -> list[Bounds]:
    """Exact quantiles over the accepted rows of the training split: one pass, none where nothing is asked for.

    A quantile is a value of the data: the least one that at least this share of them does not exceed (`percentile_disc`).

    Raises:
        ConfigError: a column is not a number.
        DataError: a column has no number there.
    """
    if not settings:
        return []
    for one in settings:
        if not isinstance(tagged.schema[one.column].dataType, T.NumericType):
            kind = tagged.schema[one.column].dataType.simpleString()
            raise ConfigError(f"etl.outliers ({one.column}): outliers are numbers, and this column is {kind}; remove it.")
    accepted = tagged.filter(F.col(RULE).isNull() & (F.col(SPLIT) == "train"))
    wanted = [quantile for index, one in enumerate(settings) for quantile in _quantiles(one, index)]
    found = accepted.agg(*wanted).collect()[0]
    return [_bounds(one, found[f"least{index}"], found[f"most{index}"]) for index, one in enumerate(settings)]


def _quantiles(one: config.Outliers, index: int) -> list[Column]:
    value = f"nullif(CAST({quoted(one.column)} AS DOUBLE), double('NaN'))"
    return [
        F.expr(f"percentile_disc({share!r}D) WITHIN GROUP (ORDER BY {value})").alias(f"{name}{index}")
        for name, share in (("least", one.lower), ("most", one.upper))
    ]


def _bounds(one: config.Outliers, least: float | None, most: float | None) -> Bounds:
    if least is None or most is None:
        raise DataError(f"etl.outliers ({one.column}): no accepted training row has a value; remove it.")
    return Bounds(one, least, most) if least < most else Bounds(one, -math.inf, math.inf)


def reject(tagged: DataFrame, bounds: list[Bounds]) -> DataFrame:
    """Rows outside the bounds of columns with `action: reject` get the rule 'outlier_<column>'."""
    broken = [F.when(one.outside(), f"outlier_{one.settings.column}") for one in bounds if one.settings.action == "reject"]
    return tagged.withColumn(RULE, F.coalesce(F.col(RULE), *broken)) if broken else tagged


def clip(rows: DataFrame, bounds: list[Bounds], where: Column | None = None) -> DataFrame:
    """Values outside the bounds of columns with `action: clip` become the nearer bound, in the column's type.

    Args:
        where: the rows that are meant; all, where it is left out.
    """
    meant = F.lit(True) if where is None else where
    for one in bounds:
        if one.settings.action == "clip":
            name = one.settings.column
            value, kind = F.col(quoted(name)), rows.schema[name].dataType
            bound = F.when(value < one.least, F.lit(one.least)).otherwise(F.lit(one.most)).cast(kind)
            rows = rows.withColumn(name, F.when(one.outside() & meant, bound).otherwise(value))
    return rows
