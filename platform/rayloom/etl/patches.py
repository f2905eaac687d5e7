"""A patch: corrections of rows that an earlier version rejected, applied where the row was when it was rejected.

A row is known by its `_row`, a hash of its raw content, so a patch holds for as long as the row is as it was.
"""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rayloom import config
from rayloom.etl.columns import as_json, literal, quoted, row_id
from rayloom.quarantine import Correction, read_patch
from rayloom.versions import PatchCounts

ORIGINAL = "_rayloom_row"
"""A column that a corrected row has: the id that it had before."""

_KEY, _VALUES = "_rayloom_key", "_rayloom_values"

MARK = "a corrected value does not have its column's type: "


@dataclass(frozen=True)
class Patch:
    """A patch file's corrections; empty where the pipeline file names none."""

    corrections: list[Correction]

    def of(self, source: str) -> dict[str, dict[str, str]]:
        """Corrected values by row id and column, of one source or of the last step."""
        found: dict[str, dict[str, str]] = {}
        for one in self.corrections:
            if one.source == source:
                found.setdefault(one.row, {})[one.column] = one.value
        return found


def read(etl: config.Etl) -> Patch:
    """The patch that `etl.patch` names. Raises DataError as `quarantine.read_patch` does."""
    return Patch(read_patch(Path(etl.patch)) if etl.patch else [])


def apply(rows: DataFrame, source: str, patch: Patch) -> DataFrame:
    """Rows with their corrected values; an empty value is NULL. Unchanged where the patch has none for this source.

    Rows get a column ORIGINAL then: the id that a corrected row had before, NULL for the others.
    """
    corrected = patch.of(source)
    if not corrected:
        return rows
    table = rows.sparkSession.createDataFrame(list(corrected.items()), f"{ORIGINAL} STRING, {_VALUES} MAP<STRING, STRING>")
    keyed = rows.withColumn(_KEY, row_id(as_json(rows)))
    joined = keyed.join(F.broadcast(table), keyed[_KEY] == table[ORIGINAL], "left")
    changed = {column for values in corrected.values() for column in values}
    values = [_value(rows, name) if name in changed else F.col(quoted(name)) for name in rows.columns]
    return joined.select(*values, ORIGINAL)


def with_ids(rejected: DataFrame, raw: Column, corrected: DataFrame) -> DataFrame:
    """Rejected rows with ORIGINAL as `apply` gave it: found by the JSON text of a corrected row, which `raw` has.

    Args:
        corrected: what `apply` made of the rows that `rejected` are among.
    """
    if ORIGINAL not in corrected.columns:
        return rejected.withColumn(ORIGINAL, F.lit(None).cast("string"))
    changed = corrected.filter(F.col(ORIGINAL).isNotNull())
    known = changed.groupBy(row_id(as_json(changed.drop(ORIGINAL))).alias(_KEY)).agg(F.min(ORIGINAL).alias(ORIGINAL))
    return rejected.join(F.broadcast(known), row_id(raw) == F.col(_KEY), "left")


def _value(rows: DataFrame, name: str) -> Column:
    given = f"nullif({_VALUES}[{literal(name)}], '')"
    kind = rows.schema[name].dataType.simpleString()
    text, typed = F.expr(given), F.expr(f"try_cast({given} AS {kind})")
    said = F.concat(F.lit(f"{MARK}column {name} ({kind}): "), text)
    checked = F.when(text.isNotNull() & typed.isNull(), F.raise_error(said).cast(kind)).otherwise(typed)
    is_corrected = F.coalesce(F.map_contains_key(_VALUES, name), F.lit(False))
    return F.when(is_corrected, checked).otherwise(F.col(quoted(name))).alias(name)


def count(patch: Patch, corrected: list[tuple[str, DataFrame]]) -> PatchCounts | None:
    """What a patch came to, in a pass over the rows that it was applied to, by source; None where there is no patch."""
    if not patch.corrections:
        return None
    matched = 0
    for source, rows in corrected:
        if ORIGINAL in rows.columns:
            met = [row[0] for row in rows.select(ORIGINAL).dropna().distinct().collect()]
            matched += sum(len(patch.of(source)[key]) for key in met)
    return PatchCounts(lines=len(patch.corrections), matched=matched)
