"""Rules: which rows are accepted, by which rule the others are set aside, and when there are too many of them."""

import datetime
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rayloom import config
from rayloom.errors import ConfigError, DataError
from rayloom.etl.columns import first_in_order, quoted
from rayloom.etl.duplicates import DUPLICATE

RULE, WARNED = "_rule", "_warned"
"""Columns that `tag` adds."""


def tag(spark: SparkSession, rows: DataFrame, etl: config.Etl) -> DataFrame:
    """Adds `_rule STRING`, the first broken rule whose action is reject or fail (NULL: accepted).

    With rules whose action is warn, also `_warned ARRAY<STRING>`, in which the names of those that a row breaks are (besides
    NULLs). A row with `_duplicate`, where there is such a column, breaks no rule.

    Args:
        spark: has the tables that `foreign_key` names.
        rows: the same rows come back, with these columns more.

    Raises:
        ConfigError: a bound or value cannot be of its column's type.
    """
    original = F.col(DUPLICATE).isNull() if DUPLICATE in rows.columns else F.lit(True)
    columns, standing = rows.columns, original
    broken: list[Column] = [F.lit(None).cast("string")]
    warned: list[Column] = []
    for index, rule in enumerate(etl.rules):
        rows, breaks = _broken(spark, rows, rule, index, standing, etl)
        (warned if rule.action == "warn" else broken).append(F.when(original & breaks, rule.name))
        standing = original & F.coalesce(*broken).isNull()
    added = [F.coalesce(*broken).alias(RULE), *([F.array(*warned).alias(WARNED)] if warned else [])]
    return rows.select(*[_column(name) for name in columns], *added)


def _broken(
    spark: SparkSession, rows: DataFrame, rule: config.Rule, index: int, standing: Column, etl: config.Etl
) -> tuple[DataFrame, Column]:
    """Whether a row breaks the rule (never NULL), and the rows, with a column more where that needs other rows."""
    if rule.unique is not None:
        return _repeated(rows, rule.unique, f"_rayloom_place_{index}", standing, etl.order_by)
    if rule.foreign_key is not None:
        return _unknown(spark, rows, rule, f"_rayloom_known_{index}")
    if rule.where is not None:
        return rows, ~F.coalesce(F.expr(rule.where), F.lit(False))
    if rule.not_null is not None:
        return rows, _any([_column(name).isNull() for name in rule.not_null])
    checks = []
    if rule.range is not None:
        checks = [_outside(rows, rule.name, name, *bounds) for name, bounds in rule.range.items()]
    if rule.allowed is not None:
        checks = [~_column(name).isin(_values(rows, rule.name, name, values)) for name, values in rule.allowed.items()]
    if rule.regex is not None:
        checks = [~_column(name).cast("string").rlike(rf"\A(?:{pattern})\z") for name, pattern in rule.regex.items()]
    return rows, _any(checks)


def _outside(rows: DataFrame, rule: str, name: str, least: Any, most: Any) -> Column:
    kind, value = rows.schema[name].dataType, _column(name)
    checks = []
    if least is not None:
        checks.append(value < _literal(rule, name, kind, least))
    if most is not None:
        checks.append(value > _literal(rule, name, kind, most))
    if isinstance(kind, T.FloatType | T.DoubleType):
        checks.append(F.isnan(value))
    return _any(checks)


def _values(rows: DataFrame, rule: str, name: str, values: list) -> list[Column]:
    return [_literal(rule, name, rows.schema[name].dataType, value) for value in values]


def _literal(rule: str, name: str, kind: T.DataType, value: Any) -> Column:
    """A value of the pipeline file as the column's type: compared with the column, neither is changed.

    Spark alone would make '2013-02-30' NULL, which every row passes, and 0.1 unequal to a FLOAT's or DECIMAL's 0.1.
    """
    try:
        return _of_kind(kind, value)
    except (ValueError, TypeError, InvalidOperation):
        remedy = "quote it: YAML reads yes, no, on and off as true and false" if isinstance(value, bool) else "correct it"
        raise ConfigError(
            f"etl.rules ({rule}): {value!r} cannot be compared with '{name}', which is {kind.simpleString()}; {remedy}."
        ) from None


def _of_kind(kind: T.DataType, value: Any) -> Column:
    if isinstance(kind, T.BooleanType) != isinstance(value, bool):
        raise TypeError
    if isinstance(kind, T.BooleanType):
        return F.lit(value)
    if isinstance(kind, T.StringType):
        return F.lit(_require(str, value))
    if isinstance(kind, T.DateType):
        return F.lit(datetime.date.fromisoformat(_require(str, value)))
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        datetime.datetime.fromisoformat(_require(str, value))
        return F.lit(value).cast(kind)
    if isinstance(kind, T.FloatType):
        return F.lit(float(value)).cast(kind)
    if isinstance(kind, T.DoubleType):
        return F.lit(float(value))
    if isinstance(kind, T.NumericType):
        return F.lit(Decimal(str(value)))
    raise TypeError


def _require(wanted: type, value: Any) -> Any:
    if not isinstance(value, wanted):
        raise TypeError
    return value


def _repeated(rows: DataFrame, key: list[str], place: str, standing: Column, order_by: list[str]) -> tuple[DataFrame, Column]:
    """Of rows with one key, those after the first; rows that an earlier rule sets aside come last, so that they are not it."""
    known = _all([_column(name).isNotNull() for name in key])
    own = rows.select(*[_column(name) for name in rows.columns if not name.startswith("_rayloom_") and name != DUPLICATE])
    order = [F.when(standing, 0).otherwise(1), *first_in_order(own, order_by)]
    window = Window.partitionBy(*[_column(name) for name in key]).orderBy(*order)
    return rows.withColumn(place, F.row_number().over(window)), known & (F.col(place) > 1)


def _unknown(spark: SparkSession, rows: DataFrame, rule: config.Rule, known: str) -> tuple[DataFrame, Column]:
    key = rule.foreign_key
    assert key is not None
    names = [f"{known}_{index}" for index in range(len(key.columns))]
    table = spark.table(quoted(key.table)).select(*[_column(to).alias(name) for to, name in zip(key.to, names, strict=True)])
    table = table.dropna().distinct().withColumn(known, F.lit(True))
    equal = [_column(column) == F.col(name) for column, name in zip(key.columns, names, strict=True)]
    complete = _all([_column(column).isNotNull() for column in key.columns])
    return rows.join(table, equal, "left").drop(*names), complete & F.col(known).isNull()


def _column(name: str) -> Column:
    return F.col(quoted(name))


def _all(conditions: list[Column]) -> Column:
    return reduce(lambda left, right: left & right, conditions)


def _any(conditions: list[Column]) -> Column:
    """Whether one of them holds; NULL counts as no."""
    return reduce(lambda left, right: left | right, [F.coalesce(condition, F.lit(False)) for condition in conditions])


def judge(etl: config.Etl, rows_in: int, rejected: dict[str, int]) -> None:
    """Holds rejected rows against the thresholds.

    Args:
        rows_in: rows of the last step.
        rejected: rows set aside by name of a rule, 'uncastable' and 'outlier_…' among them.

    Raises:
        DataError: a rule with `action: fail` is broken by more than its share `above`, or all together by more than
            etl.max_rejected.
    """
    for rule in etl.rules:
        rows = rejected.get(rule.name, 0)
        if rule.action == "fail" and rows > rule.above * rows_in:
            raise DataError(
                f"etl.rules ({rule.name}): {_share(rows, rows_in)} break the rule '{rule.check}', above {rule.above:.2%}; "
                f"correct the data, the rule, or `above`."
            )
    total = sum(rejected.values())
    if total > etl.max_rejected * rows_in:
        most = sorted(rejected.items(), key=lambda item: (-item[1], item[0]))
        by = ", ".join(f"{name} {rows:,}" for name, rows in most if rows)
        raise DataError(
            f"etl.max_rejected: {_share(total, rows_in)} are rejected ({by}), above {etl.max_rejected:.2%}; look at them with "
            f"`rayloom quarantine show`, or raise it."
        )


def _share(rows: int, rows_in: int) -> str:
    return f"{rows:,} of {rows_in:,} rows ({rows / rows_in:.2%})"
