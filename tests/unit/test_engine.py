"""How logits are computed: packs of similar length, fused attention, and the same answers as row by row."""

import logging
import threading

import numpy as np
import pytest
import torch
from torch import nn

from rayloom import config, models
from rayloom.features import FeatureState, TextState
from rayloom.serving import engine
from tests.unit.families import BERT

CPU = torch.device("cpu")
L = 16


def build(**more) -> nn.Module:
    torch.manual_seed(3)
    state = FeatureState(
        label="y", columns={"body": TextState(tokenizer="{}", max_tokens=L, vocabulary=50)}, classes=["a", "b", "c"]
    )
    section = config.TextEncoder(family="text", encoder="none", **{"architecture": BERT, "attention": "eager", **more})
    return models.build(section, state).eval()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build()


@pytest.fixture(scope="module")
def fused() -> nn.Module:
    made = build()
    engine.fuse_attention(made)
    return made


def texts(sizes: list[int], is_left: bool = False) -> dict[str, np.ndarray]:
    """Random tokens of so many a text, padded on the right or on the left."""
    places = np.arange(L)[::-1] if is_left else np.arange(L)
    mask = (places < np.array(sizes)[:, None]).astype(np.uint8)
    tokens = np.random.default_rng(len(sizes)).integers(1, 50, mask.shape)
    return {"tokens": (tokens * mask).astype(np.int32), "mask": mask}


def row_by_row(model: nn.Module, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Each text alone, as PyTorch and transformers compute it."""
    with torch.inference_mode():
        rows = [
            {name: torch.from_numpy(array[row : row + 1]) for name, array in arrays.items()}
            for row in range(len(arrays["mask"]))
        ]
        return torch.cat([model(row) for row in rows]).numpy()


@pytest.mark.parametrize("seed", range(12))
def test_each_row_is_in_one_pack_and_its_tokens_are_bounded_with_padding(seed):
    chance = np.random.default_rng(seed)
    sizes, most = chance.integers(1, 40, chance.integers(1, 50)), int(chance.integers(1, 200))
    found = engine.packs(sizes, most)
    assert sorted(np.concatenate(found)) == [*range(len(sizes))]
    assert all(len(rows) == 1 or len(rows) * sizes[rows].max() <= most for rows in found)


def test_texts_of_similar_length_share_a_pack():
    assert [rows.tolist() for rows in engine.packs(np.array([3, 9, 2, 8, 9]), 18)] == [[1, 4], [3, 0], [2]]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [([1, 1, 0, 0], 2), ([0, 0, 1, 1], 4), ([0, 1, 0, 0], 2), ([1, 1, 1, 1], 4), ([0, 0, 0, 0], 1)],
    ids=["right", "left", "both", "full", "empty"],
)
def test_a_texts_length_goes_up_to_its_last_token(mask, expected):
    assert engine.lengths(np.array([mask, [1, 0, 0, 0]], np.uint8)).tolist() == [expected, 1]


@pytest.mark.parametrize("tokens", [1, 20, 60, 1000])
@pytest.mark.parametrize("is_left", [False, True], ids=["right", "left"])
def test_packs_give_the_answers_of_each_text_alone_in_order(model, fused, tokens, is_left):
    sizes = np.random.default_rng(tokens).integers(0, L + 1, 24).tolist()
    arrays = texts(sizes, is_left)
    assert engine.logits(fused, arrays, CPU, tokens) == pytest.approx(row_by_row(model, arrays), abs=1e-6)


def test_the_model_is_given_no_column_that_a_pack_does_not_need(model):
    seen: list[torch.Size] = []
    hook = model.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0]["tokens"].shape)))
    engine.logits(model, texts([2, 9, 3, 9]), CPU, 20)
    hook.remove()
    assert seen == [(2, 9), (2, 3)]


def test_rows_without_texts_are_computed_together():
    made = nn.Sequential()
    made.forward = lambda batch: batch["numbers"].sum(1)
    numbers = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert engine.logits(made, {"numbers": numbers}, CPU, 1).tolist() == [1, 5, 9]


def test_attention_is_fused_whatever_training_used(model, fused):
    assert [one.encoder.config._attn_implementation for one in (model, fused)] == ["eager", "sdpa"]


def test_an_encoder_that_cannot_fuse_stays_as_it_is_and_says_so(caplog):
    class Own(nn.Module):
        def set_attn_implementation(self, name: str) -> None:
            raise ValueError(f"Own has no {name}.\nSee the manual.")

    with caplog.at_level(logging.INFO, "rayloom.serving"):
        engine.fuse_attention(nn.Sequential(Own(), nn.Linear(2, 2)))
    assert caplog.messages == ["Own keeps its own attention, which is slower: Own has no sdpa."]


@pytest.mark.parametrize("count", [2, 1])
def test_cpus_are_those_of_the_thread(count):
    found: list[int] = []

    def work() -> None:
        engine.use_cpus(count)
        found.append(torch.get_num_threads())

    before, thread = torch.get_num_threads(), threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (found, torch.get_num_threads()) == ([count], before)
