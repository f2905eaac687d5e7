"""Small things that several stages of a build say about columns."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from rayloom import checksum


def quoted(name: str) -> str:
    """A column's name as Spark SQL has it, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A text as Spark SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def first_in_order(rows: DataFrame, order_by: list[str]) -> list[Column]:
    """An order without ties but between equal rows: the pipeline's, then a hash of the whole row."""
    return [*[F.col(quoted(name)) for name in order_by], checksum.spark_row_hash(rows.schema)]


def row_id(raw: Column) -> Column:
    """16 hexadecimal digits that identify a row's content, of its JSON text."""
    return F.lower(F.lpad(F.hex(F.xxhash64(raw)), 16, "0"))


def as_json(rows: DataFrame) -> Column:
    """A row as a JSON object, NULLs included."""
    return F.to_json(F.struct(*[F.col(quoted(name)) for name in rows.columns]), {"ignoreNullFields": "false"})
