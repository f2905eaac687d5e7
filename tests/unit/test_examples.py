"""Example inputs: what `python -m rayloom.examples` writes, and what it does not touch."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from rayloom import examples
from rayloom.errors import DataError, SourceError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples") / "data" / "digits"
    assert examples.write_digits(folder) == 1797
    return folder


def test_digits_read_back_are_scikit_learns_arrays(folder):
    digits = load_digits()
    for number, (values, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        with Image.open(folder / str(label) / f"{number:04d}.png") as image:
            assert image.mode == "L"
            np.testing.assert_array_equal(examples.from_grey(np.asarray(image)), values)


def test_every_grey_value_has_one_of_its_own():
    values = np.arange(examples.DEEPEST + 1)
    grey = examples.to_grey(values)
    assert (grey[0], grey[-1], len(set(grey.tolist()))) == (0, 255, 17)
    np.testing.assert_array_equal(examples.from_grey(grey), values)


def test_the_same_bytes_come_again(folder, tmp_path):
    examples.write_digits(tmp_path / "again")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.png"))
    assert len(files) == 1797
    assert all((folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


def test_a_folder_that_is_written_already_is_left_as_it_is(folder):
    before = (folder / "0/0000.png").stat().st_mtime_ns
    assert examples.write_digits(folder) == 1797
    assert (folder / "0/0000.png").stat().st_mtime_ns == before


def test_another_folder_is_not_touched(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="is there already and is not these 1,797 images; remove it or name another folder"):
        examples.write_digits(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(SourceError, match=r"cannot be written .No space left on device.; name another folder"):
        examples.write_digits(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example_of_each():
    done = subprocess.run([sys.executable, "-m", "rayloom.examples", "--help"], text=True, capture_output=True, check=True)
    said = " ".join(done.stdout.split())
    assert "python -m rayloom.examples digits data/digits; python -m rayloom.examples creditcard data/creditcard.csv" in said
