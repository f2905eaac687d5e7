"""Dataset versions on disk: what a manifest says, where versions lie, how one is committed and found. No Ray, no Spark.

    <root>/datasets/<name>/<id>/manifest.json       written last; a folder without it does not exist
                               /train/*.parquet     likewise validation, test, quarantine

The id is the hash of what made the version (input files, ETL section, format), so the same inputs and config are found again.
A version's rows as Ray Data are `rayloom.datasets`; its rejected rows are `rayloom.quarantine`.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayloom import config
from rayloom.errors import DataError, RegistryError, hint
from rayloom.statistics import ColumnStatistics

FORMAT = 2
"""Part of every id: raise it when the same inputs and config are to give other rows, or another manifest, than before."""

MANIFEST = "manifest.json"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Content(_Part):
    """Rows and their order-independent checksum (`rayloom.checksum`), as hexadecimal text."""

    rows: int
    checksum: str


class SourceCounts(_Part):
    """What reading one source came to.

    Attributes:
        rows: rows read.
        set_aside: of them, rows put into the quarantine for a value that is not of its column's type.
        uncastable: such values by column and by kind, whatever became of them.
    """

    rows: int
    set_aside: int = 0
    uncastable: dict[str, dict[str, int]] = {}


class PatchCounts(_Part):
    """What a patch file came to: its lines (one a corrected cell), and those that met a row."""

    lines: int
    matched: int


class Manifest(_Part):
    """What a dataset version says of itself. One whose counts do not add up cannot be made.

    Attributes:
        id: hash of `format`, `name`, `inputs` and `config_hash`.
        name: the pipeline's name.
        format: the `FORMAT` that it was built with.
        made: when, ISO 8601 in UTC.
        parent: id of the version whose quarantined rows this build tried again; None for a first build.
        inputs: sha256 of each source's content.
        config: the parts of the pipeline file that decide the rows.
        config_hash: sha256 of `config`.
        columns: Spark type by column.
        rows_in: rows that were to be accepted, rejected or dropped.
        deduplicated: rows dropped because they were there already, by kind: exact, by, near.
        rejected: rows in the quarantine by rule; also 'uncastable' and the outlier columns.
        warned: rows that break a rule with `action: warn`, by rule; they are accepted.
        clipped: values clipped to a quantile, by column; their rows are accepted.
        sources: what reading each source came to.
        patch: what the patch file came to; None without one.
        splits: accepted rows by split.
        statistics: by split, of each column.
        notes: what the reader should know, such as classes that miss a split.
    """

    id: str
    name: str
    format: int
    made: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    parent: str | None = None
    inputs: dict[str, str]
    config: dict[str, Any] = {}
    config_hash: str
    columns: dict[str, str]
    rows_in: int
    deduplicated: dict[str, int] = {}
    rejected: dict[str, int]
    warned: dict[str, int] = {}
    clipped: dict[str, int] = {}
    sources: dict[str, SourceCounts] = {}
    patch: PatchCounts | None = None
    splits: dict[str, Content]
    statistics: dict[str, dict[str, ColumnStatistics]] = {}
    notes: list[str] = []

    @model_validator(mode="after")
    def _every_row_is_accounted_for(self) -> "Manifest":
        if self.rows_in != self.accepted + sum(self.rejected.values()) + sum(self.deduplicated.values()):
            raise ValueError(f"{self.balance}: these counts do not add up")
        return self

    @property
    def accepted(self) -> int:
        return sum(content.rows for content in self.splits.values())

    @property
    def balance(self) -> str:
        """Where the rows went, as '10 in = 7 accepted + 2 rejected + 1 deduplicated'."""
        rejected, dropped = sum(self.rejected.values()), sum(self.deduplicated.values())
        return f"{self.rows_in:,} in = {self.accepted:,} accepted + {rejected:,} rejected + {dropped:,} deduplicated"


@dataclass(frozen=True)
class Identity:
    """What makes a version the one it is: the fields of these names of its manifest."""

    id: str
    inputs: dict[str, str]
    config: dict[str, Any]
    config_hash: str


@dataclass(frozen=True)
class Version:
    """A committed dataset version: where it lies, and what it says of itself."""

    folder: Path
    manifest: Manifest

    @property
    def size(self) -> int:
        """Its bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def folder_of(pipeline: config.Pipeline, version: str) -> Path:
    return pipeline.storage.path() / "datasets" / pipeline.name / version


def find(folder: Path) -> Version | None:
    """The committed version at `folder`; None where there is none.

    Raises:
        DataError: there is a manifest, but it does not say what a manifest says.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    text = path.read_text()
    try:
        return Version(folder, Manifest.model_validate_json(text))
    except ValidationError as error:
        if (other := _format_of(text)) not in (None, FORMAT):
            raise DataError(
                f"{path} is of format {other}, this Rayloom reads format {FORMAT}; delete its folder, and run jobs.etl."
            ) from None
        raise DataError(f"{path} is damaged ({error.error_count()} mistakes); delete its folder to build it anew.") from None


def _format_of(text: str) -> Any:
    try:
        return json.loads(text)["format"]
    except (ValueError, KeyError, TypeError):
        return None


def versions(root: Path, name: str | None = None) -> tuple[list[Version], list[str]]:
    """The committed versions below a storage root, newest first, of one pipeline or of all.

    Returns:
        the versions, and a sentence about each that cannot be read.
    """
    found: list[Version] = []
    unreadable = []
    for path in _manifests(root, name):
        try:
            found += [version] if (version := find(path.parent)) else []
        except DataError as error:
            unreadable.append(str(error))
    return sorted(found, key=lambda version: (version.manifest.made, version.manifest.id), reverse=True), unreadable


def _manifests(root: Path, name: str | None = None) -> list[Path]:
    return sorted((root / "datasets").glob(f"{name or '*'}/[!.]*/{MANIFEST}"))


def newest(pipeline: config.Pipeline) -> Version:
    """The pipeline's version that was made last.

    Raises:
        RegistryError: it has none.
    """
    found, _ = versions(pipeline.storage.path(), pipeline.name)
    if not found:
        raise RegistryError(f"There is no dataset version of {pipeline.name} in {pipeline.storage.path()}; run jobs.etl.")
    return found[0]


def get(pipeline: config.Pipeline, wanted: str) -> Version:
    """The version below the pipeline's storage root whose id is `wanted`, or begins with it; of a pipeline's name, its newest.

    Raises:
        RegistryError: there is none, or there are several.
    """
    root = pipeline.storage.path() / "datasets"
    folders = {path.parent.name: path.parent for path in _manifests(root.parent)}
    if wanted in {folder.parent.name for folder in folders.values()}:
        return newest(pipeline.model_copy(update={"name": wanted}))
    fitting = [wanted] if wanted in folders else [name for name in sorted(folders) if wanted and name.startswith(wanted)]
    if len(fitting) > 1:
        ids = ", ".join(fitting)
        raise RegistryError(f"'{wanted}' begins the ids of {len(fitting)} dataset versions: {ids}; give more of the id.")
    version = find(folders[fitting[0]]) if fitting else None
    if version is None:
        raise RegistryError(f"There is no dataset version {wanted} in {root}; run jobs.etl{hint(wanted, folders)}")
    return version


def lineage(version: Version) -> list[Version]:
    """A version and those that it is a replay of, as far as they are still there, newest first."""
    chain, seen = [version], {version.manifest.id}
    while (parent := chain[-1].manifest.parent) and parent not in seen:
        found = find(version.folder.with_name(parent))
        if found is None:
            break
        chain.append(found)
        seen.add(parent)
    return chain


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """An empty folder to build a version in, beside its final place; removed unless `commit` has moved it.

    What a crashed build left is removed first: it is known by the process id in its name, which no longer lives.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in folder.parent.glob(".building-*"):
        if not Path(f"/proc/{abandoned.name.rsplit('-', 1)[-1]}").exists():
            shutil.rmtree(abandoned, ignore_errors=True)
    place = folder.with_name(f".building-{folder.name}-{os.getpid()}")
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def commit(place: Path, folder: Path, manifest: Manifest) -> None:
    """Makes a built version visible: manifest first, flushed to disk, then one rename."""
    with (place / MANIFEST).open("w") as file:
        file.write(manifest.model_dump_json(indent=2))
        file.flush()
        os.fsync(file.fileno())
    try:
        place.rename(folder)
    except OSError:
        if find(folder) is None:  # else another process has committed the same version in the meantime: theirs is ours
            raise
