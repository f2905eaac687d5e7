"""Outliers: bounds are learned from accepted training rows alone, and clip or reject in every split."""

from decimal import Decimal

import pytest

from rayloom import config
from rayloom.errors import ConfigError, DataError
from rayloom.etl import outliers

ROWS = "id INT, x DOUBLE, whole INT, exact DECIMAL(10,2), same INT, text STRING, none DOUBLE, _rule STRING, _split STRING"


@pytest.fixture
def tagged(spark):
    """Training has 1 to 100; a rejected row has 1,000, a test row 500, another NaN, another NULL."""
    rows = [(n, float(n), n, Decimal(n), 5, "a", None, None, "train") for n in range(1, 101)]
    rows.append((101, 1000.0, 1000, Decimal(1000), 5, "a", None, "bad", "train"))
    rows.append((102, 500.0, 500, Decimal(500), 7, "a", None, None, "test"))
    rows.append((103, float("nan"), None, None, None, "a", None, None, "train"))
    return spark.createDataFrame(rows, ROWS).repartition(3)


def settings(column: str, **more) -> list[config.Outliers]:
    return [config.Outliers(column=column, **{"lower": 0.02, "upper": 0.98, **more})]


@pytest.mark.parametrize("column", ["x", "whole", "exact"])
def test_bounds_are_values_of_accepted_training_rows(tagged, column):
    (bounds,) = outliers.learn(tagged, settings(column))
    assert (bounds.least, bounds.most) == (2.0, 98.0)


@pytest.mark.parametrize(("column", "kind"), [("x", float), ("whole", int), ("exact", Decimal)])
def test_values_are_clipped_in_their_type(tagged, column, kind):
    bounds = outliers.learn(tagged, settings(column))
    clipped = {row.id: row[column] for row in outliers.clip(tagged, bounds).collect()}
    assert {row: clipped[row] for row in (1, 2, 50, 100, 102)} == {1: 2, 2: 2, 50: 50, 100: 98, 102: 98}
    assert type(clipped[100]) is kind


def test_values_outside_are_told_and_missing_ones_are_not(tagged):
    (bounds,) = outliers.learn(tagged, settings("x"))
    assert {row.id for row in tagged.where(bounds.outside()).collect()} == {1, 99, 100, 101, 102}


def test_missing_values_stay_missing(tagged):
    row = outliers.clip(tagged, outliers.learn(tagged, settings("x"))).where("id = 103").first()
    assert str(row.x) == "nan"


def test_outliers_are_rejected_by_a_rule_of_their_name_unless_one_did_before(tagged):
    rejected = outliers.reject(tagged, outliers.learn(tagged, settings("x", action="reject")))
    assert {row.id: row._rule for row in rejected.where("_rule IS NOT NULL").collect()} == {
        1: "outlier_x",
        99: "outlier_x",
        100: "outlier_x",
        101: "bad",
        102: "outlier_x",
    }


def test_where_all_values_are_one_nothing_is_an_outlier(tagged):
    bounds = outliers.learn(tagged, settings("same"))
    assert outliers.clip(tagged, bounds).where("id = 102").first().same == 7
    assert bounds[0].note == "etl.outliers (same): both quantiles are the same value, so nothing is an outlier"


@pytest.mark.parametrize(
    ("column", "error", "said"), [("none", DataError, "no accepted training row"), ("text", ConfigError, "string")]
)
def test_a_column_without_numbers_is_refused(tagged, column, error, said):
    with pytest.raises(error, match=rf"etl\.outliers \({column}\): .*{said}"):
        outliers.learn(tagged, settings(column))


def test_nothing_is_read_where_nothing_is_asked_for(tagged):
    assert outliers.learn(tagged, []) == []
