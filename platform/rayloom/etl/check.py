"""Every mistake in the ETL part of a pipeline file that can be found without Spark: within a second, before anything starts.

Sources, headers, SQL syntax, and each column that a step, rule, split, order or feature names.
"""

from collections.abc import Iterable, Iterator

from sqlglot import exp, parse_one
from sqlglot.errors import OptimizeError, SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.schema import MappingSchema

from rayloom import config
from rayloom.errors import ConfigError, hint
from rayloom.etl.sources import Opened, open_source
from rayloom.etl.sources.columns import first_twins, says_twins

EXACT = "spark, normalization_strategy = case_sensitive"
"""Names count with their case: Spark would not mind, but Parquet, features and records do."""

RESERVED = {"_source", "_rule", "_row", "_raw", "_uncastable", "_split", "_place", "_hash", "_duplicate", "_warned"}
"""Columns that the build adds for itself, besides those that begin with _rayloom."""

Tables = dict[str, list[str]]
"""Column names by table."""


def check(pipeline: config.Pipeline) -> dict[str, Opened]:
    """Opens the sources and holds all SQL and all column names against them.

    Raises:
        ConfigError, SourceError: the first mistake, with its key and the nearest known name.
    """
    etl = pipeline.etl
    opened = {name: open_source(name, source) for name, source in etl.sources.items()}
    tables: Tables = {name: list(source.types) for name, source in opened.items()}
    for name, source in etl.sources.items():
        _require_names(f"etl.sources.{name}.clean", source.clean, name, tables)
    for index, step in enumerate(etl.steps):
        _check_step(step, f"etl.steps.{index} ({step.name})", tables)
    for table in {*etl.sources, etl.rows}:
        _refuse_reserved(table, tables)
    for place, condition in _conditions(etl):
        _columns_of(f"SELECT {condition} AS fulfilled FROM `{etl.rows}`", place, {etl.rows: tables[etl.rows]})
    for place, names in _named_columns(pipeline):
        _require_names(place, names, etl.rows, tables)
    for rule in etl.rules:
        if rule.foreign_key:
            _check_foreign_key(rule.foreign_key, f"etl.rules ({rule.name}): foreign_key", tables)
    return opened


def _check_step(step: config.Step, place: str, tables: Tables) -> None:
    if step.name in tables:
        raise ConfigError(f"{place}: the name '{step.name}' is taken by a source or an earlier step; choose another.")
    if step.keeps is not None and step.keeps not in tables:
        raise ConfigError(f"{place}: keeps: no source or earlier step '{step.keeps}'{hint(step.keeps, tables)}")
    tables[step.name] = _columns_of(step.sql, place, tables)
    twins = first_twins(tables[step.name])
    if twins:
        raise ConfigError(f"{place}: {says_twins(twins)}; name each column once, or rename one by AS.")
    _require_names(f"{place}: unique", step.unique, step.name, tables)


def _refuse_reserved(table: str, tables: Tables) -> None:
    for column in tables[table]:
        if column.lower() in RESERVED or column.lower().startswith("_rayloom"):
            raise ConfigError(f"'{table}' gives a column '{column}', a name that the build uses for itself; rename it.")


def _check_foreign_key(key: config.ForeignKey, place: str, tables: Tables) -> None:
    if key.table not in tables:
        raise ConfigError(f"{place}: no source or step '{key.table}'{hint(key.table, tables)}")
    _require_names(f"{place}.to", key.to, key.table, tables)


def _conditions(etl: config.Etl) -> Iterator[tuple[str, str]]:
    for rule in etl.rules:
        if rule.where is not None:
            yield f"etl.rules ({rule.name})", rule.where
    if isinstance(etl.splits, config.Conditions):
        for split in config.SPLITS:
            yield f"etl.splits.{split}", getattr(etl.splits, split)


def _named_columns(pipeline: config.Pipeline) -> Iterator[tuple[str, Iterable[str]]]:
    """Each place that names columns of the rows that become the dataset version, in the order of the pipeline file."""
    etl, features = pipeline.etl, pipeline.features
    yield "etl.deduplicate.by", etl.deduplicate.by
    yield "etl.deduplicate.newest", _given(etl.deduplicate.newest)
    yield "etl.deduplicate.near.column", [etl.deduplicate.near.column] if etl.deduplicate.near else []
    for rule in etl.rules:
        place = f"etl.rules ({rule.name}): {rule.check}"
        if rule.foreign_key:
            yield f"{place}.columns", rule.foreign_key.columns
        elif rule.where is None:
            yield place, getattr(rule, rule.check)  # a list of columns, or a dict by column
    for outliers in etl.outliers:
        yield "etl.outliers", [outliers.column]
    match etl.splits:
        case config.ByHash():
            yield "etl.splits.key", etl.splits.key or []
            yield "etl.splits.stratum", _given(etl.splits.stratum)
        case config.ByTime():
            yield "etl.splits.column", [etl.splits.column]
    yield "etl.order_by", etl.order_by
    yield "features.label", [features.label]
    yield "features.columns", features.columns
    yield "features.known_after", features.known_after


def _given(name: str | None) -> list[str]:
    return [] if name is None else [name]


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


def _require_names(place: str, names: Iterable[str], table: str, tables: Tables) -> None:
    for name in names:
        if name not in tables[table]:
            raise ConfigError(f"{place}: '{table}' gives no column '{name}'{hint(name, tables[table])}")
