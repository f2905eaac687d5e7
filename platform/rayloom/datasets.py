"""A dataset version: a folder of Parquet with a manifest, and its rows as Ray Data.

    <root>/datasets/<name>/<id>/manifest.json       written last; a folder without it does not exist
                               /train/*.parquet     likewise validation, test, quarantine

The id is the hash of what made the version (input files, ETL section, format), so the same inputs and config are found again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray.data
from pydantic import BaseModel, ConfigDict, ValidationError

from rayloom import checksum, config, features
from rayloom.errors import DataError, RegistryError
from rayloom.etl.sources import SourceFile, fingerprint
from rayloom.worker import Arrays

FORMAT = 1
"""Part of every id: raise it when the same inputs and config are to give other rows than before."""

MANIFEST = "manifest.json"


class Content(BaseModel):
    """Rows and their order-independent checksum (`rayloom.checksum`), as hexadecimal text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int
    checksum: str


class Manifest(BaseModel):
    """What a dataset version says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    name: str
    format: int
    inputs: dict[str, str]
    config_hash: str
    columns: dict[str, str]
    rows_in: int
    rejected: dict[str, int]
    splits: dict[str, Content]

    @property
    def accepted(self) -> int:
        return sum(content.rows for content in self.splits.values())


@dataclass(frozen=True)
class DatasetVersion:
    """A committed dataset version.

    Attributes:
        folder: where it lies.
        manifest: what it holds.
        memory: its rows in Ray's object store, with the split in `_split`, where this process has just built it.
    """

    folder: Path
    manifest: Manifest
    memory: ray.data.Dataset | None = None

    def split(self, name: str) -> ray.data.Dataset:
        """A split's rows in the version's order, from memory where they are there, else from Parquet."""
        if self.memory is not None:
            return _by_block(self.memory, _only_split, name=name)
        return read_split(self.folder, name)


def _by_block(rows: ray.data.Dataset, function: Callable[..., pa.Table | Arrays], **given: Any) -> ray.data.Dataset:
    """`function(block, **given)` of every block, each block whole: how rows are cut decides nothing but memory."""
    return rows.map_batches(function, fn_kwargs=given, batch_format="pyarrow", batch_size=None)


def _only_split(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(pa.compute.equal(rows["_split"], name)).drop_columns(["_split"])


def read_split(folder: Path, name: str) -> ray.data.Dataset:
    """A split's Parquet as Ray Data; the files' names give their order."""
    return ray.data.read_parquet([str(file) for file in sorted((folder / name).glob("*.parquet"))])


def identify(pipeline: config.Pipeline, files: dict[str, SourceFile]) -> tuple[str, dict[str, str], str]:
    """The id that these inputs and this config have, with what it is made of.

    Returns:
        (id, sha256 of each input, sha256 of the parts of the config that decide the rows)
    """
    inputs = {name: fingerprint(file.path) for name, file in sorted(files.items())}
    deciding = pipeline.etl.model_dump(include={"sources", "steps", "rules", "splits", "order_by"})
    for source in deciding["sources"].values():
        del source["path"]  # the content counts, not where it lies
    config_hash = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
    made_of = json.dumps([FORMAT, pipeline.name, inputs, config_hash])
    return hashlib.sha256(made_of.encode()).hexdigest()[:12], inputs, config_hash


def folder_of(pipeline: config.Pipeline, version: str) -> Path:
    return pipeline.storage.path() / "datasets" / pipeline.name / version


def find(folder: Path) -> DatasetVersion | None:
    """The committed version at `folder`; None where there is none.

    Raises:
        DataError: there is a manifest, but it does not say what a manifest says.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        return DatasetVersion(folder, Manifest.model_validate_json(path.read_text()))
    except ValidationError as error:
        raise DataError(f"{path} is damaged ({error.error_count()} mistakes); delete its folder to build it anew.") from None


def get(pipeline: config.Pipeline, version: str) -> DatasetVersion:
    """The committed version with this id.

    Raises:
        RegistryError: it is not there.
    """
    found = find(folder_of(pipeline, version))
    if found is None:
        raise RegistryError(f"There is no dataset version {version} in {folder_of(pipeline, version).parent}; run jobs.etl.")
    return found


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


def contents(rows: ray.data.Dataset) -> dict[str, Content]:
    """Rows and checksum by split of rows that carry `_split`."""
    cells = _by_block(rows, _sum_by_split).take_all()
    return _total(cells)


def contents_of_parquet(folder: Path, splits: list[str]) -> dict[str, Content]:
    """The same from a version's Parquet, read through Ray Data."""
    files = [str(file) for name in splits for file in sorted((folder / name).glob("*.parquet"))]
    rows = ray.data.read_parquet(files, include_paths=True)
    return _total(_by_block(rows, _sum_by_path).take_all())


def _sum_by_split(rows: pa.Table) -> pa.Table:
    names = rows["_split"].unique().to_pylist()
    return pa.concat_tables([_sum_split(_only_split(rows, name), name) for name in names]) if names else _sum_split(rows, "")


def _sum_by_path(rows: pa.Table) -> pa.Table:
    names = [Path(path).parent.name for path in rows["path"].to_pylist()]
    return _sum_by_split(rows.drop_columns(["path"]).append_column("_split", pa.array(names, pa.string())))


def _sum_split(rows: pa.Table, name: str) -> pa.Table:
    return pa.table({"split": [name], "rows": [len(rows)], "sum": [f"{checksum.total(checksum.row_hashes(rows)):016x}"]})


def _total(cells: list[dict[str, Any]]) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for split in sorted({cell["split"] for cell in cells if cell["rows"]}):
        of_split = [cell for cell in cells if cell["split"] == split]
        summed = sum(int(cell["sum"], 16) for cell in of_split) % 2**64
        found[split] = Content(rows=sum(cell["rows"] for cell in of_split), checksum=f"{summed:016x}")
    return found


def require_equal(memory: dict[str, Content], parquet: dict[str, Content]) -> None:
    """Raises DataError unless both hand-offs brought the same rows."""
    for split in sorted({*memory, *parquet}):
        if memory.get(split) != parquet.get(split):
            raise DataError(
                f"The {split} split is not the same through both hand-offs: in memory {memory.get(split)}, through Parquet "
                f"{parquet.get(split)}; nothing was kept. Run again; if it repeats, report it with this line."
            )


def fit_features(spec: config.Features, rows: ray.data.Dataset) -> tuple[features.FeatureState, list[str]]:
    """Feature state of a split, a block at a time: memory holds one block and one summary."""
    parts = _by_block(rows, _summarize, spec=spec).take_all()
    summaries = [json.loads(part["summary"]) for part in parts if part["rows"]]
    merged = summaries[0]
    for summary in summaries[1:]:
        merged = features.merge(merged, summary)
    return features.fit(spec, merged)


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
        """Rows `start` to `end` (exclusive). Only the blocks that hold them are fetched; on their node, without a copy."""
        parts, offset = [], 0
        for block, size in zip(self.blocks, self.sizes, strict=True):
            if offset < end and offset + size > start:
                arrays = ray.get(block)
                parts.append({name: array[max(0, start - offset) : end - offset] for name, array in arrays.items()})
            offset += size
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def sample(self, count: int) -> Arrays:
        """About `count` rows (all, where there are fewer), evenly spaced over the split."""
        stride = max(1, self.rows // count)
        parts = [{name: array[::stride] for name, array in ray.get(block).items()} for block in self.blocks]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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


def predict(bundle_folder: Path, rows: ray.data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities, float32 (n,) each, of all rows in order, by a bundle's predictor in Ray Data's workers."""
    answered = _by_block(rows, _predict, folder=bundle_folder)
    blocks = ray.get(answered.materialize().to_arrow_refs())
    table = pa.concat_tables([block for block in blocks if block.num_rows])  # an empty block has no columns
    return table["label"].to_numpy(), table["probability"].to_numpy()


def _predict(rows: pa.Table, folder: Path) -> pa.Table:
    # torch takes seconds to import, and the processes that only read and write rows do without it.
    from rayloom import bundle
    from rayloom.serving.predictor import Predictor

    predictor = Predictor(bundle.load(folder))
    labels = features.labels(predictor.bundle.state, rows)
    return pa.table({"label": labels, "probability": predictor.predict(rows)})


def first_rows(rows: ray.data.Dataset, count: int, columns: list[str]) -> list[dict[str, Any]]:
    """The first rows as plain records, dates as ISO text: what a client would send."""
    return [record(row, columns) for row in rows.select_columns(columns).take(count)]


def record(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """A row's columns as JSON values: dates as ISO text, NaN as null."""
    return {name: _json_value(row[name]) for name in columns}


def _json_value(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()[:10]
    return None if isinstance(value, float) and np.isnan(value) else value
