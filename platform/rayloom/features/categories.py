"""Categories: a vocabulary learned from the training split, as embedding indices or one-hot; or hashed, without one."""

import hashlib
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom import sketch
from rayloom.config.features import Category
from rayloom.errors import DataError
from rayloom.features.columns import Column, record_type
from rayloom.features.state import USELESS, CategoryState, HashState

MOST_VALUES, MOST_CHARACTERS = 1_000_000, 50_000_000
"""Different values of a category, and characters of all of them together, that are counted at most: bounds memory."""

FEW, UNIQUE_SHARE = 1000, 0.5
"""Over FEW values that are over UNIQUE_SHARE of the rows make an identifier or free text, no category."""

MOST_ONE_HOT = 1000
"""Values of a one-hot category: each is a column of numbers."""


def summarize(feature: Category, column: Column) -> dict:
    values = column.values
    present = {"rows": len(values), "missing": values.null_count, "type": record_type(values.type)}
    counts = pc.value_counts(pc.drop_null(_texts(values)))
    found = dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
    return {**present, **(_any_two(found) if feature.encode == "hash" else _bounded(found)), "hash": feature.encode == "hash"}


def _any_two(counts: dict[str, int]) -> dict:
    """The least and the largest value alone: enough to tell whether a hashed column is constant."""
    return {"values": {text: counts[text] for text in {min(counts), max(counts)}} if counts else {}, "over": False}


def _bounded(counts: dict[str, int]) -> dict:
    over = len(counts) > MOST_VALUES or sum(map(len, counts)) > MOST_CHARACTERS
    return {"values": {} if over else counts, "over": over}


def merge(name: str, left: dict, right: dict) -> dict:
    """Two summaries as one.

    Raises:
        DataError: there are more different values than a category may have.
    """
    values = sketch.add(left["values"], right["values"])
    merged = {
        **{key: left[key] + right[key] for key in ("rows", "missing")},
        **{key: left[key] for key in ("type", "hash")},
        **(_any_two(values) if left["hash"] else _bounded(values)),
    }
    merged["over"] = merged["over"] or left["over"] or right["over"]
    _require_countable(name, merged)
    return merged


def _require_countable(name: str, summary: dict) -> None:
    if summary["over"]:
        raise _no_category(name, f"over {MOST_VALUES:,} different values or {MOST_CHARACTERS:,} characters of them")


def _no_category(name: str, found: str) -> DataError:
    return DataError(
        f"The feature '{name}' has {found} in the training split: it is no category; set `encode: hash`, make it "
        f"`kind: text`, or remove it from features.columns."
    )


def fit(name: str, feature: Category, summary: dict) -> tuple[CategoryState | HashState, list[str]]:
    """The state, and what to warn about.

    Raises:
        DataError: the column is an identifier or free text, or has too many values for one-hot.
    """
    _require_countable(name, summary)
    counts, present = summary["values"], summary["rows"] - summary["missing"]
    constant = not counts or (len(counts) == 1 and not summary["missing"])
    if feature.encode == "hash":
        return HashState(buckets=feature.buckets, type=summary["type"], constant=constant), _doubts(feature, counts, constant)
    if len(counts) > max(FEW, UNIQUE_SHARE * present):
        raise _no_category(name, f"{len(counts):,} different values in {present:,} rows")
    frequent = sorted(text for text, count in counts.items() if count >= feature.min_count)
    if feature.encode == "one_hot" and len(frequent) > MOST_ONE_HOT:
        raise DataError(
            f"The feature '{name}' has {len(frequent):,} values that occur {feature.min_count} times, one-hot takes "
            f"{MOST_ONE_HOT:,}; set `encode: embedding` or `hash`, or raise min_count."
        )
    state = CategoryState(values=frequent, encode=feature.encode, type=summary["type"], constant=constant)
    return state, _doubts(feature, frequent, constant)


def _doubts(feature: Category, values: Collection[str], constant: bool) -> list[str]:
    if constant:
        return [f"{'is constant' if values else 'has no value'} {USELESS}"]
    return [] if values else [f"has no value that occurs {feature.min_count} times {USELESS}"]


def apply(state: CategoryState | HashState, column: Column) -> dict[str, list[np.ndarray]]:
    values = column.values
    if state.constant:
        index = np.zeros(len(values), np.int64)
    elif isinstance(state, HashState):
        index = _hash(values, state.buckets)
    else:
        index = pc.add(pc.fill_null(_places(state, values), -1), 1).to_numpy()
    if isinstance(state, CategoryState) and state.encode == "one_hot":
        return {"numbers": [index == place + 1 for place in range(len(state.values))]}
    return {"categories": [index]}


def unseen(state: CategoryState, column: Column) -> np.ndarray:
    """bool (n,): there is a value, and it is not in the vocabulary."""
    return pc.and_(pc.is_null(_places(state, column.values)), pc.is_valid(column.values)).to_numpy()


def _places(state: CategoryState, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.index_in(_texts(values), value_set=pa.array(state.values, pa.string()))


def _hash(values: pa.ChunkedArray, buckets: int) -> np.ndarray:
    texts = _texts(values)
    distinct = pc.unique(texts)
    indices = np.array([0 if text is None else 1 + _digest(text) % buckets for text in distinct.to_pylist()], np.int64)
    return indices[pc.index_in(texts, value_set=distinct).to_numpy()]


def _digest(text: str) -> int:
    """64 bits of BLAKE2b: Python's own `hash` differs from process to process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(values, pa.string())
