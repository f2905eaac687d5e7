"""Names in MLflow: it takes every encoded one, and each comes back as it was, by itself."""

import random

import pytest
from mlflow.exceptions import MlflowException
from mlflow.utils import validation

from rayloom.errors import RegistryError
from rayloom.metric_names import LONGEST, decode, encode, whole_tags

FINE = ["loss", "val/auc", "train loss", "f1-macro_0.5", "Genauigkeit über alles", ".hidden", "a/.b/..c", "a ", " "]
REFUSED = {
    "precision@10": "precision:40:10",
    "f1(macro)": "f1:28:macro:29:",
    "loss,val": "loss:2c:val",
    "": "::",
    ".": ":2e:",
    "..": ":2e:.",
    "..loss": ":2e:.loss",
    "/loss": ":2f:loss",
    "loss/": "loss:2f:",
    "a//b": "a:2f::2f:b",
    "a/../b": "a:2f:..:2f:b",
    "./a": ":2e::2f:a",
    "loss\n": "loss:a:",
    "\x00": ":0:",
    "\ud800": ":d800:",
    "🙂": ":1f642:",
    "e\u0301": "e:301:",
}
COLONS = {"train:loss": "train:3a:loss", ":": ":3a:", "::": ":3a::3a:", "precision:40:10": "precision:3a:40:3a:10"}
LONG = ["x" * 251, "x" * 250 + "y", "@" * 63, "a/" * 200 + "b", "x" * 8000]


@pytest.mark.parametrize("name", [*FINE, *REFUSED, *COLONS, *LONG, "x" * LONGEST], ids=lambda name: ascii(name[:20]))
def test_mlflow_takes_the_encoded_name_and_it_comes_back(name):
    encoded = encode(name)
    validation._validate_metric(encoded, 0.5, 0, 0)
    validation._validate_param(encoded, "value")
    assert decode(encoded, whole_tags([name])) == name


@pytest.mark.parametrize("name", [name for name in REFUSED if not name.endswith("\n")], ids=ascii)
def test_mlflow_refuses_the_bare_name(name):
    with pytest.raises(MlflowException):
        validation._validate_metric_name(name)


@pytest.mark.parametrize("name", FINE)
def test_a_name_that_is_fine_stays_as_it_is(name):
    assert encode(name) == name


@pytest.mark.parametrize(("name", "encoded"), [*REFUSED.items(), *COLONS.items()], ids=ascii)
def test_what_is_not_is_written_as_code_points(name, encoded):
    assert encode(name) == encoded


def test_names_of_awkward_characters_never_collide():
    drawn = random.Random(17)
    names = {"".join(drawn.choices("a2ef:/.@ x\n", k=drawn.randint(0, 7))) for _ in range(20_000)} | set(LONG)
    encoded = [encode(name) for name in names]
    assert len(set(encoded)) == len(names) > 10_000
    for one in encoded:
        validation._validate_metric_name(one)


def test_a_long_name_is_cut_and_told_by_its_digest():
    first, other = encode("x" * 300), encode("x" * 301)
    assert len(first) == len(other) == LONGEST and first != other


def test_a_long_name_does_not_come_back_without_its_tag():
    with pytest.raises(RegistryError, match="was shortened; pass the tags of its run"):
        decode(encode("x" * 300))


def test_a_name_too_long_for_a_tag_is_refused():
    with pytest.raises(RegistryError, match="takes 8001 characters in MLflow, which keeps at most 8000; shorten it"):
        encode("x" * 8001)


@pytest.mark.parametrize("foreign", ["train:loss", ":4O:", ":61:", ":040:", ":110000:", "", "a@", "..", "a//b"])
def test_a_name_that_rayloom_did_not_write_is_not_guessed(foreign):
    with pytest.raises(RegistryError, match="was not written by Rayloom"):
        decode(foreign)
