"""Example inputs that no package brings as files: `python -m rayloom.examples digits FOLDER`.

    digits   scikit-learn's 1,797 hand-written digits (Alpaydin and Kaynak, 1998) as FOLDER/DIGIT/NUMBER.png

The same command writes the same pixels, and a folder is there whole or not at all. Not here: anything that is downloaded.
"""

import argparse
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from rayloom.cli import errors_as_exit_codes
from rayloom.errors import DataError, SourceError

DEEPEST = 16
"""scikit-learn's grey values: whole numbers from 0 (paper) to DEEPEST (ink)."""


def to_grey(values: np.ndarray) -> np.ndarray:
    """Values 0 to DEEPEST as uint8 from 0 to 255, each to one of its own: round(255 v / 16)."""
    return np.rint(values * (255 / DEEPEST)).astype(np.uint8)


def from_grey(pixels: np.ndarray) -> np.ndarray:
    """What `to_grey` was given, as float64: round(16 p / 255)."""
    return np.rint(pixels * (DEEPEST / 255))


def write_digits(folder: Path) -> int:
    """Writes each image as a grey PNG file into the folder of its digit; its number is its place in scikit-learn's data.

    Args:
        folder: what does not exist yet, or has exactly these files: then nothing is written.

    Returns:
        The number of images.

    Raises:
        DataError: something else is at `folder`.
        SourceError: the folder cannot be written.
    """
    from sklearn.datasets import load_digits  # takes a second, which --help does not need

    digits = load_digits()
    names = [f"{label}/{number:04d}.png" for number, label in enumerate(digits.target)]
    try:
        if not folder.exists():
            _write(folder, zip(names, map(to_grey, digits.images), strict=True))
        elif sorted(_files(folder)) != sorted(names):
            raise DataError(
                f"{folder} is there already and is not these {len(names):,} images; remove it or name another folder."
            )
    except OSError as error:
        raise SourceError(f"{folder} cannot be written ({error.strerror}); name another folder.") from None
    return len(names)


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []


def _write(folder: Path, images: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes beside the folder's place first, then renames: who looks sees all files or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.with_name(f".{folder.name}-{os.getpid()}")
    place.mkdir()
    try:
        for name, pixels in images:
            (place / name).parent.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(place / name, "PNG")
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """The command `python -m rayloom.examples`."""
    parser = argparse.ArgumentParser(
        prog="python -m rayloom.examples",
        description="Writes example inputs that no package brings as files.",
        epilog="example: python -m rayloom.examples digits data/digits",
    )
    parser.add_argument("example", choices=["digits"], help="digits: scikit-learn's 1,797 images, for configs/digits.yaml")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that is not there yet")
    parsed = parser.parse_args()
    with errors_as_exit_codes():
        print(f"{write_digits(parsed.folder):,} images are in {parsed.folder}")


if __name__ == "__main__":
    main()
