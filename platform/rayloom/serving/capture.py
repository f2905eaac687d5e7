"""Sampled requests and their answers in Parquet files, for drift detection: what others call data capture or inference tables.

    serving/NAME-records/model_version=3/20261128T160501123456-5f0c9a71e2b4d860-000000.parquet     below storage.root

    pandas.read_parquet("serving/flights-records")                                    # every version, each named in a column
    pyarrow.dataset.dataset("serving/flights-records", partitioning="hive").to_table()

A row is a record as the model got it: its fields, of the types in `Schema.arrow`, and beside them
    _time            timestamp: when it was answered, in UTC
    _request         string: the request's id, as the reply's x-request-id and the log have it; deploy's own begin with "check-"
    _row             int32: the record's place in the request, from 0
    _label           int64 or string: the class that was answered
    _probability     double: as answered: of the second of two classes, of the label for more
    _probabilities   map<string, double>: of each class, for more than two
    _unseen          list<string>: fields with a category that training did not know
    _cut             list<string>: fields whose text was cut, or whose image was left out, since they were too large
All files of a version have one schema; versions of other fields are read apart (".../model_version=3"). Headers are not kept,
so no key is.

Serving never waits for the disk: the loop appends to a bounded queue, and drops and counts what finds no room. A thread writes,
each file under a hidden name first, so that a reader finds whole files alone. What is not in a file yet, `rotate_s` seconds at
most, is lost if the process is killed; a replica that ends in order writes it.
"""

import logging
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayloom import config
from rayloom.serving.batching import Answers, joined
from rayloom.serving.schema import Columns, Schema

GATHER_S = 0.25
"""Seconds between two looks of the thread at the queue: few rows at once, since it takes the interpreter from the loop."""

WAITING_BYTES = 64 * 2**20
"""Bodies' bytes that may be in the queue, whatever number of rows they are."""

LEFT_S = 3600.0
"""Seconds after which an unfinished file is one that a killed process left."""

NAMED = re.compile(r"\d{8}T\d{12}-[0-9a-z]{1,16}-\d{6,}\.parquet")

logger = logging.getLogger("rayloom.serving")


class Taken(NamedTuple):
    """A sampled request.

    Attributes:
        moment: seconds since 1970.
        request: its id.
        size: bytes of its body.
        columns: n checked values of each field.
        answers: n.
    """

    moment: float
    version: int
    schema: Schema
    request: str
    size: int
    columns: Columns
    answers: Answers


class Found(NamedTuple):
    """A file of records: seconds since 1970, and bytes."""

    path: Path
    written: float
    size: int


@dataclass
class Part:
    """Rows of one version that are to become a file."""

    began: float
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0


class Capture:
    """What one replica keeps.

    Args:
        folder: of the model's records.
        replica: letters and digits that no other replica of the model has, the first 16 of which count.
        clock: seconds since 1970; tests have their own.
    """

    def __init__(self, settings: config.Records, folder: Path, replica: str, clock: Callable[[], float] = time.time):
        self.settings, self.folder, self.replica, self.clock = settings, folder, replica[:16], clock
        self.waiting: deque[Taken] = deque()
        self.parts: dict[int, Part] = {}
        # The loop counts what came, the thread what went: neither writes what the other does, so neither needs a lock.
        self.taken = self.taken_bytes = self.refused = 0
        self.written = self.gathered_bytes = self.lost = 0
        self.files, self.failing = 0, False
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="rayloom-records", daemon=True)

    def is_chosen(self) -> bool:
        """Whether chance has a request kept."""
        return random.random() < self.settings.share

    def take(self, version: int, schema: Schema, request: str, size: int, columns: Columns, answers: Answers) -> None:
        """Puts a request into the queue, or counts its rows as dropped where there is no room.

        Args:
            version, schema: of the model that answered.
            request: its id.
            size: bytes of its body.
            columns, answers: its n rows; nobody changes them any more.
        """
        rows = len(answers)
        if (
            self.taken + rows - self.written - self.lost > self.settings.max_waiting_rows
            or self.taken_bytes + size - self.gathered_bytes > WAITING_BYTES
        ):
            self.refused += rows
            return
        self.taken += rows
        self.taken_bytes += size
        self.waiting.append(Taken(self.clock(), version, schema, request, size, columns, answers))

    @property
    def dropped(self) -> int:
        """Rows that were sampled and are in no file: there was no room for them, or the disk took them not."""
        return self.refused + self.lost

    def start(self) -> None:
        """Begins to write."""
        self.thread.start()

    def close(self) -> None:
        """Writes what is left, and ends."""
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()

    def _run(self) -> None:
        while not self.ended.wait(GATHER_S):
            self.gather()
        self.gather(last=True)

    def gather(self, last: bool = False) -> None:
        """Takes what waits, and writes the files that are due.

        Args:
            last: all of them are.
        """
        by_version: dict[int, list[Taken]] = {}
        while self.waiting:
            one = self.waiting.popleft()
            self.gathered_bytes += one.size
            by_version.setdefault(one.version, []).append(one)
        for version, some in by_version.items():
            self._add(version, some)
        now = self.clock()
        for version, part in list(self.parts.items()):
            if last or part.rows >= self.settings.rotate_rows or now - part.began >= self.settings.rotate_s:
                self._write(version, self.parts.pop(version), now)

    def _add(self, version: int, some: list[Taken]) -> None:
        rows = sum(len(one.answers) for one in some)
        try:
            made = table(some, self.settings.max_cell_bytes)
        except Exception:  # records are worth less than the thread
            logger.exception("%d sampled records cannot be kept", rows)
            self.lost += rows
            return
        part = self.parts.setdefault(version, Part(some[0].moment))
        part.tables.append(made)
        part.rows += rows

    def _write(self, version: int, part: Part, now: float) -> None:
        """Makes a file, and removes those that are over."""
        name = f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S%f}-{self.replica}-{self.files:06}.parquet"
        try:
            place(pa.concat_tables(part.tables), self.folder / f"model_version={version}" / name)
        except OSError as error:
            self._say_once(error, part.rows)
            self.lost += part.rows
            return
        self.files += 1
        self.written += part.rows
        self.failing = False
        for path in outdated(found(self.folder), now, self.settings):
            with suppress(OSError):  # another replica may have been faster
                path.unlink()

    def _say_once(self, error: OSError, rows: int) -> None:
        """Says that a file cannot be written, and no more until one can be again."""
        if not self.failing:
            logger.error("%s takes no records (%s); %d and those that follow are dropped", self.folder, error.strerror, rows)
        self.failing = True

    def exposition(self, model: str) -> str:
        """What was kept, for Prometheus."""
        told = {
            "rayloom_records_written_total": ("Sampled records in files.", self.written),
            "rayloom_records_dropped_total": ("Sampled records for which there was no room.", self.dropped),
        }
        return "".join(
            f'# HELP {name} {help}\n# TYPE {name} counter\n{name}{{model="{model}"}} {value}\n'
            for name, (help, value) in told.items()
        )


def folder_of(root: Path, name: str, settings: config.Records) -> Path:
    """Where a model's records are.

    Args:
        root: storage.root.
        name: the pipeline's.
    """
    return Path(settings.folder) if settings.folder else root / "serving" / f"{name}-records"


def table(some: list[Taken], limit: int) -> pa.Table:
    """The rows of requests that one version answered.

    Args:
        some: at least one.
        limit: bytes of a text or an image.
    """
    answers = [answer for one in some for answer in one.answers]
    fields, cut = limited(some[0].schema.table(joined([one.columns for one in some])), limit)
    moments = [round(one.moment * 1e6) for one in some for _ in one.answers]
    chances = [None if "probabilities" not in one else list(one["probabilities"].items()) for one in answers]
    columns = {
        "_time": pa.array(moments, pa.timestamp("us", "UTC")),
        "_request": pa.array([one.request for one in some for _ in one.answers], pa.string()),
        "_row": pa.array([row for one in some for row in range(len(one.answers))], pa.int32()),
        "_label": pa.array([one["label"] for one in answers]),
        "_probability": pa.array([one["probability"] for one in answers], pa.float64()),
        "_probabilities": pa.array(chances, pa.map_(pa.string(), pa.float64())),
        "_unseen": pa.array([one.get("unseen", []) for one in answers], pa.list_(pa.string())),
        "_cut": pa.array(cut, pa.list_(pa.string())),
    }
    for name, values in columns.items():
        fields = fields.append_column(name, values)
    return fields


def limited(rows: pa.Table, limit: int) -> tuple[pa.Table, list[list[str]]]:
    """Rows whose texts are cut to so many bytes, and whose larger bytes are left out; and by row, the fields that were."""
    cut: list[list[str]] = [[] for _ in range(len(rows))]
    for index, one in enumerate(rows.schema):
        if not (pa.types.is_string(one.type) or pa.types.is_binary(one.type)):
            continue
        large = pc.greater(pc.binary_length(rows[index]), limit).to_pylist()
        if True in large:
            values = zip(rows[index].to_pylist(), large, strict=True)
            within = [_cut(value, limit) if is_large else value for value, is_large in values]
            rows = rows.set_column(index, one, pa.array(within, one.type))
            for names, is_large in zip(cut, large, strict=True):
                names.extend([one.name] * bool(is_large))
    return rows, cut


def _cut(value: Any, limit: int) -> str | None:
    """The beginning of a text; a cut image is none."""
    return value.encode()[:limit].decode(errors="ignore") if isinstance(value, str) else None


def place(rows: pa.Table, path: Path) -> None:
    """Writes a file, which has its name once it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}")
    with staged.open("wb") as file:
        pq.write_table(rows, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    staged.rename(path)


def found(folder: Path) -> list[Found]:
    """The files of records in a folder, finished or not; others' files are none of ours."""
    files = []
    for path in folder.glob("model_version=*/*"):
        if NAMED.fullmatch(path.name.removeprefix(".")):
            try:
                status = path.stat()
            except FileNotFoundError:  # another replica has removed it
                continue
            files.append(Found(path, status.st_mtime, status.st_size))
    return files


def outdated(files: Iterable[Found], now: float, settings: config.Records) -> list[Path]:
    """The files that are to be removed: too old, or the oldest of more than may be kept. The newest may have any size."""
    gone: list[Path] = []
    total, most = 0, config.count_bytes(settings.keep_bytes)
    for one in sorted(files, key=lambda one: one.written, reverse=True):
        age = now - one.written
        if one.path.name.startswith("."):
            gone += [one.path] * (age > LEFT_S)
            continue
        total += one.size
        if age > settings.keep_days * 86400 or (total > one.size and total > most):
            gone.append(one.path)
    return gone
