"""What Spark does: read, join, check promises, apply rules, split, order, and write Parquet.

Nothing model-facing happens here: no encoding, no scaling. Not here: deduplication and text cleaning.
"""

from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rayloom import config
from rayloom.errors import DataError, SourceError
from rayloom.etl.sources import SourceFile, unpack

RULE, SPLIT = "_rule", "_split"
"""Columns that the build adds: the rule that rejected a row (NULL: accepted), and the split of an accepted row."""


@dataclass(frozen=True)
class Built:
    """What a build wrote, and its accepted rows.

    Attributes:
        rows: the accepted rows in order, with their split in `_split`; valid while the session lives.
        rows_in: rows of the last step.
        splits: accepted rows by split.
        rejected: rejected rows by rule.
    """

    rows: DataFrame
    rows_in: int
    splits: dict[str, int]
    rejected: dict[str, int]


def build(spark: SparkSession, etl: config.Etl, files: dict[str, SourceFile], folder: Path, unpacked: Path) -> Built:
    """Builds a dataset version's Parquet: `folder`/train, /validation, /test and /quarantine.

    Args:
        files: the checked sources by name.
        folder: an existing empty folder that all executors see.
        unpacked: likewise, for what has to be unpacked before Spark can read it.

    Raises:
        SourceError: a record does not have the declared types.
        DataError: a step broke its promise, a rule with `action: fail` has rows, or the splits overlap or leave rows out.
    """
    for file in files.values():
        read(spark, file, unpacked).createOrReplaceTempView(file.name)
    try:
        tagged = tag(run_steps(spark, etl), etl).persist()
        counts = count(tagged, etl)
        ordered = tagged.filter(F.col(RULE).isNull()).drop(RULE).sort(SPLIT, *etl.order_by).persist()
        for split in etl.splits.conditions():
            write(ordered.filter(F.col(SPLIT) == split).drop(SPLIT), folder / split)
        write(tagged.filter(F.col(RULE).isNotNull()).drop(SPLIT), folder / "quarantine")
    except PySparkException as error:
        raise _sentence(error) from error
    return Built(ordered, **counts)


def read(spark: SparkSession, file: SourceFile, unpacked: Path) -> DataFrame:
    """A CSV source's declared columns, with exactly the declared types; a record that does not fit ends the build."""
    options: dict[str, str | bool] = {
        "header": True,
        "nullValue": file.missing,
        "mode": "FAILFAST",
        "escape": '"',  # a quote inside quotes is doubled, as RFC 4180 has it; Spark's own default is a backslash
        "enforceSchema": False,
        "dateFormat": "yyyy-MM-dd",
    }
    frame = spark.read.options(**options).schema(file.ddl()).csv(unpack(file, unpacked).as_uri())
    return frame.select(*file.types)


def run_steps(spark: SparkSession, etl: config.Etl) -> DataFrame:
    """Runs each step's SQL and checks what it promises; returns the last step's rows."""
    frame = None
    for step in etl.steps:
        frame = spark.sql(step.sql)
        if step.keeps or step.unique:
            frame = frame.persist()
        frame.createOrReplaceTempView(step.name)
        if step.keeps:
            _require_same_rows(step, frame.count(), spark.table(step.keeps).count())
        if step.unique:
            _require_unique(step, frame)
    assert frame is not None  # the pipeline file has at least one step
    return frame


def _require_same_rows(step: config.Step, rows: int, expected: int) -> None:
    if rows != expected:
        change = f"adds {rows - expected:,}" if rows > expected else f"loses {expected - rows:,}"
        raise DataError(
            f"etl.steps ({step.name}): {rows:,} rows, but it promises to keep the {expected:,} rows of '{step.keeps}': it "
            f"{change}. A join on keys that are not unique adds rows, an inner join loses them: make the right side unique "
            f"and join LEFT."
        )


def _require_unique(step: config.Step, frame: DataFrame) -> None:
    twice = frame.groupBy(*step.unique).count().filter("count > 1").orderBy(*step.unique).limit(1).collect()
    if twice:
        key = ", ".join(f"{name}={twice[0][name]}" for name in step.unique)
        raise DataError(f"etl.steps ({step.name}): {key} occurs {twice[0]['count']} times, but the step promises it once.")


def tag(frame: DataFrame, etl: config.Etl) -> DataFrame:
    """Adds `_rule`, the first rule that a row breaks, and `_split`."""
    return frame.withColumn(RULE, _broken_rule(etl)).withColumn(SPLIT, _split_of(etl))


def _broken_rule(etl: config.Etl) -> Column:
    broken = [F.when(F.coalesce(F.expr(rule.where), F.lit(False)), None).otherwise(rule.name) for rule in etl.rules]
    return F.coalesce(*broken, F.lit(None).cast("string"))


def _split_of(etl: config.Etl) -> Column:
    """The splits whose condition a row fulfils, joined by '+': a sound configuration gives one name for each row."""
    return F.concat_ws("+", *[F.when(F.expr(condition), name) for name, condition in etl.splits.conditions().items()])


def count(tagged: DataFrame, etl: config.Etl) -> dict:
    """Rows by split and by rule, in one pass.

    Raises:
        DataError: an accepted row is in no split or in several, a split is empty, or a rule with `action: fail` has rows.
    """
    cells = [(row[RULE], row[SPLIT], row["count"]) for row in tagged.groupBy(RULE, SPLIT).count().collect()]
    splits = {split: sum(n for rule, of, n in cells if rule is None and of == split) for split in etl.splits.conditions()}
    rejected = {rule.name: sum(n for by, _, n in cells if by == rule.name) for rule in etl.rules}
    for rule, split, rows in cells:
        if rule is None and split not in splits:
            where = f"in several splits ({split})" if split else "in no split"
            raise DataError(f"etl.splits: {rows:,} accepted rows are {where}; each row must fulfil one condition.")
    for split, rows in splits.items():
        if not rows:
            raise DataError(f"etl.splits.{split}: no accepted row fulfils '{etl.splits.conditions()[split]}'; correct it.")
    for rule in etl.rules:
        if rule.action == "fail" and rejected[rule.name]:
            raise DataError(f"etl.rules ({rule.name}): {rejected[rule.name]:,} rows do not fulfil '{rule.where}'.")
    return {"rows_in": sum(n for _, _, n in cells), "splits": splits, "rejected": rejected}


def write(frame: DataFrame, folder: Path) -> None:
    """Writes Parquet whose files, in the order of their names, hold the rows in order."""
    frame.write.parquet(folder.as_uri())


def _sentence(error: PySparkException) -> DataError | SourceError:
    """Spark's error as one sentence; its text has the record or the name at fault in its first lines."""
    text = str(error)
    malformed = "Malformed records are detected in record parsing: "
    if malformed in text:
        record = text.split(malformed, 1)[1].splitlines()[0]
        return SourceError(
            f"A record does not have its source's declared types: {record:.300}. Correct the file or the columns."
        )
    return DataError(f"Spark refused the build: {text.strip().splitlines()[0]:.400}")
