"""Columns' names and types: Spark DDL lists, and which Arrow types Spark reads as what."""

from collections.abc import Iterable

import pyarrow as pa
import sqlglot
from pyarrow import types as kinds

from rayloom import config
from rayloom.errors import ConfigError, SourceError

SIMPLE = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL(20,0)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("ms"): "TIMESTAMP_NTZ",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}

MICROSECONDS = {pa.timestamp("s"): pa.timestamp("us"), pa.timestamp("ns"): pa.timestamp("us")}
WRITTEN_AS = {
    **MICROSECONDS,
    pa.null(): pa.string(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types that Spark cannot read from Parquet, and the type without loss that it can."""


def declared_types(name: str, ddl: str) -> dict[str, str]:
    """Spark type by column of a DDL list.

    >>> declared_types("flights", "year INT, carrier STRING")
    {'year': 'INT', 'carrier': 'STRING'}

    Raises:
        ConfigError: it is no DDL list, gives a column no type, or names a column twice.
    """
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"etl.sources.{name}.columns is not a Spark DDL list ({reason}); write 'a INT, b STRING'.") from None
    definitions = table.this.expressions if isinstance(table.this, sqlglot.exp.Schema) else []
    untyped = [column.name for column in definitions if not isinstance(column, sqlglot.exp.ColumnDef) or column.kind is None]
    if untyped or not definitions:
        raise ConfigError(f"etl.sources.{name}.columns gives no type for {', '.join(untyped) or 'any column'}; write 'a INT'.")
    twins = first_twins(column.name for column in definitions)
    if twins:
        raise ConfigError(f"etl.sources.{name}.columns: {says_twins(twins)}; remove one.")
    return {column.name: column.kind.sql(dialect="spark") for column in definitions if column.kind}


def required_types(name: str, settings: config.Source) -> dict[str, str]:
    """`declared_types` of a kind whose files do not say their types."""
    if settings.columns is None:
        raise ConfigError(
            f"etl.sources.{name}.columns is missing: {settings.kind} files do not say their types; "
            f"run `rayloom schema infer` for a proposal."
        )
    return declared_types(name, settings.columns)


def first_twins(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that Spark cannot tell apart: equal, or equal but for case."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            return seen[name.lower()], name
        seen[name.lower()] = name
    return None


def says_twins(twins: tuple[str, str]) -> str:
    first, second = twins
    if first == second:
        return f"the column '{first}' stands twice"
    return f"the columns '{first}' and '{second}' differ in case alone, which Spark cannot tell apart"


def require_distinct(names: Iterable[str], place: str, remedy: str = "rename one") -> None:
    """Raises SourceError where two columns have one name for Spark."""
    twins = first_twins(names)
    if twins:
        raise SourceError(f"{place}: {says_twins(twins)}; {remedy}.")


def written_as(of: pa.DataType) -> pa.DataType:
    """The type to write a column with so that Spark can read it; the type itself where it can be read as it is."""
    if kinds.is_dictionary(of):
        return written_as(of.value_type)
    if kinds.is_timestamp(of) and of.tz is not None:
        return pa.timestamp("us" if of.unit in ("s", "ns") else of.unit, of.tz)
    if kinds.is_decimal(of) and of.precision <= 38:
        return pa.decimal128(of.precision, of.scale)
    if kinds.is_fixed_size_binary(of):
        return pa.binary()
    return WRITTEN_AS.get(of, of)


def ddl_of(of: pa.DataType) -> str | None:
    """The Spark type that a column of this Arrow type has, once written as `written_as` says; None where there is none.

    >>> ddl_of(pa.list_(pa.decimal128(20, 4)))
    'ARRAY<DECIMAL(20,4)>'
    """
    written = written_as(of)
    if kinds.is_list(of) or kinds.is_large_list(of):
        inner = _inner(of.value_type)
        return inner and f"ARRAY<{inner}>"
    if kinds.is_map(of):
        key, item = _inner(of.key_type), _inner(of.item_type)
        return key and item and f"MAP<{key}, {item}>"
    if kinds.is_struct(of):
        fields = {field.name: _inner(field.type) for field in of.fields}
        return f"STRUCT<{ddl_list(fields, ': ')}>" if all(fields.values()) else None  # type: ignore[arg-type]
    if kinds.is_timestamp(written) and written.tz is not None:
        return "TIMESTAMP"
    if kinds.is_decimal128(written):
        return f"DECIMAL({written.precision},{written.scale})"
    return SIMPLE.get(written)


def _inner(of: pa.DataType) -> str | None:
    """Inside another type nothing is rewritten: what Spark cannot read there, it cannot read."""
    return ddl_of(of) if written_as(of) == of or kinds.is_dictionary(of) else None


def ddl_list(types: dict[str, str], between: str = " ") -> str:
    """Columns as Spark DDL.

    >>> ddl_list({"year": "INT", "a`b": "STRING"})
    '`year` INT, `a``b` STRING'
    """
    return ", ".join(f"`{name.replace('`', '``')}`{between}{kind}" for name, kind in types.items())


def ddl_of_schema(schema: pa.Schema, place: str) -> dict[str, str]:
    """Spark type by column of an Arrow schema.

    Raises:
        SourceError: a type that Spark does not have.
    """
    found = {field.name: ddl_of(field.type) for field in schema}
    for column, kind in found.items():
        if kind is None:
            raise SourceError(
                f"{place}: the column '{column}' is of type {schema.field(column).type}, which Spark does not have; "
                f"leave it out by naming the others in `columns`."
            )
    return {column: kind for column, kind in found.items() if kind is not None}
