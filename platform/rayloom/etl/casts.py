"""Rows to a source's declared types: a value becomes exactly what it says, or it does not become anything.

Nothing is rounded, cut or guessed: '1.5' is no INT, '12abc' no number, 0.10015 no DECIMAL(20,4), 2013-02-30 no DATE. White
space around a number, date or time does not count. Dates are yyyy-MM-dd; timestamps ISO 8601, one without an offset in the
session's time zone; booleans what Spark takes for one (true, t, yes, y, 1 and their opposites). Values that are not text (of
Parquet, SQL, Delta) must come back unchanged from their declared type.

Only columns that a later step reads are cast: like any column that Spark can leave out, the others are not looked at.
"""

from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rayloom import config
from rayloom.errors import ConfigError, DataError
from rayloom.etl.clean import clean
from rayloom.etl.columns import literal, quoted

UNCASTABLE, RAW = "_uncastable", "_raw"
"""Columns that `cast` adds: 'column:kind' of each uncastable value, and with `uncastable: reject` the raw row as JSON."""

MARK = "value without its declared type: "
"""In Spark's message when a build ends at an uncastable value, before the sentence about it."""

KINDS = {
    "blank": "white space alone, or nothing",
    "text": "no digit in it",
    "text with digits": "text first, then digits",
    "digits then text": "as 12abc, 5 km",
    "grouped digits": "as 1,234.5 or 1 234",
    "decimal comma": "as 1,5",
    "fraction": "a whole number is declared",
    "out of range": "the type cannot hold it",
    "loses digits": "more digits than the type keeps",
    "no such time": "written well, but not in the calendar",
    "time of day": "a date is declared, and it has hours",
    "not a date": "not yyyy-MM-dd",
    "not a timestamp": "not ISO 8601",
    "not a boolean": "not true, false, yes, no, 1 or 0",
}
"""Why a value is uncastable, and what that means."""

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_REAL = (T.FloatType, T.DoubleType)
_DAY, _CLOCK = r"\\d{4}-\\d\\d-\\d\\d", r"[T ]\\d\\d:\\d\\d(:\\d\\d(\\.\\d{1,6}0*)?)?"
_OFFSET = r"(Z|[+-]\\d\\d(:?\\d\\d)?)?"


@dataclass(frozen=True)
class _Cast:
    """A column's cast, as Spark SQL over the columns that `_prepare` makes.

    Attributes:
        raw: quoted name of the column with the cleaned text, or the value of another type.
        value: quoted name of the column with what `try_cast` made of it; the same where the type is the declared one.
        exact: whether a value, where there is one, is exactly what the raw one says; None: always.
        kind: why not.
    """

    column: str
    type: str
    raw: str
    value: str
    exact: str | None
    kind: str

    @property
    def typed(self) -> str:
        return f"if({self.exact}, {self.value}, NULL)" if self.exact else self.value

    @property
    def bad(self) -> str:
        return f"({self.raw} IS NOT NULL AND ({self.value} IS NULL{f' OR NOT ({self.exact})' if self.exact else ''}))"


@dataclass(frozen=True)
class Uncastable:
    """The values of one kind that one column has: how many, and the commonest of them with its count."""

    column: str
    type: str
    kind: str
    count: int
    value: str
    times: int

    def __str__(self) -> str:
        return f"{self.count:,} {f'as {self.value!r}' if self.count > self.times else repr(self.value)} ({self.kind})"


def cast(raw: DataFrame, types: dict[str, str], settings: config.Source) -> DataFrame:
    """The declared columns with exactly their declared types, cleaned first as `settings.clean` says.

    Args:
        raw: the declared columns, as STRING or as a type of their own.
        types: Spark DDL type by column.
        settings: `uncastable` decides what becomes of a value that is not of its type. fail: the build ends there, with a
            message that has MARK in it; no further columns. missing: NULL. reject: NULL, and the row's text in `_raw STRING`
            (a JSON object; NULL where the row is sound). With both, `_uncastable ARRAY<STRING>` lists 'column:kind' of such
            values (NULL where there are none).

    Raises:
        ConfigError: a column's own type cannot become the declared one at all, or `clean` names one that is not text.
    """
    prepared, casts = _prepare(raw, types, settings)
    if settings.uncastable == "fail":
        return prepared.select(*[_or_fail(one) for one in casts])
    bad = F.expr(" OR ".join(one.bad for one in casts))
    found = [f"if({one.bad}, {literal(one.column + ':')} || {one.kind}, '')" for one in casts]
    columns = [F.expr(one.typed).alias(one.column) for one in casts]
    # A function of an array's elements keeps this out of whole-stage code generation, on purpose: with all the kinds in it, its
    # one method would be too long for Java's compiler, and twice as slow.
    columns.append(F.when(bad, F.expr(f"filter(array({', '.join(found)}), at -> at != '')")).alias(UNCASTABLE))
    if settings.uncastable == "reject":
        row = F.struct(*[F.col(quoted(column)) for column in raw.columns])
        columns.append(F.when(bad, F.to_json(row, {"ignoreNullFields": "false"})).alias(RAW))
    return prepared.select(*columns)


def _or_fail(one: _Cast) -> Column:
    if one.value == one.raw:
        return F.expr(one.raw).alias(one.column)
    # No kind here, see `explain`: all columns are in one method, and Java compiles long ones late or, by default, never.
    said = f"concat({literal(f'{MARK}column {one.column} ({one.type}): ')}, CAST({one.raw} AS STRING))"
    return F.expr(f"coalesce({one.typed}, if({one.raw} IS NULL, NULL, raise_error({said})))").alias(one.column)


def counts(frame: DataFrame) -> dict[str, dict[str, int]]:
    """Uncastable values by column and kind, in one pass over rows that `cast` gave; empty where casts fail at once."""
    if UNCASTABLE not in frame.columns:
        return {}
    found: dict[str, dict[str, int]] = {}
    for at, count in frame.select(F.explode(UNCASTABLE).alias("at")).groupBy("at").count().sort("at").collect():
        column, _, kind = at.rpartition(":")
        found.setdefault(column, {})[kind] = count
    return found


def explain(raw: DataFrame, types: dict[str, str], settings: config.Source) -> list[Uncastable]:
    """What does not cast, by column and kind in the order of `types`, the most frequent first: a pass of its own."""
    prepared, casts = _prepare(raw, types, settings)
    fields = "struct({column} AS column, {kind} AS kind, left(CAST({raw} AS STRING), 60) AS value)"
    each = [f"if({one.bad}, {fields.format(column=literal(one.column), kind=one.kind, raw=one.raw)}, NULL)" for one in casts]
    found = prepared.select(F.explode(F.expr(f"array({', '.join(each)})")).alias("at")).where("at IS NOT NULL").select("at.*")
    times = found.groupBy("column", "kind", "value").count()
    same = Window.partitionBy("column", "kind")
    ranked = times.withColumn("total", F.sum("count").over(same))
    first = ranked.withColumn("rank", F.row_number().over(same.orderBy(F.desc("count"), "value"))).where("rank = 1")
    rows = [Uncastable(row.column, types[row.column], row.kind, row.total, row.value, row["count"]) for row in first.collect()]
    order = list(types)
    return sorted(rows, key=lambda one: (order.index(one.column), -one.count, one.kind))


def sentence(name: str, found: list[Uncastable]) -> str:
    """The error of a source with `uncastable: fail`: every column, its kinds and their commonest values."""
    total = sum(one.count for one in found)
    start = "1 value does not have its" if total == 1 else f"{total:,} values do not have their"
    return (
        f"etl.sources.{name}: {start} declared type: {_by_column(found)}. Correct the file or the columns, or say what becomes "
        f"of such values with etl.sources.{name}.uncastable: reject, or missing."
    )


def _by_column(found: list[Uncastable]) -> str:
    columns = dict.fromkeys((one.column, one.type) for one in found)
    return "; ".join(
        f"{column} {kind}: {', '.join(str(one) for one in found if one.column == column)}" for column, kind in columns
    )


def require_castable(
    name: str, raw: DataFrame, types: dict[str, str], settings: config.Source, found: dict[str, dict[str, int]]
) -> None:
    """Holds what `counts` found against `settings.max_uncastable`, a share of a column's values that are not missing.

    Raises:
        DataError: a column is above it, with its commonest values. Without uncastable values this costs nothing.
    """
    if not found or settings.max_uncastable >= 1:
        return
    prepared, casts = _prepare(raw, types, settings)
    present = prepared.agg(*[F.count(F.expr(one.raw)).alias(one.column) for one in casts if one.column in found]).collect()[0]
    for column, kinds in found.items():
        bad, values = sum(kinds.values()), present[column]
        if bad > settings.max_uncastable * values:
            values_of = [one for one in explain(raw, types, settings) if one.column == column]
            raise DataError(
                f"etl.sources.{name}.max_uncastable: {bad:,} of {values:,} values ({bad / values:.2%}) are not of the declared "
                f"type, above {settings.max_uncastable:.2%}: {_by_column(values_of)}. Correct the file, the column's type or "
                f"`clean`, or raise max_uncastable."
            )


def _prepare(raw: DataFrame, types: dict[str, str], settings: config.Source) -> tuple[DataFrame, list[_Cast]]:
    """Raw columns, and beside them cleaned ones and the values that try_cast gave: computed once, however often used."""
    wanted = _parsed(raw, types)
    of_text = {field.name for field in raw.schema if isinstance(field.dataType, T.StringType)}
    for column in settings.clean:
        if column in types and column not in of_text:
            raise ConfigError(
                f"clean: the source's column '{column}' is {raw.schema[column].dataType.simpleString()}, not text; remove it."
            )
    cleaned = {
        column: f"_rayloom_text_{column}" for column, operations in settings.clean.items() if operations and column in types
    }
    texts = [clean(F.col(quoted(column)), list(settings.clean[column])).alias(name) for column, name in cleaned.items()]
    frame = raw.select("*", *texts) if texts else raw
    casts = [_cast(column, types[column], raw.schema[column].dataType, wanted[column], cleaned.get(column)) for column in types]
    values = [f"try_cast({one.raw} AS {one.type}) AS {one.value}" for one in casts if one.value != one.raw]
    return _select(frame, values), casts


def _select(frame: DataFrame, values: list[str]) -> DataFrame:
    try:
        return frame.selectExpr("*", *values)
    except AnalysisException as error:
        # Spark's own sentence names the expression, which has both types and the column in it.
        raise ConfigError(f"columns: {str(error).splitlines()[0]:.300} Declare another type.") from None


def _parsed(raw: DataFrame, types: dict[str, str]) -> dict[str, T.DataType]:
    """Spark's type by column; NULL is what every type can be cast from, so that Spark parses each type's text."""
    schema = raw.select(*[F.lit(None).cast(type_).alias(column) for column, type_ in types.items()]).schema
    return {field.name: field.dataType for field in schema}


def _cast(column: str, declared: str, source: T.DataType, wanted: T.DataType, cleaned: str | None) -> _Cast:
    raw = value = cleaned or column
    exact, kind = None, "''"
    if source != wanted:
        value = f"_rayloom_value_{column}"
    if source != wanted and not isinstance(wanted, T.StringType):
        rule = _of_text if isinstance(source, T.StringType) else _of_value
        exact, kind = rule(column, quoted(raw), quoted(value), source, wanted)
    return _Cast(column, declared, quoted(raw), quoted(value), exact, kind)


def _of_text(column: str, raw: str, value: str, source: T.DataType, wanted: T.DataType) -> tuple[str | None, str]:
    """When a value that try_cast made of text is exact, and else why not. Spark would take a prefix, a suffix or a rounding."""
    if isinstance(wanted, _WHOLE):
        return None, _kind_of_number(raw, whole=True)
    if isinstance(wanted, _REAL):
        return _exact_real(raw, value), _kind_of_number(raw)
    if isinstance(wanted, T.DecimalType):
        return _exact_decimal(raw, value, wanted), f"if({value} IS NOT NULL, 'loses digits', {_kind_of_number(raw)})"
    if isinstance(wanted, T.DateType):
        return _is_written(raw, _DAY), _kind_of_time(raw, "", "not a date")
    if isinstance(wanted, T.TimestampType | T.TimestampNTZType):
        offset = _OFFSET if isinstance(wanted, T.TimestampType) else ""
        return _is_written(raw, f"{_DAY}({_CLOCK}{offset})?"), _kind_of_time(raw, f"({_CLOCK}{offset})?", "not a timestamp")
    if isinstance(wanted, T.BooleanType):
        return None, f"CASE WHEN {_blank(raw)} THEN 'blank' ELSE 'not a boolean' END"
    if isinstance(wanted, T.BinaryType):
        return None, "''"
    raise ConfigError(
        f"columns: text cannot become {wanted.simpleString()}, declared for '{column}'; declare STRING and parse it in a step."
    )


def _exact_real(raw: str, value: str) -> str:
    """Java's parser also takes 12d, 12f and 0x1p3, and makes 1e400 infinite. A regular expression costs three times as much."""
    no_letter = " AND ".join(f"NOT contains({raw}, '{letter}')" for letter in "dDfFxX")
    return f"if(abs({value}) = double('Infinity'), contains(lower({raw}), 'inf'), {no_letter})"


def _exact_decimal(raw: str, value: str, wanted: T.DecimalType) -> str:
    """Digits after the point are counted; where there are too many or an exponent, the slower look for zeros at the end."""
    scale, widest = wanted.scale, 38 - (wanted.precision - wanted.scale)
    plain = f"NOT contains({raw}, 'e') AND NOT contains({raw}, 'E')"
    few = f"(NOT contains({raw}, '.') OR length({raw}) - instr({raw}, '.') <= {scale})"
    zeros = f"{raw} RLIKE '^\\\\s*[+-]?\\\\d*\\\\.?\\\\d{{0,{scale}}}0*\\\\s*$'"
    exponent = f"abs(try_cast(regexp_extract({raw}, '[eE]([+-]?\\\\d+)', 1) AS INT))"
    # With an exponent there are no more digits after the point than characters and exponent together.
    fits = f"length({raw}) + {exponent} <= {widest} AND try_cast({raw} AS DECIMAL(38, {widest})) = {value}"
    return f"(({plain} AND {few}) OR {zeros} OR coalesce({raw} RLIKE '[eE]' AND {fits}, false))"


def _is_written(raw: str, form: str) -> str:
    """Spark also takes 2013, 2013-1-5, 10:00 (of today) and names of zones; one regular expression costs less than looking
    for dashes and colons with several functions."""
    return f"{raw} RLIKE '^\\\\s*{form}\\\\s*$'"


def _of_value(column: str, raw: str, value: str, source: T.DataType, wanted: T.DataType) -> tuple[str | None, str]:
    """A value of another type is exact where it comes back unchanged."""
    lost = "loses digits"
    if isinstance(wanted, _WHOLE):
        lost = "fraction"
    elif isinstance(wanted, T.DateType):
        lost = "time of day"
    return f"(try_cast({value} AS {source.simpleString()}) <=> {raw})", f"if({value} IS NULL, 'out of range', '{lost}')"


def _kind_of_number(raw: str, whole: bool = False) -> str:
    """Why text is not a number; with `whole`, not a whole one. The first that fits."""
    number = r"[+-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+-]?\\d+)?"
    kinds = {
        r"": "blank",
        r"[+-]?\\d+" if whole else number: "out of range",
        **({number: "fraction"} if whole else {}),
        r"[+-]?\\d{1,3}([,.\\x27\\xa0\\u2009\\u202f_ ]\\d{3})+([.,]\\d+)?": "grouped digits",
        r"[+-]?\\d+,\\d+": "decimal comma",
        r"[+-]?\\.?\\d(.|\\n)*": "digits then text",
        r"\\D*": "text",
    }
    cases = " ".join(f"WHEN {raw} RLIKE '^\\\\s*{pattern}\\\\s*$' THEN '{kind}'" for pattern, kind in kinds.items())
    return f"CASE {cases} ELSE 'text with digits' END"


def _kind_of_time(raw: str, clock: str, other: str) -> str:
    """Why text is not a date or a timestamp."""
    too_fine = f"WHEN {raw} RLIKE '\\\\.\\\\d{{6}}0*[1-9]' THEN 'loses digits' " if clock else ""
    hours = "" if clock else f"WHEN {raw} RLIKE '^\\\\s*{_DAY}{_CLOCK}{_OFFSET}\\\\s*$' THEN 'time of day' "
    written = f"WHEN {raw} RLIKE '^\\\\s*{_DAY}{clock}\\\\s*$' THEN 'no such time' "
    return f"CASE WHEN {_blank(raw)} THEN 'blank' {too_fine}{hours}{written}ELSE '{other}' END"


def _blank(raw: str) -> str:
    return f"{raw} RLIKE '^\\\\s*$'"
