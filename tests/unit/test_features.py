"""Feature state and the one `apply`: row by row, the same for every cut into blocks, never NaN."""

import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from rayloom import config, features
from rayloom.errors import DataError
from rayloom.features import CategoryState, DateState, FeatureState, NumberState


def spec_of(**columns: dict) -> config.Features:
    return config.Features.model_validate({"label": "y", "columns": columns})


def state_of(**columns) -> FeatureState:
    return FeatureState(label="y", columns=columns)


def numbers_of(values: list, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(values, kind or pa.float64())})


def fit_number(values: list) -> tuple[NumberState, list[str]]:
    spec = spec_of(x={"kind": "number"})
    state, warnings = features.fit(spec, features.summarize(spec, numbers_of(values)))
    return state.columns["x"], warnings


def apply_number(column: NumberState, values: list) -> list:
    return features.apply(state_of(x=column), numbers_of(values))["numbers"].tolist()


def apply_category(values: list, state: CategoryState) -> list:
    return features.apply(state_of(x=state), pa.table({"x": pa.array(values, pa.string())}))["categories"][:, 0].tolist()


def apply_date(dates: list, parts: list[str]) -> list:
    return features.apply(state_of(x=DateState(parts=parts)), pa.table({"x": pa.array(dates, pa.date32())}))[
        "categories"
    ].tolist()


def fit_in_blocks(spec: config.Features, rows: pa.Table, cuts: np.ndarray) -> tuple[FeatureState, list[str]]:
    edges = [0, *sorted(cuts.tolist()), len(rows)]
    parts = [features.summarize(spec, rows.slice(a, b - a)) for a, b in pairwise(edges)]
    merged = parts[0]
    for part in parts[1:]:
        merged = features.merge(merged, part)
    return features.fit(spec, merged)


def require_bit_equal(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert (values.dtype, values.shape) == (expected[name].dtype, expected[name].shape)
        assert values.tobytes() == np.ascontiguousarray(expected[name]).tobytes()


def test_the_arrays_have_the_promised_shapes_and_types(toy_state, toy_rows):
    arrays = features.apply(toy_state, toy_rows)
    assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
        "numbers": (np.float32, (200, 3)),
        "categories": (np.int64, (200, 4)),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_permuted_subset_has_the_rows_of_the_whole(toy_state, toy_rows, seed):
    rows = np.random.default_rng(seed).choice(200, size=60, replace=False)
    whole = features.apply(toy_state, toy_rows)
    require_bit_equal(features.apply(toy_state, toy_rows.take(rows)), {name: array[rows] for name, array in whole.items()})


def test_a_row_alone_is_the_row_of_the_whole(toy_state, toy_rows):
    whole = features.apply(toy_state, toy_rows)
    for row in range(0, 200, 7):
        alone = features.apply(toy_state, toy_rows.slice(row, 1))
        require_bit_equal(alone, {name: array[row : row + 1] for name, array in whole.items()})


def test_chunks_do_not_count(toy_state, toy_rows):
    chunked = pa.concat_tables([toy_rows.slice(0, 3), toy_rows.slice(3, 0), toy_rows.slice(3)])
    require_bit_equal(features.apply(toy_state, chunked), features.apply(toy_state, toy_rows))


def test_columns_may_come_in_any_order_and_company(toy_state, toy_rows):
    other = toy_rows.select(toy_rows.column_names[::-1]).append_column("more", pa.array(range(200)))
    require_bit_equal(features.apply(toy_state, other), features.apply(toy_state, toy_rows))


def test_no_rows_give_empty_arrays(toy_state, toy_rows):
    arrays = features.apply(toy_state, toy_rows.slice(0, 0))
    assert (arrays["numbers"].shape, arrays["categories"].shape) == ((0, 3), (0, 4))


@pytest.mark.parametrize("seed", range(20))
def test_every_cut_into_blocks_gives_the_same_state(toy_spec, toy_rows, seed):
    rng = np.random.default_rng(seed)
    cuts = rng.integers(0, 201, size=rng.integers(1, 30))
    assert fit_in_blocks(toy_spec, toy_rows, cuts) == fit_in_blocks(toy_spec, toy_rows, np.array([], int))


@pytest.mark.parametrize("value", [0.1, 0.3, 1.1, 5.0, -273.15, 1e9 + 0.1])
def test_every_cut_of_a_constant_gives_the_same_state(value):
    spec, rows = spec_of(x={"kind": "number"}), numbers_of([value] * 101)
    states = [fit_in_blocks(spec, rows, np.random.default_rng(seed).integers(0, 102, 9)) for seed in range(5)]
    assert all(state == fit_in_blocks(spec, rows, np.array([], int)) for state in states)


def test_a_block_without_values_changes_nothing_but_the_flag():
    spec = spec_of(x={"kind": "number"})
    state, _ = fit_in_blocks(spec, numbers_of([None, None, 1.0, 3.0]), np.array([2]))
    assert state.columns["x"] == NumberState(mean=2.0, deviation=1.0, flag=True)


def test_moments_are_the_present_values_population_moments():
    state, _ = fit_number([1.0, 2.0, None, 6.0])
    assert (state.mean, state.deviation, state.flag) == (3.0, pytest.approx(np.std([1, 2, 6]), rel=1e-8), True)


def test_numbers_without_a_missing_value_have_no_flag():
    assert fit_number([1.0, 3.0])[0] == NumberState(mean=2.0, deviation=1.0, flag=False)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_the_mean_and_flagged(value):
    assert apply_number(NumberState(mean=4.0, deviation=2.0, flag=True), [value, 6.0]) == [[0.0, 1.0], [1.0, 0.0]]


def test_a_missing_number_without_a_flag_is_the_mean():
    assert apply_number(NumberState(mean=4.0, deviation=2.0, flag=False), [None]) == [[0.0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_count_as_missing_in_training(value):
    assert fit_number([1.0, value, 3.0])[0] == NumberState(mean=2.0, deviation=1.0, flag=True)


@pytest.mark.parametrize("value", [1e101, -1e300, float("inf")])
def test_a_number_that_nothing_measures_counts_as_missing(value):
    assert apply_number(NumberState(mean=0.0, deviation=1.0, flag=True), [value]) == [[0.0, 1.0]]


@pytest.mark.parametrize(("value", "scaled"), [(1e100, 10.0), (-1e100, -10.0), (11.0, 10.0), (9.0, 9.0)])
def test_an_absurd_number_is_clipped(value, scaled):
    assert apply_number(NumberState(mean=0.0, deviation=1.0, flag=False), [value]) == [[scaled]]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
def test_a_number_counts_the_same_in_every_type(kind):
    state = state_of(x=NumberState(mean=1.0, deviation=2.0, flag=True))
    assert features.apply(state, numbers_of([5, None], kind))["numbers"].tolist() == [[2.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("value", [0.1, 0.3, 1.1, 5.0, -273.15])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_a_constant_is_warned_about(value, count):
    assert "feature x is constant" in "".join(fit_number([value] * count)[1])


@pytest.mark.parametrize("value", [0.1, 0.3, 1.1])
def test_a_constant_becomes_nearly_zero(value):
    state, _ = fit_number([value] * 3)
    assert abs(apply_number(state, [value])[0][0]) < 1e-6


def test_a_number_without_any_value_is_warned_about_and_never_nan():
    state, warnings = fit_number([None, None])
    assert "feature x has no value" in warnings[0]
    assert apply_number(state, [None, 3.0]) == [[0.0, 1.0], [3.0, 0.0]]


def test_a_category_without_any_value_is_warned_about():
    spec = spec_of(x={"kind": "category", "min_count": 1})
    state, warnings = features.fit(spec, features.summarize(spec, pa.table({"x": pa.array([None, None], pa.string())})))
    assert state.columns["x"].values == [] and "feature x has no value" in warnings[0]


def test_useful_columns_are_not_warned_about(toy_spec, toy_rows):
    assert features.fit(toy_spec, features.summarize(toy_spec, toy_rows))[1] == []


def test_an_absurd_number_in_training_gives_a_finite_state():
    state, _ = fit_number([1e200, 0.0, 1.0])
    assert np.isfinite(state.mean) and np.isfinite(state.deviation)


def test_an_absurd_number_in_another_block_does_not_end_the_fit():
    state, _ = fit_in_blocks(spec_of(x={"kind": "number"}), numbers_of([1e200, 0.0, 1.0]), np.array([1]))
    assert np.isfinite(state.columns["x"].deviation)


def test_a_category_has_its_place_in_the_sorted_values():
    assert apply_category(["b", "a", "b"], CategoryState(values=["a", "b"])) == [2, 1, 2]


@pytest.mark.parametrize("value", ["unseen", "", "A", None])
def test_an_unseen_or_missing_category_is_zero(value):
    assert apply_category([value], CategoryState(values=["a", "b"])) == [0]


def test_a_category_state_without_values_gives_zero():
    assert apply_category(["a", None], CategoryState(values=[])) == [0, 0]


def test_a_category_rarer_than_min_count_is_zero():
    spec = spec_of(x={"kind": "category", "min_count": 2})
    state, _ = features.fit(spec, features.summarize(spec, pa.table({"x": ["a", "a", "b"]})))
    assert apply_category(["a", "b"], state.columns["x"]) == [1, 0]


def test_a_category_is_counted_over_all_blocks():
    spec = spec_of(x={"kind": "category", "min_count": 2})
    state, _ = fit_in_blocks(spec, pa.table({"x": ["a", "b", "a"]}), np.array([1, 2]))
    assert state.columns["x"].values == ["a"]


def test_whole_numbers_can_be_categories():
    spec = spec_of(x={"kind": "category", "min_count": 1})
    state, _ = features.fit(spec, features.summarize(spec, pa.table({"x": [3, 1, 3]})))
    assert features.apply(state, pa.table({"x": [1, 3, 9]}))["categories"].tolist() == [[1], [2], [0]]


@pytest.mark.parametrize(
    ("date", "index"),
    [("2013-11-04", 1), ("2013-11-05", 2), ("2013-11-10", 7), ("1969-12-31", 3), ("2000-02-29", 2), ("1900-01-01", 1)],
)
def test_a_weekday_counts_from_monday_as_one(date, index):
    assert apply_date([datetime.date.fromisoformat(date)], ["weekday"]) == [[index]]


def test_weekdays_agree_with_the_calendar_over_four_years():
    dates = [datetime.date(2012, 1, 1) + datetime.timedelta(days) for days in range(1461)]
    assert apply_date(dates, ["weekday"]) == [[date.isoweekday()] for date in dates]


def test_month_and_day_count_from_one_in_the_order_of_the_parts():
    dates = [datetime.date(2013, 1, 31), datetime.date(2013, 12, 1)]
    assert apply_date(dates, ["day", "month"]) == [[31, 1], [1, 12]]


def test_a_missing_date_is_zero_in_every_part():
    assert apply_date([None], ["weekday", "month", "day"]) == [[0, 0, 0]]


def test_a_timestamp_is_its_date():
    rows = pa.table({"x": pa.array([datetime.datetime(2013, 11, 4)], pa.timestamp("us"))})
    assert features.apply(state_of(x=DateState(parts=["weekday"])), rows)["categories"].tolist() == [[1]]


def test_every_index_is_below_its_cardinality(toy_state, toy_rows):
    found = features.apply(toy_state, toy_rows)["categories"]
    assert (found.max(0) < toy_state.cardinalities()).all() and (found >= 0).all()


def test_every_input_has_a_name(toy_state):
    assert toy_state.number_names() == ["distance", "wind", "wind is missing"]
    assert toy_state.category_names() == ["weekday of day", "month of day", "day of day", "carrier"]
    assert toy_state.cardinalities() == [8, 13, 32, 4]


def test_the_state_is_the_same_after_json(toy_state):
    assert FeatureState.model_validate_json(toy_state.model_dump_json()) == toy_state


def test_the_state_of_an_odd_deviation_is_the_same_after_json():
    state = state_of(x=fit_number([0.1, 0.2, 1 / 3, 1e-9])[0])
    assert FeatureState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64(), pa.bool_()])
def test_labels_are_zero_and_one_in_every_type(kind):
    found = features.labels(state_of(), pa.table({"y": pa.array([0, 1]).cast(kind)}))
    assert (found.dtype, found.tolist()) == (np.float32, [0.0, 1.0])


@pytest.mark.parametrize("values", [[0, 2], [0, -1], [0.5], [1, None], [float("nan")]])
def test_other_labels_are_refused(values):
    with pytest.raises(DataError, match="The label 'y' has values other than 0 and 1"):
        features.labels(state_of(), pa.table({"y": values}))


def test_a_text_label_is_refused_with_its_type():
    with pytest.raises(DataError, match="The label 'y' is of type string"):
        features.labels(state_of(), pa.table({"y": ["yes", "no"]}))


def test_a_missing_label_is_refused_with_the_nearest():
    with pytest.raises(DataError, match="no column 'late'; did you mean 'latte'"):
        features.labels(FeatureState(label="late", columns={}), pa.table({"latte": [1]}))


@pytest.mark.parametrize("use", ["summarize", "apply"])
def test_a_missing_column_is_refused_with_the_nearest(toy_spec, toy_state, toy_rows, use):
    rows = toy_rows.rename_columns(["day", "carrier", "distanse", "wind", "late"])
    with pytest.raises(DataError, match="no column 'distance'; did you mean 'distanse'"):
        features.summarize(toy_spec, rows) if use == "summarize" else features.apply(toy_state, rows)
