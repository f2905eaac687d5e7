"""A build from files to a committed version: every row accounted for, every threshold kept, every correction followed."""

import csv
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rayloom import config, datasets, quarantine
from rayloom.datasets import DatasetVersion
from rayloom.errors import ConfigError, DataError
from tests.contract.conftest import toy_in

HEADER = ["id", "key", "at", "size", "weight", "shade", "big"]
COLUMNS = "id INT, key STRING, at INT, size DOUBLE, weight INT, shade STRING, big INT"


def line(number: int, **changes) -> dict:
    plain = {"id": number, "key": f"k{number}", "at": 0, "size": number, "weight": number % 3}
    return {**plain, "shade": "red", "big": number % 2, **changes}


LINES = [
    *[line(number) for number in range(100)],
    *[line(5), line(5)],  # equal to one before
    line(200, key="k7", at=1, size=7),  # newer than id 7
    line(101, size="12abc"),
    line(106, id="x1"),
    line(102, shade="green"),
    line(103, size=""),
    line(104, weight=1000),  # more than any training row has
    line(108, size=500),
]
"""109 rows: 5 to reject, 3 to drop, 101 to accept."""

RULES = {
    "etl.sources.raw.columns": COLUMNS,
    "etl.sources.raw.uncastable": "reject",
    "etl.steps": [{"name": "rows", "sql": "SELECT * FROM raw", "keeps": "raw"}],
    "etl.deduplicate": {"exact": True, "by": ["key"], "newest": "at"},
    "etl.rules": [
        {"name": "known_shade", "allowed": {"shade": ["red", "blue"]}},
        {"name": "has_size", "not_null": ["size"], "action": "fail", "above": 0.01},
        {"name": "late_id", "where": "id >= 10", "action": "warn"},
    ],
    "etl.outliers": [{"column": "size"}, {"column": "weight", "action": "reject"}],
    "etl.max_rejected": 0.05,
}


def write(path: Path, lines: list[dict]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def read(dataset: DatasetVersion, split: str) -> list[dict]:
    return pq.read_table(sorted((dataset.folder / split).glob("*.parquet"))).to_pylist()


def in_quarantine(dataset: DatasetVersion) -> dict[tuple[str, str], quarantine.Rejected]:
    """Quarantined rows by rule and raw id."""
    return {(row.rule, str(row.raw["id"])): row for row in quarantine.rows(dataset, 100)}


@pytest.fixture(scope="module")
def first(etl, tmp_path_factory) -> DatasetVersion:
    folder = tmp_path_factory.mktemp("first")
    write(folder / "raw.csv", LINES)
    return etl(toy_in(folder, RULES))


@pytest.fixture
def build_again(first, etl) -> Callable[[dict], DatasetVersion]:
    """Builds a new version from the rows of the first, with changes by dotted key."""
    folder = first.folder.parents[2]
    return lambda changes: etl(toy_in(folder, {**RULES, **changes}), first.manifest.id)


def test_every_row_is_accounted_for(first):
    found = first.manifest
    assert found.balance == "109 in = 101 accepted + 5 rejected + 3 deduplicated"
    assert found.rejected == {"uncastable": 2, "known_shade": 1, "has_size": 1, "outlier_weight": 1}
    assert found.deduplicated == {"exact": 2, "by": 1}
    assert found.warned == {"late_id": 9}
    assert found.clipped == {"size": 3}  # 98 and 99 are above the training rows' 97, too
    raw = found.sources["raw"]
    assert (raw.rows, raw.set_aside) == (109, 2)
    assert raw.uncastable == {"size": {"digits then text": 1}, "id": {"text with digits": 1}}
    assert {name: content.rows for name, content in found.splits.items()} == {"train": 60, "validation": 21, "test": 20}
    assert list(found.columns) == HEADER
    assert found.statistics["validation"]["size"].max == 97
    rows = {split: read(first, split) for split in config.SPLITS}
    assert {row["id"] for row in rows["train"]} == {n for n in range(100) if n % 5 < 3 and n != 7} | {200}
    assert max(row["size"] for row in rows["validation"]) == 97
    rejected = in_quarantine(first)
    assert {(row.source, *key) for key, row in rejected.items()} == {
        ("raw", "uncastable", "101"), ("raw", "uncastable", "x1"), ("rows", "known_shade", "102"), ("rows", "has_size", "103"),
        ("rows", "outlier_weight", "104"),
    }  # fmt: skip
    assert rejected["uncastable", "101"].raw == {name: str(value) for name, value in line(101, size="12abc").items()}
    assert rejected["has_size", "103"].raw == line(103, size=None)
    assert all(quarantine.ROW.fullmatch(row.row) for row in rejected.values())


STOPS = {
    "too many rejected": ({"etl.max_rejected": 0.04}, r"etl.max_rejected: 5 of 109 rows \(4.59%\) are rejected"),
    "a rule that fails": ({"etl.rules.1.above": 0.0}, r"etl.rules \(has_size\): 1 of 109 rows"),
    "too many uncastable": ({"etl.sources.raw.max_uncastable": 0.001}, r"etl.sources.raw.max_uncastable: 1 of 1\d\d values"),
    "a split without rows": ({"etl.splits.test": "id = 104"}, r"accepted row"),
    "overlapping splits": ({"etl.splits.validation": "id % 5 >= 3"}, "20 accepted rows are in several splits"),
    "rows in no split": ({"etl.splits.train": "id % 5 < 2"}, "19 accepted rows are in no split"),
    "a step that loses rows": ({"etl.steps.0.sql": "SELECT * FROM raw WHERE id > 9"}, r"it loses \d+"),
    "a key twice": ({"etl.steps.0.unique": ["id"]}, "id=5 occurs 3 times, but the step promises it once"),
    "a value of the wrong type": ({"etl.sources.raw.uncastable": "fail"}, "2 values do not have their declared type"),
}


@pytest.mark.parametrize(("changes", "complaint"), STOPS.values(), ids=list(STOPS))
def test_a_build_that_stops_commits_nothing(etl, toy, tmp_path, changes, complaint):
    write(tmp_path / "raw.csv", LINES)
    with pytest.raises(DataError, match=complaint):
        etl(toy({**RULES, **changes}))
    assert list((tmp_path / "datasets" / "toy").iterdir()) == []


def test_a_join_on_keys_that_are_not_unique_is_refused(etl, toy, tmp_path):
    write(tmp_path / "raw.csv", [line(number) for number in range(10)])
    write(tmp_path / "prices.csv", [{"shade": "red", "price": 1}, {"shade": "red", "price": 2}])
    prices = {"path": str(tmp_path / "prices.csv"), "columns": "shade STRING, price INT"}
    careless = {"name": "rows", "sql": "SELECT * FROM raw LEFT JOIN prices USING (shade)", "keeps": "raw"}
    sources = {"raw": {"path": str(tmp_path / "raw.csv"), "columns": COLUMNS}, "prices": prices}
    with pytest.raises(DataError, match="20 rows, but it promises to keep the 10 rows of 'raw': it adds 10"):
        etl(toy({"etl.sources": sources, "etl.steps": [careless]}))


def patch(path: Path, corrections: list[tuple[quarantine.Rejected, str, str]]) -> dict:
    lines = [{"_source": row.source, "_row": row.row, "column": column, "value": value} for row, column, value in corrections]
    return {"etl.patch": str(write(path, lines))}


def test_corrected_rows_are_admitted_to_a_new_version(first, build_again, tmp_path):
    rejected = in_quarantine(first)
    corrections = [
        (rejected["uncastable", "101"], "size", "12"),
        (rejected["uncastable", "x1"], "size", "7"),  # still without a number for its id
        (rejected["known_shade", "102"], "shade", "blue"),
        (rejected["outlier_weight", "104"], "weight", "2000"),  # still too much
        (rejected["has_size", "103"], "size", ""),  # still missing
    ]
    second = build_again(patch(tmp_path / "patch.csv", corrections))
    found = second.manifest
    assert (found.parent, found.id != first.manifest.id) == (first.manifest.id, True)
    assert found.balance == "109 in = 103 accepted + 3 rejected + 3 deduplicated"
    assert (found.patch.lines, found.patch.matched) == (5, 5)
    mended = {row["id"]: (row["size"], row["shade"]) for row in read(second, "train")}
    assert (mended[101], mended[102]) == ((12, "red"), (102, "blue"))
    still = in_quarantine(second)
    assert {key: row.row for key, row in still.items()} == {key: rejected[key].row for key in still}
    assert set(still) == {("uncastable", "x1"), ("outlier_weight", "104"), ("has_size", "103")}
    outcome = quarantine.outcome(first, second)
    assert (outcome.quarantined, outcome.readmitted) == (5, 2)
    assert outcome.rejected == {"uncastable": 1, "outlier_weight": 1, "has_size": 1}


def test_a_changed_rule_admits_its_rows_to_a_new_version(first, build_again):
    second = build_again({"etl.rules.0.allowed": {"shade": ["red", "blue", "green"]}})
    assert second.manifest.balance == "109 in = 102 accepted + 4 rejected + 3 deduplicated"
    assert (second.manifest.parent, second.manifest.patch) == (first.manifest.id, None)
    assert quarantine.outcome(first, second).readmitted == 1


def test_a_correction_of_the_wrong_type_is_refused(first, build_again, tmp_path):
    wrong = patch(tmp_path / "patch.csv", [(in_quarantine(first)["outlier_weight", "104"], "weight", "heavy")])
    with pytest.raises(DataError, match=r"etl.patch: .* column weight \(int\): heavy"):
        build_again(wrong)


def test_input_3_blank_labels_are_rejected_and_counted(etl, toy, tmp_path):
    """1,000 rows, label yes or no, 30 blank, one ' yes ', one '   '."""
    labels = [""] * 30 + [" yes ", "   "] + ["yes", "no"] * 484
    write(tmp_path / "raw.csv", [{"id": number, "size": 1, "label": label} for number, label in enumerate(labels)])
    changes = {
        "etl.sources.raw.columns": "id INT, size INT, label STRING", "etl.sources.raw.clean": {"label": ["trim"]},
        "etl.rules": [{"name": "has_label", "not_null": ["label"]}],
        "features": {"label": "label", "columns": {"size": {"kind": "number"}}},
    }  # fmt: skip
    pipeline = toy(changes)
    dataset = etl(pipeline)
    assert dataset.manifest.balance == "1,000 in = 969 accepted + 31 rejected + 0 deduplicated"
    assert datasets.fit_features(pipeline.features, dataset.split("train"))[0].classes == ["no", "yes"]


ZONED = {
    "etl.time_zone": "America/Los_Angeles",
    "etl.sources.raw.columns": "id INT, at TIMESTAMP, amount DECIMAL(20,4)",
    "features": {"label": "id", "columns": {"amount": {"kind": "number"}}},
}


@pytest.mark.parametrize("handed", ["parquet", "memory"])
def test_input_6_moments_and_decimals_are_the_same_everywhere(etl, toy, spark, tmp_path, handed):
    """An offset counts; a time without one is of the session's zone, Los Angeles."""
    moments = {"2024-07-01T00:00:00+02:00": 1719784800, "2024-07-01 00:00:00": 1719817200}
    write(tmp_path / "raw.csv", [{"id": n, "at": list(moments)[n % 2], "amount": "0.1001"} for n in range(10)])
    dataset = etl(toy({**ZONED, "etl.handoff": handed}))
    files = sorted(str(file) for file in (dataset.folder / "train").glob("*.parquet"))
    arrow, expected = pq.read_table(files), [list(moments.values())[n % 2] for n in (0, 1, 2, 5, 6, 7)]
    in_spark = spark.read.parquet(*files).selectExpr("id", "unix_seconds(at) AS at").sort("id").collect()
    assert [row["at"] for row in in_spark] == expected
    assert [int(at.timestamp()) for at in arrow["at"].to_pylist()] == expected
    assert [int(at.timestamp()) for at in arrow.to_pandas()["at"]] == expected
    rows = dataset.split("train").take_all()
    assert [int(row["at"].timestamp()) for row in rows] == expected
    assert {row["amount"] for row in rows} == {Decimal("0.1001")} == set(arrow["amount"].to_pylist())


def test_input_8_columns_that_are_no_features_are_carried_and_left_out(etl, toy, tmp_path):
    lines = [line(number, note=f"Dear all, {number}…\n", uid=str(uuid.UUID(int=number))) for number in range(30)]
    write(tmp_path / "raw.csv", lines)
    pipeline = toy({"etl.sources.raw.columns": f"{COLUMNS}, note STRING, uid STRING"})
    dataset = etl(pipeline)
    assert read(dataset, "test")[0]["uid"] == str(uuid.UUID(int=4))
    state, _ = datasets.fit_features(pipeline.features, dataset.split("train"))
    assert list(state.columns) == ["size", "shade"]
    assert dataset.encode(state, "train").rows == 18


def test_input_10_what_is_no_number_is_counted_by_kind(etl, toy, tmp_path):
    sizes = {3: "N/A", 4: "1,234.5", 5: "12abc"}
    write(tmp_path / "raw.csv", [line(number, size=sizes.get(number, number)) for number in range(30)])
    changes = {"etl.sources.raw.columns": COLUMNS, "etl.sources.raw.uncastable": "missing"}
    found = etl(toy({**changes, "etl.sources.raw.max_uncastable": 0.1})).manifest
    assert found.sources["raw"].uncastable == {"size": {"digits then text": 1, "grouped digits": 1, "text": 1}}
    assert found.accepted == 30
    with pytest.raises(DataError, match=r"3 of 30 values \(10.00%\).*above 9.00%.*'N/A' \(text\)"):
        etl(toy({**changes, "etl.sources.raw.max_uncastable": 0.09, "name": "strict"}))


def test_a_row_keeps_its_side_when_rows_are_appended(etl, toy, tmp_path):
    changes = {"etl.sources.raw.columns": COLUMNS, "etl.splits": {"by": "random", "key": ["id"]}}
    sides = []
    for rows, partitions in ((200, 2), (300, 3)):
        write(tmp_path / "raw.csv", [line(number) for number in range(rows)])
        dataset = etl(toy({**changes, "etl.partitions": partitions}))
        sides.append({row["id"]: split for split in config.SPLITS for row in read(dataset, split)})
    assert {key: sides[1][key] for key in sides[0]} == sides[0]
    assert len(sides[1]) == 300


def test_what_misses_a_split_and_what_cannot_be_an_outlier_is_named(etl, toy, tmp_path):
    write(tmp_path / "raw.csv", [line(number, weight=1, shade="green" if number == 8 else "red") for number in range(20)])
    splits = {"by": "stratified", "stratum": "shade", "key": ["id"], "seed": 5}
    notes = etl(
        toy({"etl.sources.raw.columns": COLUMNS, "etl.splits": splits, "etl.outliers": [{"column": "weight"}]})
    ).manifest.notes
    assert [note for note in notes if "weight" in note or "green" in note] == [
        "etl.outliers (weight): both quantiles are the same value, so nothing is an outlier",
        "shade 'green' has 1 row, and none in validation and test",
    ]


def test_dates_of_a_bound_that_is_none_are_refused(etl, toy, tmp_path):
    write(tmp_path / "raw.csv", [line(number) for number in range(10)])
    rule = {"name": "sized", "range": {"size": ["2013-02-30", None]}}
    with pytest.raises(ConfigError, match=r"etl.rules \(sized\): '2013-02-30' cannot be compared with 'size'"):
        etl(toy({"etl.sources.raw.columns": COLUMNS, "etl.rules": [rule]}))
