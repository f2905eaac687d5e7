"""Batch input: how files are cut into blocks, and which rows of them are set aside."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayloom.batch import inputs
from rayloom.batch.records import Fields
from rayloom.errors import SourceError

RECORD = {"day": "2013-02-03", "carrier": "AA", "distance": 700, "wind": 3.5}
HEADER = "day,carrier,distance,wind,note"


@pytest.fixture
def fields(toy_state) -> Fields:
    return Fields.of(toy_state, [], ["", "NA"])


@pytest.fixture
def survey(tmp_path, toy_spec):
    """Writes a file of this name and surveys it, `rows` rows a block."""

    def make(name: str, content: bytes, rows: int = 3) -> inputs.Input:
        (tmp_path / name).write_bytes(content)
        return inputs.survey(tmp_path, name, toy_spec, [], rows)

    return make


def read(root: Path, found: inputs.Input, fields: Fields, rows: int = 2) -> list:
    return [chunk for block in found.blocks for chunk in inputs.read(root, block, fields, rows)]


def numbers(chunks: list) -> list[int]:
    return [int(row) for chunk in chunks for row in chunk.rows]


def failures(chunks: list) -> list:
    return [failure for chunk in chunks for failure in chunk.failures]


def csv_of(*lines: str) -> bytes:
    return "\n".join([HEADER, *lines, ""]).encode()


GOOD = "2013-02-03,AA,700,3.5,x"


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_json_lines_are_cut_into_blocks_of_so_many_rows(survey, tmp_path, fields, rows, end):
    content = (b"\r\n" if end == b"\r\n" else b"\n").join([json.dumps(RECORD).encode()] * 7) + end
    found = survey("rows.jsonl", content, rows)
    assert [block.rows for block in found.blocks] == [min(rows, 7 - first) for first in range(0, 7, rows)]
    assert numbers(read(tmp_path, found, fields)) == list(range(7))


def test_a_checksum_is_the_files(survey):
    content = csv_of(GOOD)
    assert survey("rows.csv", content).sha256 == hashlib.sha256(content).hexdigest()


def test_a_quoted_line_end_is_not_where_a_block_ends(survey, tmp_path, fields):
    lines = ['2013-02-03,AA,700,3.5,"two\nlines, ""quoted"""'] * 5
    found = survey("rows.csv", csv_of(*lines), rows=2)
    chunks = read(tmp_path, found, fields)
    assert numbers(chunks) == [0, 1, 2, 3, 4] and failures(chunks) == []


def test_a_quote_within_a_cell_is_no_beginning(survey, tmp_path, fields):
    found = survey("rows.csv", csv_of(*['2013-02-03,AA,700,3.5,5" pipe'] * 5), rows=2)
    assert numbers(read(tmp_path, found, fields)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("note", ['"a ""b"", c"', '5" pipe', '6"', '"a"b', "", '""', " x ", "NA"])
def test_a_cell_reads_the_same_whether_or_not_another_has_two_lines(survey, tmp_path, toy_state, note):
    fields, line = Fields.of(toy_state, ["note"], ["", "NA"]), f"2013-02-03,AA,700,3.5,{note}"
    found = [
        survey("rows.csv", csv_of(line, '2013-02-03,AA,700,3.5,"two\nlines"'), 9),
        survey("plain.csv", csv_of(line, GOOD), 9),
    ]
    assert [one.blocks[0].multiline for one in found] == [True, False]
    multiline, plain = ([chunk.kept["note"][0] for chunk in read(tmp_path, one, fields, 9)] for one in found)
    assert multiline == plain


def test_a_byte_order_mark_is_no_part_of_the_header(survey):
    assert survey("rows.csv", b"\xef\xbb\xbf" + csv_of(GOOD)).blocks[0].header[0] == "day"


def test_blank_lines_count_and_are_no_rows(survey, tmp_path, fields):
    found = survey("rows.csv", csv_of(GOOD, "", GOOD))
    chunks = read(tmp_path, found, fields)
    assert (numbers(chunks), sum(chunk.blank for chunk in chunks), found.rows) == ([0, 2], 1, 3)


@pytest.mark.parametrize("per_group", [2, 5, 100])
@pytest.mark.parametrize("rows", [1, 3, 4, 100])
def test_parquet_rows_come_once_however_row_groups_and_blocks_lie(survey, tmp_path, fields, toy_rows, rows, per_group):
    table = toy_rows.slice(0, 11)
    pq.write_table(table, tmp_path / "source", row_group_size=per_group)
    chunks = read(tmp_path, survey("rows.parquet", (tmp_path / "source").read_bytes(), rows), fields)
    assert numbers(chunks) == list(range(11))
    assert pa.concat_tables([chunk.inputs for chunk in chunks]).equals(table.drop_columns(["late"]))


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([40, 40, 40, 40], [80, 80]),
        ([150], [100, 50]),
        ([30, 1000, 30, 30], [30, 250, 250, 250, 250, 60]),
        ([0, 100, 0], [100]),
        ([], []),
    ],
)
def test_blocks_of_parquet_go_by_row_groups(survey, tmp_path, toy_rows, sizes, blocks):
    schema = toy_rows.schema
    with pq.ParquetWriter(tmp_path / "source", schema) as writer:
        for size in sizes:
            writer.write_table(pa.concat_tables([toy_rows] * 5).slice(0, size), row_group_size=max(size, 1))
    found = survey("rows.parquet", (tmp_path / "source").read_bytes(), 100)
    assert [block.rows for block in found.blocks] == blocks
    assert [block.first for block in found.blocks] == [sum(blocks[:number]) for number in range(len(blocks))]


def test_csv_and_json_lines_read_as_what_a_client_sends(survey, tmp_path, fields):
    other = {"day": None, "carrier": "7", "distance": -1e3, "wind": None}
    cells = survey("rows.csv", csv_of(GOOD, "NA,7, -1e3 ,,"))
    objects = survey("rows.jsonl", b"\n".join(json.dumps(one).encode() for one in (RECORD, other)))
    expected = fields.schema.table(fields.schema.read([RECORD, other]))
    assert [pa.concat_tables([chunk.inputs for chunk in read(tmp_path, one, fields)]) for one in (cells, objects)] == [
        expected
    ] * 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2013-02-03,AA,far,3.5,x", "field 'distance': expected a number, found 'far'"),
        ("2013-02-03,AA,700,inf,x", "field 'wind': expected a finite number"),
        ("2013-02-30,AA,700,3.5,x", "field 'day': expected a date such as '2013-11-05' or null"),
        ("2013-02-03,AA,700", "3 cells, the header has 5"),
        ("2013-02-03,A\udcff,700,3.5,x", "field 'carrier': not UTF-8"),
    ],
)
def test_a_bad_csv_row_fails_alone(survey, tmp_path, fields, line, reason):
    content = "\n".join([HEADER, GOOD, line, GOOD, ""]).encode("utf-8", "surrogateescape")
    chunks = read(tmp_path, survey("rows.csv", content), fields, rows=8)
    assert numbers(chunks) == [0, 2]
    assert [(failure.row, failure.reason) for failure in failures(chunks)] == [(1, reason)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"day": null', "no JSON: "),
        ("[1]", "no JSON object"),
        ("{}", "field 'day' is missing"),
        (json.dumps({**RECORD, "wind": "3.5"}), "field 'wind': expected a number or null, found text"),
        (json.dumps({**RECORD, "distance": True}), "field 'distance': expected a number or null, found a boolean"),
    ],
)
def test_a_bad_json_line_fails_alone(survey, tmp_path, fields, line, reason):
    good = json.dumps({**RECORD, "more": 1})
    chunks = read(tmp_path, survey("rows.jsonl", "\n".join([good, line, good]).encode()), fields, rows=8)
    assert numbers(chunks) == [0, 2]
    [failure] = failures(chunks)
    assert failure.row == 1 and failure.reason.startswith(reason)


def test_an_infinite_parquet_number_fails_alone(survey, tmp_path, fields, toy_rows):
    wind = pa.array([1.0, float("inf"), float("nan"), None])
    pq.write_table(toy_rows.slice(0, 4).set_column(3, "wind", wind), tmp_path / "source")
    chunks = read(tmp_path, survey("rows.parquet", (tmp_path / "source").read_bytes()), fields)
    assert (numbers(chunks), [failure.row for failure in failures(chunks)]) == ([0, 2, 3], [1])


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.csv", b"day,carrier,distance\n", "has no column 'wind'"),
        ("rows.csv", b"day,day,carrier,distance,wind\n", "has 2 columns 'day'"),
        ("rows.csv", b"", "has no column 'day'"),
        ("rows.parquet", b"PAR1", "cannot be read"),
        ("rows.xlsx", b"", "is of no kind that is known"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(survey, name, content, told):
    with pytest.raises(SourceError, match=told):
        survey(name, content)


def test_a_parquet_column_of_a_wrong_type_refuses_the_file(survey, tmp_path, toy_rows):
    pq.write_table(toy_rows.set_column(2, "distance", pa.array(["far"] * 200)), tmp_path / "source")
    with pytest.raises(SourceError, match="The feature 'distance' is of type string; a number is needed"):
        survey("rows.parquet", (tmp_path / "source").read_bytes())


def test_json_lines_need_not_have_the_label_that_others_have(survey, tmp_path, fields):
    lines = [json.dumps({**RECORD, "late": 1}), json.dumps(RECORD)]
    chunks = read(tmp_path, survey("rows.jsonl", "\n".join(lines).encode()), fields)
    assert pa.concat_tables([chunk.kept for chunk in chunks])["truth"].to_pylist() == ["1", None]
