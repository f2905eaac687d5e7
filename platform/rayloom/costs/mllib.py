"""Peer `mllib`: Spark MLlib's gradient-boosted trees, or logistic regression, on the features that the network has."""

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml import Pipeline
from pyspark.ml.classification import GBTClassifier, LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import OneHotEncoder, VectorAssembler
from pyspark.sql import DataFrame, SparkSession

from rayloom.costs.table import Cost
from rayloom.worker import Arrays

TREES, DEPTH = 20, 5
"""Of the boosted trees: MLlib's own default of trees, and of depth; 20 trees take about a minute on two cores."""

ABOUT = {"gbt": f"{TREES} boosted trees of depth {DEPTH}", "lr": "logistic regression"}


def measure(
    spark: SparkSession, kind: str, splits: dict[str, Arrays], cardinalities: list[int], seed: int, folder: Path
) -> Cost:
    """Fits on "train" and scores "test".

    Args:
        kind: 'gbt' or 'lr'.
        splits: model inputs with "numbers" and "categories", and labels 0 and 1.
        cardinalities: number of indices of each category.
        folder: on storage that the executors see.
    """
    rows = {name: _read(spark, arrays, cardinalities, folder / name) for name, arrays in splits.items()}
    began = time.perf_counter()
    model = _estimator(kind, rows["train"].columns, cardinalities, seed).fit(rows["train"])
    seconds = time.perf_counter() - began
    # numBins=0: of all scores, as scikit-learn has it, and not of a thousand steps between them.
    auc = BinaryClassificationEvaluator(labelCol="label", numBins=0).evaluate(model.transform(rows["test"]))
    return Cost("mllib", ABOUT[kind], auc=auc, seconds=seconds)


def _read(spark: SparkSession, arrays: Arrays, cardinalities: list[int], folder: Path) -> DataFrame:
    """The rows as a data frame in Spark's memory, where each category says how many values it has."""
    columns = {f"number_{index}": column for index, column in enumerate(arrays["numbers"].T)}
    columns |= {f"category_{index}": column.astype("float64") for index, column in enumerate(arrays["categories"].T)}
    folder.mkdir(parents=True)
    pq.write_table(pa.table({**columns, "label": arrays["label"].astype("float64")}), folder / "rows.parquet")
    frame = spark.read.parquet(folder.as_uri())
    for index, size in enumerate(cardinalities):
        frame = frame.withMetadata(f"category_{index}", {"ml_attr": {"type": "nominal", "num_vals": size}})
    frame = frame.repartition(spark.sparkContext.defaultParallelism).cache()
    frame.count()
    return frame


def _estimator(kind: str, columns: list[str], cardinalities: list[int], seed: int) -> Pipeline:
    """Trees take a category as it is; a linear model takes a column for each of its values."""
    numbers = [name for name in columns if name.startswith("number_")]
    categories = [name for name in columns if name.startswith("category_")]
    if kind == "gbt":
        bins = max([32, *cardinalities])
        trees = GBTClassifier(labelCol="label", maxIter=TREES, maxDepth=DEPTH, maxBins=bins, seed=seed)
        return Pipeline(stages=[VectorAssembler(inputCols=numbers + categories, outputCol="features"), trees])
    ones = [f"one_{name}" for name in categories]
    encode = [OneHotEncoder(inputCols=categories, outputCols=ones)] if categories else []
    assemble = VectorAssembler(inputCols=numbers + ones, outputCol="features")
    return Pipeline(stages=[*encode, assemble, LogisticRegression(labelCol="label", maxIter=100)])
