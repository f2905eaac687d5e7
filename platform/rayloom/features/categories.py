"""Categories: a vocabulary learned from the training split, as embedding indices or one-hot; or hashed, without one."""

import hashlib
from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom import sketch
from rayloom.config.features import Category
from rayloom.errors import DataError
from rayloom.features.columns import Column, Inputs, record_type
from rayloom.features.state import USELESS, CategoryState, HashState

MOST_VALUES, MOST_CHARACTERS = 1_000_000, 50_000_000
"""Different values of a category, and characters of all of them together, that are counted at most: bounds memory."""

FEW, UNIQUE_SHARE = 1000, 0.5
"""Over FEW values that are over UNIQUE_SHARE of the rows make an identifier or free text, no category."""

STRING = pa.string()
FEW_ROWS = 32
"""Rows up to which a dictionary is faster than Arrow, which makes its own of the whole vocabulary for each call."""

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


class Vocabulary:
    """A category's known values, ready to be looked up: few in a dictionary, many by Arrow, which makes its own each time."""

    def __init__(self, values: list[str]):
        self.values = values

    @cached_property
    def indices(self) -> dict[str | None, int]:
        return {text: place + 1 for place, text in enumerate(self.values)}

    @cached_property
    def array(self) -> pa.Array:
        return pa.array(self.values, STRING)

    def index(self, values: pa.ChunkedArray) -> np.ndarray:
        """int64 (n,): i + 1 for the value values[i] of the vocabulary, 0 for one that is missing or not in it."""
        texts = _texts(values)
        if len(texts) <= FEW_ROWS:
            return np.array([self.indices.get(text, 0) for text in texts.to_pylist()], np.int64)
        return pc.add(pc.fill_null(pc.index_in(texts, value_set=self.array), -1), 1).to_numpy().astype(np.int64)


class Encoder:
    """All columns of categories."""

    def __init__(self, columns: Mapping[str, CategoryState | HashState]):
        self.columns = columns
        self.known = {name: Vocabulary(column.values) for name, column in columns.items() if isinstance(column, CategoryState)}

    def apply(self, table: pa.Table) -> dict[str, Inputs]:
        """What each column gives: an index, or for one-hot a 0/1 number for each known value."""
        return {name: self._apply(name, column, table[name]) for name, column in self.columns.items()}

    def _apply(self, name: str, state: CategoryState | HashState, values: pa.ChunkedArray) -> Inputs:
        if state.constant:
            index = np.zeros(len(values), np.int64)
        elif isinstance(state, HashState):
            index = _hash(values, state.buckets)
        else:
            index = self.known[name].index(values)
        if isinstance(state, CategoryState) and state.encode == "one_hot":
            return {"numbers": [index == place + 1 for place in range(len(state.values))]}
        return {"categories": [index]}

    def unseen(self, table: pa.Table) -> dict[str, np.ndarray]:
        """bool (n,) by the name of each category in which a value is there and not in the vocabulary, where there are some."""
        found = {}
        for name, vocabulary in self.known.items():
            where = vocabulary.index(table[name]) == 0
            if where.any():
                where &= table[name].is_valid().to_numpy()
                if where.any():
                    found[name] = where
        return found


def prepare(columns: Mapping[str, CategoryState | HashState]) -> Encoder:
    return Encoder(columns)


def _hash(values: pa.ChunkedArray, buckets: int) -> np.ndarray:
    texts = _texts(values)
    distinct = pc.unique(texts)
    indices = np.array([0 if text is None else 1 + _digest(text) % buckets for text in distinct.to_pylist()], np.int64)
    return indices[pc.index_in(texts, value_set=distinct).to_numpy()]


def _digest(text: str) -> int:
    """64 bits of BLAKE2b: Python's own `hash` differs from process to process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values if values.type == STRING else pc.cast(values, STRING)
