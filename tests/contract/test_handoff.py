"""Spark rows reach Ray Data whole, in memory and through Parquet, and leave worker processes and CPUs as they were.

One Spark session for the module.
"""

import datetime
import os
import signal
import time

import psutil
import pytest
import ray
import ray.data
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rayloom import cluster, config, datasets
from rayloom.errors import DataError
from rayloom.etl import build, handoff, session
from rayloom.etl.check import check
from rayloom.etl.sources import open_source

AWKWARD = [
    # text, double, int, long, bool, date
    ("plain", 1.5, 1, 2**40, True, datetime.date(2013, 11, 3)),
    ("", 0.0, 0, 0, False, datetime.date(1970, 1, 1)),
    ('né\n"ü",\t€', -0.0, -(2**31), -(2**63), None, datetime.date(1900, 1, 1)),
    (None, None, None, None, None, None),
    ("nan", float("nan"), 7, 7, True, datetime.date(2100, 12, 31)),
    ("inf", float("inf"), 7, 7, True, None),
    ("plain", 1.5, 1, 2**40, True, datetime.date(2013, 11, 3)),
]
SCHEMA = "text STRING, double DOUBLE, int INT, long LONG, bool BOOLEAN, date DATE"


@pytest.fixture(scope="module")
def pipeline(arguments) -> config.Pipeline:
    return config.load(arguments[1::2])


@pytest.fixture(scope="module")
def spark(joined, pipeline, workspace):
    """Ends with the module; `test_cpus_and_jvm_are_gone_after_the_session` is the last to use it."""
    with session.spark_session(pipeline, "rayloom-contract", workspace / "spark-driver.log") as spark:
        yield spark


def written(frame, folder) -> dict[str, datasets.Content]:
    build.write(frame.drop("_split"), folder / "train")
    return datasets.contents_of_parquet(folder, ["train"])


def test_awkward_values_are_equal_through_both_handoffs(spark: SparkSession, tmp_path):
    frame = spark.createDataFrame(AWKWARD, SCHEMA).withColumn("_split", F.lit("train"))
    memory = datasets.contents(handoff.from_spark(frame))
    assert memory == written(frame, tmp_path)
    assert memory["train"].rows == len(AWKWARD)


def test_rows_keep_their_order_through_both_handoffs(spark: SparkSession, tmp_path):
    frame = spark.range(10_000).withColumn("_split", F.lit("train")).repartition(7).sort("id")
    build.write(frame.drop("_split"), tmp_path / "train")
    memory = [row["id"] for row in handoff.from_spark(frame).take_all()]
    parquet = [row["id"] for row in datasets.read_split(tmp_path, "train").take_all()]
    assert memory == parquet == list(range(10_000))


@pytest.mark.parametrize("change", ["dropped", "doubled", "altered"])
def test_a_difference_between_handoffs_is_noticed(spark: SparkSession, tmp_path, change):
    frame = spark.range(100).withColumn("_split", F.lit("train"))
    changed = {
        "dropped": lambda: frame.filter("id != 50"),
        "doubled": lambda: frame.union(frame.filter("id = 50")),
        "altered": lambda: frame.withColumn("id", F.when(F.col("id") == 50, 51).otherwise(F.col("id"))),
    }[change]()
    with pytest.raises(DataError, match="not the same through both hand-offs"):
        datasets.require_equal(datasets.contents(handoff.from_spark(frame)), written(changed, tmp_path))


def test_a_join_on_keys_that_are_not_unique_is_refused(spark: SparkSession, pipeline, tmp_path):
    """Weather by local hour has three keys twice, as the clocks go back; joined carelessly, flights would multiply."""
    weather = config.Source(
        path=pipeline.etl.sources["weather"].path,
        missing="NA",
        columns="origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE",
    )
    nights = tmp_path / "flights.csv"
    nights.write_text("flight,origin,year,month,day,hour\n1,EWR,2013,11,3,1\n2,JFK,2013,11,3,9\n")
    flights = config.Source(path=str(nights), columns="flight INT, origin STRING, year INT, month INT, day INT, hour INT")
    careless = config.Step(
        name="joined",
        sql="SELECT f.*, w.temp FROM flights f LEFT JOIN weather w USING (origin, year, month, day, hour)",
        keeps="flights",
    )
    etl = pipeline.etl.model_copy(update={"sources": {"flights": flights, "weather": weather}, "steps": [careless]})
    for name, source in etl.sources.items():
        build.read(spark, open_source(name, source), tmp_path).createOrReplaceTempView(name)
    with pytest.raises(DataError, match="3 rows, but it promises to keep the 2 rows of 'flights': it adds 1"):
        build.run_steps(spark, etl)


def test_a_record_of_the_wrong_type_ends_the_build_with_the_record(spark: SparkSession, pipeline, tmp_path, flights_slice):
    lines = flights_slice.read_text().splitlines()[:4]
    broken = tmp_path / "broken.csv"
    broken.write_text("\n".join([lines[0], lines[1], lines[2].replace("2013", "twenty13", 1)]))
    sources = {**pipeline.etl.sources, "flights": pipeline.etl.sources["flights"].model_copy(update={"path": str(broken)})}
    changed = pipeline.model_copy(update={"etl": pipeline.etl.model_copy(update={"sources": sources})})
    (tmp_path / "out").mkdir()
    with pytest.raises(Exception, match="twenty13"):
        build.build(spark, changed.etl, check(changed), tmp_path / "out", tmp_path)


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        ({"train": "month < 10", "validation": "month >= 10", "test": "month > 10"}, "in several splits"),
        ({"train": "month < 9", "validation": "month = 10", "test": "month > 10"}, "in no split"),
        ({"train": "month < 10", "validation": "month = 13", "test": "month >= 10"}, "no accepted row fulfils"),
    ],
)
def test_splits_that_overlap_or_leave_rows_out_are_refused(spark: SparkSession, pipeline, splits, complaint):
    frame = spark.range(1, 13).select(F.col("id").alias("month"), F.lit(1).alias("arr_delay"))
    etl = pipeline.etl.model_copy(update={"splits": config.Splits(**splits)})
    with pytest.raises(DataError, match=complaint):
        build.count(build.tag(frame, etl), etl)


@ray.remote(num_cpus=0, max_retries=0)
def worker_state() -> tuple[int, bool]:
    """This task's process, and whether RayDP's fetch has switched it. Slow on purpose: many at once occupy many processes."""
    time.sleep(0.5)
    return os.getpid(), ray._private.worker.global_worker.load_code_from_local


def switched_processes() -> set[int]:
    return {process for process, switched in ray.get([worker_state.remote() for _ in range(8)]) if switched}


def test_no_worker_process_is_left_switched(spark: SparkSession, tmp_path):
    """The fault of RayDP's own fetch: the next task in its process that creates an actor dies."""
    frame = spark.range(1000).withColumn("_split", F.lit("train")).repartition(4)
    for attempt in range(3):
        handoff.from_spark(frame)
        assert switched_processes() == set()
        assert written(frame, tmp_path / str(attempt))["train"].rows == 1000


def test_raydp_alone_leaves_worker_processes_switched(spark: SparkSession):
    """When this fails, RayDP has mended its fetch, and the cure in etl/handoff.py can go."""
    ray.data.from_spark(spark.range(1000).repartition(4)).materialize()
    switched = switched_processes()
    for process in switched:
        os.kill(process, signal.SIGKILL)  # no later test is to get such a process
    assert switched


def test_cpus_and_jvm_are_gone_after_the_session(spark: SparkSession):
    cluster.wait_for_cpus(1.0, session.RELEASE_SECONDS, "Ray Data's tasks of the tests before still run")
    java = [process for process in psutil.Process().children() if process.name() == "java"]
    assert (cluster.free_cpus(), len(java)) == (1.0, 1)
    from raydp import stop_spark

    stop_spark(cleanup_data=True)
    session._end_jvm()
    cluster.wait_for_cpus(2.0, session.RELEASE_SECONDS, "not given back")
    assert [process for process in java if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
