"""The quarantine: what is in it, patch files that fit it, and what a replay came to."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayloom import config, quarantine, versions
from rayloom.errors import DataError

REJECTED = [
    ("raw", "uncastable", f"{1:016x}", {"id": "1", "size": "12abc", "shade": "red"}),
    ("rows", "has_size", f"{2:016x}", {"id": 2, "size": None, "shade": "blue"}),
    ("rows", "has_size", f"{3:016x}", {"id": 3, "size": None, "shade": "red"}),
]
RULES = [config.Rule(name="has_size", where="size IS NOT NULL")]


@pytest.fixture
def make(tmp_path):
    """Commits a version whose quarantine has these rows, in two files."""

    def commit(rejected=REJECTED, version="aaa", **fields) -> versions.Version:
        folder = tmp_path / "datasets" / "toy" / version
        manifest = versions.Manifest(
            id=version, name="toy", format=versions.FORMAT, inputs={}, config_hash="", columns={}, rows_in=len(rejected),
            rejected={"all": len(rejected)}, splits={},
            sources={"raw": versions.SourceCounts(rows=3, uncastable={"size": {"text": 1}})}, **fields,
        )  # fmt: skip
        with versions.staging(folder) as place:
            (place / "quarantine").mkdir()
            for number, part in enumerate((rejected[:1], rejected[1:])):
                columns = zip(*[(*row[:3], json.dumps(row[3])) for row in part], strict=True)
                if part:
                    table = pa.table(dict(zip(quarantine.COLUMNS, columns, strict=True)))
                    pq.write_table(table, place / "quarantine" / f"part-{number}.parquet")
            versions.commit(place, folder, manifest)
        return versions.Version(folder, manifest)

    return commit


@pytest.fixture
def patch(tmp_path):
    """Writes a patch file."""

    def write(text: str):
        path = tmp_path / "patch.csv"
        path.write_text(text)
        return path

    return write


def test_rows_are_counted_by_source_and_rule(make):
    assert quarantine.counts(make()) == {("raw", "uncastable"): 1, ("rows", "has_size"): 2}


def test_a_version_without_rejected_rows_has_none(make):
    version = make([])
    assert (quarantine.counts(version), quarantine.rows(version, 5)) == ({}, [])


@pytest.mark.parametrize(
    ("limit", "rule", "rows"), [(10, None, [1, 2, 3]), (2, None, [1, 2]), (0, None, []), (1, "has_size", [2])]
)
def test_rows_of_a_rule_come_in_order_up_to_the_limit(make, limit, rule, rows):
    assert [int(row.row, 16) for row in quarantine.rows(make(), limit, rule)] == rows


def test_a_rule_that_rejected_nothing_is_named_with_those_that_did(make):
    with pytest.raises(DataError, match="rule 'has_siz'; did you mean 'has_size'"):
        quarantine.rows(make(), 5, "has_siz")


def test_a_template_has_the_cells_that_the_rules_look_at_and_is_a_patch(make, tmp_path):
    version, file = make(), tmp_path / "template.csv"
    quarantine.write_template(file, quarantine.rows(version, 9), version, RULES)
    assert [line[2:] for line in csv.reader(file.open())] == [
        ["column", "value"],
        ["size", "12abc"],
        ["size", ""],
        ["size", ""],
    ]
    corrections = quarantine.read_patch(file)
    quarantine.check_patch(file, corrections, [version])
    assert [(item.source, int(item.row, 16)) for item in corrections] == [("raw", 1), ("rows", 2), ("rows", 3)]


def test_a_template_of_an_unknown_rule_has_all_cells(make, tmp_path):
    version = make()
    assert quarantine.write_template(tmp_path / "t.csv", quarantine.rows(version, 9, "has_size"), version, []) == 6


def test_a_template_never_replaces_a_file(make, patch):
    with pytest.raises(DataError, match="exists, and may hold corrections"):
        quarantine.write_template(patch(""), [], make(), [])


@pytest.mark.parametrize(
    ("check", "columns"),
    [
        ({"where": "size > 1 AND length(shade) < 3"}, ["shade", "size"]),
        ({"not_null": ["a"]}, ["a"]),
        ({"unique": ["a", "b"]}, ["a", "b"]),
        ({"range": {"a": [1, None]}}, ["a"]),
        ({"allowed": {"a": [1]}}, ["a"]),
        ({"regex": {"a": "x+"}}, ["a"]),
        ({"foreign_key": {"columns": ["a"], "table": "t", "to": ["b"]}}, ["a"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_rule_says_which_columns_it_looks_at(check, columns):
    assert quarantine.columns_of(config.Rule(name="r", **check)) == columns


HEADER = "_source,_row,column,value\n"
SIZE = f"raw,{1:016x},size,"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("_source,_row,value\n", "its header lacks column; a patch has the columns _source,_row,column,value"),
        (HEADER, "has no correction"),
        (HEADER + "raw,12,size,5\n", r"patch.csv:2: _row is '12', not 16 hexadecimal digits"),
        (HEADER + f"raw,{1:016x},,5\n", "patch.csv:2: the column is missing"),
        (HEADER + SIZE + "1,5\n", "patch.csv:2: not as many values"),
        (HEADER + SIZE.rstrip(",") + "\n", "patch.csv:2: not as many values"),
        (HEADER + SIZE + "1\n" + SIZE + "2\n", "patch.csv:3: size of row 0+1 stands in line 2, too"),
        (
            HEADER + f"raw,{9:016x},size,1\nrows,{1:016x},size,1\n",
            r"patch.csv:2: version aaa has no .* 0+9 of 'raw'; 1 more line",
        ),
        (HEADER + f"raw,{1:016x},sise,1\n", "patch.csv:2: 'raw' has no column 'sise'; did you mean 'size'"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_with_its_line(make, patch, text, complaint):
    file = patch(text)
    with pytest.raises(DataError, match=complaint):
        quarantine.check_patch(file, quarantine.read_patch(file), [make()])


def test_a_patch_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"the patch cannot be read \(No such file"):
        quarantine.read_patch(tmp_path / "none.csv")


def test_a_patch_may_repeat_corrections_of_an_earlier_replay(make, patch):
    make(version="aaa")
    child = make(REJECTED[1:], "bbb", parent="aaa")
    file = patch(HEADER + SIZE + "12\n")
    quarantine.check_patch(file, quarantine.read_patch(file), versions.lineage(child))


def test_an_outcome_says_which_rows_came_back_and_which_rule_keeps_the_others(make):
    again = [("raw", "small", f"{1:016x}", {}), REJECTED[2], ("raw", "uncastable", f"{7:016x}", {})]
    found = quarantine.outcome(make(), make(again, "bbb"))
    assert found == quarantine.Outcome(quarantined=3, readmitted=1, rejected={"has_size": 1, "small": 1})


def test_an_outcome_of_a_clean_version_readmits_all(make):
    assert quarantine.outcome(make(), make([], "bbb")) == quarantine.Outcome(3, 3, {})
