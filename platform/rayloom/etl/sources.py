"""Input files: where they are, what their header says, what their content's fingerprint is. No Spark."""

import csv
import hashlib
import io
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import sqlglot

from rayloom import config
from rayloom.errors import ConfigError, SourceError, hint

MAX_UNPACKED_BYTES = 64 * 2**30
"""A zip that claims to unpack to more is refused before it fills the disk."""


@dataclass(frozen=True)
class SourceFile:
    """A source whose file is there and whose header has the declared columns.

    Attributes:
        name: the source's name in the pipeline file.
        path: the file on this machine.
        types: Spark type by declared column.
        header: the file's columns in its order, declared or not.
        missing: the text that stands for a missing value.
    """

    name: str
    path: Path
    types: dict[str, str]
    header: list[str]
    missing: str

    def ddl(self) -> str:
        """Spark DDL of the whole file, in the header's order; columns that were not declared are text."""
        return ", ".join(f"`{column}` {self.types.get(column, 'STRING')}" for column in self.header)


def open_source(name: str, source: config.Source) -> SourceFile:
    """Finds a source's file and holds its header against the declared columns.

    Raises:
        ConfigError: `columns` is not a Spark DDL list.
        SourceError: the file or package is missing, is not CSV or a zip with one CSV, or lacks a declared column.
    """
    types = declared_types(name, source.columns)
    path = locate(name, source.path)
    header = _read_header(path)
    for column in types:
        if column not in header:
            raise SourceError(f"{path}: no column '{column}', which etl.sources.{name}.columns declares{hint(column, header)}")
    return SourceFile(name, path, types, header, source.missing)


def declared_types(name: str, ddl: str) -> dict[str, str]:
    """Spark type by column of a DDL list.

    >>> declared_types("flights", "year INT, carrier STRING")
    {'year': 'INT', 'carrier': 'STRING'}
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
    return {column.name: column.kind.sql(dialect="spark") for column in definitions if column.kind}


def locate(name: str, path: str) -> Path:
    """The file that a source's `path` means: a path, or package:NAME/FILE, found without importing the package."""
    if not path.startswith("package:"):
        found = Path(path).expanduser().resolve()
        remedy = f"correct etl.sources.{name}.path"
    else:
        package, _, inner = path.removeprefix("package:").partition("/")
        spec = find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(f"etl.sources.{name}: the package '{package}' is not installed; run `pip install {package}`.")
        found = Path(spec.submodule_search_locations[0]) / inner
        remedy = f"install the version of {package} that constraints.txt names"
    if not found.is_file():
        raise SourceError(f"etl.sources.{name}: there is no file {found}; {remedy}.")
    return found


def fingerprint(path: Path) -> str:
    """sha256 of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(file: SourceFile, folder: Path) -> Path:
    """A file that Spark can read: the file itself, or the CSV inside a zip, written into `folder`."""
    if file.path.suffix != ".zip":
        return file.path
    target = folder / f"{file.name}.csv"
    with _open_bytes(file.path) as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 2**20)
    return target


def _read_header(path: Path) -> list[str]:
    try:
        with _open_bytes(path) as file:
            header = next(csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline="")), [])
    except (csv.Error, zlib.error) as error:
        raise SourceError(f"{path}: the header cannot be read ({error}); fetch the file again.") from None
    except UnicodeDecodeError:
        raise SourceError(f"{path}: the header is not UTF-8 text; convert the file to UTF-8.") from None
    if not any(header):
        raise SourceError(f"{path} is empty; it needs a header line with the columns' names.")
    return header


@contextmanager
def _open_bytes(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix != ".zip":
        with path.open("rb") as file:
            yield file
        return
    try:
        with zipfile.ZipFile(path) as archive:
            members = [item for item in archive.infolist() if not item.is_dir()]
            if len(members) != 1:
                raise SourceError(f"{path} holds {len(members)} files; a zipped source holds one CSV file.")
            if members[0].file_size > MAX_UNPACKED_BYTES:
                raise SourceError(
                    f"{path} unpacks to {members[0].file_size:,} bytes, over the limit of {MAX_UNPACKED_BYTES:,}."
                )
            with archive.open(members[0]) as file:
                yield file
    except zipfile.BadZipFile:
        raise SourceError(f"{path} is not a whole zip file; fetch it again.") from None
