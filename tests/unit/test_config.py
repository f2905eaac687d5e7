"""The pipeline file: what is read, what is refused, and where the sentence says the mistake is."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from rayloom import config
from rayloom.errors import ConfigError

ROOT = Path(__file__).parents[2]
FLIGHTS, AWS = ROOT / "configs/flights.yaml", ROOT / "configs/aws.yaml"


@pytest.fixture
def write(tmp_path):
    """Writes text into a file and returns its path."""

    def write(text: str, name: str = "toy.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.fixture
def toy(write, toy_data):
    """A whole pipeline file, followed by this text."""
    return lambda more="": write(yaml.safe_dump(toy_data()) + more)


def line_of(path: Path, text: str) -> str:
    """'file:line' of the last line that has `text`."""
    numbers = [number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    return f"{path}:{numbers[-1]}"


def refusal(path: Path, *settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load([path], list(settings))
    return str(caught.value)


def test_the_shipped_flights_file_loads():
    assert config.load([FLIGHTS]).name == "flights"


def test_the_shipped_aws_file_lies_over_the_flights_file():
    assert config.load([FLIGHTS, AWS]).train.gpu is True


def test_the_aws_overlay_changes_nothing_that_is_computed():
    plain, laid_over = config.load([FLIGHTS]), config.load([FLIGHTS, AWS])
    deciding = {"seed": True, "features": True, "model": True, "etl": {"sources", "steps", "rules", "splits", "order_by"}}
    assert plain.model_dump(include=deciding) == laid_over.model_dump(include=deciding)


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("serv: {port: 8001}\n", "serv", "serve"),
        ("train:\n  epohcs: 3\n", "train.epohcs", "epochs"),
        ("evaluate:\n  gate:\n    at_lest: 0.5\n", "evaluate.gate.at_lest", "at_least"),
        ("evaluate:\n  gate:\n    - at_lest: 0.5\n", "evaluate.gate.0.at_lest", "at_least"),
    ],
)
def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_known(toy, text, key, nearest):
    path = toy(text)
    said = refusal(path)
    assert said.startswith(f"{line_of(path, key.split('.')[-1])}: unknown key '{key}'; did you mean '{nearest}'?")


def test_an_unknown_key_inside_a_list_is_refused_with_its_line(write, toy_data):
    path = write(yaml.safe_dump(toy_data({"etl.steps.0.uniqe": ["id"]})))
    said = refusal(path)
    assert said.startswith(f"{line_of(path, 'uniqe')}: unknown key 'etl.steps.0.uniqe'; did you mean 'unique'?")


def test_an_unknown_key_of_a_feature_is_named_without_its_kind(write, toy_data):
    path = write(yaml.safe_dump(toy_data({"features.columns.shade.min_cuont": 3})))
    said = refusal(path)
    assert said.startswith(f"{line_of(path, 'min_cuont')}: unknown key 'features.columns.shade.min_cuont'; did you mean")


@pytest.mark.parametrize(
    "line",
    [
        "epochs: many",
        "epochs: true",
        "epochs: 1.5",
        "epochs: 0",
        "epochs: '4'",
        "lr: fast",
        "lr: true",
        "lr: 0",
        "gpu: 1",
        "batch_size: null",
        "weight_decay: .nan",
        "weight_decay: -1",
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_its_line(toy, line):
    path = toy(f"train:\n  workers: 1\n  {line}\n")
    said = refusal(path)
    assert said.startswith(f"{line_of(path, line)}: 'train.{line.split(':')[0]}': ")


def test_a_refused_value_is_shown(toy):
    assert "found 'many'" in refusal(toy("train: {epochs: many}\n"))


def test_an_unknown_kind_of_feature_is_refused_with_its_line(write, toy_data):
    path = write(yaml.safe_dump(toy_data({"features.columns.size": {"kind": "numbr"}})))
    said = refusal(path)
    assert "'features.columns.size'" in said and "numbr" in said


def test_a_missing_key_is_named_at_the_place_where_it_belongs(write, toy_data):
    data = toy_data()
    del data["etl"]["splits"]["test"]
    path = write(yaml.safe_dump(data))
    assert refusal(path) == f"{line_of(path, 'splits:')}: the key 'etl.splits.test' is missing; add it."


def test_a_missing_section_is_named(write, toy_data):
    data = toy_data()
    del data["features"]
    assert "the key 'features' is missing" in refusal(write(yaml.safe_dump(data)))


def test_further_mistakes_are_counted(toy):
    assert refusal(toy("train: {epochs: 0, workers: 0, batch_size: 0}\n")).endswith("(2 more mistakes follow it.)")


def test_a_key_that_stands_twice_is_refused_with_both_lines(toy):
    path = toy("train:\n  epochs: 3\n  workers: 1\n  epochs: 4\n")
    first, second = line_of(path, "epochs: 3"), line_of(path, "epochs: 4")
    assert refusal(path) == f"{second}: the key 'train.epochs' stands twice, first at {first}; remove one."


def test_a_section_that_stands_twice_is_refused(toy):
    assert "the key 'train' stands twice" in refusal(toy("train: {epochs: 3}\ntrain: {workers: 1}\n"))


@pytest.mark.parametrize(("text", "value"), [("0.01", 0.01), ("1e-3", 0.001), ("1E-3", 0.001), ("1", 1.0), ("2.0e-3", 0.002)])
def test_set_takes_every_way_to_write_a_number(toy, text, value):
    lr = config.load([toy()], [f"train.lr={text}"]).train.lr
    assert (type(lr), lr) == (float, value)


def test_an_exponent_without_a_point_is_a_number_in_a_file(toy):
    assert config.load([toy("train: {lr: 1e-3}\n")]).train.lr == 0.001


def test_set_takes_lists_and_mappings(toy):
    made = config.load([toy()], ["model.hidden=[3, 4]", "evaluate.gate={metric: f1, at_least: 0.4}"])
    assert (made.model.hidden, made.evaluate.gate[0].metric) == ([3, 4], "f1")


def test_the_last_set_wins(toy):
    assert config.load([toy()], ["train.epochs=2", "train.epochs=3"]).train.epochs == 3


def test_set_wins_over_files(toy):
    assert config.load([toy("train: {epochs: 2}\n")], ["train.epochs=3"]).train.epochs == 3


@pytest.mark.parametrize("setting", ["train.lr", "=3", "train..lr=3", ".lr=3", ""])
def test_a_set_without_key_or_value_is_refused(toy, setting):
    assert refusal(toy(), setting).startswith(f"--set {setting}: expected dotted.key=value")


def test_a_set_whose_value_is_not_yaml_is_refused(toy):
    assert refusal(toy(), "train.lr=[1").startswith("--set train.lr=[1: the value is not YAML")


def test_a_mistake_in_a_set_is_placed_at_the_set(toy):
    said = refusal(toy("train:\n  epochs: 3\n"), "train.epochs=many")
    assert said.startswith("--set train.epochs=many: 'train.epochs': ")


def test_a_mistake_beside_a_set_is_placed_in_its_file(toy):
    path = toy("train:\n  epochs: many\n")
    assert refusal(path, "train.lr=1e-3").startswith(f"{line_of(path, 'many')}: 'train.epochs': ")


def test_an_unknown_key_in_a_set_gets_the_nearest_known(toy):
    said = refusal(toy(), "train.epohcs=3")
    assert "unknown key 'train.epohcs'; did you mean 'epochs'?" in said and "--set train.epohcs=3" in said


def test_an_overlay_wins_key_by_key(toy, write):
    made = config.load([toy("train: {epochs: 2, workers: 3}\n"), write("train: {epochs: 5}\n", "over.yaml")])
    assert (made.train.epochs, made.train.workers) == (5, 3)


def test_the_later_of_two_overlays_wins(toy, write):
    overlays = [write(f"train: {{epochs: {n}}}\n", f"{n}.yaml") for n in (5, 6)]
    assert config.load([toy(), *overlays]).train.epochs == 6


def test_an_overlay_with_another_family_begins_its_section_anew(toy, write):
    below, above = toy("model: {hidden: [1, 2]}\n"), write("model: {family: vision, depth: 2}\n", "over.yaml")
    assert config.load([below, above]).model == config.Vision(family="vision", depth=2)


def test_an_overlay_with_the_same_family_keeps_what_is_below(toy, write):
    below, above = toy("model: {hidden: [1, 2]}\n"), write("model: {family: tabular, embedding: 3}\n", "over.yaml")
    assert config.load([below, above]).model == config.Tabular(hidden=[1, 2], embedding=3)


def test_an_unknown_family_is_refused_with_its_line_and_the_nearest(toy):
    path = toy("model: {family: visoin, patch: 2}\n")
    assert refusal(path).startswith(f"{line_of(path, 'visoin')}: unknown family 'visoin'; did you mean 'vision'?")


def test_an_unknown_key_of_a_family_gets_the_nearest_known(toy):
    said = refusal(toy("model: {family: vision, pathc: 2}\n"))
    assert "unknown key 'model.pathc'; did you mean 'patch'?" in said


def test_an_overlay_replaces_a_list_whole(toy, write):
    below, above = toy("model: {hidden: [1, 2, 3]}\n"), write("model: {hidden: [9]}\n", "over.yaml")
    assert config.load([below, above]).model.hidden == [9]


def test_a_mistake_in_a_replaced_list_is_placed_in_the_overlay(toy, write):
    below = toy("model:\n  hidden:\n  - 1\n  - 2\n")
    above = write("model:\n  hidden:\n  - 9\n  - many\n", "over.yaml")
    with pytest.raises(ConfigError) as caught:
        config.load([below, above])
    assert str(caught.value).startswith(f"{above}:4: 'model.hidden.1': ")


def test_a_list_replaced_by_a_set_leaves_no_place_of_the_old_one(toy):
    path = toy("model:\n  hidden:\n  - 1\n  - 2\n")
    assert refusal(path, "model.hidden=[1, many]").startswith("--set model.hidden=[1, many]: 'model.hidden.1': ")


@pytest.mark.parametrize("text", ["a: [1\n", "a:\n\t- b\n", "a: b: c\n", "a: *nowhere\n", "a: \0\n"])
def test_text_that_is_not_yaml_is_refused(write, text):
    path = write(text)
    said = refusal(path)
    assert said.startswith(str(path)) and "not YAML" in said


def test_a_yaml_mistake_is_placed_at_its_line(write):
    path = write("name: toy\nseed: 3\na: b: c\n")
    assert refusal(path).startswith(f"{path}:3: not YAML")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text\n", "3\n"])
def test_a_file_that_is_no_mapping_is_refused(write, text):
    assert "a pipeline file is a mapping" in refusal(write(text))


def test_a_missing_file_is_named(tmp_path):
    said = refusal(tmp_path / "nowhere.yaml")
    assert said.startswith(f"{tmp_path / 'nowhere.yaml'}: the pipeline file cannot be read (No such file")


def test_a_folder_is_no_pipeline_file(tmp_path):
    assert "cannot be read" in refusal(tmp_path)


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: Zürich\n".encode("latin-1"))
    assert "it is not UTF-8 text" in refusal(path)


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path, toy):
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + toy().read_bytes())
    assert config.load([path]).name == "toy"


@pytest.mark.parametrize("key", ["1", "on", "null", "2013-11-04"])
def test_a_key_that_yaml_does_not_read_as_text_is_refused(toy, key):
    path = toy(f"{key}: 3\n")
    assert refusal(path).startswith(line_of(path, f"{key}: 3"))


def test_merge_keys_are_read(toy):
    made = config.load([toy("train: &small {epochs: 2}\nserve:\n  <<: {port: 8111}\n")])
    assert (made.train.epochs, made.serve.port) == (2, 8111)


def test_a_feature_known_only_after_the_fact_is_refused(toy):
    assert "features.columns has size, known only after the fact" in refusal(toy(), "features.known_after=[size]")


def test_the_label_is_no_feature(toy):
    assert "features.columns has shade" in refusal(toy(), "features.label=shade")


def test_a_pipeline_cannot_be_changed_after_reading(toy_pipeline):
    with pytest.raises(ValidationError):
        toy_pipeline().train.epochs = 9


def test_a_gate_of_one_half_is_the_default(toy_pipeline):
    assert toy_pipeline().evaluate.gate == [config.Gate(metric="auc", at_least=0.5)]


def test_storage_is_the_folder_that_rayloom_home_names(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYLOOM_HOME", str(tmp_path / "home"))
    assert config.load([toy()]).storage.path() == tmp_path / "home"


def test_a_storage_root_in_the_file_wins_over_rayloom_home(toy, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYLOOM_HOME", str(tmp_path / "home"))
    assert config.load([toy()], [f"storage.root={tmp_path}/here"]).storage.path() == tmp_path / "here"
