"""CSV as people have it: newlines in cells, byte order marks, texts for missing, columns in any order, and what is broken."""

import gzip
import hashlib
import random
import re
import time
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rayloom.errors import ConfigError
from rayloom.etl import sources
from rayloom.etl.sources import declared_types, packed
from tests.unit.fetching import fetched, refusal, rows, settings, table


@pytest.fixture
def raw(tmp_path):
    """Writes raw.csv, as bytes or text."""

    def write(content: bytes | str, name: str = "raw.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def zipped(tmp_path):
    """Writes a zip file of these members."""

    def write(members: dict[str, str]) -> Path:
        path = tmp_path / "raw.csv.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        return path

    return write


def hundred_notes() -> list[str]:
    """Input 1: 100 texts, of which 7 hold a line feed, 2 a carriage return and line feed, and 1 a quote, which is doubled."""
    notes = [f"note {n}" for n in range(100)]
    for n in (3, 14, 15, 26, 53, 58, 97):
        notes[n] = f"first\nsecond {n}\n"
    notes[20], notes[99], notes[40] = "a\r\nb", "\r\n", 'say "yes"'
    return notes


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_input_1_newlines_and_quotes_in_cells_are_text_byte_for_byte(tmp_path, raw, line_end):
    lines = ["id,note"] + [f"{n},{quoted(note)}" for n, note in enumerate(hundred_notes())]
    found = rows(tmp_path, path=raw(line_end.join(lines) + line_end), columns="id INT, note STRING")
    assert found == [(str(n), note) for n, note in enumerate(hundred_notes())]


@pytest.mark.parametrize("header", ["label,n", '"label",n', '"label","n"'])
def test_input_2_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, raw, header):
    plain = table(tmp_path, path=raw("label,n\nyes,1\nno,2\n"), columns="label STRING, n INT")
    marked = table(tmp_path, path=raw(b"\xef\xbb\xbf" + f"{header}\nyes,1\nno,2\n".encode()), columns="label STRING, n INT")
    assert marked.equals(plain) and marked.column_names == ["label", "n"]


@pytest.mark.parametrize("header", ["Amount,amount", "x,Amount,amount", '"Amount","amount"'])
def test_input_11_headers_that_differ_in_case_alone_are_refused_naming_both(tmp_path, raw, header):
    said = refusal(tmp_path, path=raw(header + "\n1,2,3\n"), columns="Amount INT")
    assert "'Amount' and 'amount' differ in case alone" in said


def test_a_header_twice_is_refused(tmp_path, raw):
    assert "the column 'a' stands twice" in refusal(tmp_path, path=raw("a,b,a\n1,2,3\n"), columns="b INT")


def test_columns_without_names_may_be_many(tmp_path, raw):
    assert rows(tmp_path, path=raw("a,b,,\n1,2,,\n"), columns="a INT, b INT") == [("1", "2")]


def test_declared_columns_come_in_the_order_of_their_declaration_and_others_not_at_all(tmp_path, raw):
    found = fetched(tmp_path, path=raw("a,b,c\n1,2,3\n"), columns="c INT, a DOUBLE")
    assert (found.opened.types, found.raw) == ({"c": "INT", "a": "DOUBLE"}, {"c": "STRING", "a": "STRING"})
    assert rows(tmp_path, path=raw("a,b,c\n1,2,3\n"), columns="c INT, a INT") == [("3", "1")]


def test_files_are_matched_by_their_headers_names(tmp_path, raw):
    paths = [str(raw("a,b\n1,2\n", "one.csv")), str(raw("x,b,a\n0,4,3\n", "two.csv"))]
    assert rows(tmp_path, path=paths, columns="a INT, b INT") == [("1", "2"), ("3", "4")]


def test_a_column_that_one_file_lacks_is_refused_with_the_file(tmp_path, raw):
    raw("a,b\n1,2\n", "one.csv")
    two = raw("a,B2\n1,2\n", "two.csv")
    said = refusal(tmp_path, path=tmp_path / "*.csv", columns="a INT, b INT")
    assert said.startswith(f"{two}: no column 'b', which etl.sources.raw.columns declares")


@pytest.mark.parametrize(
    "missing, expected",
    [
        ("", ["", None, None, "NA", "-", " NA "]),
        ("NA", ["", None, None, None, "-", " NA "]),
        (["NA", "-"], ["", None, None, None, None, " NA "]),
    ],
)
def test_empty_cells_and_the_missing_texts_are_missing_quoted_or_not(tmp_path, raw, missing, expected):
    path = raw('id,a\n0,\n1,""\n2,NA\n3,"-"\n4, NA \n')
    assert [row[0] for row in rows(tmp_path, path=path, columns="a STRING", missing=missing)] == expected[1:]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter(tmp_path, raw, delimiter):
    path = raw(delimiter.join("ab") + "\n" + delimiter.join(["1,5", '"x' + delimiter + 'y"']) + "\n")
    assert rows(tmp_path, path=path, columns="a STRING, b STRING", delimiter=delimiter) == [("1,5", f"x{delimiter}y")]


@pytest.mark.parametrize("delimiter", ["", '"', "\n", ";;", "é"])
def test_a_delimiter_that_cannot_stand_between_cells_is_refused(tmp_path, raw, delimiter):
    with pytest.raises(ValueError, match="is not one ASCII character"):
        rows(tmp_path, path=raw("a\n"), columns="a INT", delimiter=delimiter)


@pytest.mark.parametrize("record", ["3", "3,4,5", '"3', "3,4,"])
def test_a_record_of_another_length_is_refused_with_file_and_number(tmp_path, raw, record):
    path = raw(f"a,b\n1,2\n\n{record}\n5,6\n" if record != '"3' else 'a,b\n1,2\n"3\n"\n')
    assert refusal(tmp_path, path=path, columns="a INT").startswith(f"{path}: record 2 has ")


@pytest.mark.parametrize("end", ['3,"4\n', '3,"4', '3,"4\n5,6\n7,8\n', '3,4\n"'])
def test_a_quote_without_an_end_is_refused(tmp_path, raw, end):
    said = refusal(tmp_path, path=raw(f"a,b\n1,2\n{end}"), columns="a INT, b INT")
    assert "a quote is opened that nothing closes before the file's end" in said


def test_a_quote_without_an_end_in_a_long_file_is_refused(tmp_path, raw):
    said = refusal(tmp_path, path=raw('a,b\n1,"2\n' + "3,4\n" * (packed.BATCH_BYTES // 2)), columns="a INT, b INT")
    assert "is longer than 4 MiB; most likely a quote is opened and never closed" in said


def test_quotes_within_a_cell_that_does_not_begin_with_one_are_text(tmp_path, raw):
    assert rows(tmp_path, path=raw('a,b\n5" pipe,x\n'), columns="a STRING, b STRING") == [('5" pipe', "x")]


def test_blank_lines_are_no_records(tmp_path, raw):
    assert rows(tmp_path, path=raw("a,b\n\n1,2\n\n\n3,4\n\n"), columns="a INT") == [("1",), ("3",)]


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "a,b\r\n"])
def test_a_header_alone_has_no_rows(tmp_path, raw, text):
    assert rows(tmp_path, path=raw(text), columns="a INT, b INT") == []


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n1,2\n", b"\xef\xbb\xbf", b",,\n"])
def test_a_file_without_a_header_is_refused(tmp_path, raw, content):
    path = raw(content)
    assert refusal(tmp_path, path=path, columns="a INT").startswith(f"{path} is empty")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused(tmp_path, raw, encoding):
    said = refusal(tmp_path, path=raw("a,b\n1,2\n".encode(encoding)), columns="a INT")
    assert "the header is not UTF-8 text, it looks like UTF-16; convert the file to UTF-8" in said


def test_a_header_that_is_not_utf_8_is_refused(tmp_path, raw):
    path = raw("größe,a\n".encode("latin-1"))
    assert refusal(tmp_path, path=path, columns="a INT").startswith(f"{path}: the header is not UTF-8 text; convert")


def test_a_cell_that_is_not_utf_8_is_refused_with_its_line(tmp_path, raw):
    said = refusal(tmp_path, path=raw("a,b\n1,x\n2,größe\n".encode("latin-1")), columns="b STRING")
    assert "line 3 (byte 0xf6) is not UTF-8 text" in said


def test_nul_bytes_are_refused(tmp_path, raw):
    assert "has NUL bytes" in refusal(tmp_path, path=raw(b"a,b\n1,\0\0\n"), columns="a INT")


def test_a_header_without_an_end_is_refused(tmp_path, raw):
    assert "the header cannot be read" in refusal(tmp_path, path=raw('"' + "x" * 200_000), columns="a INT")


def test_a_zip_with_one_csv_is_read(tmp_path, zipped):
    assert rows(tmp_path, path=zipped({"inner/raw.csv": "a\n1\n"}), columns="a INT") == [("1",)]


def test_a_zip_with_two_files_is_refused(tmp_path, zipped):
    assert "holds 2 files" in refusal(tmp_path, path=zipped({"a.csv": "id\n", "b.csv": "id\n"}), columns="id INT")


def test_an_empty_zip_is_refused(tmp_path, zipped):
    assert "is not a whole zip file" in refusal(tmp_path, path=zipped({}), columns="id INT")


def test_a_truncated_zip_is_refused(tmp_path, zipped):
    path = zipped({"raw.csv": "a,b\n" * 1000})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "is not a whole zip file" in refusal(tmp_path, path=path, columns="a INT")


@pytest.mark.parametrize("damage", [slice(40, 60), slice(-3000, -2980)])
def test_a_zip_with_damaged_content_is_refused(tmp_path, zipped, damage):
    path = zipped({"raw.csv": "a,b\n" + "".join(f"{n},{n * n}\n" for n in range(5000))})
    content = bytearray(path.read_bytes())
    content[damage] = b"\xff" * 20
    path.write_bytes(content)
    assert f"{path} is damaged" in refusal(tmp_path, path=path, columns="a INT")


def test_text_named_zip_is_refused(tmp_path, raw):
    assert "is not a whole zip file" in refusal(tmp_path, path=raw("a\n1\n", "raw.zip"), columns="a INT")


def test_a_gzip_is_read(tmp_path, raw):
    assert rows(tmp_path, path=raw(gzip.compress(b"a\n1\n"), "raw.csv.gz"), columns="a INT") == [("1",)]


@pytest.mark.parametrize("content", [gzip.compress(b"a\n1\n" * 5000)[:-9], b"a\n1\n"])
def test_a_damaged_gzip_is_refused(tmp_path, raw, content):
    assert "raw.csv.gz is damaged" in refusal(tmp_path, path=raw(content, "raw.csv.gz"), columns="a INT")


@pytest.mark.parametrize("name", ["raw.csv.gz", "raw.csv.zip"])
def test_what_unpacks_to_more_than_the_limit_is_refused(tmp_path, raw, zipped, monkeypatch, name):
    text = "a,b\n" + "1,2\n" * 10_000
    path = zipped({"raw.csv": text}) if name.endswith("zip") else raw(gzip.compress(text.encode()), name)
    monkeypatch.setattr("rayloom.etl.sources.files.MAX_UNPACKED_BYTES", 20_000)
    assert f"{path} unpacks to more than the limit of 20,000 bytes" in refusal(tmp_path, path=path, columns="a INT")


def test_the_fingerprint_is_that_of_the_content_packed_or_not(tmp_path, raw, zipped):
    text = "a,b\n1,2\n"
    paths = [raw(text), raw(gzip.compress(text.encode()), "x.csv.gz"), zipped({"raw.csv": text})]
    prints = {fetched(tmp_path, path=path, columns="a INT").sha256 for path in paths}
    assert prints == {hashlib.sha256(text.encode()).hexdigest()}


def test_the_fingerprint_changes_with_one_byte_of_any_file(tmp_path, raw):
    paths = [str(raw("a\n1\n", "1.csv")), str(raw("a\n2\n", "2.csv"))]
    before = fetched(tmp_path, path=paths, columns="a INT").sha256
    raw("a\n3\n", "2.csv")
    assert fetched(tmp_path, path=paths, columns="a INT").sha256 != before


def test_the_fingerprint_does_not_depend_on_the_files_names(tmp_path, raw):
    def of(first: str, second: str) -> str:
        return fetched(tmp_path, path=[str(raw("a\n1\n", first)), str(raw("a\n2\n", second))], columns="a INT").sha256

    assert of("1.csv", "2.csv") == of("z.csv", "y.csv")


def test_columns_must_be_declared(tmp_path, raw):
    said = refusal(tmp_path, path=raw("a\n1\n"))
    assert said.startswith("etl.sources.raw.columns is missing") and "`rayloom schema infer`" in said


@pytest.mark.parametrize("ddl", ["", "id", "id INT, shade", "id INT)", "42", "'id INT", "id INT, ID INT"])
def test_columns_that_are_no_ddl_are_refused(tmp_path, raw, ddl):
    assert refusal(tmp_path, path=raw("id\n"), columns=ddl).startswith("etl.sources.raw.columns")


def test_types_with_arguments_are_ddl():
    assert declared_types("raw", "a DECIMAL(10, 2), b STRING") == {"a": "DECIMAL(10, 2)", "b": "STRING"}


def test_a_column_declared_twice_is_refused():
    with pytest.raises(ConfigError, match="'a' and 'A' differ in case alone"):
        declared_types("raw", "a INT, A STRING")


def test_a_folder_is_its_csv_files(tmp_path, raw):
    for name in ("b.csv", "a.csv", "_SUCCESS", ".hidden.csv", "notes.md"):
        raw(f"a\n{name}\n", name)
    assert rows(tmp_path, path=tmp_path, columns="a STRING") == [("a.csv",), ("b.csv",)]


@pytest.mark.parametrize(
    "glob, expected",
    [("*.csv", ["1"]), ("**/*.csv", ["1", "2", "3"]), ("*/?.csv", ["2"]), ("[!x]/**/3.csv", ["3"]), ("y/[12].csv", ["2"])],
)
def test_globs(tmp_path, raw, glob, expected):
    (tmp_path / "y" / "z").mkdir(parents=True)
    for name in ("1.csv", "y/2.csv", "y/z/3.csv"):
        raw(f"a\n{Path(name).stem}\n", name)
    assert [row[0] for row in rows(tmp_path, path=f"{tmp_path}/{glob}", columns="a STRING")] == expected


@pytest.mark.parametrize("name", ["a[1].csv", "with space.csv", "100%.csv", "größe.csv"])
def test_a_name_with_odd_characters_is_that_of_a_file(tmp_path, raw, name):
    assert rows(tmp_path, path=raw("a\n1\n", name), columns="a STRING") == [("1",)]


def test_a_file_named_twice_is_refused(tmp_path, raw):
    path = str(raw("a\n1\n"))
    said = refusal(tmp_path, path=[path, f"{tmp_path}/*.csv"], columns="a INT")
    assert f"etl.sources.raw.path names {path} twice" in said


@pytest.mark.parametrize("path", ["*.csv", "nowhere.csv", "."])
def test_a_place_without_a_file_is_refused_with_its_key(tmp_path, path):
    assert refusal(tmp_path, path=tmp_path / path, columns="a INT").endswith("; correct etl.sources.raw.path.")


def test_an_unknown_scheme_is_refused(tmp_path):
    assert "etl.sources.raw.path: 'ftp://' is not known" in refusal(tmp_path, path="ftp://host/raw.csv", columns="a INT")


@pytest.mark.parametrize("package", ["no_such_package", "no_such_package.inner"])
def test_a_missing_package_is_refused_with_the_command_that_installs_it(tmp_path, package):
    said = refusal(tmp_path, path=f"package:{package}/raw.csv", columns="a INT")
    assert f"etl.sources.raw: the package '{package}' is not installed; run `pip install {package}`" in said


def test_a_missing_file_of_a_package_is_refused(tmp_path):
    assert "there is no file" in refusal(tmp_path, path="package:yaml/nowhere.csv", columns="a INT")


def test_a_file_of_a_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "toybox").mkdir()
    (tmp_path / "toybox" / "raw.csv").write_text("id\n1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert rows(tmp_path, path="package:toybox/raw.csv", columns="id INT") == [("1",)]


CELLS = ["", "a", " ", '"', '""', "\n", "\r\n", "\r", ",", "é€", 'x"y', "' ", "long " * 50, "\t", "\\", '\\"', "NA"]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_written_is_read_back(tmp_path, raw, seed):
    """Records of awkward cells, some long; quoted where they have to be, or all."""
    draw = random.Random(seed)
    cells = [["".join(draw.choices(CELLS, k=draw.randint(0, 4))) for _ in range(3)] for _ in range(draw.choice([1, 50, 3000]))]
    line_end, all_quoted = draw.choice(["\n", "\r\n"]), draw.random() < 0.5
    records = [",".join(quoted(cell) if all_quoted or re.search('[",\r\n]', cell) else cell for cell in row) for row in cells]
    path = raw(line_end.join(["a,b,c", *records]) + draw.choice(["", line_end]))
    expected = [tuple(cell or None for cell in row) for row in cells]
    assert rows(tmp_path, path=path, columns="a STRING, b STRING, c STRING") == expected


def test_a_long_file_is_opened_at_once_and_fetched_in_parts(tmp_path, raw):
    path = raw("a,b\n" + "12345,6789\n" * 2_000_000)
    start = time.monotonic()
    opened = sources.open_source("raw", settings(path=path, columns="a INT"))
    assert time.monotonic() - start < 10  # the file is 22 MB
    written = pq.ParquetFile(sources.fetch(opened, tmp_path).paths[0]).metadata
    assert (written.num_rows, written.num_row_groups) == (2_000_000, 6)


@pytest.mark.parametrize("columns", ["a STRING", "b STRING"])
def test_white_space_alone_is_a_cell(tmp_path, raw, columns):
    assert rows(tmp_path, path=raw("b,a\n  ,  \n"), columns=columns) == [("  ",)]


def test_white_space_alone_is_a_record_of_one_column(tmp_path, raw):
    assert rows(tmp_path, path=raw("a\n   \n\n1\n"), columns="a STRING") == [("   ",), ("1",)]
