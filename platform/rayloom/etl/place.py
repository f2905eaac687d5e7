"""Where each row goes: into a split, into the quarantine by the rule that it breaks, or nowhere, as a duplicate."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from rayloom import config
from rayloom.etl import duplicates, outliers, rules, splits
from rayloom.etl.columns import quoted
from rayloom.etl.patches import ORIGINAL

PLACE = "_place"
"""Column that placing adds."""

HASH = "_hash"
"""Column with a row's checksum that `counts` needs besides."""

REJECTED, DUPLICATE = "rejected.", "duplicate."
"""What a place begins with that is no split; the rule or the kind follows."""

_CLIPPED = "_rayloom_clipped_{}"


@dataclass(frozen=True)
class Placed:
    """Rows with `_place`, and what to count while they pass.

    Attributes:
        rows: the values as they will be written, PLACE, and columns that `counts` needs.
        values: names of the columns to write.
        counts: aggregates by name: 'rows', for each place that is known 'rows PLACE', 'hash SPLIT', 'warned RULE', and
            'clipped COLUMN'.
        notes: what a user should know, a sentence each.
    """

    rows: DataFrame
    values: list[str]
    counts: dict[str, Column]
    notes: list[str]


def place(spark: SparkSession, rows: DataFrame, etl: config.Etl) -> Placed:
    """Tags rows with their places, and clips outliers; nothing runs yet but the pass that learns the outliers' bounds."""
    values = [name for name in rows.columns if name != ORIGINAL]
    marked = duplicates.mark(rows, etl.deduplicate, etl.order_by)
    if duplicates.DUPLICATE not in marked.columns:
        marked = marked.withColumn(duplicates.DUPLICATE, F.lit(None).cast("string"))
    tagged = rules.tag(spark, marked, etl).withColumn(splits.SPLIT, splits.split_of(etl))
    bounds = outliers.learn(tagged.filter(F.col(duplicates.DUPLICATE).isNull()), etl.outliers)
    placed = outliers.reject(tagged, bounds).withColumn(PLACE, _place(ORIGINAL in rows.columns))
    clips = {_CLIPPED.format(i): one for i, one in enumerate(bounds) if one.settings.action == "clip"}
    outside = [one.outside().alias(name) for name, one in clips.items()]
    # A rejected row stays as it was: the quarantine has its raw values, and knows it by them.
    clipped = outliers.clip(placed.select("*", *outside), bounds, _accepted())
    kept = [*values, PLACE, *clips, *([rules.WARNED] if rules.WARNED in clipped.columns else [])]
    counts = {
        **_counts(etl),
        **{f"clipped {one.settings.column}": _sum(F.col(name) & _accepted()) for name, one in clips.items()},
    }
    notes = [one.note for one in bounds if one.note]
    return Placed(clipped.select(*map(quoted, kept)), values, counts, notes)


def _place(corrected: bool) -> Column:
    # A row that is rejected in spite of its correction keeps the id that it had, so that both versions know it.
    before = [F.concat(F.lit("."), F.col(ORIGINAL))] if corrected else []
    rejected = F.concat(F.lit(REJECTED), F.col(rules.RULE), *[F.coalesce(text, F.lit("")) for text in before])
    duplicate = F.concat(F.lit(DUPLICATE), F.col(duplicates.DUPLICATE))
    return F.coalesce(duplicate, rejected, F.col(splits.SPLIT), F.lit(""))


def _accepted() -> Column:
    return F.col(PLACE).isin(*config.SPLITS)


def _sum(condition: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, 1).otherwise(0)), F.lit(0))


def _counts(etl: config.Etl) -> dict[str, Column]:
    found = {"rows": F.count(F.lit(1))}
    for name in config.SPLITS:
        found[f"rows {name}"] = _sum(F.col(PLACE) == name)
        found[f"hash {name}"] = F.sum(F.when(F.col(PLACE) == name, F.col(HASH)))
    stopping = [rule.name for rule in etl.rules if rule.action != "warn"]
    stopping += [f"outlier_{one.column}" for one in etl.outliers if one.action == "reject"]
    for name in stopping:
        at = F.lit(REJECTED + name)
        found[f"rows {REJECTED}{name}"] = _sum((F.col(PLACE) == at) | F.startswith(F.col(PLACE), F.lit(REJECTED + name + ".")))
    for kind in _kinds(etl.deduplicate):
        found[f"rows {DUPLICATE}{kind}"] = _sum(F.col(PLACE) == DUPLICATE + kind)
    for rule in etl.rules:
        if rule.action == "warn":
            found[f"warned {rule.name}"] = _sum(F.array_contains(rules.WARNED, rule.name))
    return found


def _kinds(settings: config.Deduplicate) -> list[str]:
    asked = {"exact": settings.exact, "by": bool(settings.by), "near": settings.near is not None}
    return [kind for kind, wanted in asked.items() if wanted]
