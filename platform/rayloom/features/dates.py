"""Dates: each part a category of its own."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom.config.features import Date
from rayloom.features.columns import Column
from rayloom.features.state import USELESS, DateState


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


def apply(state: DateState, column: Column) -> dict[str, list[np.ndarray]]:
    if state.constant:
        return {"categories": [np.zeros(len(column.values), np.int64) for _ in state.parts]}
    days = _days(column.values)
    part_of = {
        "weekday": lambda: pc.day_of_week(days),
        "month": lambda: pc.subtract(pc.month(days), 1),
        "day": lambda: pc.subtract(pc.day(days), 1),
    }
    return {"categories": [pc.add(pc.fill_null(part_of[part](), -1), 1).to_numpy() for part in state.parts]}


def _days(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates; those of timestamps in UTC, whatever time zone they are shown in."""
    if pa.types.is_timestamp(values.type):
        values = pc.cast(values, pa.timestamp(values.type.unit, "UTC"))
    return pc.cast(values, pa.date32())
