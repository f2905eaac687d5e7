"""A bundle: read as it was written, whole or refused, and never with code in it."""

import json
import shutil

import pytest

from rayloom import bundle
from rayloom.errors import BundleError

ALL = (*bundle.FILES, bundle.MANIFEST)


@pytest.fixture
def folder(toy_bundle):
    return toy_bundle.folder


def refusal(folder) -> str:
    with pytest.raises(BundleError) as caught:
        bundle.load(folder)
    return str(caught.value)


def test_a_bundle_is_read_as_it_was_written(toy_bundle):
    assert bundle.load(toy_bundle.folder) == toy_bundle


def test_the_state_comes_back_equal(toy_bundle, toy_state):
    assert toy_bundle.state == toy_state


def test_the_sections_of_the_pipeline_file_come_back_equal(toy_bundle, toy_model, toy_spec):
    assert (toy_bundle.config.model, toy_bundle.config.features) == (toy_model, toy_spec)


def test_golden_records_come_back_with_their_types(toy_bundle, toy_records):
    found = [golden.record for golden in toy_bundle.golden]
    assert json.dumps(found) == json.dumps(toy_records)


def test_the_weights_are_copied_byte_for_byte(toy_bundle, toy_weights):
    assert toy_bundle.weights.read_bytes() == toy_weights.read_bytes()


def test_a_bundle_can_be_moved(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    assert bundle.load(tmp_path / "elsewhere").config.name == "toy"


def test_a_bundle_holds_json_and_safetensors_alone(folder):
    assert {path.name for path in folder.iterdir()} == set(ALL)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".jsonl", ".safetensors"}


@pytest.mark.parametrize("name", ALL)
def test_a_removed_file_is_refused_by_name(folder, name):
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ALL)
def test_a_truncated_file_is_refused_by_name(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    assert name in refusal(folder)


@pytest.mark.parametrize("name", ALL)
def test_an_emptied_file_is_refused_by_name(folder, name):
    (folder / name).write_bytes(b"")
    assert name in refusal(folder)


@pytest.mark.parametrize("name", bundle.FILES)
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_one_altered_bit_is_refused_by_name(folder, name, place):
    content = bytearray((folder / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


@pytest.mark.parametrize("name", bundle.FILES)
def test_a_checksum_that_the_manifest_lacks_is_refused(folder, name):
    manifest = json.loads((folder / bundle.MANIFEST).read_text())
    del manifest[name]
    (folder / bundle.MANIFEST).write_text(json.dumps(manifest))
    assert name in refusal(folder)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"text"', "{}"])
def test_a_manifest_that_is_no_manifest_is_refused(folder, text):
    (folder / bundle.MANIFEST).write_text(text)
    assert str(folder) in refusal(folder)


def test_a_whole_file_that_says_something_else_is_refused(folder):
    """As a bundle of a later version might: the checksums are right, a key is not known here."""
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "novelty": 1}))
    checksums = {name: bundle._sha256(folder / name) for name in bundle.FILES}
    (folder / bundle.MANIFEST).write_text(json.dumps(checksums))
    assert "is not a bundle of this version" in refusal(folder)


@pytest.mark.parametrize(("change", "found"), [({"format": 3}, 3), ({"format": None}, 1)])
def test_a_bundle_of_another_format_is_refused(folder, change, found):
    """None: as bundles were before their format was counted."""
    about = {**json.loads((folder / "config.json").read_text()), **change}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in about.items() if value is not None}))
    checksums = {name: bundle._sha256(folder / name) for name in bundle.FILES}
    (folder / bundle.MANIFEST).write_text(json.dumps(checksums))
    assert f"is a bundle of format {found}, and this version reads format 2; train again" in refusal(folder)


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    assert "nowhere" in refusal(tmp_path / "nowhere")


def test_an_existing_folder_is_never_overwritten(write_toy_bundle, toy_bundle):
    with pytest.raises(BundleError, match="bundle exists already; a bundle is never overwritten"):
        write_toy_bundle([])
    assert bundle.load(toy_bundle.folder) == toy_bundle


def test_nothing_but_the_bundle_is_left_after_writing(toy_bundle, tmp_path):
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "weights.safetensors"}


def test_nothing_is_left_when_writing_fails(write_toy_bundle, toy_weights, tmp_path):
    toy_weights.unlink()
    with pytest.raises((OSError, BundleError)):
        write_toy_bundle([])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_can_be_repeated(write_toy_bundle, toy_weights):
    content = toy_weights.read_bytes()
    toy_weights.unlink()
    with pytest.raises((OSError, BundleError)):
        write_toy_bundle([])
    toy_weights.write_bytes(content)
    assert write_toy_bundle([]).config.name == "toy"
