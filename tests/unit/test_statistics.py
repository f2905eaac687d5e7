"""Column statistics: the values that NumPy and pandas give, whatever way the rows are cut, in bounded memory."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from rayloom import sketch, statistics
from rayloom.statistics import finish, merge, summarize

NUMBERS = [3, 1, None, 2, 2, 10, None, 2]


def of(values: list, kind: pa.DataType | None = None) -> statistics.ColumnStatistics:
    return finish(summarize(pa.table({"x": pa.array(values, kind)})))["x"]


def mixed(rows: int) -> pa.Table:
    """Columns of every kind with missing values; `many` and `words` have more values than are counted one by one."""
    draw = np.random.default_rng(3)
    holes = draw.random(rows) < 0.1
    many = np.round(draw.normal(50, 20, rows), 9)
    many[0], holes[0] = np.inf, False
    return pa.table(
        {
            "few": pa.array(draw.integers(-5, 5, rows), mask=holes),
            "many": pa.array(many, mask=holes),
            "words": pa.array([f"word {n} {'x' * (n % 90)}" for n in draw.integers(0, rows, rows)], mask=holes),
            "shades": pa.array(draw.choice(["red", "blue", "grün"], rows), mask=holes),
            "day": pa.array(draw.integers(0, 20_000, rows).astype("datetime64[D]"), mask=holes),
            "time": pa.array(draw.integers(0, 10**15, rows), pa.timestamp("us", tz="UTC")),
            "image": pa.array([bytes(n) for n in draw.integers(0, 9, rows).tolist()]),
            "list": pa.array([[1], None] * (rows // 2)),
        }
    )


@pytest.mark.parametrize(
    ("kind", "convert"),
    [(pa.int64(), int), (pa.float32(), float), (pa.decimal128(20, 4), Decimal), (pa.uint8(), int)],
    ids=str,
)
def test_numbers_are_those_of_numpy_and_pandas(kind, convert):
    found, expected = of([None if n is None else convert(n) for n in NUMBERS], kind), pd.Series(NUMBERS, dtype=float)
    assert (found.rows, found.missing, found.distinct) == (8, 2, 4)
    assert (found.mean, found.deviation) == pytest.approx((expected.mean(), expected.std(ddof=0)))
    assert (found.min, found.max, found.top) == (1, 10, {"2": 3, "1": 1, "3": 1, "10": 1})
    quantiles = np.quantile(expected.dropna(), list(statistics.SHARES.values()), method="inverted_cdf")
    assert list(found.quantiles.values()) == quantiles.tolist()


def test_booleans_are_zeros_and_ones():
    found = of([True, False, None, True])
    assert (found.mean, found.missing, found.top) == (pytest.approx(2 / 3), 1, {"1": 2, "0": 1})


def test_nan_is_missing_and_infinity_is_counted_apart():
    found = of([1.0, float("nan"), None, float("inf"), float("-inf")])
    assert (found.missing, found.infinite, found.mean, found.max) == (2, 2, 1.0, 1.0)


def test_whole_numbers_beyond_53_bits_are_taken():
    assert of([2**63 - 1, 0]).max == pytest.approx(2.0**63)


def test_texts_are_counted_and_measured_in_characters():
    found = of(["é", "abc", "abc", None, ""])
    assert (found.distinct, found.estimated, found.missing) == (3, False, 1)
    assert (found.top, found.shortest, found.longest) == ({"abc": 2, "": 1, "é": 1}, 0, 3)
    assert found.mean_length == pytest.approx(7 / 4)


def test_long_texts_are_told_apart_but_not_kept():
    texts = ["x" * 10_000 + end for end in "ab"]
    assert of(texts).distinct == 2
    assert len(json.dumps(summarize(pa.table({"x": texts})))) < 1000


@pytest.mark.parametrize("count", [11_000, 60_000, 300_000])
def test_many_texts_are_estimated_within_four_standard_errors(count):
    found = of([f"text {n}" for n in range(count)])
    assert found.estimated and found.top is None
    assert found.distinct == pytest.approx(count, rel=4 * 1.04 / statistics.REGISTERS**0.5)


@pytest.mark.parametrize(
    ("values", "kind", "ends"),
    [
        ([datetime.date(2013, 11, 3), None, datetime.date(1969, 12, 31)], pa.date32(), ("1969-12-31", "2013-11-03")),
        ([3_000_000], pa.date32(), ("10183-09-21", "10183-09-21")),
        ([1_719_784_800], pa.timestamp("s", tz="UTC"), ("2024-06-30T22:00:00.000000Z",) * 2),
        ([1_719_784_800_000_000_001], pa.timestamp("ns"), ("2024-06-30T22:00:00.000000",) * 2),
        ([None], pa.date32(), (None, None)),
    ],
)
def test_times_have_their_ends_as_iso_text(values, kind, ends):
    found = of(values, kind)
    assert (found.min, found.max) == ends


def test_bytes_have_a_mean_size():
    assert of([b"ab", None, b"abcd"]).mean_bytes == 3


@pytest.mark.parametrize("kind", [pa.int32(), pa.string(), pa.date32(), pa.binary(), pa.bool_(), pa.list_(pa.int32())], ids=str)
@pytest.mark.parametrize("rows", [0, 3])
def test_a_column_without_values_has_no_figures(kind, rows):
    found = of([None] * rows, kind)
    assert (found.rows, found.missing) == (rows, rows)
    assert not {"mean", "min", "mean_length", "mean_bytes"} & set(found.model_dump(exclude_none=True))


def test_any_cut_gives_the_same(monkeypatch):
    monkeypatch.setattr(sketch, "EXACT", 50)
    monkeypatch.setattr(statistics, "DISTINCT", 100)
    rows = mixed(2000)
    whole = finish(summarize(rows))
    draw = np.random.default_rng(5)
    for pieces in (2, 7, 400):
        ends = np.sort(draw.integers(0, len(rows) + 1, pieces - 1)).tolist()
        parts = [summarize(rows.slice(a, b - a)) for a, b in zip([0, *ends], [*ends, len(rows)], strict=True)]
        draw.shuffle(parts)
        merged = parts[0]
        for part in parts[1:]:
            merged = merge(merged, json.loads(json.dumps(part)))
        assert finish(merged) == whole
    assert (whole["many"].top, whole["many"].infinite, whole["words"].estimated, whole["shades"].distinct) == (None, 1, True, 3)


def test_a_summary_does_not_grow_with_the_rows():
    sizes = []
    for rows in (20_000, 80_000):
        table = pa.table({"x": np.random.default_rng(rows).random(rows), "text": [f"{n:090}" for n in range(rows)]})
        sizes.append(len(json.dumps(summarize(table))))
    assert sizes[1] < 1.5 * sizes[0]
