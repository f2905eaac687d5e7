"""Image columns: pixels as NumPy has them, standardised by exact moments; files that cannot be used are named."""

import io
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from rayloom import config, features
from rayloom.errors import DataError
from rayloom.features import FeatureState


def file_of(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def spec_of(**settings) -> config.Features:
    return config.Features.model_validate({"label": "y", "columns": {"face": {"kind": "image", **settings}}})


def rows_of(files: list) -> pa.Table:
    return pa.table({"face": pa.array(files, pa.binary()), "y": pa.array([0] * len(files), pa.int32())})


def fit(files: list, cuts: list[int] = [], **settings) -> tuple[FeatureState, list[str]]:
    spec, rows = spec_of(**settings), rows_of(files)
    parts = [features.summarize(spec, rows.slice(a, b - a)) for a, b in pairwise([0, *cuts, len(rows)])]
    merged = parts[0]
    for part in parts[1:]:
        merged = features.merge(merged, part)
    return features.fit(spec, merged)


def refusal(*files: bytes, **settings) -> str:
    with pytest.raises(DataError) as caught:
        fit(list(files), **settings)
    return str(caught.value)


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """20 images of 6 by 8 in colour."""
    return np.random.default_rng(1).integers(0, 256, (20, 6, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def files(pixels) -> list[bytes]:
    return [file_of(image) for image in pixels]


def test_pixels_are_numpys_standardised_by_channel(pixels, files):
    shares = pixels / 255
    expected = ((shares - shares.mean((0, 1, 2))) / shares.std((0, 1, 2))).transpose(0, 3, 1, 2)
    found = features.apply(fit(files)[0], rows_of(files))["image"]
    assert (found.dtype, found.shape) == (np.float32, (20, 3, 6, 8)) and np.abs(found - expected).max() < 1e-5


def test_grey_images_have_one_channel():
    grey = np.random.default_rng(2).integers(0, 256, (4, 5, 5), np.uint8)
    given = [file_of(image) for image in grey]
    found = features.apply(fit(given, channels=1)[0], rows_of(given))["image"]
    assert found.shape == (4, 1, 5, 5) and np.abs(found[:, 0] - (grey - grey.mean()) / grey.std()).max() < 1e-5


@pytest.mark.parametrize("cuts", [[1], [7, 8], [5, 5, 19]])
def test_the_state_is_the_same_to_the_last_bit_however_rows_are_cut(files, cuts):
    assert fit(files, cuts) == fit(files)


def test_images_are_resized_to_the_given_height_and_width(pixels, files):
    mixed = [*files[:3], file_of(np.zeros((9, 4, 3), np.uint8))]
    state, _ = fit(mixed, size=[12, 10])
    assert features.apply(state, rows_of(mixed))["image"].shape == (4, 3, 12, 10)


def test_images_of_different_sizes_are_refused_with_what_to_do(files):
    said = refusal(files[0], file_of(np.zeros((9, 4, 3), np.uint8)))
    assert "The images of 'face' are of sizes 6x8 and 9x4" in said and "features.columns.face.size" in said


def test_images_of_different_sizes_in_different_blocks_are_refused(files):
    with pytest.raises(DataError, match="are of sizes 6x8 and 9x4"):
        fit([files[0], file_of(np.zeros((9, 4, 3), np.uint8))], cuts=[1])


def test_an_image_of_another_size_than_in_training_is_refused(files):
    state, _ = fit(files)
    with pytest.raises(DataError, match=r"The image in row 0 of 'face' is of size 9x4, those of the training split are 6x8"):
        features.apply(state, rows_of([file_of(np.zeros((9, 4, 3), np.uint8))]))


def test_a_missing_image_is_the_mean_one(files):
    state, _ = fit([*files, None])
    assert not features.apply(state, rows_of([None]))["image"].any()


def test_a_row_alone_is_the_row_of_the_whole(files):
    state, _ = fit(files)
    whole = features.apply(state, rows_of(files))["image"]
    assert features.apply(state, rows_of(files[3:4]))["image"].tobytes() == whole[3:4].tobytes()


def test_constant_images_are_warned_about_and_zero_for_any_image(files):
    state, warnings = fit([file_of(np.full((6, 8, 3), 9, np.uint8))] * 2)
    assert "feature face is constant in the training split" in warnings[0]
    assert not features.apply(state, rows_of(files))["image"].any()


def test_no_image_at_all_is_refused():
    assert "The feature 'face' has no image in the training split" in refusal(None)


@pytest.mark.parametrize("damage", ["text", "empty", "cut", "16 bits", "vector"])
def test_what_cannot_be_used_is_named(files, damage):
    file = {
        "text": b"no image",
        "empty": b"",
        "cut": files[0][:60],
        "16 bits": file_of(np.zeros((4, 4), np.uint16)),
        "vector": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }[damage]
    assert "The image in row 1 of 'face' cannot be used (" in refusal(files[0], file)


def test_a_file_is_named_by_its_path(files):
    rows = rows_of([files[0], b"no image"]).append_column("path", pa.array(["cats/1.png", "dogs/2.png"]))
    with pytest.raises(DataError, match=r"The image 'dogs/2\.png' cannot be used \(not one of PNG"):
        features.summarize(spec_of(), rows)


def test_random_damage_is_always_refused_or_read(files):
    state, _ = fit(files)
    rng = np.random.default_rng(7)
    jpeg = file_of(np.zeros((6, 8, 3), np.uint8), "JPEG")
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(jpeg if rng.random() < 0.5 else files[0])
        for place in rng.integers(0, len(damaged), 4):
            damaged[place] = rng.integers(0, 256)
        try:
            outcomes.add(features.apply(state, rows_of([bytes(damaged)]))["image"].shape)
        except DataError:
            outcomes.add("refused")
    assert outcomes == {"refused", (1, 3, 6, 8)}


def test_a_file_that_claims_too_many_pixels_is_refused_before_it_is_decoded():
    """A header that claims 5000 x 5000 pixels, without their data: decoding would fail otherwise."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    header = (5000).to_bytes(4) * 2 + bytes([8, 0, 0, 0, 0])
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    assert "5000 x 5000 pixels, over the limit of 16,777,216" in refusal(file)
