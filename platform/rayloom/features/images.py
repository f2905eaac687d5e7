"""Images: decoded, resized where asked for, standardised by the training split's mean and deviation of each channel."""

import io
import math
from collections.abc import Mapping

import numpy as np
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from rayloom import sketch
from rayloom.config.features import Image
from rayloom.errors import DataError
from rayloom.features.columns import Column, Inputs, OneByOne
from rayloom.features.state import USELESS, ImageState

MOST_PIXELS = 4096 * 4096
"""A file that claims more is refused before it is decoded: a few kilobytes may unpack to gigabytes."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""What is decoded. Pillow knows more, some of which run other programs."""

EIGHT_BIT = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes whose conversion to grey or RGB keeps the values' meaning; those of 16 bits would be cut off at 255."""


def summarize(feature: Image, column: Column) -> dict:
    """Sums and sums of squares of each channel, in whole numbers: exact, so that no order of merges changes them.

    Raises:
        DataError: a file is no image that can be decoded, or, without `size`, images differ in size.
    """
    size = (feature.size[0], feature.size[1]) if feature.size else None
    summary: dict = {"sizes": {}, "pixels": 0}
    sums, squares = np.zeros(feature.channels, np.int64), np.zeros(feature.channels, np.int64)
    for row, data in enumerate(column.values):
        if not data.is_valid:
            continue
        pixels = _decode(data.as_py(), feature.channels, size, column.row(row)).astype(np.int64)
        key = f"{pixels.shape[0]}x{pixels.shape[1]}"
        summary["sizes"][key] = summary["sizes"].get(key, 0) + 1
        _require_one_size(column.name, summary["sizes"])
        summary["pixels"] += pixels.shape[0] * pixels.shape[1]
        sums += pixels.sum((0, 1))
        squares += (pixels**2).sum((0, 1))
    return {**summary, "sums": sums.tolist(), "squares": squares.tolist()}


def _require_one_size(name: str, sizes: dict[str, int]) -> None:
    if len(sizes) > 1:
        raise DataError(
            f"The images of '{name}' are of sizes {' and '.join(sorted(sizes))} (height x width); say to which they are "
            f"resized, as in features.columns.{name}.size: [64, 64]."
        )


def merge(name: str, left: dict, right: dict) -> dict:
    sizes = sketch.add(left["sizes"], right["sizes"])
    _require_one_size(name, sizes)
    sums = {key: [a + b for a, b in zip(left[key], right[key], strict=True)] for key in ("sums", "squares")}
    return {**sums, "sizes": sizes, "pixels": left["pixels"] + right["pixels"]}


def fit(name: str, feature: Image, summary: dict) -> tuple[ImageState, list[str]]:
    if not summary["sizes"]:
        raise DataError(f"The feature '{name}' has no image in the training split; correct etl.splits or remove the feature.")
    height, width = map(int, next(iter(summary["sizes"])).split("x"))
    count = summary["pixels"]
    mean, deviation = [], []
    for total, squares in zip(summary["sums"], summary["squares"], strict=True):
        mean.append(total / count / 255)
        deviation.append(math.sqrt(count * squares - total**2) / count / 255)  # whole numbers up to the root: no cancellation
    state = ImageState(
        height=height, width=width, channels=feature.channels, resize=feature.size is not None, mean=mean, deviation=deviation
    )
    return state, [] if any(deviation) else [f"is constant {USELESS}"]


def prepare(columns: Mapping[str, ImageState]) -> OneByOne:
    return OneByOne(columns, _apply)


def _apply(state: ImageState, column: Column) -> Inputs:
    """{"image": float32 (n, channels, height, width)}; 0, the mean, where an image is missing.

    Raises:
        DataError: a file is no image that can be decoded, or is of another size than in training.
    """
    images = np.zeros((len(column.values), state.channels, state.height, state.width), np.float32)
    for row, data in enumerate(column.values):
        if data.is_valid:
            images[row] = _standardise(state, decode(state, data.as_py(), column.row(row)))
    return {"image": [images]}


def decode(state: ImageState, data: bytes, called: str) -> np.ndarray:
    """Pixels uint8 (height, width, channels) of an image file.

    Args:
        called: what the error calls the image.

    Raises:
        DataError: the file is no image that can be decoded, or is of another size than in training.
    """
    pixels = _decode(data, state.channels, (state.height, state.width) if state.resize else None, called)
    if pixels.shape[:2] != (state.height, state.width):
        raise DataError(
            f"The image {called} is of size {pixels.shape[0]}x{pixels.shape[1]}, those of the training split are "
            f"{state.height}x{state.width} (height x width); resize it, or set the feature's `size` and train again."
        )
    return pixels


def _standardise(state: ImageState, pixels: np.ndarray) -> np.ndarray:
    deviation = np.array(state.deviation)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return ((pixels / 255 - np.array(state.mean)) * scale).transpose(2, 0, 1)


def _decode(data: bytes, channels: int, size: tuple[int, int] | None, called: str) -> np.ndarray:
    try:
        with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels, over the limit of {MOST_PIXELS:,}")
            if image.mode not in EIGHT_BIT:
                raise ValueError(f"mode {image.mode}: not 8 bits a channel")
            pixels = image.convert("L" if channels == 1 else "RGB")
            if size and pixels.size != (size[1], size[0]):
                pixels = pixels.resize((size[1], size[0]), Pillow.Resampling.BILINEAR)
            return np.asarray(pixels).reshape(pixels.height, pixels.width, channels)
    except Exception as error:  # a damaged file makes decoders raise nearly anything
        reason = "not one of " + ", ".join(FORMATS) if isinstance(error, UnidentifiedImageError) else str(error)[:200]
        raise DataError(f"The image {called} cannot be used ({reason}); convert or remove it.") from None
