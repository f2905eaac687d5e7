"""The ETL section of the pipeline file: what Spark does with the sources, in the order of the keys here."""

import datetime
import math
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from rayloom.config.base import Memory, Name, Resources, Section, Share
from rayloom.config.sources import Source

SPLITS = ("train", "validation", "test")


class Step(Section):
    """A Spark SQL query over the sources and earlier steps, with what it promises."""

    name: Name
    sql: str
    keeps: Name | None = Field(default=None, description="the source or step whose number of rows this one must have")
    unique: list[str] = Field(default=[], description="columns whose combination may occur once")


class NearDuplicates(Section):
    """Texts whose sets of word shingles overlap: Jaccard similarity at or above `similarity`, found by MinHash."""

    column: str
    similarity: float = Field(default=0.8, gt=0, le=1)
    shingle: int = Field(default=3, ge=1, le=20, description="words in a shingle")


class Deduplicate(Section):
    """Rows that are there already: the first in `order_by` stays, or of equal keys the newest."""

    exact: bool = Field(default=False, description="rows equal in all columns count once")
    by: list[str] = Field(default=[], description="rows equal in these columns count once; a NULL among them equals nothing")
    newest: str | None = Field(default=None, description="of rows equal in `by`, the one with the largest value here stays")
    near: NearDuplicates | None = None

    @model_validator(mode="after")
    def _newest_of_what(self) -> "Deduplicate":
        if self.newest and not self.by:
            raise ValueError("etl.deduplicate.newest needs `by`: the columns in which rows are equal; add it")
        return self


class Outliers(Section):
    """Values outside two quantiles of a column: clipped to them, or their rows rejected."""

    column: str
    lower: float = Field(default=0.0, ge=0, le=1, description="quantile, over the training split's rows")
    upper: float = Field(default=1.0, ge=0, le=1)
    action: Literal["clip", "reject"] = "clip"

    @model_validator(mode="after")
    def _ordered(self) -> "Outliers":
        if self.lower >= self.upper:
            raise ValueError(
                f"etl.outliers ({self.column}): lower {self.lower:g} is not below upper {self.upper:g}; correct them"
            )
        return self


def _iso(value: object) -> object:
    """YAML reads 2013-10-01 as a date: back to the text it was."""
    return value.isoformat() if isinstance(value, datetime.date) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a bound is a finite number, found {value}; write null for no bound")
    return value


Bound = Annotated[int | float | str | None, BeforeValidator(_iso), AfterValidator(_finite)]
Value = Annotated[str | int | float | bool, BeforeValidator(_iso)]


class ForeignKey(Section):
    """Values of `columns` must occur together in `to` of `table`, a source or step; rows with a NULL among them pass."""

    columns: list[str] = Field(min_length=1)
    table: Name
    to: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _as_many(self) -> "ForeignKey":
        if len(self.columns) != len(self.to):
            raise ValueError("foreign_key: `columns` and `to` name different numbers of columns; name as many")
        return self


CHECKS = ("where", "not_null", "range", "allowed", "regex", "unique", "foreign_key")


def _require_range(place: str, least: Any, most: Any) -> None:
    if least is None and most is None:
        raise ValueError(f"{place} has no bound; give one")
    if least is None or most is None:
        return
    if isinstance(least, str) != isinstance(most, str):
        raise ValueError(f"{place} has a number and a text, {least!r} and {most!r}; write both alike")
    if least > most:
        raise ValueError(f"{place}: least {least!r} is above most {most!r}; exchange them")


class Rule(Section):
    """What a row must fulfil to be accepted: one check, and what happens to rows that break it.

    `where` and `not_null` reject NULL; the other checks let it pass, so that a missing value is said to be missing by one rule
    only. Of several columns in `unique` or `foreign_key`, one NULL is enough to pass. NaN is outside every `range`.
    """

    name: Name
    where: str | None = Field(default=None, description="a Spark SQL condition; NULL does not fulfil it")
    not_null: list[str] | None = Field(default=None, min_length=1)
    range: dict[str, Annotated[list[Bound], Field(min_length=2, max_length=2)]] | None = Field(
        default=None, min_length=1, description="by column [least, most], both inclusive; null for no bound; text for dates"
    )
    allowed: dict[str, Annotated[list[Value], Field(min_length=1)]] | None = Field(
        default=None, min_length=1, description="by column the values it may have"
    )
    regex: dict[str, str] | None = Field(
        default=None, min_length=1, description="by column what the whole text must match (Java syntax)"
    )
    unique: list[str] | None = Field(
        default=None, min_length=1, description="columns; of rows that fulfil the rules above, the first in order_by fulfils it"
    )
    foreign_key: ForeignKey | None = None
    action: Literal["reject", "fail", "warn"] = "reject"
    above: Share = Field(default=0.0, description="with `action: fail`: the share of rows that may break the rule, set aside")

    @model_validator(mode="after")
    def _one_check(self) -> "Rule":
        given = [name for name in CHECKS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"etl.rules ({self.name}): a rule has one of {', '.join(CHECKS)}, found {' and '.join(given) or 'none'}"
            )
        if self.above and self.action != "fail":
            raise ValueError(f"etl.rules ({self.name}): `above` goes with `action: fail`, found '{self.action}'; correct one")
        for column, (least, most) in (self.range or {}).items():
            _require_range(f"etl.rules ({self.name}): range of {column}", least, most)
        return self

    @property
    def check(self) -> str:
        """The name of its check."""
        return next(name for name in CHECKS if getattr(self, name) is not None)


def moment(text: str, zone: str = "UTC") -> datetime.datetime:
    """A date or timestamp of the pipeline file as a point of time; one without an offset is in `zone`.

    >>> moment("2013-10-01", "America/New_York").isoformat()
    '2013-10-01T00:00:00-04:00'
    """
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))


def _require_moment(text: str) -> str:
    try:
        moment(text)
    except ValueError:
        raise ValueError(f"'{text}' is no moment of the calendar; correct it") from None
    return text


ISO = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?$"

Moment = Annotated[str, Field(pattern=ISO), BeforeValidator(_iso), AfterValidator(_require_moment)]


class Conditions(Section):
    """Splits by Spark SQL conditions; each accepted row must fulfil exactly one of them."""

    train: str
    validation: str
    test: str


class Shares(Section):
    train: Share
    validation: Share
    test: Share

    @model_validator(mode="after")
    def _whole(self) -> "Shares":
        if abs(self.train + self.validation + self.test - 1) > 1e-9 or 0 in (self.train, self.validation, self.test):
            raise ValueError("etl.splits.shares: train, validation and test are each above 0 and make 1 together; correct them")
        return self


class ByHash(Section):
    """Splits by a hash of `key`: a row keeps its side whatever the order, the partitioning, or the rows beside it.

    random: `key` tells rows apart (default: order_by). group: rows with equal `key` stay together.
    stratified: like random, drawn anew within each value of `stratum`; values that miss a split are named.
    Shares are those that many rows come near to: a row's side is drawn for itself, without counting the others.
    """

    by: Literal["random", "stratified", "group"]
    shares: Shares = Shares(train=0.8, validation=0.1, test=0.1)
    key: list[str] | None = Field(default=None, min_length=1)
    stratum: str | None = None
    seed: int = Field(default=0, description="another seed draws other sides")

    @model_validator(mode="after")
    def _complete(self) -> "ByHash":
        if self.by == "group" and not self.key:
            raise ValueError("etl.splits: `by: group` needs `key`, the columns whose equal values stay together; add it")
        if (self.by == "stratified") != (self.stratum is not None):
            raise ValueError("etl.splits: `stratum`, a column, goes with `by: stratified` and only with it; correct one")
        return self


class ByTime(Section):
    """Splits by time: train before `validation_from`, validation before `test_from`, test from then on."""

    by: Literal["time"]
    column: str
    validation_from: Moment = Field(
        description="a date or timestamp, as 2013-10-01 or 2013-10-01T00:00:00Z; without an offset in etl.time_zone"
    )
    test_from: Moment


def _splits_kind(value: object) -> str:
    by = value.get("by") if isinstance(value, dict) else getattr(value, "by", None)
    return {None: "conditions", "time": "time"}.get(by, "hash")


Splits = Annotated[
    Annotated[Conditions, Tag("conditions")] | Annotated[ByHash, Tag("hash")] | Annotated[ByTime, Tag("time")],
    Discriminator(_splits_kind),
]


def _require_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone '{zone}' is known; write one as 'UTC' or 'Europe/Zurich'") from None
    return zone


TimeZone = Annotated[str, AfterValidator(_require_zone)]

LEAST_MEMORY = 512
"""MiB of the smallest executor: Spark keeps 300 for itself and refuses to start below 450, which a JVM has of 512."""


def _require_memory(memory: str) -> str:
    if memory.endswith("m") and int(memory[:-1]) < LEAST_MEMORY:
        raise ValueError(
            f"executor_memory: {memory} is too little for Spark, which keeps 300m of it; write {LEAST_MEMORY}m or more"
        )
    return memory


ExecutorMemory = Annotated[Memory, AfterValidator(_require_memory)]

RESERVED = ("uncastable", "outlier_", "duplicate_")
"""Names, and beginnings of names, under which rows are set aside by no rule."""


class Etl(Section):
    """What Spark does, and what it may use."""

    sources: dict[Name, Source] = Field(min_length=1)
    steps: list[Step] = Field(default=[], description="may be left out where there is one source")
    patch: str | None = Field(default=None, description="corrections of quarantined rows; see `rayloom quarantine replay`")
    deduplicate: Deduplicate = Deduplicate()
    rules: list[Rule] = []
    outliers: list[Outliers] = []
    max_rejected: Share = Field(default=1.0, description="the share of rejected rows above which the build ends")
    splits: Splits
    order_by: list[str] = Field(min_length=1, description="columns that give the rows one order, whatever the partitioning")
    time_zone: TimeZone = Field(default="UTC", description="of timestamps that do not say theirs")
    handoff: Literal["parquet", "memory"] = Field(default="parquet", description="how the rows of a new version reach Ray Data")
    executors: int = Field(default=1, ge=1, le=1000)
    executor_cores: int | None = Field(default=None, ge=1, le=256, description="default: what the cluster has, up to 4")
    executor_memory: ExecutorMemory = "2g"
    partitions: int = Field(default=4, ge=1, le=100_000, description="Spark's shuffle partitions")
    resources: Resources = Field(default={}, description="Ray resources an executor asks for besides its CPUs")

    @model_validator(mode="after")
    def _rows(self) -> "Etl":
        if not self.steps and len(self.sources) > 1:
            raise ValueError("etl.steps is missing, and there are several sources: say by a step which rows are meant")
        return self

    @model_validator(mode="after")
    def _names(self) -> "Etl":
        names = [rule.name for rule in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"etl.rules: {names.count(name)} rules have the name '{name}'; rows are counted by it: rename one"
                )
            if name.startswith(RESERVED):
                raise ValueError(f"etl.rules ({name}): names with {', '.join(RESERVED)} are taken by the build; rename it")
        return self

    @model_validator(mode="after")
    def _times(self) -> "Etl":
        if isinstance(self.splits, ByTime):
            first, then = self.splits.validation_from, self.splits.test_from
            if moment(first, self.time_zone) >= moment(then, self.time_zone):
                raise ValueError(f"etl.splits: validation_from {first} is not before test_from {then}; correct them")
        return self

    @property
    def rows(self) -> str:
        """The name of the step, or of the only source, whose rows become the dataset version."""
        return self.steps[-1].name if self.steps else next(iter(self.sources))
