"""Duplicates go, and which row stays does not depend on the partitioning."""

import random

import pytest
from pyspark.sql import functions as F

from rayloom import config
from rayloom.etl import duplicates

PARTITIONS = [1, 5]


def marks(rows, order_by=("id",), **settings) -> dict:
    marked = duplicates.mark(rows, config.Deduplicate.model_validate(settings), list(order_by))
    return {row.id: row._duplicate for row in marked.collect()}


def texts(spark, *values):
    return spark.createDataFrame(list(enumerate(values)), "id INT, text STRING")


def test_where_nothing_is_asked_for_the_rows_are_untouched(spark):
    rows = spark.range(3)
    assert duplicates.mark(rows, config.Deduplicate(), ["id"]) is rows


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_of_equal_rows_one_stays(spark, partitions):
    data = [(1, None), (1, None), (1, None), (1, "a"), (2, float("nan")), (2, float("nan"))]
    rows = spark.createDataFrame([(key, str(value)) for key, value in data], "id INT, x STRING").repartition(partitions)
    marked = duplicates.mark(rows, config.Deduplicate(exact=True), ["id"])
    counts = {
        (row.id, row.x, row._duplicate): row["count"] for row in marked.groupBy("id", "x", "_duplicate").count().collect()
    }
    assert counts == {
        (1, "None", None): 1,
        (1, "None", "exact"): 2,
        (1, "a", None): 1,
        (2, "nan", None): 1,
        (2, "nan", "exact"): 1,
    }


@pytest.mark.parametrize("partitions", PARTITIONS)
@pytest.mark.parametrize(("newest", "stays"), [(None, 1), ("at", 2)])
def test_of_equal_keys_the_first_or_the_newest_stays(spark, partitions, newest, stays):
    """A missing time is older than any; of equal times the first row stays; NULL keys are not equal."""
    data = [(1, "k", None), (2, "k", 9), (3, "k", 9), (4, None, 1), (5, None, 2)]
    rows = spark.createDataFrame(data, "id INT, key STRING, at INT").repartition(partitions)
    found = marks(rows, by=["key"], **({"newest": newest} if newest else {}))
    assert found == {row: None if row in (stays, 4, 5) else "by" for row in range(1, 6)}


def test_an_exact_copy_is_not_the_one_that_stays(spark):
    rows = spark.createDataFrame([(1, "k"), (1, "k"), (2, "k")], "id INT, key STRING")
    marked = duplicates.mark(rows, config.Deduplicate(exact=True, by=["key"]), ["id"]).collect()
    assert sorted((row.id, str(row._duplicate)) for row in marked) == [(1, "None"), (1, "exact"), (2, "by")]


WORDS = "the quick brown fox jumps over the lazy dog and runs away into the dark green wood near the old mill".split()


@pytest.mark.parametrize("partitions", PARTITIONS)
def test_of_similar_texts_the_first_stays(spark, partitions):
    text = " ".join(WORDS)
    rows = texts(spark, text, f"{text} today", text.upper() + "!", "something else is written in here", "", None, "two words")
    rows = rows.union(texts(spark, "two words").withColumn("id", F.lit(7))).repartition(partitions)
    found = marks(rows, near={"column": "text", "similarity": 0.8})
    assert {row for row, mark in found.items() if mark == "near"} == {1, 2, 7}


@pytest.mark.parametrize(("similarity", "mark"), [(0.5, "near"), (0.51, None)])
def test_similarity_is_that_of_the_sets(spark, similarity, mark):
    """Three words of each four are shared: with single words 2 of 4 in common."""
    rows = texts(spark, "a b c", "b c d")
    assert marks(rows, near={"column": "text", "similarity": similarity, "shingle": 1}) == {0: None, 1: mark}


def test_a_text_is_compared_with_those_that_stay_so_far(spark):
    """Of two versions of one article the newest stays, though an earlier one is similar to it."""
    data = [(1, "k", 1, " ".join(WORDS)), (2, "k", 2, " ".join([*WORDS, "today"]))]
    rows = spark.createDataFrame(data, "id INT, key STRING, version INT, text STRING")
    assert marks(rows, by=["key"], newest="version", near={"column": "text"}) == {1: "by", 2: None}


def test_nearly_all_pairs_at_the_threshold_are_found(spark):
    """200 pairs of texts that share 80 of 100 words; fewer than 99 % of such would be found too seldom to pass here."""
    made = random.Random(3)
    rows = []
    for pair in range(200):
        common = [f"{pair}c{word}" for word in range(80)]
        for side in ("x", "y"):
            words = [*common, *(f"{pair}{side}{word}" for word in range(10))]
            made.shuffle(words)
            rows.append((len(rows), " ".join(words)))
    found = marks(spark.createDataFrame(rows, "id INT, text STRING"), near={"column": "text", "shingle": 1})
    near = {row for row, mark in found.items() if mark}
    assert near <= set(range(1, 400, 2)) and len(near) >= 194
