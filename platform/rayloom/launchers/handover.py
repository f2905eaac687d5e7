"""What a launcher that starts plain processes leaves for them in a folder: the job, and its rows as memory-mapped arrays.

<run>/handover/pipeline.json, state.json, paths.json
<run>/handover/<split>/<name>.npy
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rayloom import config
from rayloom.features import FeatureState
from rayloom.worker import Arrays, Shard, bounds


@dataclass(frozen=True)
class Job:
    """What a process trains.

    Attributes:
        checkpoints: the run's folder of checkpoints.
        folder: where the rows are.
        modules: folders in which the launching process looks for modules, such as a user's own family.
    """

    pipeline: config.Pipeline
    state: FeatureState
    checkpoints: Path
    folder: Path
    modules: list[str]

    def shards(self, rank: int, world_size: int) -> dict[str, Shard]:
        """A rank's rows of each split, in files until they are used."""
        return {split.name: _shard(split, rank, world_size) for split in sorted(self.folder.iterdir()) if split.is_dir()}


@contextmanager
def lent(checkpoints: Path, pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Arrays]) -> Iterator[Path]:
    """A folder beside the run's checkpoints that has the job, for the length of the block: its rows are there once more."""
    folder = checkpoints.parent / "handover"
    try:
        write(folder, pipeline, state, splits, checkpoints)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(folder: Path, pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Arrays], checkpoints: Path) -> None:
    """Fills the folder; all nodes must see it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipeline.json").write_text(pipeline.model_dump_json())
    (folder / "state.json").write_text(state.model_dump_json())
    (folder / "paths.json").write_text(
        json.dumps({"checkpoints": str(checkpoints), "modules": [str(Path(one).resolve()) for one in sys.path]})
    )
    for split, arrays in splits.items():
        (folder / split).mkdir(exist_ok=True)
        for name, array in arrays.items():
            np.save(folder / split / f"{name}.npy", array, allow_pickle=False)


def read(folder: Path) -> Job:
    """The job that `write` left."""
    paths = json.loads((folder / "paths.json").read_text())
    return Job(
        config.Pipeline.model_validate_json((folder / "pipeline.json").read_text()),
        FeatureState.model_validate_json((folder / "state.json").read_text()),
        Path(paths["checkpoints"]),
        folder,
        paths["modules"],
    )


def _shard(split: Path, rank: int, world_size: int) -> Shard:
    arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(split.glob("*.npy"))}
    total = len(arrays["label"])
    start, end = bounds(total, world_size)[rank : rank + 2]
    return Shard({name: array[start:end] for name, array in arrays.items()}, total)
