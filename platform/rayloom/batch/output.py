"""What a batch prediction leaves in its folder, and what of it is whole after a crash.

    plan.json                  what is predicted: model, inputs with their checksums, blocks; written first
    predictions/part-*.parquet a part a block; the folder is a Parquet data set
    failed/part-*.parquet      rows that could not be predicted, with the reason; only where there are some
    manifest.json              plan, parts with checksums, counts; written last and at once: with it, all is whole

A part has its block's number for a name, and is renamed from a temporary one after its failed rows are there: a part that
exists is whole, so it is not made again, and one that is made again is the same.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rayloom.batch.inputs import Block, Input
from rayloom.errors import ConfigError, DataError, hint

FORMAT = 1
"""Counts up where an older folder cannot be gone on with."""

PLAN, MANIFEST, PREDICTIONS, FAILED = "plan.json", "manifest.json", "predictions", "failed"
NOTE = b"rayloom.part"
"""Key of a part's own description in its Parquet metadata."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Plan(_Record):
    """What is predicted, and by what.

    Attributes:
        model: the registered model's name.
        version: its version.
        bundle: sha256 of the bundle's manifest.
        config: sha256 of what in the pipeline file decides rows and answers.
        source: a dataset version's id and splits, or the pattern of files.
        root: the folder that the inputs' paths are below.
        keep: input columns that the parts have as well.
        missing: cells of CSV files that hold no value.
        classes: of the label, in the order of `probabilities`.
        rows: of a block.
    """

    format: int = FORMAT
    made: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    model: str
    version: int
    bundle: str
    config: str
    source: str
    root: str
    keep: list[str]
    missing: list[str]
    classes: list[int] | list[str]
    rows: int
    inputs: list[Input]

    @property
    def blocks(self) -> list[Block]:
        return [block for one in self.inputs for block in one.blocks]

    @property
    def id(self) -> str:
        """What the parts of one plan have in common: a hash of all but when and where."""
        return hashlib.sha256(self.model_dump_json(exclude={"made", "root"}).encode()).hexdigest()[:16]

    @property
    def total(self) -> int:
        """Rows of all inputs; blank lines of text files among them."""
        return sum(one.rows for one in self.inputs)


class Part(_Record):
    """A block's outcome.

    Attributes:
        block: its number.
        rows: predicted rows.
        failed: rows that could not be predicted.
        blank: blank lines of a text file.
        sha256: of the part's file; "" within the file itself.
        reason: of its first failed row.
    """

    plan: str
    block: int
    rows: int
    failed: int
    blank: int = 0
    sha256: str = ""
    reason: str = ""


class Counts(_Record):
    rows_in: int
    predicted: int
    failed: int

    @model_validator(mode="after")
    def _every_row_is_accounted_for(self) -> "Counts":
        if self.rows_in != self.predicted + self.failed:
            raise ValueError(f"{self.rows_in} in, {self.predicted} predicted and {self.failed} failed: they do not add up")
        return self


class Manifest(_Record):
    """A whole batch prediction."""

    plan: Plan
    counts: Counts
    parts: list[Part]


def part_path(folder: Path, block: int) -> Path:
    return folder / PREDICTIONS / f"part-{block:06d}.parquet"


def failed_path(folder: Path, block: int) -> Path:
    return folder / FAILED / f"part-{block:06d}.parquet"


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what is written there is flushed to disk and renamed at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield place
        with place.open("rb") as file:
            os.fsync(file.fileno())
        place.rename(path)
    finally:
        place.unlink(missing_ok=True)


def write_json(path: Path, record: BaseModel) -> None:
    with staged(path) as place:
        place.write_text(record.model_dump_json(indent=2))


def begin(folder: Path, plan: Plan) -> dict[int, Part]:
    """Writes the plan of a new prediction, which has no parts yet.

    Raises:
        ConfigError: there is something in it.
    """
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise ConfigError(f"--output {folder} is not empty; name another folder, or go on with it: --resume {folder}.")
    write_json(folder / PLAN, plan)
    return {}


def find(wanted: str, root: Path) -> Path:
    """The folder of a prediction to go on with.

    Args:
        wanted: a path, the name of a folder below `root`, or 'latest'.

    Raises:
        ConfigError: it is none.
    """
    known = [path.parent.name for path in sorted(root.glob(f"*/{PLAN}"), key=lambda path: path.stat().st_mtime)]
    if wanted == "latest" and known:
        return root / known[-1]
    for folder in (Path(wanted).expanduser().resolve(), root / wanted):
        if (folder / PLAN).is_file():
            return folder
    raise ConfigError(f"--resume {wanted:.200}: no batch prediction was begun there{hint(wanted, known)}")


def resume(folder: Path, plan: Plan) -> dict[int, Part]:
    """Holds what a prediction was begun with against what it is to go on with, and finds the parts that are there.

    Raises:
        ConfigError: they differ; the sentence says in what.
        DataError: plan.json is damaged.
    """
    begun = _read_plan(folder / PLAN)
    if reason := _difference(begun, plan):
        raise ConfigError(f"--resume {folder}: {reason}, or leave --resume out to predict all anew.")
    return whole(folder, plan)


def _read_plan(path: Path) -> Plan:
    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise DataError(f"{path} is of format {data.get('format')}, this Rayloom reads {FORMAT}; predict all anew.")
        return Plan.model_validate(data)
    except (ValidationError, ValueError) as error:
        raise DataError(f"{path} is damaged ({str(error).splitlines()[0]:.100}); predict all anew.") from None


def _difference(begun: Plan, now: Plan) -> str | None:
    """In what two plans differ, with the remedy."""
    if (begun.model, begun.version, begun.bundle) != (now.model, now.version, now.bundle):
        same = " with another bundle" if (begun.model, begun.version) == (now.model, now.version) else ""
        return (
            f"it was begun with {begun.model} v{begun.version}, and this is {now.model} v{now.version}{same}; "
            f"give --model {begun.version}"
        )
    if begun.source != now.source:
        return f"it was begun over {begun.source}, and this is {now.source}; give the same input"
    if changed := _changed_input(begun, now):
        return f"{changed}; restore it"
    for name, given in {"keep": "--keep", "missing": "--missing"}.items():
        before, after = (",".join(getattr(plan, name)) for plan in (begun, now))
        if before != after:
            return f"it was begun with {given} '{before}', and this is '{after}'; give the same"
    if begun.config != now.config:
        return "the pipeline file has other features or another etl section than when it was begun; restore them"
    return None if begun.id == now.id else "it was begun by another version of Rayloom; install that one"


def _changed_input(begun: Plan, now: Plan) -> str | None:
    before, after = ({one.file: one.sha256 for one in plan.inputs} for plan in (begun, now))
    for file in sorted({*before, *after}):
        if file not in after:
            return f"the input {file} is gone"
        if file not in before:
            return f"the input {file} is new"
        if before[file] != after[file]:
            return f"the input {file} has changed since it was begun (its sha256 differs)"
    return None


def whole(folder: Path, plan: Plan) -> dict[int, Part]:
    """The parts that are there, by block; what a crash left under temporary names is removed."""
    for place in (PREDICTIONS, FAILED):
        for left in (folder / place).glob(".part-*"):
            left.unlink(missing_ok=True)
    key = plan.id
    found = {block: _read_part(folder, block, key) for block in range(len(plan.blocks))}
    return {block: part for block, part in found.items() if part is not None}


def _read_part(folder: Path, block: int, plan: str) -> Part | None:
    path = part_path(folder, block)
    with suppress(OSError, pa.ArrowInvalid, KeyError, ValidationError):
        part = Part.model_validate_json(pq.read_metadata(path).metadata[NOTE])
        failed_is_there = not part.failed or failed_path(folder, block).is_file()
        if (part.plan, part.block) == (plan, block) and failed_is_there:
            return with_checksum(part, path)
    return None


def with_checksum(part: Part, path: Path) -> Part:
    with path.open("rb") as file:
        return part.model_copy(update={"sha256": hashlib.file_digest(file, "sha256").hexdigest()})


def commit(folder: Path, plan: Plan, parts: dict[int, Part]) -> Manifest:
    """Says that all is whole.

    Raises:
        DataError: a part is missing, or has not as many rows as its block.
    """
    for number, block in enumerate(plan.blocks):
        part = parts.get(number)
        found = part.rows + part.failed + part.blank if part else 0
        if part is None or found != block.rows:
            raise DataError(f"Part {number} of {folder} has {found:,} of its block's {block.rows:,} rows; report this line.")
    blank = sum(part.blank for part in parts.values())
    counts = Counts(
        rows_in=plan.total - blank,
        predicted=sum(part.rows for part in parts.values()),
        failed=failed_rows(parts),
    )
    manifest = Manifest(plan=plan, counts=counts, parts=[parts[number] for number in sorted(parts)])
    write_json(folder / MANIFEST, manifest)
    return manifest


def failed_rows(parts: dict[int, Part]) -> int:
    return sum(part.failed for part in parts.values())


def require_few(failed: int, most: float, plan: Plan, parts: dict[int, Part]) -> None:
    """Ends a prediction in which too many rows have failed so far.

    Args:
        failed: rows of `parts` that have failed.
        most: the share of all rows that may fail.

    Raises:
        DataError: with the figures and the first reason.
    """
    if failed <= most * plan.total:
        return
    first = next(parts[number] for number in sorted(parts) if parts[number].failed)
    raise DataError(
        f"{failed:,} of {plan.total:,} rows failed ({failed / plan.total:.1%}) when {len(parts)} of {len(plan.blocks)} parts "
        f"were done, --max-failed allows {most:.1%}; the first, in {plan.blocks[first.block].file}: {first.reason}. Correct "
        f"the rows, or go on with --resume and a larger --max-failed."
    )


def figures(manifest: Manifest) -> dict[str, Any]:
    """The counts for a summary."""
    return {"in": manifest.counts.rows_in, "predicted": manifest.counts.predicted, "failed": manifest.counts.failed}
