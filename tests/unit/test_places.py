"""What a place in the pipeline file means."""

from pathlib import Path

import pytest
import yaml

from rayloom import places
from rayloom.errors import SourceError


def test_a_path_is_the_file(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    assert places.locate(str(tmp_path / "a.json"), "features.columns.x.tokenizer") == tmp_path / "a.json"


def test_a_package_brings_its_file():
    assert places.locate("package:yaml/loader.py", "etl.sources.x.path") == Path(yaml.__file__).with_name("loader.py")


def test_a_folder_may_be_resolved_and_is_no_file():
    assert places.resolve("package:yaml/", "etl.sources.x.path") == Path(yaml.__file__).parent
    with pytest.raises(SourceError):
        places.locate("package:yaml/", "etl.sources.x.path")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/nowhere/a.json", "etl.sources.x: there is no file /nowhere/a.json; correct etl.sources.x.path."),
        ("package:yaml/a.json", "install the version of yaml that constraints.txt names."),
        ("package:no_such/a", "etl.sources.x: the package 'no_such' is not installed; run `pip install no_such`."),
        ("package:os.path/a", "etl.sources.x: the package 'os.path' is not installed"),
    ],
)
def test_what_is_not_there_is_told_with_the_remedy(place, said):
    with pytest.raises(SourceError) as caught:
        places.locate(place, "etl.sources.x.path")
    assert said in str(caught.value)
