"""A dataset version's rows as Ray Data: read, compared, described, encoded. What a version is, is `rayloom.versions`."""

import base64
import decimal
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import ray.data
from ray.exceptions import RayTaskError

from rayloom import config, errors, features, readback, statistics, versions
from rayloom.errors import DataError, RayloomError
from rayloom.etl.sources import Fetched
from rayloom.statistics import ColumnStatistics
from rayloom.versions import FORMAT, Content, Identity, Version
from rayloom.worker import Arrays, Shard, bounds

DECIDING = {"sources", "steps", "deduplicate", "rules", "outliers", "splits", "order_by", "time_zone", "partitions"}
"""The keys of the ETL section that decide the rows and their order; the others say what it may cost, or where it must stop."""

MOST_CLASSES = 100
"""Values of a column above which nobody wants to hear which of them miss a split."""


@dataclass(frozen=True)
class DatasetVersion(Version):
    """A committed dataset version and its rows.

    Attributes:
        memory: its rows in Ray's object store, with the split in `_split`, where this process has just built it.
    """

    memory: ray.data.Dataset | None = None

    def split(self, name: str) -> ray.data.Dataset:
        """A split's rows in the version's order, from memory where they are there, else from Parquet."""
        if self.memory is not None:
            return _by_block(self.memory, _only_split, name=name)
        return read_split(self.folder, name)

    def encode(self, state: features.FeatureState, name: str) -> "Encoded":
        """A split as model inputs.

        Raises:
            DataError: a label is missing or unknown, or not as many rows came as the manifest has.
        """
        encoded, rows = encode(state, self.split(name)), self.manifest.splits[name].rows
        if encoded.rows != rows:
            raise DataError(f"The {name} split of {self.manifest.id} has {rows:,} rows, and {encoded.rows:,} came; run again.")
        return encoded


@contextmanager
def _own_errors() -> Iterator[None]:
    """What our functions raise in Ray Data's workers, as it was raised: of its type Ray keeps the name alone, in a text."""
    try:
        yield
    except RayTaskError as error:
        for name, sentence in re.findall(r"^rayloom\.errors\.(\w+): (.+)$", str(error), re.M):
            kind = getattr(errors, name)
            if issubclass(kind, RayloomError):
                raise kind(sentence) from error
        raise


def _by_block(rows: ray.data.Dataset, function: Callable[..., pa.Table | Arrays], **given: Any) -> ray.data.Dataset:
    """`function(block, **given)` of every block, each block whole: how rows are cut decides nothing but memory."""
    return rows.map_batches(function, fn_kwargs=given, batch_format="pyarrow", batch_size=None)


def _only_split(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(pc.equal(rows["_split"], name)).drop_columns(["_split"])


def read_split(folder: Path, name: str) -> ray.data.Dataset:
    """A split's Parquet as Ray Data, a task a file; the files' names give their order."""
    paths = [str(file) for file in files(folder, name)]
    return ray.data.read_parquet(paths, override_num_blocks=len(paths))


def files(folder: Path, split: str) -> list[Path]:
    """A split's Parquet files, in the order of its rows."""
    return sorted((folder / split).glob("*.parquet"))


def schema_of(folder: Path) -> pa.Schema:
    """The columns of a version's rows, as its Parquet has them."""
    return pq.read_schema(files(folder, "train")[0])


def identify(pipeline: config.Pipeline, fetched: dict[str, Fetched]) -> Identity:
    """What these inputs and this config make the version: its id, and what the id is made of."""
    inputs = {name: one.sha256 for name, one in sorted(fetched.items())}
    if pipeline.etl.patch:
        inputs["etl.patch"] = hashlib.sha256(Path(pipeline.etl.patch).read_bytes()).hexdigest()
    deciding = pipeline.etl.model_dump(mode="json", include=DECIDING)
    for source in deciding["sources"].values():
        source.pop("path", None)  # the content counts, not where it lies
    config_hash = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    made_of = json.dumps([FORMAT, pipeline.name, inputs, config_hash])
    return Identity(hashlib.sha256(made_of.encode()).hexdigest()[:12], inputs, deciding, config_hash)


def find(folder: Path) -> DatasetVersion | None:
    """The committed version at `folder` with its rows; None where there is none. Raises as `versions.find` does."""
    found = versions.find(folder)
    return DatasetVersion(found.folder, found.manifest) if found else None


def get(pipeline: config.Pipeline, version: str) -> DatasetVersion:
    """The committed version with this id and its rows. Raises as `versions.get` does."""
    found = versions.get(pipeline, version)
    return DatasetVersion(found.folder, found.manifest)


@_own_errors()
def contents(rows: ray.data.Dataset) -> dict[str, Content]:
    """Rows and checksum by split of rows that carry `_split`."""
    return _total(_by_block(rows, _sum_by_split).iter_rows()).contents


@dataclass(frozen=True)
class Described:
    """What one pass over a version's Parquet finds: contents by split, and statistics by split and column."""

    contents: dict[str, Content]
    statistics: dict[str, dict[str, ColumnStatistics]]


@_own_errors()
def describe(folder: Path, splits: list[str]) -> Described:
    """Reads a version's Parquet back, a Ray task a file: contents as `contents` has them, and the columns' statistics.

    This process holds one file's cells and one summary for each split, however many rows there are.
    """
    read = ray.remote(readback.read_back)
    tasks = [read.remote(str(file)) for name in splits for file in files(folder, name)]
    return _total(cell for task in tasks for cell in ray.get(task))


def _sum_by_split(rows: pa.Table) -> pa.Table:
    """A row for each split that the block has rows of."""
    names = rows["_split"].unique().to_pylist() or [""]
    return pa.Table.from_pylist([{"split": name, **readback.total(_only_split(rows, name))} for name in names])


def _total(cells: Iterable[dict[str, Any]]) -> Described:
    """Adds up what was said of blocks, in their order."""
    rows: dict[str, int] = {}
    sums: dict[str, int] = {}
    summaries: dict[str, statistics.Summary] = {}
    for cell in (cell for cell in cells if cell["rows"]):
        split = cell["split"]
        rows[split] = rows.get(split, 0) + cell["rows"]
        sums[split] = (sums.get(split, 0) + int(cell["sum"], 16)) % 2**64
        if "summary" in cell:
            summary = orjson.loads(cell["summary"])
            summaries[split] = statistics.merge(summaries[split], summary) if split in summaries else summary
    contents = {split: Content(rows=rows[split], checksum=f"{sums[split]:016x}") for split in sorted(rows)}
    return Described(contents, {split: statistics.finish(summaries[split]) for split in sorted(summaries)})


def count_by_split(folder: Path, column: str) -> dict[Any, dict[str, int]]:
    """Rows by a column's value and split; empty where it has over MOST_CLASSES values, which are no classes."""
    found: dict[Any, dict[str, int]] = {}
    for split in config.SPLITS:
        for block in pads.dataset(files(folder, split)).to_batches(columns=[column]):
            for cell in pc.value_counts(block[column]).to_pylist():
                rows = found.setdefault(cell["values"], {})
                rows[split] = rows.get(split, 0) + cell["counts"]
            if len(found) > MOST_CLASSES:
                return {}
    return found


def require_equal(handoff: str, written: dict[str, Content], read: dict[str, Content]) -> None:
    """Holds what Ray Data read against what Spark counted as it wrote.

    Raises:
        DataError: a split has other rows than it had in Spark.
    """
    for split in sorted({*written, *read}):
        if written.get(split) != read.get(split):
            raise DataError(
                f"The {split} split is not the same on both sides of the hand-off: Spark wrote {written.get(split)}, Ray Data "
                f"read {read.get(split)} through {handoff}; nothing was kept. Run again; if it repeats, report this line."
            )


@_own_errors()
def fit_features(spec: config.Features, rows: ray.data.Dataset) -> tuple[features.FeatureState, list[str]]:
    """Feature state of a split, a block at a time: memory holds one block and one summary."""
    parts = _by_block(rows, _summarize, spec=spec).iter_rows()
    summaries = (json.loads(part["summary"]) for part in parts if part["rows"])
    return features.fit(spec, functools.reduce(features.merge, summaries))


def _summarize(rows: pa.Table, spec: config.Features) -> pa.Table:
    return pa.table({"rows": [len(rows)], "summary": [json.dumps(features.summarize(spec, rows))]})


@dataclass(frozen=True)
class Encoded:
    """A split as model inputs in Ray's object store.

    Attributes:
        blocks: references to `Arrays`, in the split's order.
        sizes: rows of each block.
    """

    blocks: list[ray.ObjectRef]
    sizes: list[int]

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    def read(self, start: int, end: int) -> Arrays:
        """Rows `start` to `end` (exclusive). Only the blocks that hold them are fetched; on their node, without a copy.

        Rows of a single block are views of it that cannot be written to.
        """
        parts, offset = [], 0
        for block, size in zip(self.blocks, self.sizes, strict=True):
            if offset < end and offset + size > start:
                arrays = ray.get(block)
                parts.append({name: array[max(0, start - offset) : end - offset] for name, array in arrays.items()})
            offset += size
        return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def shard(self, rank: int, world_size: int) -> Shard:
        """A rank's rows, as `read` gives them."""
        starts = bounds(self.rows, world_size)
        return Shard(self.read(starts[rank], starts[rank + 1]), self.rows)

    def sample(self, count: int) -> Arrays:
        """About `count` rows (all, where there are fewer), evenly spaced over the split."""
        stride = max(1, self.rows // count)
        parts = [{name: array[::stride] for name, array in ray.get(block).items()} for block in self.blocks]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@_own_errors()
def encode(state: features.FeatureState, rows: ray.data.Dataset) -> Encoded:
    """A split's model inputs and labels, by the same `features.apply` that serving calls."""
    encoded = _by_block(rows, _encode, state=state).materialize()
    blocks = encoded.to_numpy_refs()
    sizes = ray.get([_length.remote(block) for block in blocks])
    kept = [(block, size) for block, size in zip(blocks, sizes, strict=True) if size]
    return Encoded([block for block, _ in kept], [size for _, size in kept])


def _encode(rows: pa.Table, state: features.FeatureState) -> Arrays:
    return {**features.apply(state, rows), "label": features.labels(state, rows)}


@ray.remote(num_cpus=0)
def _length(arrays: Arrays) -> int:
    return len(next(iter(arrays.values()))) if arrays else 0


@_own_errors()
def predict(bundle_folder: Path, rows: ray.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All rows' answers in order, by a bundle's predictor in Ray Data's workers.

    Returns:
        Labels (n,) as `features.labels` gives them, and probabilities: float32 (n,) of the second of two classes, or
        (n, classes).
    """
    answered = _by_block(rows, _predict, folder=bundle_folder)
    blocks = ray.get(answered.materialize().to_arrow_refs())
    table = pa.concat_tables([block for block in blocks if block.num_rows])  # an empty block has no columns
    probabilities = np.column_stack([table[name].to_numpy() for name in table.column_names if name != "label"])
    return table["label"].to_numpy(), probabilities[:, 0] if probabilities.shape[1] == 1 else probabilities


def _predict(rows: pa.Table, folder: Path) -> pa.Table:
    """The label, and a column for each probability of a row."""
    # torch takes seconds to import, and the processes that only read and write rows do without it.
    from rayloom import bundle
    from rayloom.serving.predictor import Predictor

    predictor = Predictor(bundle.load(folder))
    labels = features.labels(predictor.bundle.state, rows)
    answers = predictor.predict(rows)
    columns = answers.T if answers.ndim == 2 else [answers]
    return pa.table({"label": labels, **{str(index): column for index, column in enumerate(columns)}})


def first_rows(folder: Path, split: str, count: int, columns: list[str]) -> list[dict[str, Any]]:
    """The first rows of a split as plain records, dates as ISO text: what a client would send. Ray Data would start tasks."""
    rows = pads.dataset(files(folder, split)).head(count, columns=columns)
    return [record(row, columns) for row in rows.to_pylist()]


def record(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """A row's columns as JSON values: dates as ISO text, NaN as null."""
    return {name: _json_value(row[name]) for name in columns}


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if hasattr(value, "isoformat"):
        return value.isoformat()[:10]
    return None if isinstance(value, float) and np.isnan(value) else value
