"""The synthetic card transactions: what the file holds, that it is whole, and what configs/creditcard_fraud.yaml says."""

import csv
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from rayloom import config, examples, features
from rayloom.errors import DataError, SourceError
from rayloom.etl.check import check
from rayloom.tuning import space

CONFIG = "configs/creditcard_fraud.yaml"
COMPONENTS = [f"V{index}" for index in range(1, 29)]
COLUMNS = ["Time", *COMPONENTS, "Amount", "Class"]
ROWS = 20_000


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return examples.write_creditcard(tmp_path_factory.mktemp("examples") / "data", ROWS)


@pytest.fixture(scope="module")
def drawn():
    """The transactions of the public file's size."""
    return examples.transactions()


def test_the_file_has_the_public_ones_header_and_as_many_rows_as_asked(file):
    with file.open(newline="") as lines:
        header, *rows = csv.reader(lines)
    assert (header, len(rows), {len(row) for row in rows}) == (COLUMNS, ROWS, {31})


def test_what_is_written_is_what_was_drawn(file):
    read = np.loadtxt(file, delimiter=",", skiprows=1)
    np.testing.assert_array_equal(read, np.column_stack(list(examples.transactions(ROWS).values())))


def test_rows_and_frauds_are_as_many_as_in_the_public_file(drawn):
    assert np.bincount(drawn["Class"]).tolist() == [284_807 - 492, 492]


def test_every_value_is_finite(drawn):
    assert all(np.isfinite(values).all() for values in drawn.values())


def test_time_goes_on_through_two_days(drawn):
    assert (np.diff(drawn["Time"]) >= 0).all()
    assert 0 <= drawn["Time"][0] < 60 and 2 * 86_400 - 60 < drawn["Time"][-1] < 2 * 86_400


def test_amounts_are_whole_cents_and_a_few_are_large(drawn):
    amounts = drawn["Amount"]
    np.testing.assert_array_equal(amounts, np.round(amounts, 2))
    assert amounts.min() == 0 and amounts.mean() > 3 * np.median(amounts)


def test_the_components_deviations_fall(drawn):
    spreads = [drawn[name].std() for name in COMPONENTS]
    assert (np.diff(spreads) < 0).all() and spreads[0] == pytest.approx(1.96, abs=0.02)


def test_a_few_rows_occur_twice(drawn):
    rows = np.column_stack(list(drawn.values()))
    assert len(rows) - len(np.unique(rows, axis=0)) == round(0.0038 * 284_807)


def test_the_same_seed_gives_the_same_bytes(file, tmp_path):
    assert examples.write_creditcard(tmp_path, ROWS).read_bytes() == file.read_bytes()


def test_another_seed_gives_other_rows(drawn):
    assert not np.array_equal(examples.transactions(seed=18)["V1"], drawn["V1"])


def test_a_linear_model_is_neither_useless_nor_perfect(drawn):
    inputs = np.column_stack([drawn[name] / drawn[name].std() for name in COMPONENTS])
    learn, judge = slice(0, None, 2), slice(1, None, 2)
    model = LogisticRegression(max_iter=200).fit(inputs[learn], drawn["Class"][learn])
    ranked = model.predict_proba(inputs[judge])[:, 1]
    assert 0.94 < roc_auc_score(drawn["Class"][judge], ranked) < 0.99
    assert 0.6 < average_precision_score(drawn["Class"][judge], ranked) < 0.85


def test_no_column_alone_tells_fraud(drawn):
    ranked = [roc_auc_score(drawn["Class"], drawn[name]) for name in COLUMNS[:-1]]
    assert max(max(auc, 1 - auc) for auc in ranked) < 0.97


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="999 transactions are too few to hold frauds; write --rows 1000 or more"):
        examples.transactions(999)


def test_a_seed_below_0_is_refused():
    with pytest.raises(DataError, match="The seed -1 is below 0, and none of NumPy's is; write --seed 0 or more"):
        examples.transactions(1000, -1)


def test_fewer_rows_have_as_large_a_part_of_fraud():
    assert examples.transactions(ROWS)["Class"].sum() == 35


def test_a_place_that_ends_in_csv_is_the_file(tmp_path):
    assert examples.write_creditcard(tmp_path / "new" / "mine.csv", 1000) == tmp_path / "new" / "mine.csv"


def test_a_file_that_is_written_already_is_left_as_it_is(file):
    before = file.stat().st_mtime_ns
    assert examples.write_creditcard(file.parent, ROWS) == file
    assert file.stat().st_mtime_ns == before and list(file.parent.iterdir()) == [file]


def test_another_file_is_not_touched(tmp_path):
    public = tmp_path / "creditcard.csv"
    public.write_text("mine")
    with pytest.raises(DataError, match="is there already and has other rows than these; remove it or name another file"):
        examples.write_creditcard(tmp_path, 1000)
    assert public.read_text() == "mine" and list(tmp_path.iterdir()) == [public]


def test_a_place_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SourceError, match=r"creditcard.csv cannot be written .Not a directory.; name another file"):
        examples.write_creditcard(tmp_path / "file" / "folder", 1000)


def test_what_fails_half_way_leaves_nothing(tmp_path):
    command = f"ulimit -f 64; {shlex.quote(sys.executable)} -m rayloom.examples creditcard {shlex.quote(str(tmp_path))}"
    done = subprocess.run(["bash", "-c", f"{command} --rows 2000"], text=True, capture_output=True)
    assert done.returncode == 2 and "creditcard.csv cannot be written (File too large); name another file." in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_that_the_file_is_synthetic(tmp_path):
    command = [sys.executable, "-m", "rayloom.examples", "creditcard", str(tmp_path), "--rows", "1000"]
    done = subprocess.run(command, text=True, capture_output=True, check=True)
    assert done.stdout == f"1,000 synthetic transactions (no row of the public file) are in {tmp_path}/creditcard.csv\n"


@pytest.fixture(scope="module")
def pipeline(file):
    return config.load([CONFIG], [f"etl.sources.transactions.path={file}"])


def test_the_shipped_file_accepts_the_synthetic_one(pipeline):
    assert list(check(pipeline)["transactions"].types) == COLUMNS
    features.check(pipeline.features)


def test_every_component_is_a_feature_and_time_is_not(pipeline):
    assert set(pipeline.features.columns) == {*COMPONENTS, "Amount", "hour"}


def test_each_split_of_the_public_files_size_has_frauds(drawn, pipeline):
    cuts = [int(second) for second in re.findall(r"\d+", pipeline.etl.splits.validation)]
    parts = np.searchsorted(cuts, drawn["Time"], "right")
    assert (np.bincount(parts, weights=drawn["Class"], minlength=3) > 50).all()


def test_the_sweep_tries_the_files_own_settings_first(pipeline):
    own = {key: getattr(getattr(pipeline, key.split(".")[0]), key.split(".")[1]) for key in pipeline.tune.first[0]}
    assert pipeline.tune.first == [own]


def test_the_file_takes_every_value_of_its_sweep(pipeline):
    space.check(pipeline)


def test_every_setting_but_smoothing_is_among_the_first(pipeline):
    assert set(pipeline.tune.space) - set(pipeline.tune.first[0]) == {"train.label_smoothing"}
