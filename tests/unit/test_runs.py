"""A run's folder, its stages, its summary, and the screen that it ends with."""

import json
import re

import pytest

from rayloom import runs


@pytest.fixture
def start(toy_pipeline):
    return lambda: runs.start(toy_pipeline(), {})


@pytest.fixture
def finished(start):
    """A run with two stages and two sections that has written its summary."""
    run = start()
    with run.stage("etl") as stage:
        stage.cached = True
    with run.stage("train"):
        pass
    run.summary["dataset"] = {"id": "0123456789ab", "splits": {"train": 101}}
    run.summary["audit"] = {"leftovers": []}
    run.write_summary()
    return run


def test_a_run_has_a_folder_below_the_storage(start, tmp_path):
    run = start()
    assert run.folder == tmp_path / "runs" / run.id and run.folder.is_dir()


def test_a_runs_id_is_its_time_and_its_pipelines_name(start):
    assert re.fullmatch(r"\d{8}-\d{6}-toy(-\d+)?", start().id)


def test_runs_started_in_the_same_second_have_ids_of_their_own(start):
    assert len({start().id for _ in range(20)}) == 20


def test_the_summary_is_json_with_all_that_the_stages_said(finished):
    said = json.loads((finished.folder / "summary.json").read_text())
    assert (said["run"], said["dataset"], said["audit"]) == (finished.id, finished.summary["dataset"], {"leftovers": []})


def test_the_summary_has_the_stages_in_their_order(finished):
    stages = json.loads((finished.folder / "summary.json").read_text())["stages"]
    assert [(stage["name"], stage["cached"]) for stage in stages] == [("etl", True), ("train", False)]


def test_nothing_but_the_summary_is_left_in_the_folder(finished):
    assert [path.name for path in finished.folder.iterdir()] == ["summary.json"]


def test_a_summary_that_cannot_be_written_is_not_there_in_part(start):
    run = start()
    run.summary["odd"] = object()
    with pytest.raises(TypeError):
        run.write_summary()
    assert not (run.folder / "summary.json").exists()


def test_latest_points_to_the_run_that_finished(finished):
    assert (finished.folder.with_name("latest") / "summary.json").samefile(finished.folder / "summary.json")


def test_latest_moves_to_the_next_run_that_finishes(finished, start):
    following = start()
    following.write_summary()
    assert following.folder.with_name("latest").resolve() == following.folder


def test_latest_stays_while_a_newer_run_has_not_finished(finished, start):
    start()
    assert finished.folder.with_name("latest").resolve() == finished.folder


def test_latest_can_be_moved_with_the_storage(finished, tmp_path):
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest" / "summary.json").is_file()


def test_nothing_but_runs_and_latest_is_left(finished, tmp_path):
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {finished.id, "latest"}


def test_a_stage_that_fails_is_not_recorded(start):
    run = start()
    with pytest.raises(ZeroDivisionError), run.stage("etl"):
        raise ZeroDivisionError
    assert run.stages == []


def test_a_stage_says_when_it_begins_and_ends(start, capsys):
    with start().stage("etl"):
        pass
    assert re.fullmatch(r"▸ etl\n✓ etl: \d\.\d s\n", capsys.readouterr().out)


def test_what_was_to_be_undone_is_undone_last_first(start):
    run, undone = start(), []
    with run.cleanup:
        run.cleanup.callback(undone.append, "first")
        run.cleanup.callback(undone.append, "second")
    assert undone == ["second", "first"]


def test_the_screen_names_the_run_and_the_file(finished):
    path = finished.folder / "summary.json"
    screen = runs.screen(finished, path)
    assert f"Run {finished.id}" in screen and screen.endswith(f"  {path}")


def test_the_screen_has_a_line_for_every_stage(finished):
    screen = runs.screen(finished, finished.folder)
    assert re.search(r"^  etl +\d+\.\d  cached$", screen, re.M) and re.search(r"^  train +\d+\.\d$", screen, re.M)


def test_the_screen_has_a_line_for_every_section(finished):
    screen = runs.screen(finished, finished.folder)
    assert re.search(r"^  dataset +id 0123456789ab  splits \(train 101\)$", screen, re.M)
    assert re.search(r"^  audit +leftovers none$", screen, re.M)


def test_the_screen_adds_the_seconds_up(start):
    run = start()
    run.stages = [runs.Stage("etl", 1.5), runs.Stage("train", 2.25)]
    assert re.search(r"^  total +3\.8$", runs.screen(run, run.folder), re.M)


@pytest.mark.parametrize(
    ("value", "text"), [(0.70361, "0.7036"), (1.2e-8, "1.2e-08"), (101, "101"), ([], "none"), ([1, 2], "1, 2")]
)
def test_values_are_shown_shortly(start, value, text):
    run = start()
    run.summary["test"] = {"figure": value}
    assert f"figure {text}\n" in runs.screen(run, run.folder)
