"""The ETL section: what is read, what is refused with its place, and the judgements that need no Spark."""

import re

import pytest
import yaml
from pydantic import ValidationError

from rayloom import config
from rayloom.config.etl import moment
from rayloom.errors import DataError
from rayloom.etl import duplicates, rules, splits

BASE = {
    "sources": {"raw": {"path": "raw.csv"}},
    "splits": {"train": "id = 1", "validation": "id = 2", "test": "id = 3"},
    "order_by": ["id"],
}


def etl(text: str = "") -> config.Etl:
    """The section with these keys, as YAML has them."""
    return config.Etl.model_validate({**BASE, **(yaml.safe_load(text) or {})})


def refusal(text: str) -> str:
    with pytest.raises(ValidationError) as caught:
        etl(text)
    return str(caught.value)


def test_the_smallest_section_cleans_nothing():
    found = etl()
    assert (found.rules, found.outliers, found.deduplicate) == ([], [], config.Deduplicate())


@pytest.mark.parametrize(
    ("splits", "kind"),
    [
        ("{train: a, validation: b, test: c}", config.Conditions),
        ("{by: random}", config.ByHash),
        ("{by: stratified, stratum: label, seed: 3}", config.ByHash),
        ("{by: group, key: [person], shares: {train: 60%, validation: 20%, test: 20%}}", config.ByHash),
        ("{by: time, column: at, validation_from: 2013-10-01, test_from: 2013-11-01T00:00:00Z}", config.ByTime),
    ],
)
def test_splits_are_of_the_kind_that_they_say(splits, kind):
    assert type(etl(f"splits: {splits}").splits) is kind


def test_a_date_that_yaml_reads_is_text_again():
    found = etl("splits: {by: time, column: at, validation_from: 2013-10-01, test_from: 2013-11-01T00:00:00Z}").splits
    assert (found.validation_from, found.test_from) == ("2013-10-01", "2013-11-01T00:00:00+00:00")
    (rule,) = etl("rules: [{name: days, range: {day: [2013-10-01, null]}}]").rules
    assert rule.range == {"day": ["2013-10-01", None]}


REFUSED = [
    ("executor_memory: 511m", "511m is too little for Spark, which keeps 300m of it; write 512m or more"),
    ("splits: {by: hash}", "Input should be 'random', 'stratified' or 'group'"),
    ("splits: {by: group}", "needs `key`"),
    ("splits: {by: stratified}", "`stratum`, a column, goes with `by: stratified`"),
    ("splits: {by: random, stratum: x}", "`stratum`, a column, goes with `by: stratified`"),
    ("splits: {by: random, shares: {train: 0.8, validation: 0.1, test: 0.2}}", "make 1 together"),
    ("splits: {by: time, column: at, validation_from: '2013-13-01', test_from: 2014-01-01}", "'2013-13-01' is no moment"),
    ("splits: {by: time, column: at, validation_from: 20131001, test_from: 2014-01-01}", "valid string"),
    ("splits: {by: time, column: at, validation_from: 2014-01-01, test_from: 2014-01-01}", "is not before test_from"),
    (
        "{time_zone: America/Los_Angeles, splits: {by: time, column: at, validation_from: '2014-01-01', "
        "test_from: '2014-01-01T03:00:00Z'}}",
        "is not before test_from",
    ),
    ("time_zone: Mars/Olympus", "no time zone 'Mars/Olympus' is known"),
    ("rules: [{name: a}]", "found none"),
    ("rules: [{name: a, where: x, not_null: [y]}]", "found where and not_null"),
    ("rules: [{name: a, where: x}, {name: a, where: y}]", "2 rules have the name 'a'"),
    ("rules: [{name: uncastable, where: x}]", "are taken by the build"),
    ("rules: [{name: outlier_x, where: x}]", "are taken by the build"),
    ("rules: [{name: a, where: x, above: 5%}]", "`above` goes with `action: fail`"),
    ("rules: [{name: a, range: {x: [2, 1]}}]", "least 2 is above most 1"),
    ("rules: [{name: a, range: {x: [null, null]}}]", "has no bound"),
    ("rules: [{name: a, range: {x: [1]}}]", "at least 2 items"),
    ("rules: [{name: a, range: {x: [1, '2']}}]", "has a number and a text"),
    ("rules: [{name: a, range: {x: [.nan, 1]}}]", "a bound is a finite number"),
    ("rules: [{name: a, allowed: {x: []}}]", "at least 1 item"),
    ("rules: [{name: a, foreign_key: {columns: [x, y], table: t, to: [x]}}]", "different numbers of columns"),
    ("outliers: [{column: x, lower: 0.9, upper: 0.1}]", "lower 0.9 is not below upper 0.1"),
    ("deduplicate: {newest: at}", "needs `by`"),
    ("max_rejected: 105%", "less than or equal to 1"),
    ("sources: {a: {path: a.csv}, b: {path: b.csv}}", "there are several sources"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_means_nothing_is_refused(text, said):
    assert said in refusal(text)


def test_a_moment_without_an_offset_is_in_the_time_zone():
    assert moment("2024-07-01", "America/Los_Angeles").timestamp() == 1719817200
    assert moment("2024-07-01T00:00:00+02:00", "America/Los_Angeles").timestamp() == 1719784800


JUDGED = """
rules:
  - {name: soft, where: x > 0}
  - {name: hard, not_null: [y], action: fail, above: 1%}
max_rejected: 5%
"""


@pytest.mark.parametrize("rejected", [{}, {"soft": 40, "hard": 10}])
def test_as_many_rejected_rows_as_may_be_pass(rejected):
    rules.judge(etl(JUDGED), 1000, rejected)


@pytest.mark.parametrize(
    ("rejected", "said"),
    [
        ({"hard": 11}, "etl.rules (hard): 11 of 1,000 rows (1.10%) break the rule 'not_null', above 1.00%"),
        (
            {"soft": 40, "hard": 5, "uncastable": 6},
            "etl.max_rejected: 51 of 1,000 rows (5.10%) are rejected (soft 40, uncastable 6, hard 5), above 5.00%",
        ),
    ],
)
def test_more_rejected_rows_end_the_build(rejected, said):
    with pytest.raises(DataError, match=re.escape(said)):
        rules.judge(etl(JUDGED), 1000, rejected)


def test_no_rows_are_no_share():
    rules.judge(etl(JUDGED), 0, {"soft": 0})


def test_values_that_miss_a_split_are_named():
    counts = {
        "x": {"train": 2},
        "y": {"train": 8, "validation": 1, "test": 1},
        None: {"validation": 1, "train": 3},
        "z": {"test": 1},
    }
    assert splits.rare(counts, "class") == [
        "class NULL has 4 rows, and none in test",
        "class 'x' has 2 rows, and none in validation and test",
        "class 'z' has 1 row, and none in train and validation",
    ]


@pytest.mark.parametrize("similarity", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.99, 1.0])
def test_pairs_at_the_threshold_are_missed_in_less_than_one_of_a_hundred(similarity):
    count, hashes = duplicates.bands(similarity)
    assert (1 - similarity**hashes) ** count <= 0.01
    assert count * hashes <= duplicates.MOST_HASHES
