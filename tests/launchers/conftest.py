"""Small runs under every launcher, on the tests' cluster of 2 CPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import ray
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from rayloom import launchers
from rayloom.datasets import Encoded
from rayloom.features import FeatureState, TextState
from rayloom.launchers.result import Result
from tests.unit.conftest import make_arrays, toy_data, training_pipeline, training_state  # noqa: F401 (fixtures)

SHARED = {"train.reserved_cpus": 0.5}
"""Lets two runs of two workers at once onto the tests' two CPUs."""

ROWS = {"train": 101, "validation": 61}
TOKENS, LENGTH = 40, 8


@pytest.fixture(scope="package")
def tabular_rows(joined, make_arrays) -> dict[str, Encoded]:  # noqa: F811
    """Rows whose label can be learned from a number and a category."""
    return {name: Encoded([ray.put(make_arrays(rows, rows))], [rows]) for name, rows in ROWS.items()}


@pytest.fixture(scope="package")
def launch(joined, training_pipeline, training_state, tmp_path_factory) -> Callable[..., Result]:  # noqa: F811
    """Runs a launcher to its end."""

    def run(launcher: str, changes: dict, splits: dict[str, Encoded], state: FeatureState = training_state) -> Result:
        root = tmp_path_factory.mktemp(launcher)
        own = {"storage": {"root": str(root)}, "train.launcher": launcher, "train.deterministic": True}
        pipeline = training_pipeline({**own, **changes})
        launchers.find(launcher).require_room(pipeline)
        return launchers.find(launcher).launch(pipeline, state, splits, "run")

    return run


@pytest.fixture(scope="package")
def encoder(tmp_path_factory) -> Path:
    """A BERT of two layers with random weights, in a folder as the hub has them."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, **sizes), add_pooling_layer=False)
    folder = tmp_path_factory.mktemp("encoder")
    model.save_pretrained(folder, safe_serialization=True)
    return folder


@pytest.fixture(scope="package")
def text_state() -> FeatureState:
    """A text of up to LENGTH words, and three classes."""
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, **{f"w{index}": index for index in range(1, TOKENS)}}, "[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    column = TextState(tokenizer=tokenizer.to_str(), max_tokens=LENGTH, vocabulary=TOKENS)
    return FeatureState(label="kind", columns={"text": column}, classes=["a", "b", "c"])


@pytest.fixture(scope="package")
def text_rows(joined) -> dict[str, Encoded]:
    """Texts of 2 to LENGTH words, whose first word tells the class."""
    return {name: Encoded([ray.put(texts(rows))], [rows]) for name, rows in ROWS.items()}


def texts(rows: int) -> dict:
    draw = torch.Generator().manual_seed(rows)
    tokens = torch.randint(1, TOKENS, (rows, LENGTH), generator=draw, dtype=torch.int32)
    lengths = torch.randint(2, LENGTH + 1, (rows, 1), generator=draw)
    mask = (torch.arange(LENGTH) < lengths).to(torch.uint8)
    empty = torch.zeros((rows, 0))
    arrays = {"tokens": tokens * mask, "mask": mask, "numbers": empty, "categories": empty.long(), "label": tokens[:, 0] % 3}
    return {name: values.numpy() for name, values in arrays.items()}


def pipeline_changes(workers: int) -> dict:
    return {"train.workers": workers, "train.max_failures": 0}


def quiet(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """The epochs' metrics without what no two runs have alike."""
    costs = ("seconds", "samples_per_s", "peak_mb")
    return [{name: value for name, value in epoch.items() if name not in costs} for epoch in history]
