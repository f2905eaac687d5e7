"""Duplicates: rows that are there already, exactly, by key, or nearly. Which row stays depends on no partitioning.

Near duplicates: texts as sets of shingles (runs of words, without case and punctuation) whose Jaccard similarity is at or above
a threshold. MinHash with banding (Broder 1997; Indyk and Motwani 1998) proposes pairs, their exact similarity decides. A row
goes when an earlier one, in the pipeline's order, is that similar, be that one dropped or not: no two rows that stay are
similar, and what comes later changes nothing for what came before. Of a chain of similar texts the first stays.

Not here: words of languages that put no space between them; a run of their letters counts as one word.
"""

import math
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from rayloom import config
from rayloom.etl.columns import first_in_order, quoted

DUPLICATE = "_duplicate"
"""The column that `mark` adds."""

MISSED = 0.01
"""The chance to miss a pair exactly at the threshold; more similar ones are missed less often."""

MOST_HASHES = 128
"""Of a text; more let fewer pairs be proposed in vain, and cost more themselves."""


def mark(rows: DataFrame, settings: config.Deduplicate, order_by: list[str]) -> DataFrame:
    """Adds `_duplicate STRING`: NULL where the row stays, else 'exact', 'by' or 'near'. Unchanged where nothing is asked for.

    Each kind is looked for among the rows that stay after the kinds before it. With `near`, the rows are kept (persisted)
    until the session ends.
    """
    columns, marks = rows.columns, [F.lit(None).cast("string")]
    order = first_in_order(rows, order_by)
    if settings.exact:
        rows, repeated = _repeated(rows, columns, [F.lit(1)], "_rayloom_exact")
        marks.append(F.when(repeated, "exact"))
    if settings.by:
        newest = [F.col(quoted(settings.newest)).desc_nulls_last()] if settings.newest else []
        staying_first = F.when(F.coalesce(*marks).isNull(), 0).otherwise(1)
        rows, repeated = _repeated(rows, settings.by, [staying_first, *newest, *order], "_rayloom_by")
        known = reduce(lambda left, right: left & right, [F.col(quoted(name)).isNotNull() for name in settings.by])
        marks.append(F.when(repeated & known, "by"))
    if settings.near:
        rows, similar = _similar(rows, settings.near, order, F.coalesce(*marks).isNull())
        marks.append(F.when(similar, "near"))
    return rows.select(*map(quoted, columns), F.coalesce(*marks).alias(DUPLICATE)) if len(marks) > 1 else rows


def _repeated(rows: DataFrame, key: list[str], order: list[Column], name: str) -> tuple[DataFrame, Column]:
    window = Window.partitionBy(*map(quoted, key)).orderBy(*order)
    return rows.withColumn(name, F.row_number().over(window)), F.col(name) > 1


def _similar(rows: DataFrame, near: config.NearDuplicates, order: list[Column], staying: Column) -> tuple[DataFrame, Column]:
    """Whether an earlier row's text is the same set of shingles, or nearly so. Texts without a word are like none."""
    shingles = F.when(staying, _shingles(quoted(near.column), near.shingle))
    prepared = rows.select("*", shingles.alias("_rayloom_shingles"), F.struct(*order).alias("_rayloom_at")).persist()
    prepared = prepared.withColumn(
        "_rayloom_set", F.when(F.col("_rayloom_shingles").isNotNull(), F.xxhash64("_rayloom_shingles"))
    )
    placed, repeated = _repeated(prepared, ["_rayloom_set"], [F.col("_rayloom_at")], "_rayloom_place")
    sets = placed.where("_rayloom_set IS NOT NULL AND _rayloom_place = 1").selectExpr(
        "_rayloom_set AS set", "_rayloom_at AS at", "_rayloom_shingles AS shingles"
    )
    later = _later(sets.persist(), near.similarity).withColumn("_rayloom_later", F.lit(True))
    joined = placed.join(later.withColumnRenamed("set", "_rayloom_set"), "_rayloom_set", "left")
    known = F.col("_rayloom_set").isNotNull()
    return joined, known & (repeated | F.col("_rayloom_later").isNotNull())


def _shingles(column: str, words: int) -> Column:
    """ARRAY<BIGINT>: sorted hashes of a text's shingles; of a shorter text the one that is all of it; NULL without a word."""
    found = rf"filter(split(lower({column}), '[^\\p{{L}}\\p{{M}}\\p{{N}}]+'), word -> word != '')"
    each = f"transform(sequence(1, greatest(size(found) - {words - 1}, 1)), at -> xxhash64(slice(found, at, {words})))"
    # `found` is bound by a lambda: written out, Spark would split the text anew for each of its shingles.
    return F.expr(f"transform(array({found}), found -> if(size(found) > 0, array_sort(array_distinct({each})), NULL))[0]")


def _later(sets: DataFrame, similarity: float) -> DataFrame:
    """`set` of those with an earlier similar one. Equal in one band makes a pair a candidate."""
    count, each = bands(similarity)
    least = [F.min(F.xxhash64("shingle", F.lit(k))).alias(f"least{k}") for k in range(count * each)]
    signatures = sets.select("set", F.explode("shingles").alias("shingle")).groupBy("set").agg(*least)
    in_bands = [F.xxhash64(F.lit(b), *[F.col(f"least{b * each + k}") for k in range(each)]) for b in range(count)]
    buckets = signatures.select("set", F.explode(F.array(*in_bands)).alias("bucket"))
    one, other = (buckets.select(F.col("set").alias(name), "bucket") for name in ("one", "other"))
    pairs = one.join(other, "bucket").where("one < other").select("one", "other").distinct()
    for name in ("one", "other"):
        pairs = pairs.join(sets.selectExpr(f"set AS {name}", f"at AS {name}_at", f"shingles AS {name}_shingles"), name)
    common = "size(array_intersect(one_shingles, other_shingles))"
    jaccard = f"{common} / (size(one_shingles) + size(other_shingles) - {common})"
    similar = pairs.where(f"{jaccard} >= {similarity!r}D")
    return similar.select(F.expr("if(one_at < other_at, other, one)").alias("set")).distinct()


def bands(similarity: float) -> tuple[int, int]:
    """Bands, and hashes in each: a pair is missed when every band differs, with the chance (1 - similarity^hashes)^bands.

    >>> bands(0.8)
    (16, 6)
    """
    for hashes in range(8, 0, -1):
        equal = similarity**hashes
        count = max(1, math.ceil(math.log(MISSED) / math.log1p(-equal))) if equal < 1 else 1
        if count * hashes <= MOST_HASHES:
            break
    return count, hashes
