"""Dates: each part a category of its own."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom.config.features import Date
from rayloom.features.columns import Column, Inputs, OneByOne
from rayloom.features.state import USELESS, DateState

EPOCH_WEEKDAY = 3
"""1 January 1970, from which days are counted, was a Thursday."""


def summarize(feature: Date, column: Column) -> dict:
    days = pc.min_max(pc.cast(_days(column.values), pa.int32())).as_py()
    return {"missing": column.values.null_count, **days}


def merge(name: str, left: dict, right: dict) -> dict:
    days = [day for day in (left["min"], left["max"], right["min"], right["max"]) if day is not None]
    return {"missing": left["missing"] + right["missing"], "min": min(days, default=None), "max": max(days, default=None)}


def fit(name: str, feature: Date, summary: dict) -> tuple[DateState, list[str]]:
    empty = summary["min"] is None
    constant = summary["min"] == summary["max"] and not summary["missing"]
    warnings = [f"{'has no value' if empty else 'is constant'} {USELESS}"] if empty or constant else []
    return DateState(parts=list(feature.parts), constant=empty or constant), warnings


def prepare(columns: Mapping[str, DateState]) -> OneByOne:
    return OneByOne(columns, _apply)


def _apply(state: DateState, column: Column) -> Inputs:
    if state.constant:
        return {"categories": [np.zeros(len(column.values), np.int64) for _ in state.parts]}
    days = _days(column.values).to_numpy().astype("datetime64[D]", copy=False)
    missing = np.isnat(days)
    return {"categories": [np.where(missing, 0, _part(part, days) + 1) for part in state.parts]}


def _part(part: str, days: np.ndarray) -> np.ndarray:
    """int64 (n,) from 0: the weekday, the month, or the day of the month."""
    if part == "weekday":
        return (days.astype(np.int64) + EPOCH_WEEKDAY) % 7
    months = days.astype("datetime64[M]")
    if part == "month":
        return months.astype(np.int64) % 12
    return (days - months.astype("datetime64[D]")).astype(np.int64)


def _days(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates; those of timestamps in UTC, whatever time zone they are shown in."""
    if pa.types.is_date32(values.type):
        return values
    if pa.types.is_timestamp(values.type):
        values = pc.cast(values, pa.timestamp(values.type.unit, "UTC"))
    return pc.cast(values, pa.date32())
