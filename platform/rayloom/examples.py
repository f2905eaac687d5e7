"""Example inputs that no package brings as files: `python -m rayloom.examples digits FOLDER`, `… creditcard PLACE`.

    digits       scikit-learn's 1,797 hand-written digits (Alpaydin and Kaynak, 1998) as FOLDER/DIGIT/NUMBER.png
    creditcard   SYNTHETIC card transactions in one CSV file, with the columns, the number of rows and the share of fraud of the
                 public credit card fraud file (Dal Pozzolo et al., 2015), of which it holds not one row

The same command writes the same bytes, and what it writes is there whole or not at all. Not here: anything that is downloaded.
What a model reaches on the synthetic file says nothing about the public one, which configs/creditcard_fraud.yaml reads as well.
"""

import argparse
import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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


ROWS, FRAUDS = 284_807, 492
"""Of the public file, whose share of fraud is 0.17 %."""

LEAST_ROWS = 1000
"""Fewer would hold one fraud or none."""

SEED = 17
COMPONENTS = 28
WIDEST, NARROWEST = 1.96, 0.33
"""Standard deviations of V1 and V28."""

REPEATED = 0.0038
"""Part of the rows that occurs once more, to the last digit: the public file has 1,081 such rows."""

DAYS, HOURS = 2, 24
BUSY = (4, 3, 2, 2, 1, 2, 3, 6, 10, 14, 15, 15, 14, 14, 14, 14, 14, 14, 15, 14, 14, 13, 10, 7)
"""How many purchases each hour has beside the others."""

TYPICAL, SKEW, LARGEST = 22.0, 1.65, 25_000.0
"""Amounts: the median, the deviation of the logarithm, and the largest."""

FREE = 0.006
"""Part of the rows whose amount is 0."""


class Cloud(NamedTuple):
    """A Gaussian of a mixture: its share, its deviation in each direction, and where its center is not 0, by component."""

    share: float
    spread: float
    center: dict[int, float]


USUAL = (
    Cloud(0.42, 0.85, {1: 0.7, 2: -0.4, 5: 0.5, 8: 0.3, 13: -0.6, 22: 0.5}),
    Cloud(0.33, 0.80, {1: -0.6, 3: 0.7, 6: -0.5, 13: 0.8, 24: -0.6}),
    Cloud(0.20, 0.95, {2: 0.8, 5: -0.8, 9: 0.5, 15: 0.9, 26: 0.6}),
    Cloud(0.0462, 1.5, {6: 1.0, 10: 0.6, 20: -0.8}),
    # Rare purchases that look like fraud in most components (the first), or in all (the second).
    Cloud(0.003, 1.5, {3: -2.0, 4: 2.2, 10: 2.4, 11: 2.4, 12: -2.0, 14: -2.5, 16: 1.0, 17: 2.0}),
    Cloud(0.0008, 1.8, {4: 2.0, 7: -2.0, 10: -3.0, 12: -3.0, 14: -4.0, 17: -3.0}),
)

FRAUD = (
    Cloud(0.50, 2.5, {3: -4.5, 4: 3.2, 7: -3.0, 10: -5.0, 11: 3.6, 12: -6.0, 14: -7.0, 16: -4.5, 17: -7.5, 18: -2.5}),
    Cloud(0.25, 1.5, {2: 2.5, 4: 3.4, 7: -2.0, 9: -2.5, 11: 2.5, 12: -3.0, 14: -4.5, 19: 1.5, 21: 2.0}),
    # In the midst of usual purchases: no model finds all of these.
    Cloud(0.25, 1.1, {4: 0.9, 8: 0.8, 11: 0.9, 12: -0.8, 14: -1.1, 20: 0.6}),
)


def transactions(rows: int = ROWS, seed: int = SEED) -> dict[str, np.ndarray]:
    """Synthetic card transactions in the order of their time; 492 of 284,807, and of other numbers in proportion, are fraud.

    Fraud and usual purchases are overlapping Gaussian mixtures, scaled so that deviations fall from V1 to V28, as those of
    principal components do. Fraud has smaller amounts, and is as frequent at night as by day. A model that knew these
    mixtures would reach a ROC-AUC of 0.99 and an average precision of 0.85, a logistic regression reaches 0.97 and 0.74.

    Args:
        rows: how many, with those that occur once more.
        seed: of all draws. The same seed gives the same values with one release of NumPy.

    Returns:
        "Time" int64 (rows,), seconds from 0 below two days; "V1" to "V28" float64 (rows,), with six decimals; "Amount" float64
        (rows,), with cents; "Class" int64 (rows,), 1 for fraud.

    Raises:
        DataError: under LEAST_ROWS rows, or a seed below 0.
    """
    if rows < LEAST_ROWS:
        raise DataError(f"{rows:,} transactions are too few to hold frauds; write --rows {LEAST_ROWS} or more.")
    if seed < 0:
        raise DataError(f"The seed {seed} is below 0, and none of NumPy's is; write --seed 0 or more.")
    rng = np.random.default_rng(seed)
    frauds, again = round(rows * FRAUDS / ROWS), round(rows * REPEATED)
    usual = rows - frauds - again
    columns = {
        "Time": np.concatenate([_times(rng, usual, BUSY), _times(rng, frauds, (1,) * HOURS)]),
        **_components(rng, usual, frauds),
        "Amount": np.concatenate([_amounts(rng, usual, TYPICAL, SKEW), _amounts(rng, frauds, TYPICAL / 2, SKEW + 0.4)]),
        "Class": np.repeat([0, 1], [usual, frauds]),
    }
    order = np.concatenate([np.arange(usual + frauds), rng.choice(usual, again, replace=False)])
    order = order[np.argsort(columns["Time"][order], kind="stable")]
    return {name: values[order] for name, values in columns.items()}


def _times(rng: np.random.Generator, count: int, weights: tuple[int, ...]) -> np.ndarray:
    """Whole seconds, of each hour of the day as many as its weight says."""
    passed = np.cumsum([0, *weights * DAYS]) / (sum(weights) * DAYS)
    return np.interp(rng.random(count), passed, np.arange(len(passed)) * 3600).astype(np.int64)


def _components(rng: np.random.Generator, usual: int, frauds: int) -> dict[str, np.ndarray]:
    drawn = np.vstack([_mixture(rng, usual, USUAL), _mixture(rng, frauds, FRAUD)])
    spreads = np.geomspace(WIDEST, NARROWEST, COMPONENTS)
    scaled = np.round((drawn - drawn.mean(0)) / drawn.std(0) * spreads, 6)
    return {f"V{index}": values for index, values in enumerate(scaled.T, start=1)}


def _mixture(rng: np.random.Generator, count: int, clouds: tuple[Cloud, ...]) -> np.ndarray:
    centers = np.array([[cloud.center.get(index, 0.0) for index in range(1, COMPONENTS + 1)] for cloud in clouds])
    spreads = np.array([cloud.spread for cloud in clouds])
    drawn = rng.choice(len(clouds), count, p=[cloud.share for cloud in clouds])
    return centers[drawn] + spreads[drawn, None] * rng.standard_normal((count, COMPONENTS))


def _amounts(rng: np.random.Generator, count: int, median: float, skew: float) -> np.ndarray:
    amounts = np.minimum(median * np.exp(skew * rng.standard_normal(count)), LARGEST)
    return np.round(np.where(rng.random(count) < FREE, 0.0, amounts), 2)


def write_creditcard(place: Path, rows: int = ROWS, seed: int = SEED) -> Path:
    """Writes `transactions` as CSV, with the header line of the public file.

    Args:
        place: a file, where it ends in .csv; else a folder, for the file creditcard.csv. The file does not exist yet, or has
            exactly these bytes, and then stays as it is.

    Returns:
        The file.

    Raises:
        DataError: as `transactions`, or the file has other bytes: it may be the public one.
        SourceError: the file cannot be written.
    """
    file = place if place.suffix == ".csv" else place / "creditcard.csv"
    columns = transactions(rows, seed)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write_csv(file, columns)
    except OSError as error:
        raise SourceError(f"{file} cannot be written ({error.strerror or error}); name another file.") from None
    return file


def _write_csv(file: Path, columns: dict[str, np.ndarray]) -> None:
    """Writes beside the file first, then renames, as `_write` does."""
    import pyarrow as pa
    from pyarrow import csv

    beside = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        with beside.open("wb") as sink:
            csv.write_csv(pa.table(columns), sink)
        if not file.exists():
            beside.rename(file)
        elif not file.is_file() or not filecmp.cmp(beside, file, shallow=False):
            raise DataError(f"{file} is there already and has other rows than these; remove it or name another file.")
    finally:
        beside.unlink(missing_ok=True)


def _say_digits(parsed: argparse.Namespace) -> str:
    return f"{write_digits(parsed.folder):,} images are in {parsed.folder}"


def _say_creditcard(parsed: argparse.Namespace) -> str:
    file = write_creditcard(parsed.place, parsed.rows, parsed.seed)
    return f"{parsed.rows:,} synthetic transactions (no row of the public file) are in {file}"


def main() -> None:
    """The command `python -m rayloom.examples`."""
    parser = argparse.ArgumentParser(
        prog="python -m rayloom.examples",
        description="Writes example inputs that no package brings as files.",
        epilog="examples: python -m rayloom.examples digits data/digits; "
        "python -m rayloom.examples creditcard data/creditcard.csv",
    )
    examples = parser.add_subparsers(required=True, metavar="EXAMPLE")
    digits = examples.add_parser("digits", help="scikit-learn's 1,797 images, for configs/digits.yaml")
    digits.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that is not there yet")
    digits.set_defaults(write=_say_digits)
    cards = examples.add_parser("creditcard", help="synthetic card transactions, for configs/creditcard_fraud.yaml")
    cards.add_argument("place", type=Path, metavar="PLACE", help="a file that ends in .csv, or a folder for creditcard.csv")
    cards.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"how many (default: {ROWS}, as the public file)")
    cards.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"another one draws others (default: {SEED})")
    cards.set_defaults(write=_say_creditcard)
    parsed = parser.parse_args()
    with errors_as_exit_codes():
        print(parsed.write(parsed))


if __name__ == "__main__":
    main()
