"""A dataset version is whole or does not exist, whatever ended the process that built it. No cluster is needed."""

import os
import subprocess
import sys

import pytest

from rayloom import datasets
from rayloom.errors import DataError, RegistryError


@pytest.fixture
def manifest() -> datasets.Manifest:
    return datasets.Manifest(
        id="abc", name="toy", format=datasets.FORMAT, inputs={}, config_hash="", columns={"x": "int"},
        rows_in=3, rejected={"rule": 1}, splits={"train": datasets.Content(rows=2, checksum="0")},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "datasets" / "toy" / "abc"


def build(folder, manifest) -> None:
    with datasets.staging(folder) as place:
        (place / "train").mkdir()
        datasets.commit(place, folder, manifest)


def test_a_committed_version_is_found_as_it_was_written(folder, manifest):
    build(folder, manifest)
    found = datasets.find(folder)
    assert (found.manifest, found.manifest.accepted) == (manifest, 2)


def test_a_folder_without_a_manifest_does_not_exist(folder):
    (folder / "train").mkdir(parents=True)
    assert datasets.find(folder) is None


def test_a_damaged_manifest_is_named_and_not_rebuilt_over(folder, manifest):
    build(folder, manifest)
    path = folder / datasets.MANIFEST
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        datasets.find(folder)


def test_a_failed_build_leaves_nothing(folder):
    with pytest.raises(KeyError), datasets.staging(folder) as place:
        (place / "train").mkdir()
        raise KeyError
    assert list(folder.parent.iterdir()) == []


def test_what_a_killed_build_left_is_cleared_by_the_next(folder, manifest):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    killed = folder.with_name(f".building-abc-{gone.pid}")
    killed.mkdir(parents=True)
    alive = folder.with_name(f".building-other-{os.getppid()}")
    alive.mkdir()
    build(folder, manifest)
    assert {path.name for path in folder.parent.iterdir()} == {"abc", alive.name}


def test_two_builds_of_the_same_version_end_as_one(folder, manifest):
    with datasets.staging(folder) as place:
        other = folder.with_name("elsewhere")
        other.mkdir()
        datasets.commit(other, folder, manifest)
        datasets.commit(place, folder, manifest)
    assert datasets.find(folder).manifest == manifest


def test_a_version_that_is_not_there_is_named(tmp_path, monkeypatch):
    class Pipeline:
        name = "toy"

        class storage:
            @staticmethod
            def path():
                return tmp_path

    with pytest.raises(RegistryError, match="no dataset version abc"):
        datasets.get(Pipeline, "abc")
