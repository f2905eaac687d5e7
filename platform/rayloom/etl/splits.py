"""The split of each row: a function of the row alone, whatever its place, its partition or the rows beside it.

Not here: that every row has one split and none is empty (`build.py` counts them).
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from rayloom import config
from rayloom.config import SPLITS
from rayloom.etl.columns import quoted

SPLIT = "_split"
"""The column that the build adds with it."""

NULL, SEPARATOR = "\x00", "\x1f"
"""In the text that is hashed: a key's missing value, and what stands between two keys."""


def split_of(etl: config.Etl) -> Column:
    """STRING: a row's split. '' where it has none, and several names joined by '+' where it fulfils several conditions.

    A time that is missing is in no split. Points of time without an offset are in the session's time zone.
    """
    splits = etl.splits
    if isinstance(splits, config.ByHash):
        return _by_share(draw(splits, etl.order_by), splits.shares)
    if isinstance(splits, config.ByTime):
        return _by_time(splits)
    return F.concat_ws("+", *[F.when(F.expr(getattr(splits, name)), name) for name in SPLITS])


def draw(splits: config.ByHash, order_by: list[str]) -> Column:
    """DOUBLE in [0, 1): drawn by the row's key, evenly over many keys.

    The 53 highest bits of XXH64 (Collet, 2012; Spark's `xxhash64`, seed 42) of one text: the kind of split, its seed, the
    stratum and the key's values as Spark writes them. Rows that write their key alike draw alike, for good.
    """
    columns = [*([splits.stratum] if splits.stratum else []), *(splits.key or order_by)]
    values = [F.coalesce(F.col(quoted(column)).cast("string"), F.lit(NULL)) for column in columns]
    text = F.concat_ws(SEPARATOR, F.lit(f"{splits.by}{SEPARATOR}{splits.seed}"), *values)
    return F.shiftrightunsigned(F.xxhash64(text), 11) * F.lit(2.0**-53)


def _by_share(drawn: Column, shares: config.Shares) -> Column:
    return F.when(drawn < shares.train, "train").when(drawn < shares.train + shares.validation, "validation").otherwise("test")


def _by_time(splits: config.ByTime) -> Column:
    time = F.col(quoted(splits.column))
    validation, test = (F.lit(moment).cast("timestamp") for moment in (splits.validation_from, splits.test_from))
    return F.when(time < validation, "train").when(time < test, "validation").when(time >= test, "test").otherwise("")


def rare(counts: dict[str | None, dict[str, int]], column: str) -> list[str]:
    """A sentence for each value of a column (a stratum, or the label) that misses a split.

    >>> rare({"x": {"train": 2}, "y": {"train": 8, "validation": 1, "test": 1}}, "class")
    ["class 'x' has 2 rows, and none in validation and test"]
    """
    notes = []
    for value, rows in sorted(counts.items(), key=lambda item: (item[0] is not None, str(item[0]))):
        missing = [split for split in SPLITS if not rows.get(split)]
        if missing:
            total = sum(rows.values())
            shown = "NULL" if value is None else f"'{value}'"
            notes.append(f"{column} {shown} has {total:,} row{'s' * (total != 1)}, and none in {' and '.join(missing)}")
    return notes
