"""The sources of a pipeline file: one section a kind of input. Reading them is `rayloom.etl.sources`."""

import datetime
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from rayloom.config.base import Section, Share

Cleaning = Literal["trim", "lower", "unicode", "text"]
"""trim: outer white space; lower: lower case; unicode: NFC; text: NFKC, no control characters, runs of white space as one."""

Paths = str | Annotated[list[str], Field(min_length=1)]

PATH = (
    "a file, a folder (the files in it), a glob (** is any folders), or a list of them: on this machine, s3://bucket/…, "
    "hdfs://host/…, or package:NAME/FILE for what an installed package brings"
)

FOLDER = "a folder with a folder for each label: on this machine, s3://bucket/…, hdfs://host/…, or package:NAME/FOLDER"


class _Source(Section):
    columns: str | None = Field(
        default=None, description="Spark DDL, as 'year INT, carrier STRING'; `rayloom schema infer` proposes it"
    )
    clean: dict[str, list[Cleaning]] = Field(default={}, description="what to do to a column's text before it is cast")
    uncastable: Literal["fail", "reject", "missing"] = Field(
        default="fail",
        description="a value that is not of its declared type: end the build, set the row aside, or count it as missing",
    )
    max_uncastable: Share = Field(
        default=1.0, description="the share of uncastable values in a column above which the build ends"
    )


class Csv(_Source):
    """CSV (RFC 4180, UTF-8, a header line), also as .csv.zip or .csv.gz. Files are matched by their headers' names."""

    kind: Literal["csv"] = "csv"
    path: Paths = Field(description=PATH)
    delimiter: str = ","
    missing: str | list[str] = Field(
        default="",
        description="the texts that stand for a missing value, quoted or not, before trimming; an empty cell always does",
    )

    @field_validator("delimiter")
    @classmethod
    def _separates(cls, delimiter: str) -> str:
        if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
            raise ValueError(
                f"delimiter: {delimiter!r:.20} is not one ASCII character that can stand between cells; write ';' or '\\t'"
            )
        return delimiter


class Json(_Source):
    """JSON lines: an object a line, also as .jsonl.zip or .jsonl.gz. A key that a line lacks is missing."""

    kind: Literal["json"] = "json"
    path: Paths = Field(description=PATH)


class Parquet(_Source):
    """Parquet; its own types, or those of `columns`."""

    kind: Literal["parquet"] = "parquet"
    path: Paths = Field(description=PATH)


class _Folder(_Source):
    path: str = Field(description=FOLDER)

    @field_validator("columns")
    @classmethod
    def _has_its_own(cls, columns: str | None) -> None:
        if columns is not None:
            raise ValueError("`columns` does not go with a folder of files, which has path, label and its content; remove it")


class Text(_Folder):
    """A folder of text files: path STRING (within the folder), label STRING (the name of the file's folder), text STRING."""

    kind: Literal["text"] = "text"
    pattern: str = Field(default="*.txt", description="names of the files")
    encoding: str | Annotated[list[str], Field(min_length=1)] = Field(
        default="utf-8",
        description="as Python names it; of several, the first that can decode a file as a whole. Other bytes end the build",
    )

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str | list[str]) -> str | list[str]:
        for one in [encoding] if isinstance(encoding, str) else encoding:
            try:
                "x".encode(one)
            except LookupError:
                raise ValueError(
                    f"there is no text encoding '{one}'; name one as Python does: utf-8, latin-1, cp1252"
                ) from None
        return encoding


class Images(_Folder):
    """A folder of image files: path STRING (within the folder), label STRING (the name of the file's folder), image BINARY."""

    kind: Literal["images"] = "images"
    pattern: str = Field(default="*.png", description="names of the files")


class Sql(_Source):
    """What a query of a database answers. The password comes from PGPASSWORD or ~/.pgpass, never from this file."""

    kind: Literal["sql"] = "sql"
    url: str = Field(description="sqlite:///FILE (a path; /FILE for an absolute one) or postgresql://user@host:port/database")
    query: str = Field(description="one SELECT, in the database's dialect")

    @field_validator("url")
    @classmethod
    def _understood(cls, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        if scheme not in ("sqlite", "postgresql", "postgres") or not separator:
            raise ValueError(
                "the url names no database that can be read; write sqlite:///FILE or postgresql://user@host/database"
            )
        if scheme == "sqlite" and not rest.removeprefix("/"):
            raise ValueError("the url names no file; write sqlite:///FILE, or sqlite:////FILE for an absolute path")
        # Not urlsplit(url).password: it may raise on what a password holds, and what is raised may show it.
        user = rest.partition("?")[0].rpartition("@")[0]
        if scheme != "sqlite" and (user.partition(":")[2] or "password" in parse_qs(urlsplit(url).query)):
            raise ValueError("a password does not belong into a pipeline file; remove it from the url and set PGPASSWORD")
        return url


class Delta(_Source):
    """A Delta table as it is, at a version, or at a time."""

    kind: Literal["delta"] = "delta"
    path: str = Field(description="the table's folder: on this machine or s3://bucket/…")
    version: int | None = Field(default=None, ge=0)
    timestamp: str | None = Field(default=None, description="ISO 8601 with an offset, as 2024-07-01T00:00:00Z")

    @field_validator("timestamp", mode="before")
    @classmethod
    def _moment(cls, value: Any) -> Any:
        """YAML reads an unquoted timestamp as one: back to text. Without an offset nobody knows which moment is meant."""
        value = value.isoformat() if isinstance(value, datetime.datetime | datetime.date) else value
        if isinstance(value, str):
            try:
                known = datetime.datetime.fromisoformat(value).tzinfo is not None
            except ValueError:
                known = False
            if not known:
                raise ValueError(f"timestamp: '{value:.40}' is no moment; write ISO 8601 with an offset, 2024-07-01T00:00:00Z")
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> "Delta":
        if self.version is not None and self.timestamp is not None:
            raise ValueError("a Delta table is read at a `version` or at a `timestamp`; remove one")
        return self


_KIND_BY_SUFFIX = {"parquet": "parquet", "jsonl": "json", "ndjson": "json", "json": "json"}


def _kind(value: Any) -> str:
    """The kind that a source says it is; where it does not say, its first path's suffix decides, and else it is CSV."""
    if isinstance(value, Section):
        return value.kind  # type: ignore[attr-defined]
    if not isinstance(value, dict):
        return "csv"
    if "kind" in value:
        return str(value["kind"])
    path = value.get("path", "")
    first = str(path[0] if isinstance(path, list) and path else path)
    suffix = first.removesuffix(".gz").removesuffix(".zip").rpartition(".")[2]
    return _KIND_BY_SUFFIX.get(suffix, "csv")


Source = Annotated[
    Annotated[Csv, Tag("csv")]
    | Annotated[Json, Tag("json")]
    | Annotated[Parquet, Tag("parquet")]
    | Annotated[Text, Tag("text")]
    | Annotated[Images, Tag("images")]
    | Annotated[Sql, Tag("sql")]
    | Annotated[Delta, Tag("delta")],
    Discriminator(_kind),
]
