"""Rows reach Ray Data whole and in order, in memory and through Parquet, and worker processes stay as they were."""

import datetime
import os
import signal
import time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from rayloom import checksum, datasets
from rayloom.errors import DataError
from rayloom.etl import handoff
from rayloom.versions import Content

NAN, INF = float("nan"), float("inf")
MOMENT = datetime.datetime(2024, 7, 1, 12, 0, 0, 123456)
AWKWARD = {
    "text": (pa.string(), ["plain", "", 'né\n"ü",\t€', None, "nan", "\U0001f600", "plain"]),
    "bytes": (pa.binary(), [b"", b"\0\xff", b"plain", None, b"x" * 40, b"\0", b""]),
    "byte": (pa.int8(), [-128, 127, 0, None, 1, 1, -1]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, 0, None, 1, 1, -1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, 0, None, 1, 1, -1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, 0, None, 2**40, 1, -1]),
    "float": (pa.float32(), [1.5, -0.0, 0.0, None, NAN, INF, -INF]),
    "double": (pa.float64(), [0.1, -0.0, 0.0, None, NAN, INF, 5e-324]),
    "bool": (pa.bool_(), [True, False, True, None, False, True, True]),
    "date": (pa.date32(), [datetime.date(*day) for day in [(2013, 11, 3), (1970, 1, 1), (1900, 1, 1)]] + [None] * 4),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, MOMENT.replace(year=1900), None, MOMENT.replace(month=1)] + [None] * 3),
    "wall": (pa.timestamp("us"), [MOMENT, MOMENT.replace(year=1900), None, MOMENT.replace(month=1)] + [None] * 3),
    "short_decimal": (pa.decimal128(18, 4), [*map(Decimal, "0.1001 -0.0001 0 99999999999999.9999".split()), *[None] * 3]),
    "decimal": (pa.decimal128(20, 4), [*map(Decimal, "0.1001 -0.0001 0 9999999999999999.9999".split()), *[None] * 3]),
    "long_decimal": (pa.decimal128(38, 18), [*map(Decimal, "0.1001 -1 128 -128 -129 1e19".split()), None]),
}  # fmt: skip
"""Seven values of every flat type."""

LOS_ANGELES = {"etl.time_zone": "America/Los_Angeles"}
PARQUET = {"etl.sources.raw.columns": None, "features": {"label": "int", "columns": {"double": {"kind": "number"}}}}


@pytest.fixture
def awkward(tmp_path) -> pa.Table:
    """21 rows: the awkward values three times, so that every split has them all."""
    columns = {name: pa.array(values * 3, kind) for name, (kind, values) in AWKWARD.items()}
    table = pa.table(
        {"id": pa.array(range(21), pa.int32()), "part": ["train"] * 7 + ["validation"] * 7 + ["test"] * 7, **columns}
    )
    pq.write_table(table, tmp_path / "raw.parquet")
    return table


@pytest.fixture
def by_part(tmp_path) -> dict:
    splits = {split: f"part = '{split}'" for split in ("train", "validation", "test")}
    return {**PARQUET, "etl.sources.raw.path": str(tmp_path / "raw.parquet"), "etl.splits": splits}


def in_memory(rows: ray.data.Dataset) -> pa.Table:
    return pa.concat_tables(block for block in ray.get(rows.materialize().to_arrow_refs()) if block.num_rows)


@pytest.mark.parametrize("name", AWKWARD)
def test_spark_and_numpy_hash_a_value_alike(spark: SparkSession, tmp_path, name):
    table = pa.table({name: pa.array(AWKWARD[name][1], AWKWARD[name][0])})
    pq.write_table(table, tmp_path / "raw.parquet")
    rows = spark.read.parquet(str(tmp_path / "raw.parquet"))
    found = [row[0] for row in rows.select(checksum.spark_row_hash(rows.schema)).collect()]
    assert np.array(found, np.int64).view(np.uint64).tolist() == checksum.row_hashes(table).tolist()


@pytest.mark.parametrize("handed", ["parquet", "memory"])
def test_awkward_values_come_through_in_order(etl, toy, awkward, by_part, handed):
    dataset = etl(toy({**by_part, **LOS_ANGELES, "etl.handoff": handed, "etl.partitions": 1}))
    assert (dataset.memory is not None) == (handed == "memory")
    for number, split in enumerate(("train", "validation", "test")):
        found = in_memory(dataset.split(split))
        assert found["id"].to_pylist() == list(range(7 * number, 7 * number + 7))
        assert checksum.row_hashes(found).tolist() == checksum.row_hashes(awkward.slice(7 * number, 7)).tolist()


def test_rows_keep_their_order_through_both_handoffs(etl, toy, tmp_path):
    (tmp_path / "raw.csv").write_text("id,size,shade,big\n" + "".join(f"{n},1,a,1\n" for n in range(5000, 0, -1)))
    dataset = etl(toy({"etl.handoff": "memory", "etl.partitions": 5}))
    memory, parquet = (
        in_memory(rows)["id"].to_pylist() for rows in (dataset.split("train"), datasets.read_split(dataset.folder, "train"))
    )
    assert memory == parquet
    assert sorted(memory) == [n for n in range(1, 5001) if n % 5 < 3]


@pytest.mark.parametrize("change", ["dropped", "doubled", "altered"])
def test_a_difference_between_the_sides_is_noticed(spark: SparkSession, change):
    frame = spark.range(100).withColumn("_split", F.lit("train"))
    changed = {
        "dropped": lambda: frame.filter("id != 50"),
        "doubled": lambda: frame.union(frame.filter("id = 50")),
        "altered": lambda: frame.withColumn("id", F.when(F.col("id") == 50, 51).otherwise(F.col("id"))),
    }[change]()
    sums = frame.select(checksum.spark_row_hash(frame.drop("_split").schema)).collect()
    written = {"train": Content(rows=100, checksum=f"{sum(row[0] for row in sums) % 2**64:016x}")}
    datasets.require_equal("memory", written, datasets.contents(handoff.from_spark(frame)))
    with pytest.raises(DataError, match="not the same on both sides of the hand-off"):
        datasets.require_equal("memory", written, datasets.contents(handoff.from_spark(changed)))


def test_a_nested_column_is_refused_by_name(etl, toy, tmp_path):
    pq.write_table(pa.table({"id": [1], "tags": [["a"]]}), tmp_path / "raw.parquet")
    changes = {"etl.sources.raw.path": str(tmp_path / "raw.parquet"), "etl.sources.raw.columns": None}
    with pytest.raises(DataError, match="Column tags is of type array<string>"):
        etl(toy({**changes, "features.label": "id", "features.columns": {"tags": {"kind": "category"}}}))


@ray.remote(num_cpus=0, max_retries=0)
def worker_state() -> tuple[int, bool]:
    """This task's process, and whether RayDP's fetch has switched it. Slow on purpose: many at once occupy many processes."""
    time.sleep(0.5)
    return os.getpid(), ray._private.worker.global_worker.load_code_from_local


def switched_processes() -> set[int]:
    return {process for process, switched in ray.get([worker_state.remote() for _ in range(8)]) if switched}


def test_no_worker_process_is_left_switched(spark: SparkSession):
    """The fault of RayDP's own fetch: the next task in its process that creates an actor dies."""
    frame = spark.range(1000).withColumn("_split", F.lit("train")).repartition(4)
    for _ in range(2):
        memory = handoff.from_spark(frame)
        assert switched_processes() == set()
        assert datasets.contents(memory)["train"].rows == 1000


def test_raydp_alone_leaves_worker_processes_switched(spark: SparkSession):
    """When this fails, RayDP has mended its fetch, and the cure in etl/handoff.py can go."""
    ray.data.from_spark(spark.range(1000).repartition(4)).materialize()
    switched = switched_processes()
    for process in switched:
        os.kill(process, signal.SIGKILL)  # no later test is to get such a process
    assert switched
