"""What Spark does: cast, join, check promises, deduplicate, apply rules, split, order, and write Parquet.

Rows pass once: one job reads, joins, tags each row with its place (its split, or the rule that it breaks), shuffles by a hash
of the row's key, orders within the parts, and writes a folder a place. Counts and checksums are observed in the very tasks
whose files are kept, so they are exact even where an executor was lost on the way, and nothing has to be cached.

Nothing model-facing happens here: no encoding, no scaling.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from rayloom import checksum, config
from rayloom.errors import DataError, RayloomError, ResourceError
from rayloom.etl import casts, patches, rules, sources
from rayloom.etl.columns import as_json, quoted, row_id
from rayloom.etl.place import DUPLICATE, HASH, PLACE, REJECTED, Placed, place
from rayloom.etl.sources import Fetched
from rayloom.etl.sources.packed import spark_path
from rayloom.versions import Content, PatchCounts, SourceCounts

QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Built:
    """What a build wrote, counted by the tasks that wrote it.

    Attributes:
        columns: Spark type of each column, in order.
        rows_in: rows of the last step, and those set aside at the sources.
        splits: accepted rows and their checksum by split, as Spark saw them.
        rejected: rows in the quarantine by rule; every rule is named.
        deduplicated: rows dropped, by kind of duplicate.
        warned: rows that break a rule with `action: warn`.
        clipped: values that `outliers` clipped, by column.
        sources: what reading each source came to.
        patch: what the patch file came to, where there is one.
        notes: what a user should know, a sentence each.
    """

    columns: dict[str, str]
    rows_in: int
    splits: dict[str, Content]
    rejected: dict[str, int]
    deduplicated: dict[str, int]
    warned: dict[str, int]
    clipped: dict[str, int]
    sources: dict[str, SourceCounts]
    patch: PatchCounts | None
    notes: list[str]


def build(spark: SparkSession, pipeline: config.Pipeline, fetched: dict[str, Fetched], folder: Path) -> Built:
    """Builds a dataset version's Parquet: `folder`/train, /validation, /test and /quarantine.

    Args:
        fetched: the sources by name.
        folder: an existing empty folder that all executors see.

    Raises:
        DataError: a value does not have its declared type, a step broke its promise, more rows are rejected than may be, or
            the splits overlap or leave rows out.
        ResourceError: Spark ran out of memory.
    """
    etl = pipeline.etl
    patch = patches.read(etl)
    try:
        raw = {name: patches.apply(sources.read(spark, one), name, patch) for name, one in fetched.items()}
        counted = {name: open_view(one, raw[name], folder) for name, one in fetched.items()}
        rows = patches.apply(run_steps(spark, etl), etl.rows, patch)
        placed = place(spark, rows, etl)
        # Promises are checked while rows are written: what they cost is mostly waiting. All ends before anything is committed.
        with ThreadPoolExecutor() as others:
            promises = [others.submit(check_promises, spark, step, count=step is not etl.steps[-1]) for step in etl.steps]
            seen = write(placed, etl, folder)
            if etl.steps:
                require_rows(spark, etl.steps[-1], seen["rows"])
            _write_quarantine(spark, etl.rows, folder)
            for promise in promises:
                promise.result()
        columns = {name: placed.rows.schema[name].dataType.simpleString() for name in placed.values}
        built = _count(columns, seen, counted, patches.count(patch, [*raw.items(), (etl.rows, rows)]), placed.notes)
        rules.judge(etl, built.rows_in, built.rejected)
        return built
    except (PySparkException, Py4JJavaError) as error:  # PySpark leaves a failed job's error as Java threw it
        raise _sentence(spark, fetched, patch, error) from error


def open_view(fetched: Fetched, raw: DataFrame, folder: Path) -> SourceCounts:
    """Makes a source a view of its declared types; rows set aside go to the quarantine. Returns what reading it came to."""
    opened = fetched.opened
    corrected, raw = raw, raw.drop(patches.ORIGINAL)
    typed = casts.cast(raw, opened.types, opened.settings)
    counted = SourceCounts(rows=fetched.rows)
    if casts.UNCASTABLE in typed.columns:
        uncastable = casts.counts(typed)
        casts.require_castable(opened.name, raw, opened.types, opened.settings, uncastable)
        set_aside = _set_aside(typed, corrected, opened.name, folder) if casts.RAW in typed.columns and uncastable else 0
        counted = SourceCounts(rows=fetched.rows, set_aside=set_aside, uncastable=uncastable)
        sound = typed.filter(F.col(casts.UNCASTABLE).isNull()) if casts.RAW in typed.columns else typed
        typed = sound.select(*map(quoted, opened.types))
    typed.createOrReplaceTempView(opened.name)
    return counted


def _set_aside(typed: DataFrame, corrected: DataFrame, source: str, folder: Path) -> int:
    raw = F.col(casts.RAW)
    rejected = patches.with_ids(typed.filter(raw.isNotNull()), raw, corrected)
    return _append(rejected, source, F.lit("uncastable"), F.coalesce(patches.ORIGINAL, row_id(raw)), raw, folder)


def _append(rows: DataFrame, source: str, rule: Column, row: Column, raw: Column, folder: Path) -> int:
    """Adds rows to the quarantine; returns their number, counted as they were written."""
    seen = Observation("quarantined")
    columns = [F.lit(source).alias("_source"), rule.alias("_rule"), row.alias("_row"), raw.alias("_raw")]
    observed = rows.select(*columns).observe(seen, F.count(F.lit(1)).alias("rows"))
    observed.write.mode("append").parquet((folder / QUARANTINE).as_uri())
    return seen.get["rows"]


def run_steps(spark: SparkSession, etl: config.Etl) -> DataFrame:
    """Makes each step a view; returns the last step's rows."""
    for step in etl.steps:
        frame = spark.sql(step.sql)
        if step is not etl.steps[-1] and (step.keeps or step.unique):
            frame = frame.persist()
        frame.createOrReplaceTempView(f"`{step.name}`")
    return spark.table(f"`{etl.rows}`")


def check_promises(spark: SparkSession, step: config.Step, count: bool) -> None:
    """Holds a step's rows against its promises.

    Args:
        count: whether their number, too; the last step's rows are counted as they are written.

    Raises:
        DataError: it has other than the promised number of rows, or a key twice.
    """
    table = spark.table(f"`{step.name}`")
    if step.keeps and count:
        require_rows(spark, step, table.count())
    if step.unique:
        keys = [F.col(quoted(name)) for name in step.unique]
        twice = table.groupBy(*keys).count().filter("count > 1").orderBy(*keys).limit(1).collect()
        if twice:
            key = ", ".join(f"{name}={twice[0][name]}" for name in step.unique)
            raise DataError(f"etl.steps ({step.name}): {key} occurs {twice[0]['count']} times, but the step promises it once.")


def require_rows(spark: SparkSession, step: config.Step, rows: int) -> None:
    """Raises DataError where a step has not the number of rows that it promises to keep."""
    if not step.keeps:
        return
    expected = spark.table(f"`{step.keeps}`").count()
    if rows != expected:
        change = f"adds {rows - expected:,}" if rows > expected else f"loses {expected - rows:,}"
        raise DataError(
            f"etl.steps ({step.name}): {rows:,} rows, but it promises to keep the {expected:,} rows of '{step.keeps}': it "
            f"{change}. A join on keys that are not unique adds rows, an inner join loses them: make the right side unique "
            f"and join LEFT."
        )


def write(placed: Placed, etl: config.Etl, folder: Path) -> dict[str, int]:
    """Writes each place's rows into a folder of its name, their files in order; returns what was counted on the way.

    Raises:
        DataError: an accepted row is in no split or in several, or a split is empty.
    """
    keys = [quoted(name) for name in etl.order_by]
    values = [quoted(name) for name in placed.values]
    # After the keys all values: rows are told apart by them where their keys are equal, and else nobody looks.
    ordered = placed.rows.repartition(etl.partitions, *keys).sortWithinPartitions(*dict.fromkeys([*keys, *values]))
    # Hashed only now: beside joins and rules it would make one method of Spark's that Java compiles badly.
    hashed = ordered.select("*", checksum.spark_row_hash(ordered.select(*values).schema).alias(HASH))
    seen = Observation("written")
    observed = hashed.observe(seen, *[count.alias(name) for name, count in placed.counts.items()])
    kept = observed.filter(~F.startswith(F.col(PLACE), F.lit(DUPLICATE))).select(*values, PLACE)
    kept.write.partitionBy(PLACE).parquet((folder / PLACE).as_uri())
    counted = {name: value or 0 for name, value in seen.get.items()}
    _refuse_other_places(folder / PLACE)
    for split in config.SPLITS:
        if not counted[f"rows {split}"]:
            raise DataError(f"etl.splits: no accepted row is in {split}{_condition(etl, split)}; correct etl.splits.")
        (folder / PLACE / f"{PLACE}={split}").rename(folder / split)
    return counted


def _condition(etl: config.Etl, split: str) -> str:
    return f" ('{getattr(etl.splits, split)}')" if isinstance(etl.splits, config.Conditions) else ""


def _refuse_other_places(folder: Path) -> None:
    for path in sorted(folder.glob(f"{PLACE}=*")):
        name = path.name.partition("=")[2]
        if name not in config.SPLITS and not name.startswith(REJECTED):
            rows = sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))
            where = f"in several splits ({name.replace('%2B', '+')})" if "train" in name or "test" in name else "in no split"
            raise DataError(f"etl.splits: {rows:,} accepted rows are {where}; each row must fulfil one condition.")


def _count(
    columns: dict[str, str], seen: dict[str, int], counted: dict[str, SourceCounts], patch: PatchCounts | None, notes: list[str]
) -> Built:  # fmt: skip
    def of(prefix: str) -> dict[str, int]:
        return {name.removeprefix(prefix): value for name, value in seen.items() if name.startswith(prefix)}

    set_aside = sum(source.set_aside for source in counted.values())
    rejected = {**({"uncastable": set_aside} if set_aside else {}), **of(f"rows {REJECTED}")}
    contents = {
        name: Content(rows=seen[f"rows {name}"], checksum=f"{seen[f'hash {name}'] % 2**64:016x}") for name in config.SPLITS
    }
    return Built(
        columns=columns, rows_in=seen["rows"] + set_aside, splits=contents, rejected=rejected,
        deduplicated=of(f"rows {DUPLICATE}"), warned=of("warned "), clipped=of("clipped "), sources=counted, patch=patch,
        notes=notes,
    )  # fmt: skip


def _write_quarantine(spark: SparkSession, step: str, folder: Path) -> None:
    """The last step's rejected rows as the quarantine has them: a job over these rows alone."""
    rejected = sorted((folder / PLACE).glob(f"{PLACE}={REJECTED}*"))
    if rejected:
        rows = spark.read.option("basePath", spark_path(folder / PLACE)).parquet(*map(spark_path, rejected))
        rule, original = (F.split_part(F.col(PLACE), F.lit("."), F.lit(part)) for part in (2, 3))
        raw = as_json(rows.drop(PLACE))
        known = F.when(original != "", original).otherwise(row_id(raw))
        _append(rows, step, rule, known, raw, folder)
    shutil.rmtree(folder / PLACE)


def _sentence(spark: SparkSession, fetched: dict[str, Fetched], patch: patches.Patch, error: Exception) -> RayloomError:
    """Spark's error as one sentence. Where a value does not have its type, another pass counts all that do not."""
    text = str(error)
    if casts.MARK in text:
        for name, one in fetched.items():
            if one.opened.settings.uncastable == "fail":
                raw = patches.apply(sources.read(spark, one), name, patch)
                if found := casts.explain(raw, one.opened.types, one.opened.settings):
                    return DataError(casts.sentence(name, found))
    if patches.MARK in text:
        return DataError(f"etl.patch: {patches.MARK}{text.split(patches.MARK, 1)[1].splitlines()[0]:.200}; correct the patch.")
    if "OutOfMemoryError" in text or "ExecutorLostFailure" in text:
        return ResourceError(
            f"Spark lost its executors or their memory ({_first_line(text):.200}); raise etl.executor_memory, or raise "
            f"etl.partitions so that each part is smaller."
        )
    return DataError(f"Spark refused the build: {_first_line(text):.400}")


def _first_line(text: str) -> str:
    lines = [line.removeprefix(": ") for line in text.strip().splitlines() if not line.startswith("An error occurred while")]
    return lines[0] if lines else "it gave no reason"
