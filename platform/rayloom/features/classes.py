"""The label: its classes, learned on the training split, and rows' labels as the loop wants them."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayloom import sketch
from rayloom.errors import DataError
from rayloom.features.columns import is_text, require_names
from rayloom.features.state import FeatureState

MOST_CLASSES = 1000
"""A label of more classes is no label of classes but text or a measurement."""

SHOWN = 5
"""Values that an error shows."""


def summarize(values: pa.ChunkedArray) -> dict:
    """Counts of the label's values, by their text."""
    counts = _counts(values)
    missing = counts.pop("null", 0)
    over = len(counts) > MOST_CLASSES
    return {"text": is_text(values.type), "missing": missing, "values": {} if over else counts, "over": over}


def merge(name: str, left: dict, right: dict) -> dict:
    values = sketch.add(left["values"], right["values"])
    over = left["over"] or right["over"] or len(values) > MOST_CLASSES
    return {
        "text": left["text"],
        "missing": left["missing"] + right["missing"],
        "values": {} if over else values,
        "over": over,
    }


def fit(name: str, summary: dict) -> list[int] | list[str]:
    """The classes, sorted; [0, 1] where the label is 0, 1 or boolean.

    Raises:
        DataError: the label is missing somewhere, has fractions or over MOST_CLASSES values, or only one; or its classes differ
            by white space alone.
    """
    if summary["over"]:
        raise DataError(
            f"The label '{name}' has over {MOST_CLASSES:,} different values in the training split: they are no classes; name "
            f"another column in features.label."
        )
    if summary["missing"]:
        raise DataError(_missing(name, summary["missing"]))
    classes = _texts(name, summary["values"]) if summary["text"] else _whole_numbers(name, summary["values"])
    if len(classes) < 2:
        raise DataError(
            f"The label '{name}' has {len(classes)} classes in the training split ({_listed(classes)}), and two are the least; "
            f"correct etl.splits.train."
        )
    return classes


def _missing(name: str, count: int) -> str:
    return (
        f"The label '{name}' is null in {count:,} {_rows(count)}; set such rows aside with the rule "
        f"{{name: has_label, not_null: [{name}]}}."
    )


def _texts(name: str, counts: dict[str, int]) -> list[str]:
    stripped: dict[str, str] = {}
    for text in sorted(key[1:-1] for key in counts):
        if text.strip() in stripped:
            raise DataError(
                f"The label '{name}' has the values {stripped[text.strip()]!r} and {text!r}, which differ by white space "
                f"alone; set `clean: {{{name}: [trim]}}` in its source."
            )
        stripped[text.strip()] = text
    return sorted(stripped.values())


def _whole_numbers(name: str, counts: dict[str, int]) -> list[int]:
    fractions = [text for text in counts if "." in text or "e" in text or "inf" in text]
    if fractions:
        raise DataError(
            f"The label '{name}' has values that are no whole numbers, such as {fractions[0]}: they are no classes; make some "
            f"in the SQL, as in CAST({name} > 10 AS INT)."
        )
    classes = sorted(map(int, counts))
    return [0, 1] if {*classes} <= {0, 1} and classes else classes


def labels(state: FeatureState, table: pa.Table) -> np.ndarray:
    """The label of each row: float32 (n,) of 0 and 1, or with more than two classes int64 (n,), the place in state.classes.

    Raises:
        DataError: the label's column is missing, of another type than in training, or holds a value that is not one of
            state.classes; the sentence names values and counts.
    """
    require_names([state.label], table.column_names)
    values = table[state.label]
    index = _index(state)(values)
    if (index < 0).any():
        raise DataError(_strange(state, _counts(values.filter(pa.array(index < 0)))))
    return index.astype(np.float32 if len(state.classes) == 2 else np.int64)


def _index(state: FeatureState) -> Callable[[pa.ChunkedArray], np.ndarray]:
    """What finds the place of each value among the classes, -1 where it is none."""
    text = isinstance(state.classes[0], str)

    def index(values: pa.ChunkedArray) -> np.ndarray:
        if text != is_text(values.type) or not (text or _is_numeric(values.type)):
            trained = "text" if text else "numbers or booleans"
            raise DataError(
                f"The label '{state.label}' is of type {values.type}, and the training split's were {trained}; correct the SQL."
            )
        known = pa.array(state.classes, pa.string() if text else pa.float64())
        return pc.fill_null(pc.index_in(pc.cast(values, known.type, safe=False), value_set=known), -1).to_numpy()

    return index


def _is_numeric(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _strange(state: FeatureState, counts: dict[str, int]) -> str:
    if [*counts] == ["null"]:
        return _missing(state.label, counts["null"])
    found = ", ".join(f"{text} ({count:,} {_rows(count)})" for text, count in sorted(counts.items())[:SHOWN])
    return (
        f"The label '{state.label}' has values other than {_listed(state.classes)}, the training split's: {found}; correct the "
        f"SQL that makes it, or the splits."
    )


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    """Rows by value: texts in quotes, whole numbers without a point, 'null' for what is missing or NaN."""
    if is_text(values.type):
        counts = pc.value_counts(pc.cast(values, pa.string())).to_pylist()
        return {"null" if item["values"] is None else f"'{item['values']}'": item["counts"] for item in counts}
    numbers = pc.cast(values, pa.float64(), safe=False).to_numpy().astype(np.float64)
    found, rows = np.unique(numbers, return_counts=True)
    return {_number(value): count for value, count in zip(found.tolist(), rows.tolist(), strict=True)}


def _number(value: float) -> str:
    if np.isnan(value):
        return "null"
    return str(int(value)) if value.is_integer() else repr(value)


def _listed(classes: list) -> str:
    shown = [str(value) for value in classes[:SHOWN]] + (["…"] if len(classes) > SHOWN else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown) or "none"


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"
