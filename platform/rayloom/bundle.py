"""A bundle: one folder that alone rebuilds a predictor.

    config.json        name, seed, dataset id, the model and features sections of the pipeline file
    features.json      what the training split taught (rayloom.features.FeatureState)
    model.safetensors  the weights
    metrics.json       validation metrics of the chosen epoch, with the temperature, and the decision threshold of two classes
    golden.jsonl       raw records with the answers that the training process gave for them
    MANIFEST.json      sha256 of each of the above; written last

Everything is JSON or safetensors: loading a bundle runs no code from it.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rayloom import config
from rayloom.errors import BundleError
from rayloom.features import FeatureState

FILES = ("config.json", "features.json", "model.safetensors", "metrics.json", "golden.jsonl")
MANIFEST = "MANIFEST.json"

FORMAT = 2
"""Counts up where an older predictor could not read a bundle, or would answer otherwise."""

Probability = Annotated[float, Field(ge=0, le=1)]


class BundleConfig(BaseModel):
    """What a predictor must know besides weights and feature state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    name: str
    seed: int
    dataset: str
    model: config.Model
    features: config.Features


class Golden(BaseModel):
    """A raw record and what the training process answered: the probability of the second of two classes, or of each class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    record: dict[str, bool | str | float | int | None]
    answer: Probability | list[Probability]


@dataclass(frozen=True)
class Bundle:
    """A verified bundle, read into memory except for the weights."""

    folder: Path
    config: BundleConfig
    state: FeatureState
    metrics: dict[str, float]
    golden: list[Golden]

    @property
    def weights(self) -> Path:
        return self.folder / "model.safetensors"


def write(
    folder: Path, config: BundleConfig, state: FeatureState, weights: Path, metrics: dict, golden: list[Golden]
) -> Bundle:
    """Writes a bundle; the folder appears whole or not at all.

    Args:
        folder: where the bundle is to be; must not exist.
        weights: a safetensors file to copy.

    Raises:
        BundleError: the folder exists already.
    """
    if folder.exists():
        raise BundleError(f"{folder} exists already; a bundle is never overwritten: choose another folder.")
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        _fill(staging, config, state, weights, metrics, golden)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return load(folder)


def _fill(staging: Path, config: BundleConfig, state: FeatureState, weights: Path, metrics: dict, golden: list[Golden]) -> None:
    (staging / "config.json").write_text(config.model_dump_json(indent=2))
    (staging / "features.json").write_text(state.model_dump_json(indent=2))
    shutil.copyfile(weights, staging / "model.safetensors")
    (staging / "metrics.json").write_text(json.dumps(metrics, indent=2))
    (staging / "golden.jsonl").write_text("".join(item.model_dump_json() + "\n" for item in golden))
    (staging / MANIFEST).write_text(json.dumps({name: _sha256(staging / name) for name in FILES}, indent=2))


def load(folder: Path) -> Bundle:
    """Reads a bundle after checking every file against the manifest.

    Raises:
        BundleError: a file is missing, altered, or does not say what a bundle says.
    """
    verify(folder)
    _require_format(folder)
    try:
        return Bundle(
            folder=folder,
            config=BundleConfig.model_validate_json((folder / "config.json").read_text()),
            state=FeatureState.model_validate_json((folder / "features.json").read_text()),
            metrics=json.loads((folder / "metrics.json").read_text()),
            golden=[Golden.model_validate_json(line) for line in (folder / "golden.jsonl").read_text().splitlines()],
        )
    except (ValidationError, ValueError) as error:
        raise BundleError(f"{folder} is not a bundle of this version ({str(error).splitlines()[0]}); train again.") from None


def _require_format(folder: Path) -> None:
    try:
        found = json.loads((folder / "config.json").read_text()).get("format", 1)
    except (ValueError, AttributeError):
        return  # the models say what is wrong with it
    if found != FORMAT:
        raise BundleError(f"{folder} is a bundle of format {found}, and this version reads format {FORMAT}; train again.")


def verify(folder: Path) -> None:
    """Checks that each file is there and has the sha256 that the manifest states."""
    try:
        expected = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        expected = None
    if not isinstance(expected, dict):
        raise BundleError(f"{folder} has no readable {MANIFEST}, so it is not a whole bundle; train again.")
    for name in FILES:
        path = folder / name
        if not path.is_file():
            raise BundleError(f"{path} is missing from the bundle; register the model again.")
        if _sha256(path) != expected.get(name):
            raise BundleError(f"{path} is not the file that was written (its sha256 differs); register the model again.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
