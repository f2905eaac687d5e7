"""Batch output: parts that equal the served answers, rows that failed beside them, and what a resumed run makes again."""

import base64
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file
from torch import nn

from rayloom import config, datasets
from rayloom.batch import inputs, output, scoring
from rayloom.batch.output import Plan
from rayloom.batch.scoring import Scorer
from rayloom.bundle import Bundle, BundleConfig, Golden, write
from rayloom.errors import BundleError, ConfigError, DataError
from rayloom.features import FeatureState, ImageState
from rayloom.serving.predictor import Predictor


@pytest.fixture
def source(tmp_path, toy_rows) -> Path:
    """The toy rows as files of each kind, below one folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    pq.write_table(toy_rows, folder / "rows.parquet")
    rows = [datasets.record(row, toy_rows.column_names) for row in toy_rows.to_pylist()]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    (folder / "rows.csv").write_text("\n".join([",".join(toy_rows.column_names), *lines, ""]))
    return folder


@pytest.fixture
def plan(source, toy_bundle):
    """Makes the plan of a file, 60 rows a block, with changes."""

    def make(file: str = "rows.parquet", **changes) -> Plan:
        keep = changes.get("keep", [])
        given = {
            "model": "toy", "version": 3, "bundle": "b", "config": "c", "source": file, "root": str(source), "keep": keep,
            "missing": [""], "classes": toy_bundle.state.classes, "rows": 60,
            "inputs": [inputs.survey(source, file, toy_bundle.config.features, keep, 60)],
        }  # fmt: skip
        return Plan(**{**given, **changes})

    return make


@pytest.fixture
def scorer(tmp_path, toy_bundle):
    return lambda plan: Scorer(toy_bundle.folder, 1e-6, tmp_path / "out", plan, plan.id)


def score(scorer: Scorer, blocks: list[int] | None = None) -> dict:
    chosen = range(len(scorer.plan.blocks)) if blocks is None else blocks
    return {number: scorer.score(number, scorer.plan.blocks[number]) for number in chosen}


def predictions(folder: Path) -> pa.Table:
    return pq.read_table(folder / output.PREDICTIONS)


@pytest.mark.parametrize("file", ["rows.parquet", "rows.csv", "rows.jsonl"])
def test_parts_have_the_served_answers(plan, scorer, tmp_path, toy_bundle, toy_rows, file):
    score(scorer(plan(file)))
    names = list(toy_bundle.state.columns)
    served = Predictor(toy_bundle).answer([datasets.record(row, names) for row in toy_rows.to_pylist()])
    found = predictions(tmp_path / "out").to_pylist()
    assert [row["row"] for row in found] == list(range(200))
    assert np.allclose([row["probability"] for row in found], [one["probability"] for one in served], rtol=0, atol=1e-6)
    expected = [(one["label"], one.get("unseen", [])) for one in served]
    assert [(row["label"], row["unseen"]) for row in found] == expected


def test_a_part_has_row_ids_truth_kept_columns_and_version(plan, scorer, tmp_path, toy_rows):
    score(scorer(plan(keep=["carrier"])))
    found = predictions(tmp_path / "out")
    assert found.column_names == ["file", "row", "truth", "carrier", "probability", "label", "unseen", "model_version"]
    assert found["truth"].to_pylist() == toy_rows["late"].to_pylist()
    assert found["carrier"].to_pylist() == toy_rows["carrier"].to_pylist()
    assert (set(found["file"].to_pylist()), set(found["model_version"].to_pylist())) == ({"rows.parquet"}, {3})


def test_more_than_two_classes_have_a_probability_each(toy_bundle):
    predictor = Predictor(toy_bundle)
    state = toy_bundle.state.model_copy(update={"classes": [4, 5, 6]})
    predictor.bundle = dataclasses.replace(toy_bundle, state=state)
    given = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]], np.float32)
    found = scoring.answers(predictor, given)
    assert found["label"].to_pylist() == [5, 4] and found["probability"].to_pylist() == given.max(1).tolist()
    assert found["probabilities"].to_pylist() == given.tolist()


def test_rows_that_fail_are_set_aside_with_their_reason(plan, scorer, tmp_path, source):
    lines = (source / "rows.csv").read_text().splitlines()
    lines[71] = lines[71].replace(lines[71].split(",")[2], "far", 1)
    (source / "rows.csv").write_text("\n".join([*lines, ""]))
    parts = score(scorer(plan("rows.csv")))
    assert {number: (part.rows, part.failed) for number, part in parts.items()} == {
        0: (60, 0),
        1: (59, 1),
        2: (60, 0),
        3: (20, 0),
    }
    failed = pq.read_table(tmp_path / "out" / output.FAILED).to_pylist()
    reason = "field 'distance': expected a number, found 'far'"
    assert failed == [{"file": "rows.csv", "row": 70, "field": "distance", "reason": reason}]


class Fragile:
    """A predictor that the row of a certain distance breaks, and that answers another with NaN."""

    def __init__(self, predictor: Predictor, breaks: int, strange: int):
        self.predictor, self.breaks, self.strange = predictor, breaks, strange

    def __getattr__(self, name: str):
        return getattr(self.predictor, name)

    def predict(self, rows: pa.Table) -> np.ndarray:
        distances = rows["distance"].to_numpy()
        if self.breaks in distances:
            raise RuntimeError("index out of range\nand more")
        return np.where(distances == self.strange, np.nan, self.predictor.predict(rows))


def test_a_row_that_breaks_the_model_fails_alone(plan, scorer, tmp_path, toy_rows):
    distances = toy_rows["distance"].to_pylist()
    breaks, strange = [value for value in distances if distances.count(value) == 1][:2]
    one = scorer(plan())
    one.predictor = Fragile(one.predictor, breaks, strange)
    score(one)
    failed = {row["row"]: row["reason"] for row in pq.read_table(tmp_path / "out" / output.FAILED).to_pylist()}
    assert failed == {
        distances.index(breaks): "index out of range",
        distances.index(strange): "the model's answer is not finite",
    }
    assert len(predictions(tmp_path / "out")) == 198


GREY = ImageState(height=2, width=3, channels=1, resize=False, mean=[0.5], deviation=[0.25])


class Brightness(nn.Module):
    """A user's own network: the mean of an image."""

    def forward(self, batch):
        return batch["image"].mean((1, 2, 3))


def brightness(model: config.Model, state: FeatureState) -> nn.Module:
    return Brightness()


@pytest.fixture
def image_bundle(tmp_path) -> Bundle:
    spec = {"label": "y", "columns": {"face": {"kind": "image", "channels": 1}}}
    about = BundleConfig.model_validate(
        {"name": "toy", "seed": 17, "dataset": "0", "model": {"family": f"{__name__}:brightness"}, "features": spec}
    )
    save_file({}, tmp_path / "weights.safetensors")
    state = FeatureState(label="y", columns={"face": GREY})
    golden = [Golden(record={"face": None}, answer=0.5)]
    return write(tmp_path / "images", about, state, tmp_path / "weights.safetensors", {}, golden)


def test_an_image_that_cannot_be_decoded_fails_alone(plan, source, image_bundle, tmp_path):
    faces = [None, base64.b64encode(b"no image").decode(), None]
    (source / "faces.jsonl").write_text("".join(json.dumps({"face": face}) + "\n" for face in faces))
    found = inputs.survey(source, "faces.jsonl", image_bundle.config.features, [], 60)
    made = plan(inputs=[found])
    score(Scorer(image_bundle.folder, 1e-6, tmp_path / "out", made, made.id))
    [failed] = pq.read_table(tmp_path / "out" / output.FAILED).to_pylist()
    assert failed["row"] == 1 and failed["reason"].startswith("The image in field 'face' cannot be used (not one of PNG")
    assert predictions(tmp_path / "out")["row"].to_pylist() == [0, 2]


def test_a_bundle_that_answers_otherwise_is_refused(plan, tmp_path, write_toy_bundle, toy_bundle):
    golden = [one.model_copy(update={"answer": 0.987}) for one in toy_bundle.golden]
    wrong = write_toy_bundle(golden, "wrong")
    with pytest.raises(BundleError, match=r"Golden row \d of"):
        Scorer(wrong.folder, 1e-6, tmp_path / "out", plan(), "id")


def test_what_is_there_is_found_and_the_rest_is_equal(plan, scorer, tmp_path):
    made = plan()
    first = score(scorer(made), [0, 2])
    assert output.whole(tmp_path / "out", made) == first
    contents = {number: output.part_path(tmp_path / "out", number).read_bytes() for number in (0, 2)}
    score(scorer(made))
    assert {number: output.part_path(tmp_path / "out", number).read_bytes() for number in (0, 2)} == contents


def cut_off(folder: Path) -> None:
    path = output.part_path(folder, 1)
    path.write_bytes(path.read_bytes()[:-20])


def of_another_block(folder: Path) -> None:
    output.part_path(folder, 1).write_bytes(output.part_path(folder, 0).read_bytes())


def missing(folder: Path) -> None:
    output.part_path(folder, 1).unlink()


@pytest.mark.parametrize("damage", [cut_off, of_another_block, missing])
def test_a_part_that_is_not_whole_is_made_again(plan, scorer, tmp_path, damage):
    made = plan()
    score(scorer(made))
    damage(tmp_path / "out")
    assert sorted(output.whole(tmp_path / "out", made)) == [0, 2, 3]


def test_a_part_of_another_plan_is_made_again(plan, scorer, tmp_path):
    score(scorer(plan()))
    assert output.whole(tmp_path / "out", plan(version=4)) == {}


def test_temporary_files_of_a_crash_are_removed(plan, tmp_path):
    left = tmp_path / "out" / output.PREDICTIONS / ".part-000001.parquet.99-abc"
    left.parent.mkdir(parents=True)
    left.touch()
    output.whole(tmp_path / "out", plan())
    assert not left.exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": 4}, "it was begun with toy v3, and this is toy v4; give --model 3"),
        ({"bundle": "other"}, "this is toy v3 with another bundle"),
        ({"source": "test"}, "it was begun over rows.parquet, and this is test"),
        ({"keep": ["carrier"]}, "it was begun with --keep '', and this is 'carrier'"),
        ({"missing": ["", "NA"]}, "it was begun with --missing '', and this is ',NA'"),
        ({"config": "other"}, "the pipeline file has other features"),
        ({"rows": 61}, "it was begun by another version of Rayloom"),
    ],
)
def test_a_resume_of_something_else_is_refused(plan, tmp_path, changes, told):
    output.begin(tmp_path / "out", plan())
    with pytest.raises(ConfigError) as refused:
        output.resume(tmp_path / "out", plan(**changes))
    assert told in str(refused.value)


def test_a_resume_after_an_input_changed_is_refused(plan, tmp_path, source, toy_rows):
    output.begin(tmp_path / "out", plan())
    pq.write_table(toy_rows.slice(1), source / "rows.parquet")
    with pytest.raises(ConfigError, match=r"the input rows.parquet has changed since it was begun"):
        output.resume(tmp_path / "out", plan())


def test_a_resume_after_the_folder_moved_is_the_same(plan, tmp_path):
    output.begin(tmp_path / "out", plan())
    output.resume(tmp_path / "out", plan(root="/elsewhere", made="later"))


def test_a_folder_with_something_in_it_is_not_written_to(plan, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        output.begin(tmp_path / "out", plan())


def test_latest_is_the_one_begun_last(plan, tmp_path):
    for moment, name in enumerate(("b", "a")):
        output.begin(tmp_path / name, plan())
        os.utime(tmp_path / name / output.PLAN, (moment, moment))
    assert output.find("latest", tmp_path) == tmp_path / "a"


def test_a_manifest_is_written_when_all_rows_are_there(plan, scorer, tmp_path):
    made = plan()
    output.commit(tmp_path / "out", made, score(scorer(made)))
    manifest = output.Manifest.model_validate_json((tmp_path / "out" / output.MANIFEST).read_text())
    assert output.figures(manifest) == {"in": 200, "predicted": 200, "failed": 0}


def test_a_missing_part_ends_without_a_manifest(plan, scorer, tmp_path):
    made = plan()
    with pytest.raises(DataError, match=r"Part 3 of .* has 0 of its block's 20 rows"):
        output.commit(tmp_path / "out", made, score(scorer(made), [0, 1, 2]))
    assert not (tmp_path / "out" / output.MANIFEST).exists()


@pytest.mark.parametrize(("failed", "most", "ends"), [(10, 0.05, False), (11, 0.05, True), (1, 0.0, True), (0, 0.0, False)])
def test_too_many_failed_rows_end_the_run(plan, failed, most, ends):
    part = output.Part(plan="p", block=1, rows=60 - failed, failed=failed, reason="row 63: no JSON")
    said = ""
    try:
        output.require_few(failed, most, plan(), {1: part})
    except DataError as error:
        said = str(error)
    assert ("of 200 rows failed" in said and "row 63: no JSON" in said) == ends


@pytest.mark.parametrize("keep", [["label"], ["truth"], ["carrier", "carrier"]])
def test_a_kept_column_may_not_stand_in_anothers_place(keep):
    with pytest.raises(ConfigError, match=f"--keep {keep[0]}"):
        scoring.require_names(keep)
