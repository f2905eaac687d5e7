"""The label: its classes are learned on the training split, and what is none of them is refused with value and count."""

import decimal
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from rayloom import config, features
from rayloom.errors import DataError
from rayloom.features import FeatureState, classes

SPEC = config.Features.model_validate({"label": "y", "columns": {"x": {"kind": "number"}}})


def rows_of(values: list, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": [float(index) for index in range(len(values))], "y": pa.array(values, kind)})


def fit(rows: pa.Table, cuts: list[int] = []) -> FeatureState:
    edges = [0, *cuts, len(rows)]
    parts = [features.summarize(SPEC, rows.slice(a, b - a)) for a, b in pairwise(edges)]
    merged = parts[0]
    for part in parts[1:]:
        merged = features.merge(merged, part)
    return features.fit(SPEC, merged)[0]


def state_of(known: list) -> FeatureState:
    return FeatureState(label="y", columns={}, classes=known)


def refusal(function, *given) -> str:
    with pytest.raises(DataError) as caught:
        function(*given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([0, 1, 1], pa.int32(), [0, 1]),
        ([0.0, 1.0], pa.float64(), [0, 1]),
        ([True, False], pa.bool_(), [0, 1]),
        ([1, 1], pa.int8(), [0, 1]),
        ([decimal.Decimal(1), decimal.Decimal(0)], pa.decimal128(1, 0), [0, 1]),
        ([10, 9, 2, 9], pa.int64(), [2, 9, 10]),
        ([1.0, 2.0], pa.float32(), [1, 2]),
        (["yes", "no", "yes"], pa.string(), ["no", "yes"]),
        (["1", "0"], pa.large_string(), ["0", "1"]),
        (["sport", "business", "tech"], pa.string(), ["business", "sport", "tech"]),
    ],
)
def test_the_classes_are_the_training_splits_sorted(values, kind, expected):
    assert fit(rows_of(values, kind)).classes == expected


def test_the_classes_do_not_depend_on_blocks():
    rows = rows_of(["b", "b", "a", "c", "b"])
    assert fit(rows, [1, 3]) == fit(rows, [2]) == fit(rows)


@pytest.mark.parametrize("known", [["0", "1"], [0, 1], [3, 4], ["no", "yes"]])
def test_the_classes_are_the_same_after_json(known):
    assert FeatureState.model_validate_json(state_of(known).model_dump_json()).classes == known


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64(), pa.bool_(), pa.decimal128(21, 2)])
def test_labels_are_zero_and_one_in_every_type(kind):
    found = features.labels(state_of([0, 1]), pa.table({"y": pa.array([0, 1]).cast(kind)}))
    assert (found.dtype, found.tolist()) == (np.float32, [0.0, 1.0])


def test_two_classes_of_text_are_zero_and_one():
    found = features.labels(state_of(["no", "yes"]), pa.table({"y": ["yes", "no", "yes"]}))
    assert (found.dtype, found.tolist()) == (np.float32, [1.0, 0.0, 1.0])


@pytest.mark.parametrize(("known", "values"), [(["a", "b", "c"], ["c", "a"]), ([2, 9, 10], [10, 2])])
def test_more_classes_are_their_places(known, values):
    found = features.labels(state_of(known), pa.table({"y": values}))
    assert (found.dtype, found.tolist()) == (np.int64, [2, 0])


@pytest.mark.parametrize(
    ("values", "said"),
    [([0, 2, 2], "2 (2 rows)"), ([0, -1], "-1 (1 row)"), ([0.5], "0.5 (1 row)"), ([1, None, 3], "null (1 row)")],
)
def test_other_labels_are_refused_with_value_and_count(values, said):
    message = refusal(features.labels, state_of([0, 1]), pa.table({"y": values}))
    assert message.startswith("The label 'y' has values other than 0 and 1, the training split's: ") and said in message


def test_a_class_that_training_had_not_is_refused_with_value_and_count():
    message = refusal(features.labels, state_of(["no", "yes"]), pa.table({"y": ["yes", "maybe", " yes ", "maybe"]}))
    assert "other than no and yes, the training split's: ' yes ' (1 row), 'maybe' (2 rows);" in message


@pytest.mark.parametrize("values", [["yes", None, None], [1, None, None], [1.0, float("nan"), None]])
def test_missing_labels_are_refused_with_their_count_and_the_rule(values):
    known = ["no", "yes"] if values[0] == "yes" else [0, 1]
    said = "The label 'y' is null in 2 rows; set such rows aside with the rule {name: has_label, not_null: [y]}."
    assert refusal(features.labels, state_of(known), pa.table({"y": values})) == said
    assert refusal(fit, rows_of(values)) == said


@pytest.mark.parametrize(("known", "values"), [([0, 1], ["yes"]), (["no", "yes"], [1])])
def test_a_label_of_another_type_than_in_training_is_refused_with_its_type(known, values):
    assert "The label 'y' is of type" in refusal(features.labels, state_of(known), pa.table({"y": values}))


def test_a_missing_label_column_is_refused_with_the_nearest():
    state = FeatureState(label="late", columns={})
    assert "no column 'late'; did you mean 'latte'" in refusal(features.labels, state, pa.table({"latte": [1]}))


def test_a_label_without_classes_is_refused_by_its_type():
    with pytest.raises(DataError, match="The label 'y' is of type date32"):
        features.check_types(SPEC, pa.schema({"x": pa.float64(), "y": pa.date32()}))


def test_fractions_are_no_classes():
    assert "values that are no whole numbers, such as 0.5" in refusal(fit, rows_of([0.5, 1.0]))


def test_one_class_is_not_enough():
    assert "has 1 classes in the training split (yes)" in refusal(fit, rows_of(["yes", "yes"]))


def test_classes_that_differ_by_white_space_alone_are_refused():
    assert "the values ' yes ' and 'yes', which differ by white space alone" in refusal(fit, rows_of(["no", "yes", " yes "]))


@pytest.mark.parametrize("cuts", [[], [700]])
def test_text_is_no_label(cuts):
    texts = [f"text {number}" for number in range(classes.MOST_CLASSES + 1)]
    assert "The label 'y' has over 1,000 different values" in refusal(fit, rows_of(texts), cuts)


def test_as_many_classes_as_allowed_are_a_label():
    assert len(fit(rows_of([*range(classes.MOST_CLASSES)])).classes) == 1000
