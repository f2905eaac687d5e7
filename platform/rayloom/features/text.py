"""Text: the first tokens of a tokenizer, in batches. The state holds the whole tokenizer."""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from rayloom.config.features import Text
from rayloom.errors import SourceError
from rayloom.features.columns import Column, Inputs, OneByOne
from rayloom.features.state import TextState
from rayloom.places import locate

BATCH = 1024
"""Texts tokenised at once: bounds memory."""

PADDING = ("[PAD]", "<pad>", "<|endoftext|>")
"""Tokens to pad with, where a tokenizer does not say which."""


def read_tokenizer(name: str, feature: Text) -> str:
    """The tokenizer's JSON, whole.

    Raises:
        SourceError: there is no such file, it is no tokenizer, or `max_tokens` has no room for its special tokens.
    """
    key = f"features.columns.{name}"
    path = locate(feature.tokenizer, f"{key}.tokenizer")
    try:
        source = json.dumps(json.loads(path.read_text(encoding="utf-8")), ensure_ascii=False, separators=(",", ":"))
        special = _load(source).num_special_tokens_to_add(False)
    except Exception as error:  # the library raises bare Exceptions
        raise SourceError(
            f"{key}.tokenizer: {path} is no tokenizer.json of the tokenizers library ({str(error).splitlines()[0]:.200}); "
            f"name one."
        ) from None
    if special >= feature.max_tokens:
        raise SourceError(
            f"{key}.max_tokens is {feature.max_tokens}, and {special} special tokens stand in each text; raise it."
        )
    return source


def summarize(feature: Text, column: Column) -> dict:
    """Counts the texts that have more than `max_tokens` tokens."""
    tokenizer = _load(read_tokenizer(column.name, feature))
    cut = 0
    for texts in _batches(column.values):
        cut += sum(len(encoding.ids) > feature.max_tokens for encoding in tokenizer.encode_batch_fast(texts))
    return {"rows": len(column.values), "missing": column.values.null_count, "cut": cut}


def merge(name: str, left: dict, right: dict) -> dict:
    return {key: left[key] + right[key] for key in ("rows", "missing", "cut")}


def fit(name: str, feature: Text, summary: dict) -> tuple[TextState, list[str]]:
    source = read_tokenizer(name, feature)
    state = TextState(tokenizer=source, max_tokens=feature.max_tokens, vocabulary=_load(source).get_vocab_size())
    if summary["missing"] == summary["rows"]:
        return state, ["has no value in the training split; remove it from features.columns"]
    if not summary["cut"]:
        return state, []
    share = summary["cut"] / summary["rows"]
    return state, [
        f"has over {feature.max_tokens} tokens in {share:.1%} of the training texts, which are cut; raise max_tokens"
    ]


def prepare(columns: Mapping[str, TextState]) -> OneByOne:
    return OneByOne(columns, _apply)


def _apply(state: TextState, column: Column) -> Inputs:
    """{"tokens": int32 (n, max_tokens), "mask": uint8 (n, max_tokens), 1 for a token and 0 for padding}."""
    tokenizer = _load(state.tokenizer, state.max_tokens)
    shape = (len(column.values), state.max_tokens)
    tokens, mask = np.empty(shape, np.int32), np.empty(shape, np.uint8)
    start = 0
    for texts in _batches(column.values):
        encodings = tokenizer.encode_batch_fast(texts)
        end = start + len(texts)
        tokens[start:end] = [encoding.ids for encoding in encodings]
        mask[start:end] = [encoding.attention_mask for encoding in encodings]
        start = end
    return {"tokens": [tokens], "mask": [mask]}


def _batches(values: pa.ChunkedArray) -> Iterator[list[str]]:
    texts = pc.fill_null(pc.cast(values, pa.string()), "")
    for start in range(0, len(texts), BATCH):
        yield texts.slice(start, BATCH).to_pylist()


@lru_cache(maxsize=8)
def _load(source: str, max_tokens: int | None = None) -> Tokenizer:
    """A tokenizer that cuts and pads to `max_tokens`, or does neither. Kept: reading one takes longer than a request may."""
    tokenizer = Tokenizer.from_str(source)
    padding = tokenizer.padding or _padding(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_tokens:
        tokenizer.enable_truncation(max_tokens)
        kept = {name: padding[name] for name in ("pad_id", "pad_token", "pad_type_id", "direction") if name in padding}
        tokenizer.enable_padding(length=max_tokens, **kept)
    return tokenizer


def _padding(tokenizer: Tokenizer) -> dict:
    known = [token for token in PADDING if tokenizer.token_to_id(token) is not None]
    return {"pad_token": known[0], "pad_id": tokenizer.token_to_id(known[0])} if known else {"pad_id": 0}
