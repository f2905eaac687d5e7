"""Text family: a Hugging Face encoder, the mean of its tokens or the first one, and a linear head.

An encoder's class comes from transformers, its weights from safetensors files: nothing that lies beside them is run or
unpickled. transformers is imported where it is needed, so that other families start without it.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rayloom import config, places
from rayloom.errors import ConfigError, SourceError
from rayloom.features import FeatureState, TextState
from rayloom.models.columns import only
from rayloom.models.dropout import Dropout
from rayloom.models.head import Head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HUB_FILES = ["*.json", "*.safetensors"]

ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout")
"""What architectures call it."""

NO_ARCHITECTURE = ("auto_map", "dtype", "torch_dtype", "quantization_config", "_name_or_path")
"""Keys of a config.json that name code to run, places, or how weights are stored."""


class Text(nn.Module):
    """An encoder with a head.

    Args:
        encoder: maps tokens and their mask to `last_hidden_state` (n, L, width).
        pooling: mean or cls.
        dropout: probability that a number is left out before the head.
        classes: how many the label has.
    """

    def __init__(self, encoder: "PreTrainedModel", pooling: str, dropout: float, classes: int):
        super().__init__()
        self.encoder: PreTrainedModel = encoder
        self.pooling = pooling
        self.dropout, self.head = Dropout(dropout), Head(encoder.config.hidden_size, classes)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits (n,) or (n, classes) of {"tokens": int (n, L), "mask": uint8 (n, L), 0 for padding}."""
        tokens, mask = trim(batch["tokens"].long(), batch["mask"].long())
        hidden = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        pooled = first(hidden, mask) if self.pooling == "cls" else mean(hidden, mask)
        return self.head(self.dropout(pooled))

    def checkpoint_activations(self) -> None:
        """Keeps only what goes into each layer, and computes the inside again in the backward pass."""
        self.encoder.activation_checkpointing_enable({"use_reentrant": False})


def trim(tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both without the columns after the longest text's last token, which are padding in every row.

    Padding before a text stays: tokens' positions, and so the answers, depend on it.
    """
    ends = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    longest = max(1, int((mask.amax(0) * ends).max()))
    return tokens[:, :longest], mask[:, :longest]


def mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """(n, width): the mean over a text's tokens; 0 where it has none."""
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def first(hidden: Tensor, mask: Tensor) -> Tensor:
    """(n, width): each text's first token, which is [CLS] in BERT's kind."""
    return hidden[torch.arange(len(hidden), device=hidden.device), mask.argmax(1)]


def require(model: config.TextEncoder, state: FeatureState) -> None:
    """Raises ConfigError where there is anything but one column of text."""
    only(TextState, "text", "text", state)


def resolve(model: config.TextEncoder, state: FeatureState) -> config.TextEncoder:
    """The section with the encoder's config.json, and the hub's commit, written into it.

    Raises:
        SourceError: the encoder is neither here nor on the hub, or has no safetensors.
        ConfigError: its architecture is not usable, or does not fit the tokenizer or `max_tokens`.
    """
    if model.architecture is not None:
        return model
    folder = find(model)
    resolved = model.model_copy(update={"architecture": read_architecture(folder), **place(model.encoder, folder)})
    with torch.device("meta"):  # checks without the memory
        build(resolved, state)
    return resolved


def place(encoder: str, folder: Path) -> dict[str, str | None]:
    """What makes a worker elsewhere find the same weights: a path from the root, or the hub's commit."""
    if encoder.startswith(places.PACKAGE):
        return {}
    return (
        {"encoder": str(folder)} if is_local(encoder) else {"revision": folder.name}
    )  # the hub's cache names it by its commit


def read_architecture(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return {key: value for key, value in found.items() if key not in NO_ARCHITECTURE}
    except (ValueError, AttributeError, OSError):
        raise SourceError(
            f"model.encoder: {folder / 'config.json'} is no encoder's config.json; name another folder."
        ) from None


def build(model: config.TextEncoder, state: FeatureState) -> Text:
    """Raises as `resolve`."""
    if model.architecture is None:
        model = resolve(model, state)
    encoder = build_encoder(model.architecture or {}, model)
    require_room(encoder, only(TextState, "text", "text", state), model)
    return Text(encoder, model.pooling, model.dropout, len(state.classes))


def build_encoder(architecture: dict[str, Any], model: config.TextEncoder) -> "PreTrainedModel":
    """The encoder with fresh weights, in fp32."""
    from transformers import AutoConfig, AutoModel

    settings = dict(architecture)
    try:
        wanted = AutoConfig.for_model(settings.pop("model_type", ""), **settings)
        for name in ATTENTION_DROPOUT:
            if hasattr(wanted, name):
                setattr(wanted, name, model.attention_dropout)
        encoder = AutoModel.from_config(
            wanted, attn_implementation=model.attention, dtype=torch.float32, trust_remote_code=False
        )
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(
            f"model.encoder: '{model.encoder}' is no encoder that transformers knows ({str(error).splitlines()[0]:.200}); "
            f"name another."
        ) from None
    if wanted.is_encoder_decoder:
        raise ConfigError(f"model.encoder: '{model.encoder}' has a decoder as well; name an encoder, such as BERT or MiniLM.")
    if hasattr(encoder, "pooler"):
        encoder.pooler = None  # the head has its own; weights that no loss reaches would make DDP wait for their gradients
    return encoder


def require_room(encoder: "PreTrainedModel", text: TextState, model: config.TextEncoder) -> None:
    """Raises ConfigError where the encoder has fewer tokens than the tokenizer, or fewer positions than a text has tokens."""
    table: Any = encoder.get_input_embeddings()
    known = table.num_embeddings
    if text.vocabulary > known:
        raise ConfigError(
            f"model.encoder: '{model.encoder}' knows {known:,} tokens, and the tokenizer has {text.vocabulary:,}; name the "
            f"encoder's own tokenizer.json in features.columns."
        )
    positions = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if not isinstance(positions, nn.Embedding):
        return  # an encoder without a table of positions
    # RoBERTa's kind counts positions from the one after padding's.
    most = positions.num_embeddings - (0 if positions.padding_idx is None else positions.padding_idx + 1)
    if text.max_tokens > most:
        raise ConfigError(
            f"features.columns has texts of {text.max_tokens} tokens, and '{model.encoder}' reads {most}; lower max_tokens."
        )


def load_pretrained(network: Text, model: config.TextEncoder) -> None:
    """Gives the encoder its pretrained weights.

    Raises:
        SourceError: they are not to be had on this machine, cannot be read, or are another architecture's.
    """
    from safetensors import SafetensorError
    from transformers import AutoModel

    encoder, folder = network.encoder, find(model)
    try:
        with quiet():
            loaded, report = AutoModel.from_pretrained(
                folder, config=encoder.config, use_safetensors=True, local_files_only=True, trust_remote_code=False,
                dtype=torch.float32, output_loading_info=True,
            )  # fmt: skip
    except (RuntimeError, OSError, ValueError, SafetensorError) as error:
        raise SourceError(
            f"model.encoder: the weights in {folder} cannot be read ({str(error).splitlines()[0]:.200}); fetch them again."
        ) from None
    weights, wanted = loaded.state_dict(), encoder.state_dict()
    absent = sorted({*wanted} & {*report["missing_keys"]})
    if absent:
        raise SourceError(
            f"model.encoder: the weights in {folder} lack {len(absent)} of the encoder's, such as {absent[0]}; name a folder "
            f"whose safetensors are this config.json's."
        )
    encoder.load_state_dict({name: weights[name] for name in wanted})


def is_local(encoder: str) -> bool:
    """Whether it is a folder here or a package's, not a name on the hub."""
    return encoder.startswith((places.PACKAGE, ".", "/", "~")) or Path(encoder).is_dir()


def find(model: config.TextEncoder) -> Path:
    """The folder of config.json and *.safetensors; from the hub, it is in the hub's cache afterwards.

    Raises:
        SourceError: it cannot be had, or has no safetensors.
    """
    if is_local(model.encoder):
        folder = places.locate(f"{model.encoder.rstrip('/')}/config.json", "model.encoder").parent
    else:
        folder = download(model.encoder, model.revision)
    if not any(folder.glob("*.safetensors")):
        raise SourceError(
            f"model.encoder: {folder} has no *.safetensors, and pickled weights are not read; convert them with transformers' "
            f"save_pretrained, or name another encoder."
        )
    return folder


def download(encoder: str, revision: str | None) -> Path:
    """An encoder's folder in the hub's cache; what is there already is not fetched again."""
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            return Path(snapshot_download(encoder, revision=revision, allow_patterns=HUB_FILES))
    except Exception as error:  # the hub's, the network's, and those of names that are none
        raise SourceError(
            f"model.encoder: '{encoder}' is no folder here, and the hub does not give it ({str(error).splitlines()[0]:.200}); "
            f"correct it, or name a folder or a package:NAME/FOLDER."
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and reports, which would stand in the middle of a job's lines."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as reports

    level, were_off = reports.get_verbosity(), are_progress_bars_disabled()
    disable_progress_bars()
    reports.disable_progress_bar()
    reports.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        reports.set_verbosity(level)
        if not were_off:
            enable_progress_bars()
            reports.enable_progress_bar()
