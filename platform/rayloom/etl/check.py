"""Every mistake in the ETL part of a pipeline file that can be found without Spark: within a second, before anything starts.

Files, headers, SQL syntax, and each column that a step, rule, split, order or feature names.
"""

from collections.abc import Iterable

from sqlglot import exp, parse_one
from sqlglot.errors import OptimizeError, SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from rayloom import config
from rayloom.errors import ConfigError, hint
from rayloom.etl.sources import SourceFile, open_source

EXACT = "spark, normalization_strategy = case_sensitive"
"""Names count with their case: Spark would not mind, but Parquet, features and records do."""

Tables = dict[str, list[str]]
"""Column names by table."""


def check(pipeline: config.Pipeline) -> dict[str, SourceFile]:
    """Opens the sources and holds all SQL and all column names against them.

    Raises:
        ConfigError, SourceError: the first mistake, with its key and the nearest known name.
    """
    files = {name: open_source(name, source) for name, source in pipeline.etl.sources.items()}
    tables: Tables = {name: list(file.types) for name, file in files.items()}
    for index, step in enumerate(pipeline.etl.steps):
        _check_step(step, f"etl.steps.{index} ({step.name})", tables)
    rows = {pipeline.etl.steps[-1].name: tables[pipeline.etl.steps[-1].name]}
    for place, condition in _conditions(pipeline.etl):
        _columns_of(f"SELECT {condition} AS fulfilled FROM {next(iter(rows))}", place, rows)
    _require_names("etl.order_by", pipeline.etl.order_by, rows)
    _require_names("features.label", [pipeline.features.label], rows)
    _require_names("features.columns", pipeline.features.columns, rows)
    _require_names("features.known_after", pipeline.features.known_after, rows)
    return files


def _check_step(step: config.Step, place: str, tables: Tables) -> None:
    if step.name in tables:
        raise ConfigError(f"{place}: the name '{step.name}' is taken by a source or an earlier step; choose another.")
    if step.keeps is not None and step.keeps not in tables:
        raise ConfigError(f"{place}: keeps: no source or earlier step '{step.keeps}'{hint(step.keeps, tables)}")
    tables[step.name] = _columns_of(step.sql, place, tables)
    _require_names(f"{place}: unique", step.unique, {step.name: tables[step.name]})


def _conditions(etl: config.Etl) -> Iterable[tuple[str, str]]:
    for rule in etl.rules:
        yield f"etl.rules ({rule.name})", rule.where
    for split, condition in etl.splits.conditions().items():
        yield f"etl.splits.{split}", condition


def _columns_of(sql: str, place: str, tables: Tables) -> list[str]:
    """Names of a query's columns.

    Raises:
        ConfigError: the query is not a SELECT in Spark's dialect, or names a table or column that is not there.
    """
    try:
        query = parse_one(sql, dialect="spark")
    except SqlglotError as error:
        raise ConfigError(f"{place}: not Spark SQL ({str(error).splitlines()[0]:.200}); correct the query.") from None
    if not isinstance(query, exp.Query):
        raise ConfigError(f"{place}: expected a SELECT, found '{sql.strip():.60}'; write a query.")
    _require_tables(query, place, tables)
    schema = MappingSchema({name: dict.fromkeys(columns, "unknown") for name, columns in tables.items()}, dialect=EXACT)
    try:
        return qualify(query, schema=schema, dialect=EXACT).named_selects
    except OptimizeError as error:
        known = {column for columns in tables.values() for column in columns}
        raise ConfigError(f"{place}: {_name_the_column(str(error), known)}") from None


def _require_tables(query: exp.Query, place: str, tables: Tables) -> None:
    common = {cte.alias for cte in query.find_all(exp.CTE)}
    for table in query.find_all(exp.Table):
        if table.name not in tables and table.name not in common:
            raise ConfigError(f"{place}: no source or earlier step '{table.name}'{hint(table.name, tables)}")


def _name_the_column(message: str, known: set[str]) -> str:
    """sqlglot's sentence about a column, with the nearest known name."""
    quoted = message.split("'")[1] if "'" in message else message.split(":")[-1].strip()
    return f"unknown column '{quoted}'{hint(quoted, known)}"


def _require_names(place: str, names: Iterable[str], rows: Tables) -> None:
    (step, columns), *_ = rows.items()
    for name in names:
        if name not in columns:
            raise ConfigError(f"{place}: the step '{step}' gives no column '{name}'{hint(name, columns)}")
