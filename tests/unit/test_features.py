"""Feature state and the one `apply`: row by row, the same for every cut into blocks, never NaN."""

import datetime
import decimal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from rayloom import config, features
from rayloom.errors import DataError
from rayloom.features import (
    CategoryState,
    ConstantState,
    DateState,
    FeatureState,
    HashState,
    NumberState,
    RankState,
    categories,
)


def spec_of(**columns: dict) -> config.Features:
    return config.Features.model_validate({"label": "y", "columns": columns})


def state_of(**columns) -> FeatureState:
    return FeatureState(label="y", columns=columns)


def rows_of(values: list, kind: pa.DataType | None = None) -> pa.Table:
    """Rows of a feature x and a label y."""
    return pa.table({"x": pa.array(values, kind), "y": pa.array([0] * len(values), pa.int32())})


def numbers_of(values: list, kind: pa.DataType | None = None) -> pa.Table:
    return rows_of(values, kind or pa.float64())


def scaled(center: float, spread: float, flag: bool, **more) -> NumberState:
    """Standardised: a missing number becomes the mean."""
    return NumberState(center=center, spread=spread, impute=center, flag=flag, **more)


def fit_column(rows: pa.Table, **feature) -> tuple:
    """The state of the column x, and the warnings."""
    spec = spec_of(x=feature)
    state, warnings = features.fit(spec, features.summarize(spec, rows))
    return state.columns["x"], warnings


def fit_number(values: list, **settings) -> tuple:
    return fit_column(numbers_of(values), kind="number", **settings)


def fit_category(values: list, kind: pa.DataType | None = None, **settings) -> tuple:
    return fit_column(rows_of(values, kind or pa.string()), kind="category", **{"min_count": 1, **settings})


def apply_number(column, values: list) -> list:
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
    assert state.columns["x"] == scaled(2.0, 1.0, flag=True)


def test_moments_are_the_present_values_population_moments():
    state, _ = fit_number([1.0, 2.0, None, 6.0])
    assert (state.center, state.spread, state.flag) == (3.0, pytest.approx(np.std([1, 2, 6]), rel=1e-8), True)


def test_numbers_without_a_missing_value_have_no_flag():
    assert fit_number([1.0, 3.0])[0] == scaled(2.0, 1.0, flag=False)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_the_mean_and_flagged(value):
    assert apply_number(scaled(4.0, 2.0, flag=True), [value, 6.0]) == [[0.0, 1.0], [1.0, 0.0]]


def test_a_missing_number_without_a_flag_is_the_mean():
    assert apply_number(scaled(4.0, 2.0, flag=False), [None]) == [[0.0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_count_as_missing_in_training(value):
    assert fit_number([1.0, value, 3.0])[0] == scaled(2.0, 1.0, flag=True)


@pytest.mark.parametrize("value", [1e101, -1e300, float("inf")])
def test_a_number_that_nothing_measures_counts_as_missing(value):
    assert apply_number(scaled(0.0, 1.0, flag=True), [value]) == [[0.0, 1.0]]


@pytest.mark.parametrize(("value", "clipped"), [(1e100, 10.0), (-1e100, -10.0), (11.0, 10.0), (9.0, 9.0)])
def test_an_absurd_number_is_clipped(value, clipped):
    assert apply_number(scaled(0.0, 1.0, flag=False), [value]) == [[clipped]]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
def test_a_number_counts_the_same_in_every_type(kind):
    state = state_of(x=scaled(1.0, 2.0, flag=True))
    assert features.apply(state, numbers_of([5, None], kind))["numbers"].tolist() == [[2.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("value", [0.1, 0.3, 1.1, 5.0, -273.15])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_a_constant_is_warned_about(value, count):
    assert "feature x is constant" in "".join(fit_number([value] * count)[1])


@pytest.mark.parametrize("settings", [{}, {"scale": "robust"}, {"scale": "quantile"}, {"scale": "none"}, {"impute": 7}])
def test_a_constant_is_zero_whatever_its_value_when_served(settings):
    state, _ = fit_number([5.0] * 3, **settings)
    assert apply_number(state, [5.0, 7.0, -1e300, None]) == [[0.0]] * 4


def test_a_number_without_any_value_is_warned_about_and_zero_without_a_flag():
    state, warnings = fit_number([None, None])
    assert "feature x has no value" in warnings[0]
    assert apply_number(state, [None, 0.0, 3.0]) == [[0.0]] * 3


def test_a_constant_with_missing_values_tells_where_they_are():
    assert apply_number(fit_number([5.0, None])[0], [5.0, None, 7.0]) == [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_a_category_without_any_value_is_warned_about():
    state, warnings = fit_category([None, None])
    assert state.values == [] and "feature x has no value" in warnings[0]


@pytest.mark.parametrize("settings", [{}, {"encode": "hash", "min_count": 20}])
@pytest.mark.parametrize(("values", "said"), [(["a", "a"], "is constant"), ([None, None], "has no value")])
def test_a_category_that_tells_nothing_is_warned_about_and_zero_for_any_value(settings, values, said):
    state, warnings = fit_category(values, **settings)
    assert f"feature x {said} in the training split: it is 0" in warnings[0]
    assert apply_category(["a", "b", None], state) == [0, 0, 0]


@pytest.mark.parametrize(("values", "said"), [(["2013-11-04"] * 2, "is constant"), ([None] * 2, "has no value")])
def test_a_date_that_tells_nothing_is_warned_about_and_zero_for_any_value(values, said):
    days = [value and datetime.date.fromisoformat(value) for value in values]
    state, warnings = fit_column(rows_of(days, pa.date32()), kind="date")
    rows = rows_of([datetime.date(2013, 11, 4), datetime.date(2020, 1, 1), None], pa.date32())
    assert f"feature x {said} in the training split" in warnings[0]
    assert features.apply(state_of(x=state), rows)["categories"].tolist() == [[0], [0], [0]]


def test_useful_columns_are_not_warned_about(toy_spec, toy_rows):
    assert features.fit(toy_spec, features.summarize(toy_spec, toy_rows))[1] == []


def test_an_absurd_number_in_training_gives_a_finite_state():
    state, _ = fit_number([1e200, 0.0, 1.0])
    assert np.isfinite(state.center) and np.isfinite(state.spread)


def test_an_absurd_number_in_another_block_does_not_end_the_fit():
    state, _ = fit_in_blocks(spec_of(x={"kind": "number"}), numbers_of([1e200, 0.0, 1.0]), np.array([1]))
    assert np.isfinite(state.columns["x"].spread)


def test_a_category_has_its_place_in_the_sorted_values():
    assert apply_category(["b", "a", "b"], CategoryState(values=["a", "b"])) == [2, 1, 2]


@pytest.mark.parametrize("value", ["unseen", "", "A", None])
def test_an_unseen_or_missing_category_is_zero(value):
    assert apply_category([value], CategoryState(values=["a", "b"])) == [0]


def test_a_category_state_without_values_gives_zero():
    assert apply_category(["a", None], CategoryState(values=[])) == [0, 0]


def test_a_category_rarer_than_min_count_is_zero():
    assert apply_category(["a", "b"], fit_category(["a", "a", "b"], min_count=2)[0]) == [1, 0]


def test_a_category_is_counted_over_all_blocks():
    spec = spec_of(x={"kind": "category", "min_count": 2})
    state, _ = fit_in_blocks(spec, rows_of(["a", "b", "a"]), np.array([1, 2]))
    assert state.columns["x"].values == ["a"]


def test_whole_numbers_can_be_categories():
    state = state_of(x=fit_category([3, 1, 3], pa.int64())[0])
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


@pytest.mark.parametrize("use", ["summarize", "apply"])
def test_a_missing_column_is_refused_with_the_nearest(toy_spec, toy_state, toy_rows, use):
    rows = toy_rows.rename_columns(["day", "carrier", "distanse", "wind", "late"])
    with pytest.raises(DataError, match="no column 'distance'; did you mean 'distanse'"):
        features.summarize(toy_spec, rows) if use == "summarize" else features.apply(toy_state, rows)


NUMBERS = [4.0, 1.0, 1.0, None, 9.0, 16.0, 25.0, 2.0]
PRESENT = np.array([number for number in NUMBERS if number is not None])


@pytest.mark.parametrize(
    ("impute", "expected"),
    [("mean", PRESENT.mean()), ("median", np.median(PRESENT)), ("most_frequent", 1.0), (-3, -3.0), (0.5, 0.5)],
)
def test_a_missing_number_is_imputed_before_it_is_scaled(impute, expected):
    state, _ = fit_number(NUMBERS, impute=impute, scale="none")
    assert apply_number(state, [None, 4.0]) == [[pytest.approx(expected), 1.0], [4.0, 0.0]]
    standard, _ = fit_number(NUMBERS, impute=impute)
    assert apply_number(standard, [None])[0][0] == pytest.approx((expected - PRESENT.mean()) / PRESENT.std(), abs=1e-6)


@pytest.mark.parametrize("count", [7, 100, 1001])
def test_robust_scaling_is_by_numpys_quartiles(count):
    values = np.random.default_rng(count).normal(50, 9, count)
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")
    found = np.array(apply_number(fit_number(values.tolist(), scale="robust")[0], values.tolist()))[:, 0]
    assert found == pytest.approx((values - median) / (upper - lower), abs=1e-6)


def test_robust_scaling_of_mostly_equal_numbers_is_by_the_deviation():
    values = [0.0] * 90 + [1.0] * 10
    state, _ = fit_number(values, scale="robust")
    assert (state.center, state.spread) == (0.0, pytest.approx(np.std(values)))


def test_quantile_scaling_gives_ranks_from_minus_one_to_one():
    values = np.random.default_rng(1).lognormal(0, 2, 1001)
    found = np.array(apply_number(fit_number(values.tolist(), scale="quantile")[0], values.tolist()))[:, 0]
    ranks = np.argsort(np.argsort(values)) / 500 - 1
    assert np.abs(found - ranks).max() < 0.02 and (found.min(), found.max()) == (-1, 1)


def test_quantile_scaling_of_what_training_never_reached_is_the_end():
    assert apply_number(RankState(knots=[0.0, 1.0, 2.0], impute=1.0, flag=False), [-9.0, 0.5, 99.0]) == [[-1.0], [-0.5], [1.0]]


def test_a_value_that_fills_several_knots_has_the_middle_of_their_ranks():
    assert apply_number(RankState(knots=[0.0, 0.0, 0.0, 1.0, 2.0], impute=1.0, flag=False), [0.0]) == [[-0.5]]


@pytest.mark.parametrize("value", [1e100, -1e100])
def test_an_absurd_number_that_is_not_scaled_is_finite(value):
    state, _ = fit_number([1.0, 2.0], scale="none")
    assert np.isfinite(apply_number(state, [value])[0][0])


@pytest.mark.parametrize(
    "settings", [{"impute": "median"}, {"impute": "most_frequent"}, {"scale": "robust"}, {"scale": "quantile"}]
)
@pytest.mark.parametrize("seed", range(5))
def test_every_cut_into_blocks_gives_the_same_quantiles(settings, seed):
    spec = spec_of(x={"kind": "number", **settings})
    values = np.random.default_rng(9).normal(0, 1, 6000).round(3 if settings.get("impute") == "most_frequent" else 9)
    cuts = np.random.default_rng(seed).integers(0, 6001, 12)
    whole = fit_in_blocks(spec, numbers_of(values.tolist()), np.array([], int))
    assert fit_in_blocks(spec, numbers_of(values.tolist()), cuts) == whole


def test_the_most_frequent_of_too_many_different_numbers_is_refused_by_name():
    with pytest.raises(DataError, match=r"feature 'x' has over 4,096 different values.*mean or median"):
        fit_number([*range(5000), None], impute="most_frequent")


def test_a_decimal_is_a_number_with_a_notice():
    rows = rows_of([decimal.Decimal("0.1001"), decimal.Decimal("7.5")], pa.decimal128(20, 4))
    state, warnings = fit_column(rows, kind="number", scale="none")
    assert warnings == ["feature x is decimal128(20, 4): it is read as float64, which keeps 15 significant digits"]
    assert features.apply(state_of(x=state), rows)["numbers"].tolist() == [[np.float32(0.1001)], [7.5]]


def test_tiny_differences_give_a_finite_state():
    state, _ = fit_number([0.0, 1e-300])
    assert np.isfinite(apply_number(state, [0.0, 1e-300])).all()


NOW = datetime.datetime(2024, 7, 1)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("number", pa.array([NOW]), "is of type timestamp[us]; a number is needed"),
        ("number", pa.array(["free text"]), "is of type string; a number is needed"),
        ("number", pa.array([True]), "is of type bool; a number is needed"),
        ("category", pa.array([0.5]), "is of type double; a category is text"),
        ("category", pa.array([NOW]), "is of type timestamp[us]; a category is text"),
        ("date", pa.array(["2024-07-01"]), "is of type string; a date or timestamp is needed"),
        ("image", pa.array(["x.png"]), "is of type string; the bytes of an image file are needed"),
    ],
)
def test_a_column_that_its_kind_cannot_use_is_refused_by_its_type_alone(kind, values, said):
    schema = pa.schema({"x": values.type, "y": pa.int32()})
    with pytest.raises(DataError) as caught:
        features.check_types(spec_of(x={"kind": kind}), schema)
    assert str(caught.value).startswith(f"The feature 'x' {said}")


def test_types_that_fit_are_accepted(toy_spec, toy_rows):
    features.check_types(toy_spec, toy_rows.schema)


def test_a_dictionary_of_texts_is_a_category():
    rows = rows_of(["b", "a", "b"]).set_column(0, "x", pa.array(["b", "a", "b"]).dictionary_encode())
    assert fit_column(rows, kind="category", min_count=1)[0].values == ["a", "b"]


@pytest.mark.parametrize("encode", ["embedding", "one_hot"])
def test_an_identifier_is_refused_as_a_category_with_what_to_do(encode):
    with pytest.raises(DataError) as caught:
        fit_category([f"id-{number}" for number in range(1001)], encode=encode)
    assert str(caught.value).startswith(
        "The feature 'x' has 1,001 different values in 1,001 rows in the training split: it is no"
    )
    assert "`encode: hash`" in str(caught.value) and "`kind: text`" in str(caught.value)


def test_an_identifier_may_be_hashed():
    assert fit_category([f"id-{number}" for number in range(1001)], encode="hash", min_count=20)[1] == []


def test_many_values_that_come_again_are_a_category():
    assert len(fit_category([f"id-{number}" for number in range(1001)] * 2)[0].values) == 1001


@pytest.mark.parametrize("limit", ["MOST_VALUES", "MOST_CHARACTERS"])
def test_counting_stops_at_the_limit_and_names_the_feature(monkeypatch, limit):
    monkeypatch.setattr(categories, limit, 10)
    spec = spec_of(x={"kind": "category"})
    left, right = (features.summarize(spec, rows_of([f"{side}{number}" for number in range(12)])) for side in "ab")
    assert left["x"]["values"] == {}
    with pytest.raises(DataError, match=r"The feature 'x' has over .* it is no category"):
        features.merge(left, right)


def test_one_hot_is_a_number_for_each_value_in_their_order():
    state = state_of(x=fit_category(["b", "a", "b"], encode="one_hot")[0], z=scaled(0.0, 1.0, flag=False))
    rows = pa.table({"x": ["b", "a", "unseen", None], "z": [4.0] * 4})
    assert features.apply(state, rows)["numbers"].tolist() == [[0, 1, 4], [1, 0, 4], [0, 0, 4], [0, 0, 4]]
    assert (state.number_names(), state.cardinalities()) == (["x is a", "x is b", "z"], [])


def test_too_many_values_for_one_hot_are_refused():
    with pytest.raises(DataError, match="one-hot takes 1,000; set `encode: embedding` or `hash`"):
        fit_category([f"id-{number}" for number in range(1001)] * 2, encode="one_hot")


def test_hashed_indices_are_below_the_cardinality_and_zero_is_for_missing():
    state = state_of(x=HashState(buckets=16))
    found = features.apply(state, rows_of([*(f"id-{number}" for number in range(500)), None]))["categories"][:, 0]
    assert (found[:-1].min(), found[:-1].max(), found[-1], state.cardinalities()) == (1, 16, 0, [17])


def test_hashed_values_spread_evenly():
    found = features.apply(state_of(x=HashState(buckets=8)), rows_of([f"id-{number}" for number in range(8000)]))["categories"]
    assert np.bincount(found[:, 0], minlength=9)[1:].min() > 850


def test_a_hash_is_the_same_in_another_process():
    program = (
        "import pyarrow as pa; from rayloom import features as f; state = f.FeatureState(label='y', columns={'x': "
        "f.HashState(buckets=1000)}); print(f.apply(state, pa.table({'x': ['AA', 'é', '']}))['categories'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = features.apply(state_of(x=HashState(buckets=1000)), rows_of(["AA", "é", ""]))["categories"].tolist()
    assert done.stdout.strip() == str(here)


def test_chunks_do_not_count_for_a_hash():
    rows = rows_of(["a", None, "b", "a"])
    chunked = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 0), rows.slice(1)])
    state = state_of(x=HashState(buckets=1000))
    require_bit_equal(features.apply(state, chunked), features.apply(state, rows))


def test_a_timestamp_counts_by_its_date_in_utc():
    values = pa.array([datetime.datetime(2024, 7, 1, 22)], pa.timestamp("us")).cast(pa.timestamp("us", "Asia/Tokyo"))
    found = features.apply(state_of(x=DateState(parts=["day"])), pa.table({"x": values}))["categories"].tolist()
    assert found == [[1]]


def test_the_vocabulary_has_what_one_block_alone_has():
    spec = spec_of(x={"kind": "category", "min_count": 1})
    state, _ = fit_in_blocks(spec, rows_of(["a", "a", "b", "a"]), np.array([2, 3]))
    assert state.columns["x"].values == ["a", "b"]


def test_unseen_categories_are_told_where_there_is_a_value():
    state = state_of(x=CategoryState(values=["a"]), z=CategoryState(values=["a"]), h=HashState(buckets=4))
    rows = pa.table({"x": ["a", "new", None], "z": ["a", "a", "a"], "h": ["p", "q", "r"]})
    assert {name: where.tolist() for name, where in features.unseen(state, rows).items()} == {"x": [False, True, False]}


def test_the_value_of_a_constant_category_is_not_unseen():
    state = state_of(x=fit_category(["a", "a"])[0])
    assert features.unseen(state, rows_of(["a"])) == {} and [*features.unseen(state, rows_of(["b"]))] == ["x"]


@pytest.mark.parametrize(
    "column",
    [ConstantState(flag=True), RankState(knots=[0.0, 1 / 3], impute=0.1, flag=False), HashState(buckets=9, type="integer")],
)
def test_every_state_is_the_same_after_json(column):
    state = FeatureState(label="y", columns={"x": column}, classes=["0", "1"])
    assert FeatureState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        ({"kind": "number", "impute": "meen"}, "impute is 'meen'; write mean, median, most_frequent or a number"),
        ({"kind": "number", "impute": True}, "impute is True; write"),
        ({"kind": "number", "impute": float("nan")}, "impute is nan; write"),
        ({"kind": "category", "buckets": 64}, "buckets goes with `encode: hash`, not with embedding"),
        ({"kind": "category", "encode": "hash", "min_count": 3}, "min_count has no meaning with `encode: hash`"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_what_to_do(feature, said):
    with pytest.raises(ValueError, match=f"Value error, {said}"):
        spec_of(x=feature)


@pytest.mark.parametrize("kind", ["text", "image"])
def test_two_columns_of_a_kind_that_a_model_takes_once_are_refused(kind):
    more = {"tokenizer": "t.json"} if kind == "text" else {}
    with pytest.raises(ValueError, match=f"features.columns has a, b of kind {kind}, and a model takes one; keep one"):
        spec_of(a={"kind": kind, **more}, b={"kind": kind, **more})


@pytest.mark.parametrize("settings", [{}, {"encode": "hash", "buckets": 64}])
def test_the_settings_of_a_category_are_the_same_after_json(settings):
    spec = spec_of(x={"kind": "category", **settings})
    assert config.Features.model_validate_json(spec.model_dump_json()) == spec
