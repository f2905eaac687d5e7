"""A row keeps its split whatever the order, the partitioning, or the rows beside it."""

import pytest
from pyspark.sql import functions as F

from rayloom import config
from rayloom.etl import splits

SOURCE = {"raw": {"path": "raw.csv"}}


def etl(time_zone="UTC", order_by=("id",), **keys) -> config.Etl:
    return config.Etl.model_validate({"sources": SOURCE, "splits": keys, "order_by": list(order_by), "time_zone": time_zone})


def sides(rows, settings: config.Etl) -> dict:
    return {row.id: row.split for row in rows.select("id", splits.split_of(settings).alias("split")).collect()}


def people(spark, rows: int):
    """Ten rows a person, three classes."""
    return spark.range(rows).selectExpr("id", "id DIV 10 AS person", "concat('class ', id % 3) AS class")


KINDS = {
    "random": {"by": "random"},
    "stratified": {"by": "stratified", "stratum": "class"},
    "group": {"by": "group", "key": ["person"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_keeps_its_split_in_any_order_and_partitioning(spark, kind):
    rows = people(spark, 1000)
    assert sides(rows.orderBy(F.rand(3)).repartition(7), etl(**KINDS[kind])) == sides(rows, etl(**KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_keeps_its_split_when_rows_are_appended(spark, kind):
    before, after = (sides(people(spark, rows), etl(**KINDS[kind])) for rows in (500, 1000))
    assert before == {row: after[row] for row in before}


@pytest.mark.parametrize("kind", ["random", "stratified"])
@pytest.mark.parametrize("seed", [0, 1])
def test_shares_are_those_of_independent_draws(spark, kind, seed):
    """10,000 draws; four standard deviations around each share."""
    wanted = {"train": 0.7, "validation": 0.2, "test": 0.1}
    found = list(sides(people(spark, 10_000), etl(**KINDS[kind], seed=seed, shares=wanted)).values())
    for split, share in wanted.items():
        assert abs(found.count(split) - 10_000 * share) < 4 * (10_000 * share * (1 - share)) ** 0.5


def test_a_group_is_on_one_side(spark):
    rows = people(spark, 2000).withColumn("split", splits.split_of(etl(**KINDS["group"])))
    assert rows.groupBy("person").agg(F.countDistinct("split").alias("n")).where("n > 1").count() == 0


def test_another_seed_draws_other_sides(spark):
    rows = people(spark, 100)
    assert sides(rows, etl(by="random", seed=0)) != sides(rows, etl(by="random", seed=1))


GOLDEN = {
    ("1", "a"): 0.2957075279707019,
    ("1", None): 0.997582886747325,
    (None, "1"): 0.8080608226137502,
    ("", ""): 0.33975153015408976,
    ("né", "漢"): 0.582585403102697,
}


@pytest.mark.parametrize(("key", "drawn"), GOLDEN.items())
def test_draws_are_frozen(spark, key, drawn):
    """Another value here moves rows of existing datasets to another side: an upgrade may not do so unnoticed."""
    row = spark.createDataFrame([key], "a STRING, b STRING")
    settings = config.ByHash(by="stratified", key=["b"], stratum="a", seed=7)
    assert row.select(splits.draw(settings, []).alias("drawn")).first().drawn == drawn


def test_conditions_give_all_names_that_are_fulfilled(spark):
    rows = spark.range(1, 5)
    assert sides(rows, etl(train="id < 3", validation="id IN (2, 3)", test="id > 4")) == {
        1: "train",
        2: "train+validation",
        3: "validation",
        4: "",
    }


def test_time_is_compared_in_the_sessions_zone(spark):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        moments = ["2013-10-01T06:59:59Z", "2013-10-01T07:00:00Z", "2013-11-01T06:59:59Z", "2013-11-01T07:00:00Z", None]
        rows = spark.createDataFrame(list(enumerate(moments)), "id INT, text STRING").selectExpr("id", "timestamp(text) AS at")
        settings = etl(by="time", column="at", validation_from="2013-10-01", test_from="2013-11-01")
        assert list(sides(rows, settings).values()) == ["train", "validation", "validation", "test", ""]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_dates_are_split_by_time(spark):
    rows = spark.sql("SELECT id, date_add(DATE'2013-09-30', CAST(id AS INT)) AS at FROM range(3)")
    settings = etl(by="time", column="at", validation_from="2013-10-01", test_from="2013-10-02")
    assert sides(rows, settings) == {0: "train", 1: "validation", 2: "test"}
