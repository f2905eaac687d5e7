"""Features: what the training split taught (FeatureState) and the one `apply` that training and serving share.

    check(spec)                what the section names is there: tokenizers
    check_types(spec, schema)  each column has a type that its kind can use; no row is read
    summarize(spec, table)     one block's counts, sums and label values; blocks are summarised anywhere, in any number
    merge(a, b)                two summaries as one
    fit(spec, summary)         the state, from the training split's summary alone
    apply(state, table)        arrays for the model
    labels(state, table)       the rows' labels
    unseen(state, table)       which categories training did not know

`Transform(state)` has the last one and `apply` as methods, for a server, which calls them for a row at a time.

A kind of feature is a module of this package with summarize, merge, fit and prepare (columns of the kind to an object whose
`apply(table)` gives what each is to a model), and a line in KINDS. Summaries are bounded in size, and the same state comes out
however the rows were cut into blocks. `apply` works row by row: a row's arrays do not depend on the rows beside it. NumPy,
Arrow, tokenizers and Pillow only; no Ray, Spark or torch.
"""

from types import ModuleType

import numpy as np
import pyarrow as pa

from rayloom.config.features import Features, Text
from rayloom.features import categories, classes, columns, dates, images, numbers, text
from rayloom.features.classes import labels
from rayloom.features.columns import Column
from rayloom.features.state import (
    CLIP,
    DATE_PARTS,
    CategoryState,
    ColumnState,
    ConstantState,
    DateState,
    FeatureState,
    HashState,
    ImageState,
    NumberState,
    RankState,
    TextState,
)

KINDS: dict[str, ModuleType] = {
    "number": numbers,
    "category": categories,
    "date": dates,
    "text": text,
    "image": images,
}
"""By the kind that the pipeline file names."""

STATES: dict[str, ModuleType] = {**KINDS, "rank": numbers, "constant": numbers, "hash": categories}
"""By the kind of state that a column has after `fit`."""

Summary = dict[str, dict]
"""By column, the label among them: JSON-able counts, bounded in size."""


def check(spec: Features) -> None:
    """Finds what the section names outside of the rows.

    Raises:
        SourceError: a tokenizer is missing, is none, or leaves no room for text in `max_tokens`.
    """
    for name, feature in spec.columns.items():
        if isinstance(feature, Text):
            text.read_tokenizer(name, feature)


def check_types(spec: Features, schema: pa.Schema) -> None:
    """Holds the types of rows against what the features' kinds need, without reading one.

    Raises:
        DataError: a column is missing or of a type that its kind cannot use, such as a timestamp as a number.
    """
    columns.require(spec, schema)


def summarize(spec: Features, table: pa.Table) -> Summary:
    """What one block tells.

    Args:
        spec: the features section of the pipeline file.
        table: rows of the training split, with at least the columns that `spec` names and the label.

    Raises:
        DataError: the table lacks a column of `spec`, one is of an unusable type, or an image cannot be decoded.
        SourceError: a tokenizer is not there.
    """
    columns.require(spec, table.schema)
    summary: Summary = {spec.label: {"kind": "label", **classes.summarize(table[spec.label])}}
    for name, feature in spec.columns.items():
        summary[name] = {"kind": feature.kind, **KINDS[feature.kind].summarize(feature, Column(name, table))}
    return summary


def merge(left: Summary, right: Summary) -> Summary:
    """Two summaries of disjoint rows as one.

    Raises:
        DataError: a category has more different values than can be counted, or images differ in size.
    """
    merged: Summary = {}
    for name, one in left.items():
        module = classes if one["kind"] == "label" else KINDS[one["kind"]]
        merged[name] = {"kind": one["kind"], **module.merge(name, one, right[name])}
    return merged


def fit(spec: Features, summary: Summary) -> tuple[FeatureState, list[str]]:
    """The state, and a warning for each column that cannot help (constant, without any value) or that loses something.

    Args:
        spec: the features section of the pipeline file.
        summary: the whole training split's, by `summarize` and `merge`.

    Raises:
        DataError: a category is an identifier or free text, or the label has no usable classes.
    """
    known = classes.fit(spec.label, summary[spec.label])
    learned: dict[str, ColumnState] = {}
    warnings: list[str] = []
    for name, feature in spec.columns.items():
        learned[name], found = KINDS[feature.kind].fit(name, feature, summary[name])
        warnings.extend(f"feature {name} {warning}" for warning in found)
    return FeatureState(label=spec.label, columns=learned, classes=known), warnings


class Transform:
    """`apply` and `unseen` of one state, with what they need of it made ready once: for rows that come few at a time.

    Args:
        state: what `fit` learned.
    """

    def __init__(self, state: FeatureState):
        self.names = list(state.columns)
        groups: dict[ModuleType, dict[str, ColumnState]] = {}
        for name, column in state.columns.items():
            groups.setdefault(STATES[column.kind], {})[name] = column
        self.groups = {module: module.prepare(group) for module, group in groups.items()}

    def apply(self, table: pa.Table) -> dict[str, np.ndarray]:
        """See `features.apply`."""
        columns.require_names(self.names, table.column_names)
        found = {name: inputs for group in self.groups.values() for name, inputs in group.apply(table).items()}
        parts: columns.Inputs = {"numbers": [], "categories": []}
        for name in self.names:
            for key, arrays in found[name].items():
                parts.setdefault(key, []).extend(arrays)
        return {
            "numbers": _columns_to_matrix(parts.pop("numbers"), len(table), np.float32),
            "categories": _columns_to_matrix(parts.pop("categories"), len(table), np.int64),
            **{key: arrays[0] for key, arrays in parts.items()},
        }

    def unseen(self, table: pa.Table) -> dict[str, np.ndarray]:
        """See `features.unseen`."""
        return self.groups[categories].unseen(table) if categories in self.groups else {}


def apply(state: FeatureState, table: pa.Table) -> dict[str, np.ndarray]:
    """A model's inputs.

    Args:
        state: what `fit` learned.
        table: n rows with at least the columns of `state`; the label is not needed.

    Returns:
        {"numbers": float32 (n, len(state.number_names())), "categories": int64 (n, len(state.cardinalities()))}, and where
        there is such a column "tokens" int32 and "mask" uint8 (n, max_tokens), or "image" float32 (n, channels, height, width).

    Raises:
        DataError: the table lacks a column of `state`, or an image cannot be decoded.
    """
    return Transform(state).apply(table)


def _columns_to_matrix(given: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    matrix: np.ndarray = np.empty((rows, len(given)), dtype)
    for index, column in enumerate(given):
        matrix[:, index] = column
    return matrix


def unseen(state: FeatureState, table: pa.Table) -> dict[str, np.ndarray]:
    """Where a category has a value that is not in its vocabulary, because training saw it rarely or never.

    Returns:
        bool (n,) by the name of each category that has such a value in one of the n rows; hashed ones have no vocabulary.
    """
    return Transform(state).unseen(table)


__all__ = [
    "CLIP",
    "DATE_PARTS",
    "CategoryState",
    "ColumnState",
    "ConstantState",
    "DateState",
    "FeatureState",
    "HashState",
    "ImageState",
    "NumberState",
    "RankState",
    "Summary",
    "TextState",
    "Transform",
    "apply",
    "check",
    "check_types",
    "fit",
    "labels",
    "merge",
    "summarize",
    "unseen",
]
