"""The checksum of rows: equal for equal multisets of rows, however they are cut, ordered and carried; else different."""

import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from rayloom.checksum import row_hashes, total

DAY = datetime.date(2013, 11, 4)
TIME = datetime.datetime(2013, 11, 4, 5, 6, 7)


def sum_of(table: pa.Table) -> int:
    return total(row_hashes(table))


def sum_of_column(values: list, kind: pa.DataType | None = None) -> int:
    return sum_of(pa.table({"x": pa.array(values, kind)}))


@pytest.fixture
def rows() -> pa.Table:
    rng = np.random.default_rng(11)
    return pa.table(
        {
            "text": pa.array(rng.choice(["a", "b", "", "Zürich"], 100), pa.string(), mask=rng.random(100) < 0.1),
            "whole": pa.array(rng.integers(-5, 5, 100), mask=rng.random(100) < 0.1),
            "real": pa.array(rng.normal(size=100), mask=rng.random(100) < 0.1),
            "truth": rng.random(100) < 0.5,
            "day": np.datetime64("2013-01-01") + rng.integers(0, 365, 100),
        }
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_rows_does_not_count(rows, seed):
    assert sum_of(rows.take(np.random.default_rng(seed).permutation(100))) == sum_of(rows)


@pytest.mark.parametrize("seed", range(5))
def test_the_cut_into_parts_does_not_count(rows, seed):
    cuts = [0, *sorted(np.random.default_rng(seed).integers(0, 101, 6).tolist()), 100]
    parts = [sum_of(rows.slice(a, b - a)) for a, b in pairwise(cuts)]
    assert sum(parts) % 2**64 == sum_of(rows)


def test_chunks_do_not_count(rows):
    assert sum_of(pa.concat_tables([rows.slice(0, 3), rows.slice(3, 0), rows.slice(3)])) == sum_of(rows)


def test_the_order_of_columns_does_not_count(rows):
    assert sum_of(rows.select(rows.column_names[::-1])) == sum_of(rows)


@pytest.mark.parametrize("name", ["text", "whole", "real", "truth", "day"])
@pytest.mark.parametrize("row", [0, 42, 99])
def test_any_single_value_counts(rows, name, row):
    values = rows[name].to_pylist()
    other = {"text": "c", "whole": 77, "real": 0.25, "truth": not values[row], "day": DAY + datetime.timedelta(999)}
    values[row] = other[name]
    changed = rows.set_column(rows.column_names.index(name), name, pa.array(values, rows[name].type))
    assert sum_of(changed) != sum_of(rows)


@pytest.mark.parametrize(("left", "right"), [(0, None), (0, 1), (1, -1), (2**62, 2**62 + 1), (0, 2**63 - 1)])
def test_whole_numbers_differ(left, right):
    assert sum_of_column([left], pa.int64()) != sum_of_column([right], pa.int64())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (0.0, None),
        (0.0, 5e-324),
        (1.0, 1.0 + 2**-52),
        (float("nan"), None),
        (float("nan"), 0.0),
        (float("inf"), float("-inf")),
        (float("nan"), float("inf")),
        (float("inf"), float(np.finfo(float).max)),
    ],
)
def test_real_numbers_differ(left, right):
    assert sum_of_column([left], pa.float64()) != sum_of_column([right], pa.float64())


@pytest.mark.parametrize(("left", "right"), [("", None), ("a", "A"), ("a", "a "), ("0", ""), ("é", "e\u0301")])
def test_texts_differ(left, right):
    assert sum_of_column([left], pa.string()) != sum_of_column([right], pa.string())


def test_null_zero_and_empty_text_are_three_things():
    assert len({sum_of_column([None], pa.int64()), sum_of_column([0]), sum_of_column([""])}) == 3


def test_a_row_that_occurs_twice_counts_twice(rows):
    assert sum_of(pa.concat_tables([rows, rows.slice(4, 1)])) != sum_of(rows)


def test_two_rows_that_occur_twice_do_not_cancel(rows):
    doubled = [pa.concat_tables([rows, rows.slice(row, 1), rows.slice(row, 1)]) for row in (4, 5)]
    assert len({sum_of(rows), *map(sum_of, doubled)}) == 3


def test_a_missing_row_counts(rows):
    assert sum_of(rows.slice(1)) != sum_of(rows)


def test_the_name_of_a_column_counts(rows):
    assert sum_of(rows.rename_columns(["words", *rows.column_names[1:]])) != sum_of(rows)


def test_values_swapped_between_two_columns_count():
    assert sum_of(pa.table({"a": [1], "b": [2]})) != sum_of(pa.table({"a": [2], "b": [1]}))


def test_values_swapped_between_two_rows_count():
    assert sum_of(pa.table({"a": [1, 2], "b": [1, 2]})) != sum_of(pa.table({"a": [1, 2], "b": [2, 1]}))


def test_a_column_of_nulls_is_not_no_column():
    assert sum_of(pa.table({"a": [1], "b": pa.array([None], pa.string())})) != sum_of(pa.table({"a": [1]}))


def test_no_two_of_many_different_rows_have_the_same_hash():
    grid = np.array(np.meshgrid(np.arange(100), np.arange(100), indexing="ij")).reshape(2, -1)
    assert len(np.unique(row_hashes(pa.table({"a": grid[0], "b": grid[1]})))) == 10_000


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32()])
def test_whole_numbers_are_the_same_in_every_width(kind):
    assert sum_of_column([1, 2, None], kind) == sum_of_column([1, 2, None], pa.int64())


def test_real_numbers_that_float32_holds_are_the_same_in_both_widths():
    values = [0.5, -2.25, 1e10, None, float("nan"), float("-inf")]
    assert sum_of_column(values, pa.float32()) == sum_of_column(values, pa.float64())


@pytest.mark.parametrize("kind", [pa.large_string()])
def test_text_is_the_same_in_every_layout(kind):
    values = ["a", "", None, "Zürich"]
    assert sum_of_column(values, kind) == sum_of_column(values, pa.string())


def test_text_is_the_same_however_its_chunks_are_encoded():
    chunks = pa.chunked_array([["a", "b"], [], ["b", None, "c"]], pa.string())
    assert sum_of(pa.table({"x": chunks})) == sum_of_column(["a", "b", "b", None, "c"], pa.string())


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_the_same_in_every_unit(unit):
    assert sum_of_column([TIME, None], pa.timestamp(unit)) == sum_of_column([TIME, None], pa.timestamp("us"))


def test_times_a_microsecond_apart_differ():
    later = TIME + datetime.timedelta(microseconds=1)
    assert sum_of_column([TIME], pa.timestamp("us")) != sum_of_column([later], pa.timestamp("us"))


def test_dates_are_the_same_in_both_widths():
    assert sum_of_column([DAY, None], pa.date32()) == sum_of_column([DAY, None], pa.date64())


def test_minus_zero_is_zero():
    assert sum_of_column([-0.0]) == sum_of_column([0.0])


def test_every_nan_is_the_same():
    other = np.array([0xFFF8000000000123], np.uint64).view(np.float64)
    assert sum_of_column(other) == sum_of_column([float("nan")])


@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.float32(), pa.date32(), pa.bool_(), pa.timestamp("us")])
def test_no_rows_sum_to_zero(kind):
    assert sum_of_column([], kind) == 0


def test_a_table_without_columns_sums_to_zero():
    assert sum_of(pa.table({})) == 0


@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.float32(), pa.date32(), pa.bool_()])
def test_a_column_of_nulls_alone_has_a_sum(kind):
    assert sum_of_column([None, None], kind) != 0


def test_the_sum_is_the_same_in_every_process():
    """Ray's workers, each with a hash seed of its own, add up one sum."""
    rows = pa.table({"a": ["x", None], "b": [1, 2], "c": [0.5, -1.0], "d": pa.array([DAY, None])})
    assert f"{sum_of(rows):016x}" == "63e5ce4434f4b777"
