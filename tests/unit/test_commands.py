"""The command `rayloom` on versions made by hand: what it prints, what it refuses, and that it starts without Ray."""

import csv
import importlib
import io
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from rayloom import commands, config, statistics, versions
from rayloom.commands.quarantine import summarize
from rayloom.quarantine import COLUMNS, Outcome

PIPELINE = """
name: toy
storage: {root: ROOT}
etl:
  sources: {raw: {path: raw.csv, columns: "id INT, size DOUBLE, shade STRING"}, more: {path: more.csv, missing: NA}}
  steps: [{name: rows, sql: "SELECT *, size > 1 AS big FROM raw"}]
  rules: [{name: has_size, where: size IS NOT NULL}]
  splits: {train: id < 3, validation: id = 3, test: id > 3}
  order_by: [id]
features: {label: shade, columns: {size: {kind: number}}}
"""
ROWS = pa.table(
    {"id": pa.array([1, 2, 3, 4], pa.int32()), "size": [1.5, 2.5, None, 4.0], "shade": ["red", "red", "blue", "red"]}
)
SPLITS = {"train": slice(0, 2), "validation": slice(2, 3), "test": slice(3, 4)}


@pytest.fixture
def file(tmp_path):
    """The pipeline file."""
    path = tmp_path / "toy.yaml"
    path.write_text(PIPELINE.replace("ROOT", str(tmp_path)))
    return path


@pytest.fixture
def make(tmp_path):
    """Commits a version of ROWS with one rejected row."""

    def commit(version: str, made: str = "2026-01-01", name: str = "toy", rows: pa.Table = ROWS, **fields) -> versions.Version:
        folder = tmp_path / "datasets" / name / version
        parts = {split: rows.slice(part.start, part.stop - part.start) for split, part in SPLITS.items()}
        below = {
            "id": version, "name": name, "format": versions.FORMAT, "made": f"{made}T10:00:00+00:00",
            "inputs": {"raw": "ab" * 32}, "config_hash": "cd" * 32,
            "columns": {"id": "int", "size": "double", "shade": "string"},
            "rows_in": 6, "rejected": {"has_size": 1}, "deduplicated": {"exact": 1},
            "sources": {"raw": {"rows": 6, "set_aside": 0, "uncastable": {"size": {"text": 2}}}},
            "splits": {split: {"rows": len(part), "checksum": "0"} for split, part in parts.items()},
            "statistics": {split: statistics.finish(statistics.summarize(part)) for split, part in parts.items()},
        }  # fmt: skip
        rejected = ["rows", "has_size", f"{5:016x}", json.dumps({"id": 5, "size": None, "shade": "blå"})]
        with versions.staging(folder) as place:
            for split, part in {**parts, "quarantine": pa.table([[value] for value in rejected], COLUMNS)}.items():
                (place / split).mkdir()
                pq.write_table(part, place / split / "part-0.parquet")
            manifest = versions.Manifest.model_validate(below | fields)
            versions.commit(place, folder, manifest)
        return versions.Version(folder, manifest)

    return commit


@pytest.fixture
def rayloom(file, monkeypatch, capsys):
    """Runs `rayloom …` and returns what it printed; one that fails gives its exit code and its error."""

    def run(*words: str, config: bool = True) -> str:
        monkeypatch.setattr(sys, "argv", ["rayloom", *words, *(["--config", str(file)] if config else [])])
        commands.main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(rayloom, capsys):
    """Runs `rayloom …`, which must end with code 2, and returns its error."""

    def run(*words: str, **options) -> str:
        with pytest.raises(SystemExit) as ended:
            rayloom(*words, **options)
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def test_versions_are_listed_newest_first(rayloom, make):
    make("aaa1", "2026-01-01")
    make("bbb2", "2026-01-02")
    lines = [line.split() for line in rayloom("data", "list").splitlines()]
    assert lines[0] == ["pipeline", "id", "made", "(UTC)", "train", "validation", "test", "rejected", "size"]
    assert [line[:8] for line in lines[1:]] == [
        ["toy", id, day, "10:00", "2", "1", "1", "1"] for id, day in (("bbb2", "2026-01-02"), ("aaa1", "2026-01-01"))
    ]


def test_versions_of_other_pipelines_are_listed_when_asked_for(rayloom, make):
    make("aaa1")
    make("ccc3", name="other")
    assert [version["id"] for version in json.loads(rayloom("data", "list", "--json"))] == ["aaa1"]
    assert {version["name"] for version in json.loads(rayloom("data", "list", "--all", "--json"))} == {"toy", "other"}


def test_a_list_without_versions_says_so(rayloom):
    assert rayloom("data", "list").startswith("No dataset version of toy in ")
    assert json.loads(rayloom("data", "list", "--json")) == []


def test_a_version_of_an_earlier_format_is_noted_and_does_not_hide_the_others(rayloom, make, capsys):
    make("aaa1")
    old = make("old1").folder / versions.MANIFEST
    old.write_text(json.dumps({"id": "old1", "format": 1}))
    assert [version["id"] for version in json.loads(rayloom("data", "list", "--json"))] == ["aaa1"]
    old.write_text(json.dumps({"id": "old1", "format": 1}))
    commands.main()
    assert "old1/manifest.json is of format 1, this Rayloom reads format 2" in capsys.readouterr().err


def test_a_version_is_shown_on_a_screen(rayloom, make):
    make("aaa1", notes=["The class 'green' has no row in test."])
    shown = rayloom("data", "show", "aa")
    assert "6 in = 4 accepted + 1 rejected + 1 deduplicated" in shown
    assert "raw  sha256 abababab  6 rows  uncastable size: text 2" in shown
    assert re.search(r"classes     shade  train +validation +test *\n +red +2  100 % +0 +0 % +1  100 %\n +blue +0 ", shown)
    assert "The class 'green' has no row in test." in shown
    assert "size          double      0 %     2        0.5  1.5     1.5  2.5" in shown
    assert "shade         string      0 %  1 values: red 100 %" in shown
    assert max(map(len, shown.splitlines()[2:])) <= 100


def test_classes_beyond_the_most_frequent_are_shown_as_others(rayloom, make):
    label = pa.array([str(n) for n in range(11)] + ["9"])  # twelve rows: ten classes, the commonest first, and another
    rows = pa.table({"id": pa.array(range(12), pa.int32()), "size": [1.0] * 12, "shade": label})
    stats = {split: statistics.finish(statistics.summarize(rows)) for split in SPLITS}
    make("aaa1", statistics=stats)
    shown = rayloom("data", "show", "aaa1")
    assert re.search(r"shade +train +validation +test *\n +9 +2  16.7 %  ", shown)
    assert re.search(r"\n +others +1 +8.3 %  ", shown)


def test_the_newest_version_is_shown_by_default(rayloom, make):
    make("aaa1", "2026-01-02")
    make("bbb2", "2026-01-01")
    assert json.loads(rayloom("data", "show", "--json"))["id"] == "aaa1"


def test_a_pipelines_name_is_its_newest_version(rayloom, make):
    make("ccc3", "2026-01-02", name="other")
    make("ddd4", "2026-01-01", name="other")
    make("aaa1", "2026-01-03")
    assert json.loads(rayloom("data", "show", "other", "--json"))["id"] == "ccc3"


def test_a_shown_version_as_json_is_its_manifest(rayloom, make):
    version = make("aaa1")
    assert versions.Manifest.model_validate_json(rayloom("data", "show", "aaa1", "--json")) == version.manifest


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "aab"], "There is no dataset version aab in .*run jobs.etl. Known: aaa1, aaa2"),
        (["show", "a"], "'a' begins the ids of 2 dataset versions: aaa1, aaa2; give more of the id"),
        (["show", "aaa1", "--split", "tset"], "Version aaa1 has no split 'tset'; did you mean 'test'"),
        (["diff", "aaa1", "b"], "There is no dataset version b in "),
        (["diff", "aaa1", "aaa2", "--split", "x"], "has no split 'x'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_id_or_split_that_is_not_there_is_refused(refused, make, words, complaint):
    make("aaa1")
    make("aaa2")
    assert re.search(complaint, refused("data", *words))


def test_without_a_version_there_is_nothing_to_show(refused):
    assert "There is no dataset version of toy" in refused("data", "show")


def test_a_difference_names_what_changed(rayloom, make):
    make("aaa1", config={"rules": [{"name": "has_size", "where": "size > 0"}]})
    size = pa.array([2.5, 3.5, None, 4.0])
    make("bbb2", rows=ROWS.set_column(1, "size", size), inputs={"raw": "ef" * 32}, rows_in=7, rejected={"has_size": 2})
    shown = rayloom("data", "diff", "aaa1", "bbb2")
    assert "inputs      raw  abababab -> efefefef" in shown
    assert "config      rules.has_size.name: has_size -> none" in shown
    assert "rejected: has_size      1   2  +1 (+100.0 %)" in shown
    assert "train statistics: 1 columns changed (the most changed first), 2 did not" in shown
    assert "size    +2.00" in shown and "mean 2 -> 3" in shown


def test_a_difference_as_json_has_every_measure(rayloom, make):
    make("aaa1")
    make("bbb2", rows=ROWS.set_column(2, "shade", pa.array(["red", "grey", "blue", "red"])))
    found = json.loads(rayloom("data", "diff", "aaa1", "bbb2", "--json"))
    assert (found["before"], found["after"], found["split"]) == ("aaa1", "bbb2", "train")
    assert found["statistics"]["shade"]["new"] == ["grey"]


def test_rejected_rows_are_counted_and_shown(rayloom, make):
    make("aaa1")
    shown = rayloom("quarantine", "show", "aaa1", "--rule", "has_size")
    assert "toy aaa1: 1 rows in quarantine" in shown
    assert "rows    has_size     1" in shown
    assert '0000000000000005  rows  has_size\n  id=5  size=null  shade="blå"' in shown


def test_rejected_rows_as_json_and_csv(rayloom, make):
    make("aaa1")
    raw = {"id": 5, "size": None, "shade": "blå"}
    found = json.loads(rayloom("quarantine", "show", "--json"))
    assert found["counts"] == [{"_source": "rows", "_rule": "has_size", "rows": 1}]
    assert found["rows"] == [{"_source": "rows", "_rule": "has_size", "_row": f"{5:016x}", "_raw": raw}]
    header, row = csv.reader(io.StringIO(rayloom("quarantine", "show", "--csv")))
    assert (header, row[:3], json.loads(row[3])) == (COLUMNS, ["rows", "has_size", f"{5:016x}"], raw)


def test_a_patch_template_is_written_for_the_rows_shown(rayloom, make, tmp_path):
    make("aaa1")
    rayloom("quarantine", "show", "--patch-template", str(tmp_path / "patch.csv"))
    assert (tmp_path / "patch.csv").read_text().splitlines() == ["_source,_row,column,value", f"rows,{5:016x},size,"]


@pytest.mark.parametrize(
    ("patch", "complaint"),
    [
        ("_source,_row,column,value\nrows,0000000000000007,size,1\n", "no quarantined row 0000000000000007"),
        ("", "lacks _source"),
    ],
)
def test_a_replay_with_a_patch_that_does_not_fit_starts_nothing(refused, make, tmp_path, patch, complaint):
    make("aaa1")
    (tmp_path / "patch.csv").write_text(patch)
    assert complaint in refused("quarantine", "replay", "--patch", str(tmp_path / "patch.csv"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"rows_in": 5, "rejected": {}}, "has no quarantined row: there is nothing to replay"),
        ({"name": "other"}, "is of other, not of toy"),
    ],
)
def test_a_replay_of_the_wrong_version_is_refused(refused, make, fields, complaint):
    make("aaa1", **fields)
    assert complaint in refused("quarantine", "replay", "--parent", "aaa1")


def test_a_replay_is_summed_up(make):
    parent = make("aaa1")
    child = make("bbb2", parent="aaa1", patch={"lines": 4, "matched": 3})
    assert summarize(Outcome(5, 3, {"has_size": 2}), parent, child) == {
        "parent": "aaa1", "quarantined": 5, "readmitted": 3, "still_rejected": {"has_size": 2},
        "corrections": 4, "corrections_unmatched": 1,
    }  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A CSV file beside the pipeline file's sources, in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more.csv").write_text("day,size\n2024-01-01,1.5\n2024-01-02,NA\n")
    return tmp_path / "more.csv"


def test_the_types_of_a_file_are_proposed_as_a_source_that_loads(rayloom, table):
    printed = rayloom("schema", "infer", "more.csv", "--missing", "NA", config=False)
    source = yaml.safe_load(printed)["sources"]["more"]
    assert source == {"path": "more.csv", "missing": ["NA"], "columns": "day DATE, size DOUBLE"}
    etl = {"sources": {"more": source}, "splits": {"by": "random"}, "order_by": ["day"]}
    assert config.Etl.model_validate(etl).sources["more"].columns == source["columns"]


@pytest.mark.parametrize("words", [[], ["more"]], ids=["all that lack columns", "by name"])
def test_the_types_of_the_pipelines_sources_are_proposed(rayloom, table, words):
    sources = yaml.safe_load(rayloom("schema", "infer", *words))["sources"]
    assert sources == {"more": {"path": "more.csv", "missing": "NA", "columns": "day DATE, size DOUBLE"}}


def test_an_unknown_source_is_named(refused, table):
    assert "mroe" in refused("schema", "infer", "mroe")


@pytest.mark.parametrize("words", [[], ["data"], ["data", "list"], ["data", "show"], ["data", "diff"], ["schema"],
                                   ["schema", "infer"], ["quarantine"], ["quarantine", "show"], ["quarantine", "replay"],
                                   ["doctor"], ["serve"]], ids=" ".join)  # fmt: skip
def test_every_help_has_an_example(rayloom, capsys, words):
    with pytest.raises(SystemExit):
        rayloom(*words, "--help", config=False)
    assert re.search(f"examples?:.*rayloom {' '.join(words)}", capsys.readouterr().out, re.DOTALL)


def test_commands_start_without_ray_spark_torch_and_mlflow(file, make):
    make("aaa1")
    heavy = ["ray", "raydp", "pyspark", "torch", "mlflow", "sqlglot"]
    program = f"import sys; from rayloom import commands; commands.main(); print([m for m in {heavy} if m in sys.modules])"
    for words in (["data", "list"], ["data", "show"], ["data", "diff", "aaa1", "aaa1"], ["quarantine", "show"]):
        command = [sys.executable, "-c", program, *words, "--config", str(file)]
        done = subprocess.run(command, text=True, capture_output=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_stops_early_is_no_error(file, make):
    make("aaa1")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "rayloom.commands", "data", "show", "--config", str(file)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def named(file, tmp_path, monkeypatch):
    """The pipeline file as configs/toy.yaml of the working folder."""
    (tmp_path / "configs").mkdir()
    file.rename(tmp_path / "configs" / "toy.yaml")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [["toy"], ["configs/toy.yaml"], ["--config", "configs/toy.yaml"]], ids=" ".join)
@pytest.mark.parametrize("option", ["port", "replicas"])
def test_serve_takes_a_name_or_a_path_and_short_options(refused, named, words, option):
    """Shown by what is wrong with the value."""
    assert f"--set serve.{option}" in refused("serve", *words, f"--{option}", "0", config=False)


def test_serve_names_the_pipelines_that_there_are(refused, named):
    said = "There is no pipeline file configs/toi.yaml; did you mean 'toy'? Known: toy."
    assert said in refused("serve", "toi", config=False)


COUNTS = [("compare", "--rounds", "0"), ("batch_predict", "--workers", "-1"), ("batch_predict", "--workers", "two")]


@pytest.mark.parametrize(("job", "option", "text"), COUNTS)
def test_a_count_that_is_none_is_refused_before_anything_starts(monkeypatch, capsys, job, option, text):
    monkeypatch.setattr(sys, "argv", [job, f"{option}={text}"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"jobs.{job}").main()
    assert ended.value.code == 2
    assert f"argument {option}: expected a whole number of at least 1, found '{text}'" in capsys.readouterr().err
