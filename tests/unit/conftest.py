"""Toy pipelines, rows and bundles that the unit tests share. All small, all with fixed seeds."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from rayloom import bundle, checkpoints, config, features, models, training
from rayloom.bundle import Bundle, BundleConfig, Golden
from rayloom.checkpoints import Checkpoint
from rayloom.features import CategoryState, FeatureState, NumberState
from rayloom.serving.predictor import Predictor
from rayloom.worker import Arrays, Shard, Worker, bounds

CSV = "id,shade,size,extra\n1,red,0.5,x\n2,blue,1.5,y\n3,red,2.5,z\n"

PIPELINE = {
    "name": "toy",
    "etl": {
        "sources": {"raw": {"path": "raw.csv", "columns": "id INT, shade STRING, size DOUBLE"}},
        "steps": [{"name": "rows", "sql": "SELECT id, shade, size, CAST(size > 1 AS INT) AS big FROM raw"}],
        "rules": [{"name": "has_size", "where": "size IS NOT NULL"}],
        "splits": {"train": "id = 1", "validation": "id = 2", "test": "id = 3"},
        "order_by": ["id"],
    },
    "features": {
        "label": "big",
        "columns": {"shade": {"kind": "category", "min_count": 1}, "size": {"kind": "number"}},
    },
}


def merged(below: dict, changes: dict) -> dict:
    """A deep copy of `below` whose values at dotted keys are replaced by copies; a number in a key is an index of a list."""
    data = copy.deepcopy(below)
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = data
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        place[int(last) if isinstance(place, list) else last] = copy.deepcopy(value)
    return data


class Clock:
    """Seconds that a test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="session")
def toy_data() -> Callable[..., dict]:
    """Makes the toy pipeline as plain data, with changes by dotted key."""
    return lambda changes={}: merged(PIPELINE, changes)


@pytest.fixture
def toy_csv(tmp_path) -> Path:
    """A CSV file that the toy pipeline reads."""
    path = tmp_path / "raw.csv"
    path.write_text(CSV)
    return path


@pytest.fixture
def toy_pipeline(tmp_path) -> Callable[..., config.Pipeline]:
    """Makes the toy pipeline with changes by dotted key; its source and its storage are in tmp_path."""

    def make(changes: dict | None = None) -> config.Pipeline:
        below = {"etl.sources.raw.path": str(tmp_path / "raw.csv"), "storage": {"root": str(tmp_path)}}
        return config.Pipeline.model_validate(merged(PIPELINE, {**below, **(changes or {})}))

    return make


@pytest.fixture
def toy_spec() -> config.Features:
    """A feature of every kind."""
    return config.Features.model_validate(
        {
            "label": "late",
            "columns": {
                "day": {"kind": "date", "parts": ["weekday", "month", "day"]},
                "carrier": {"kind": "category", "min_count": 3},
                "distance": {"kind": "number"},
                "wind": {"kind": "number"},
            },
        }
    )


@pytest.fixture
def toy_rows() -> pa.Table:
    """200 rows for `toy_spec`, with missing values in all but `distance`; ZZ occurs once."""
    rng = np.random.default_rng(5)
    size = 200
    days = np.datetime64("2013-01-01") + rng.integers(0, 365, size)
    carriers = rng.choice(["AA", "UA", "WN"], size).astype(object)
    carriers[7] = "ZZ"
    return pa.table(
        {
            "day": pa.array(days.astype("datetime64[D]"), mask=rng.random(size) < 0.1),
            "carrier": pa.array(carriers, pa.string(), mask=rng.random(size) < 0.1),
            "distance": pa.array(rng.integers(100, 3000, size), pa.int32()),
            "wind": pa.array(rng.normal(10, 4, size), mask=rng.random(size) < 0.2),
            "late": pa.array(rng.integers(0, 2, size), pa.int32()),
        }
    )


@pytest.fixture
def toy_state(toy_spec, toy_rows) -> FeatureState:
    state, _ = features.fit(toy_spec, features.summarize(toy_spec, toy_rows))
    return state


@pytest.fixture
def toy_model() -> config.Tabular:
    return config.Tabular(hidden=[8], embedding=4, dropout=0.1)


@pytest.fixture
def toy_weights(tmp_path, toy_model, toy_state) -> Path:
    """A safetensors file with the toy model's fresh weights."""
    torch.manual_seed(3)
    path = tmp_path / "weights.safetensors"
    save_file(models.build(toy_model, toy_state).state_dict(), path)
    return path


@pytest.fixture
def toy_records(toy_rows) -> list[dict]:
    """The first eight rows as a client would send them."""
    rows = toy_rows.slice(0, 8).drop_columns(["late"]).to_pylist()
    return [{**row, "day": row["day"].isoformat() if row["day"] else None} for row in rows]


@pytest.fixture
def write_toy_bundle(tmp_path, toy_spec, toy_model, toy_state, toy_weights) -> Callable[..., Bundle]:
    """Writes a bundle with these golden rows into a folder of this name."""

    def write(golden: list[Golden], name: str = "bundle") -> Bundle:
        about = BundleConfig(name="toy", seed=17, dataset="0123456789ab", model=toy_model, features=toy_spec)
        metrics = {"validation_auc": 0.75, "validation_threshold": 0.5}
        return bundle.write(tmp_path / name, about, toy_state, toy_weights, metrics, golden)

    return write


@pytest.fixture
def toy_bundle(tmp_path, write_toy_bundle, toy_records) -> Bundle:
    """A bundle whose golden answers are the ones that its model gives."""
    draft = write_toy_bundle([], "draft")
    answers = Predictor(draft).predict_records(toy_records).tolist()
    shutil.rmtree(draft.folder)
    return write_toy_bundle([Golden(record=row, answer=p) for row, p in zip(toy_records, answers, strict=True)])


@pytest.fixture(scope="session")
def training_state() -> FeatureState:
    """What a model of `make_arrays` rows needs: two numbers and a category of three indices."""
    columns = {
        "shade": CategoryState(values=["blue", "red"]),
        "size": NumberState(center=0.0, spread=1.0, impute=0.0, flag=True),
    }
    return FeatureState(label="big", columns=columns)


@pytest.fixture(scope="session")
def make_arrays() -> Callable[[int, int], Arrays]:
    """Makes rows whose label can be learned from number and category."""

    def make(rows: int, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        numbers = rng.normal(size=(rows, 2)).astype(np.float32)
        categories = rng.integers(0, 3, (rows, 1))
        label = (numbers[:, 0] + categories[:, 0] > 1).astype(np.float32)
        return {"numbers": numbers, "categories": categories, "label": label}

    return make


@pytest.fixture(scope="session")
def make_shards(make_arrays) -> Callable[..., dict[str, Shard]]:
    """Makes a rank's shards: 101 rows for training and 61 for validation."""

    def make(rank: int = 0, world_size: int = 1) -> dict[str, Shard]:
        return {name: cut(make_arrays(rows, rows), rank, world_size) for name, rows in {"train": 101, "validation": 61}.items()}

    return make


@pytest.fixture(scope="session")
def make_unequal(make_arrays) -> Callable[..., Shard]:
    """Makes a rank's shard of 101 rows for training, 10 of which are of class 1: those with the largest first number."""

    def make(rank: int = 0, world_size: int = 1) -> Shard:
        arrays = make_arrays(101, 3)
        first = arrays["numbers"][:, 0]
        return cut({**arrays, "label": (first >= np.sort(first)[-10]).astype(np.float32)}, rank, world_size)

    return make


def cut(arrays: Arrays, rank: int, world_size: int) -> Shard:
    total = len(arrays["label"])
    starts = bounds(total, world_size)
    return Shard({name: values[starts[rank] : starts[rank + 1]] for name, values in arrays.items()}, total)


@pytest.fixture(scope="session")
def training_pipeline(toy_data) -> Callable[..., config.Pipeline]:
    """Makes a pipeline that trains for a fraction of a second."""
    below = {
        "model": {"hidden": [16], "embedding": 2, "dropout": 0.2},
        "train": {"workers": 1, "epochs": 3, "batch_size": 32, "lr": 0.02},
    }
    return lambda changes={}: config.Pipeline.model_validate(merged(toy_data(below), changes))


@dataclass(frozen=True)
class Run:
    """What a training in this process left, and the metrics that it reported."""

    folder: Path
    reported: list[dict[str, float]]

    @property
    def last(self) -> Checkpoint:
        return checkpoints.last(self.folder)

    def weights(self) -> bytes:
        return (self.last.folder / "model.safetensors").read_bytes()

    def history(self) -> list[dict[str, float]]:
        """The epochs' metrics but what they cost."""
        costs = ("seconds", "samples_per_s", "peak_mb")
        return [{name: value for name, value in one.items() if name not in costs} for one in self.last.progress()["history"]]


@pytest.fixture(scope="session")
def train(tmp_path_factory, training_pipeline, training_state, make_shards) -> Callable[..., Run]:
    """Trains in this process, in a new folder or on from what is in `folder`."""

    def run(
        changes: dict = {}, folder: Path | None = None, shards: dict | None = None, state: FeatureState = training_state
    ) -> Run:
        given = Run(folder or tmp_path_factory.mktemp("run"), [])
        worker = Worker(0, 1, "cpu", given.folder, given.reported.append)
        training.train(training_pipeline(changes), state, worker, shards or make_shards())
        return given

    return run
