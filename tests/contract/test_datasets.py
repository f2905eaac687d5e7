"""A dataset version is whole or does not exist, whatever ended the process that built it, and its counts add up.

The last tests read rows through Ray Data.
"""

import os
import subprocess
import sys
import uuid
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.data
from pydantic import ValidationError

from rayloom import checksum, config, datasets, features, statistics, versions
from rayloom.errors import DataError, RegistryError


@pytest.fixture
def manifest() -> versions.Manifest:
    return versions.Manifest(
        id="abc", name="toy", format=versions.FORMAT, inputs={}, config_hash="", columns={"x": "int"},
        rows_in=4, rejected={"rule": 1}, deduplicated={"exact": 1}, splits={"train": versions.Content(rows=2, checksum="0")},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "datasets" / "toy" / "abc"


@pytest.fixture
def pipeline(tmp_path):
    return SimpleNamespace(name="toy", storage=SimpleNamespace(path=lambda: tmp_path))


def build(folder, manifest) -> None:
    with versions.staging(folder) as place:
        (place / "train").mkdir()
        versions.commit(place, folder, manifest)


def test_a_committed_version_is_found_as_it_was_written(folder, manifest):
    build(folder, manifest)
    found = datasets.find(folder)
    assert (found.manifest, found.manifest.accepted) == (manifest, 2)


def test_every_row_is_accounted_for(manifest):
    assert manifest.balance == "4 in = 2 accepted + 1 rejected + 1 deduplicated"


@pytest.mark.parametrize("change", [{"rows_in": 5}, {"rejected": {}}, {"deduplicated": {"exact": 2}}, {"splits": {}}], ids=str)
def test_a_manifest_whose_counts_do_not_add_up_cannot_be_made(manifest, change):
    with pytest.raises(ValidationError, match="these counts do not add up"):
        versions.Manifest(**{**dict(manifest), **change})


def test_a_folder_without_a_manifest_does_not_exist(folder):
    (folder / "train").mkdir(parents=True)
    assert datasets.find(folder) is None


def test_a_damaged_manifest_is_named_and_not_rebuilt_over(folder, manifest):
    build(folder, manifest)
    path = folder / versions.MANIFEST
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        datasets.find(folder)


def test_a_manifest_of_another_format_is_named_as_such(folder, manifest):
    build(folder, manifest)
    path = folder / versions.MANIFEST
    path.write_text('{"id": "abc", "format": 1}')
    with pytest.raises(DataError, match=f"is of format 1, this Rayloom reads format {versions.FORMAT}"):
        datasets.find(folder)


def test_a_failed_build_leaves_nothing(folder):
    with pytest.raises(KeyError), versions.staging(folder) as place:
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
    with versions.staging(folder) as place:
        other = folder.with_name("elsewhere")
        other.mkdir()
        versions.commit(other, folder, manifest)
        versions.commit(place, folder, manifest)
    assert datasets.find(folder).manifest == manifest


def test_a_version_that_is_not_there_is_named(pipeline):
    with pytest.raises(RegistryError, match="no dataset version abc"):
        datasets.get(pipeline, "abc")


def test_a_build_in_progress_is_no_version(folder, manifest, pipeline):
    with versions.staging(folder) as place:
        (place / versions.MANIFEST).write_text(manifest.model_dump_json())
        assert versions.versions(pipeline.storage.path()) == ([], [])
        with pytest.raises(RegistryError):
            versions.get(pipeline, ".building")


def test_a_replay_knows_the_versions_before_it(folder, manifest):
    for name, parent in (("abc", "gone"), ("def", "abc"), ("ghi", "def")):
        build(folder.with_name(name), manifest.model_copy(update={"id": name, "parent": parent}))
    lineage = versions.lineage(versions.find(folder.with_name("ghi")))
    assert [version.manifest.id for version in lineage] == ["ghi", "def", "abc"]


def test_contents_and_statistics_come_from_one_pass_over_the_parquet(joined, tmp_path):
    splits = {
        # `path` is also what Ray Data calls a file's place, where it is asked for it.
        "train": pa.table({"x": pa.array([1, 2, None] * 40), "path": ["a", "b", None] * 40}),
        "test": pa.table({"x": pa.array([5]), "path": ["c"]}),
    }
    for split, rows in splits.items():
        (tmp_path / split).mkdir()
        for number in range(0, len(rows), 50):
            pq.write_table(rows.slice(number, 50), tmp_path / split / f"part-{number:03}.parquet")
    found = datasets.describe(tmp_path, list(splits))
    for split, rows in splits.items():
        assert found.contents[split].rows == len(rows)
        assert found.contents[split].checksum == f"{checksum.total(checksum.row_hashes(rows)):016x}"
        assert found.statistics[split] == statistics.finish(statistics.summarize(rows))


SPEC = config.Features.model_validate(
    {"label": "big", "columns": {"shade": {"kind": "category", "min_count": 1}, "size": {"kind": "number"}}}
)


def shades(labels: list, last: str = "green") -> pa.Table:
    """Rows whose last one alone has the shade `last`."""
    size = len(labels)
    return pa.table({"shade": ["red", "blue"] * (size // 2) + [last] * (size % 2), "size": [0.1] * size, "big": labels})


def cut(rows: pa.Table, edges: list[int]) -> ray.data.Dataset:
    return ray.data.from_arrow([rows.slice(start, end - start) for start, end in pairwise([0, *edges, len(rows)])])


@pytest.mark.parametrize("edges", [[], [100], [1, 2, 3, 50], [100, 100]], ids=str)
def test_input_5_a_category_of_one_partition_is_in_every_vocabulary(joined, edges):
    state, warnings = datasets.fit_features(SPEC, cut(shades([0] * 50 + [1] * 51), edges))
    assert state.columns["shade"].values == ["blue", "green", "red"]
    assert (state, warnings) == features.fit(SPEC, features.summarize(SPEC, shades([0] * 50 + [1] * 51)))


def test_input_8_identifiers_and_free_text_as_categories_are_refused_by_name(joined):
    columns = {
        "note": [f"Dear all, this is note {n}." for n in range(1100)],
        "uid": [str(uuid.UUID(int=n)) for n in range(1100)],
    }
    rows = pa.table({**columns, "big": [0, 1] * 550})
    for name in columns:
        spec = config.Features.model_validate({"label": "big", "columns": {name: {"kind": "category"}}})
        with pytest.raises(DataError, match=f"The feature '{name}' has 1,100 different values .*: it is no category"):
            datasets.fit_features(spec, cut(rows, [500]))


@pytest.mark.parametrize("label", [None, 7])
def test_an_error_of_ours_in_ray_datas_workers_keeps_its_type_and_sentence(joined, label):
    state, _ = features.fit(SPEC, features.summarize(SPEC, shades([0, 1, 1])))
    with pytest.raises(DataError) as caught:
        datasets.encode(state, cut(shades([0, 1, label]), [2]))
    assert str(caught.value).startswith("The label 'big'") and "\n" not in str(caught.value)


def test_rows_that_were_lost_since_the_commit_are_noticed(joined, folder, manifest):
    build(folder, manifest)
    pq.write_table(shades([0, 1, 1]), folder / "train" / "part-0.parquet")
    state, _ = features.fit(SPEC, features.summarize(SPEC, shades([0, 1, 1])))
    with pytest.raises(DataError, match="The train split of abc has 2 rows, and 3 came"):
        datasets.find(folder).encode(state, "train")
