"""A block of rows into a part: the served predictor's answers, a column each, and the rows that failed with their reasons.

A part has the columns `file` and `row` (its number in the file), `truth` where the rows have the label, the columns to keep,
`probability` and `label` as a served answer has them, for more than two classes `probabilities` in the order of the classes,
`unseen`, and `model_version`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rayloom import bundle
from rayloom.batch import inputs, output
from rayloom.batch.inputs import Block
from rayloom.batch.output import Part, Plan
from rayloom.batch.records import TRUTH, Chunk, Failure, Fields
from rayloom.errors import ConfigError
from rayloom.serving.predictor import Predictor

COLUMNS = ("file", "row", TRUTH, "probability", "probabilities", "label", "unseen", "model_version")
"""Names that a kept column cannot have."""

CHUNKS = 8
"""Chunks of a block: so much work is lost where a worker dies."""

BUFFER = 64 * 2**20
"""Bytes of answers and kept columns that are written as one row group."""

LONGEST_REASON = 500

FAILURES = pa.schema([("file", pa.string()), ("row", pa.int64()), ("field", pa.string()), ("reason", pa.string())])


def require_names(keep: list[str]) -> None:
    """Raises ConfigError where a column to keep has a name that a part uses itself, or is named twice."""
    for name in keep:
        if name in COLUMNS or keep.count(name) > 1:
            why = f"a part has its own column '{name}'" if name in COLUMNS else "it is there twice"
            raise ConfigError(f"--keep {name}: {why}; leave it out (the label is there as '{TRUTH}').")


class Scorer:
    """Predicts blocks, one after the other.

    Args:
        folder: of the bundle.
        tolerance: how far the golden answers may differ.
        target: folder of the prediction.
        plan: what is predicted; its inputs are not needed, with which it has the id `plan_id`.

    Raises:
        BundleError: the bundle is damaged, or does not give its golden answers.
    """

    def __init__(self, folder: Path, tolerance: float, target: Path, plan: Plan, plan_id: str):
        self.predictor = Predictor(bundle.load(folder))
        self.predictor.replay(tolerance)
        self.state = self.predictor.bundle.state
        self.fields = Fields.of(self.state, plan.keep, plan.missing)
        self.target, self.plan, self.plan_id = target, plan, plan_id
        classes = len(self.state.classes)
        self._none = np.empty(0 if classes == 2 else (0, classes), np.float32)

    def score(self, number: int, block: Block) -> Part:
        """Writes a block's part, and before it the block's failed rows where there are some.

        Raises:
            SourceError: the file cannot be read any more.
        """
        place = output.part_path(self.target, number)
        with output.staged(place) as part_file:
            with ExitStack() as life:
                failed = life.enter_context(_FailedRows(output.failed_path(self.target, number), block.file))
                part, tables = Part(plan=self.plan_id, block=number, rows=0, failed=0), self._tables(block, failed)
                first = next(tables)
                with pq.ParquetWriter(part_file, first.schema, **_layout(first.column_names)) as writer:
                    rows = sum(_write(writer, table) for table in _joined(first, tables))
                    counts = {"rows": rows, "failed": failed.count, "blank": failed.blank, "reason": failed.reason}
                    part = part.model_copy(update=counts)
                    writer.add_key_value_metadata({output.NOTE: part.model_dump_json()})
            return output.with_checksum(part, part_file)

    def _tables(self, block: Block, failed: "_FailedRows") -> Iterator[pa.Table]:
        for chunk in inputs.read(Path(self.plan.root), block, self.fields, self.predictor.most):
            answered, probabilities = self._predict(chunk)
            failed.write(answered)
            yield self._table(block.file, answered, probabilities)

    def _predict(self, chunk: Chunk) -> tuple[Chunk, np.ndarray]:
        """The rows that can be predicted, and their probabilities."""
        parts, bad = self._attempt(chunk.inputs, 0)
        probabilities = np.concatenate([self._none, *parts])
        good = np.ones(len(chunk.rows), bool)
        good[list(bad)] = False
        finite = np.isfinite(probabilities if probabilities.ndim == 1 else probabilities.sum(1))
        bad |= {int(place): "the model's answer is not finite" for place in np.flatnonzero(good)[~finite]}
        if not bad:
            return chunk, probabilities
        good[list(bad)] = False
        failures = [Failure(int(chunk.rows[place]), None, reason) for place, reason in bad.items()]
        return chunk.where(good, failures), probabilities[finite]

    def _attempt(self, rows: pa.Table, start: int) -> tuple[list[np.ndarray], dict[int, str]]:
        """Probabilities, and the reason of each row that has none by its place. Where something goes wrong, halves are tried,
        down to the row that it goes wrong with."""
        if not len(rows):
            return [], {}
        try:
            return [self.predictor.predict(rows)], {}
        except MemoryError:
            raise
        except Exception as error:  # what a row can make the features and the model raise is not known beforehand
            if len(rows) == 1:
                return [], {start: _reason(error)}
        middle = len(rows) // 2
        left, wrong = self._attempt(rows.slice(0, middle), start)
        right, also_wrong = self._attempt(rows.slice(middle), start + middle)
        return left + right, wrong | also_wrong

    def _table(self, file: str, chunk: Chunk, probabilities: np.ndarray) -> pa.Table:
        rows = len(chunk.rows)
        columns = {
            "file": pa.repeat(file, rows),
            "row": pa.array(chunk.rows, pa.int64()),
            **{name: chunk.kept[name] for name in chunk.kept.column_names},
            **answers(self.predictor, probabilities),
            "unseen": _lists(self.predictor.transform.unseen(chunk.inputs), rows),
            "model_version": pa.array(np.full(rows, self.plan.version, np.int32)),
        }
        return pa.table(columns)


class Worker:
    """A process that scores blocks on one CPU. Here, not where Ray starts it: the process imports no more than it needs.

    Args:
        given: a Scorer's arguments.
    """

    def __init__(self, **given: Any):
        torch.set_num_threads(1)
        self.given = given
        self.scorer: Scorer | None = None

    def start(self) -> None:
        """Loads the model. Not as the process is made: Ray would not say what was raised there."""
        self.scorer = Scorer(**self.given)

    def score(self, number: int, block: Block) -> Part:
        if self.scorer is None:  # the process has died, and this is the next one
            self.start()
        assert self.scorer is not None
        return self.scorer.score(number, block)


def _reason(error: Exception) -> str:
    """The first line; of an image that cannot be used it names the row by its place among those tried together: one."""
    text = str(error).partition("\n")[0][:LONGEST_REASON] or type(error).__name__
    return text.replace(" in row 0 of ", " in field ")


def answers(predictor: Predictor, probabilities: np.ndarray) -> dict[str, pa.Array]:
    """The columns of `probability`, `label` and, for more than two classes, `probabilities`: as `Predictor.answer` has them."""
    classes = pa.array(predictor.bundle.state.classes)
    if probabilities.ndim == 1:
        decided = (probabilities.astype(np.float64) >= predictor.threshold).astype(np.int64)
        return {"probability": pa.array(probabilities), "label": classes.take(pa.array(decided))}
    decided = probabilities.argmax(1)
    flat = pa.array(np.ascontiguousarray(probabilities).reshape(-1))
    return {
        "probability": pa.array(probabilities[np.arange(len(decided)), decided]),
        "label": classes.take(pa.array(decided)),
        "probabilities": pa.FixedSizeListArray.from_arrays(flat, probabilities.shape[1]),
    }


def _lists(where: dict[str, np.ndarray], rows: int) -> pa.ListArray:
    """For each row the names whose bool (rows,) is true there."""
    if not where:
        return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1, np.int32)), pa.array([], pa.string()))
    found = np.stack(list(where.values()), axis=1)
    offsets = np.concatenate([[0], found.sum(1).cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(list(where)).take(pa.array(np.nonzero(found)[1])))


def _layout(columns: list[str]) -> dict[str, Any]:
    """How a part is written: a dictionary of what does not repeat is work for nothing, and row numbers differ by little."""
    repeating = [name for name in columns if name not in ("row", "probability", "probabilities")]
    packed = {"row": "DELTA_BINARY_PACKED"}
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": repeating, "column_encoding": packed}


def _joined(first: pa.Table, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Tables of up to BUFFER bytes, so that a part has few row groups."""
    held, size = [first], first.nbytes
    for table in tables:
        if size + table.nbytes > BUFFER:
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    yield pa.concat_tables(held)


def _write(writer: pq.ParquetWriter, table: pa.Table) -> int:
    writer.write_table(table)
    return len(table)


class _FailedRows:
    """The failed rows of a block, in a file that is there only where there are some."""

    def __init__(self, path: Path, file: str):
        self.path, self.file = path, file
        self.count, self.blank, self.reason = 0, 0, ""
        self.life = ExitStack()
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_FailedRows":
        return self

    def __exit__(self, *error: object) -> None:
        self.life.__exit__(*error)  # type: ignore[arg-type]

    def write(self, chunk: Chunk) -> None:
        self.blank += chunk.blank
        if not chunk.failures:
            return
        failures = sorted(chunk.failures, key=lambda failure: failure.row)
        if self.writer is None:
            self.reason = f"row {failures[0].row}: {failures[0].reason}"
            staged = self.life.enter_context(output.staged(self.path))
            self.writer = self.life.enter_context(pq.ParquetWriter(staged, FAILURES))
        columns = [
            [self.file] * len(failures),
            *([getattr(one, name) for one in failures] for name in ("row", "field", "reason")),
        ]
        self.writer.write_table(pa.table(columns, schema=FAILURES))
        self.count += len(failures)
