"""JSON lines: values as the file writes them, and lines that are none."""

import gzip
from pathlib import Path

import pytest

from rayloom.etl.sources import packed
from tests.unit.fetching import fetched, refusal, rows


@pytest.fixture
def raw(tmp_path):
    """Writes raw.jsonl of these lines."""

    def write(*lines: str, name: str = "raw.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(line + "\n" for line in lines))
        return path

    return write


@pytest.mark.parametrize(
    "value, text",
    [
        ('"x\\n\\u00e9\\"y"', 'x\né"y'),
        ("0.10010", "0.10010"),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
        ("1e3", "1e3"),
        ("-7", "-7"),
        ("true", "true"),
        ("null", None),
        ('""', ""),
        ('{"a": [1.50, "x", null, {"b": false}]}', '{"a":[1.50,"x",null,{"b":false}]}'),
        ("[]", "[]"),
        ("NaN", "NaN"),
    ],
)
def test_a_value_is_text_as_the_file_writes_it(tmp_path, raw, value, text):
    assert rows(tmp_path, path=raw(f'{{"a": {value}}}'), columns="a STRING") == [(text,)]


def test_a_key_that_a_line_lacks_is_missing_and_others_are_left_out(tmp_path, raw):
    path = raw('{"b": 1, "a": 2}', '{"a": 3, "c": 4}', "", "{}")
    found = fetched(tmp_path, path=path, columns="a INT, b INT")
    assert (found.opened.types, found.raw) == ({"a": "INT", "b": "INT"}, {"a": "STRING", "b": "STRING"})
    assert rows(tmp_path, path=path, columns="a INT, b INT") == [("2", "1"), ("3", None), (None, None)]


@pytest.mark.parametrize("line", ["{'a': 1}", '{"a": 1', '{"a": 1} {"a": 2}', "a,b"])
def test_a_line_that_is_not_json_is_refused_with_its_number_and_text(tmp_path, raw, line):
    path = raw('{"a": 0}', "", line)
    said = refusal(tmp_path, path=path, columns="a INT")
    assert said.startswith(f"{path}: line 3 is not JSON (") and line in said


@pytest.mark.parametrize("line", ["[1, 2]", "1", '"a"', "null"])
def test_a_line_that_is_no_object_is_refused(tmp_path, raw, line):
    assert "line 1 is not a JSON object" in refusal(tmp_path, path=raw(line), columns="a INT")


def test_one_array_for_all_is_refused(tmp_path, raw):
    assert "line 1 is not JSON" in refusal(tmp_path, path=raw("[", '{"a": 1}', "]"), columns="a INT")


def test_a_key_twice_in_an_object_is_refused(tmp_path, raw):
    assert "the column 'a' stands twice" in refusal(tmp_path, path=raw('{"a": 1, "a": 2}'), columns="a INT")


@pytest.mark.parametrize("lines", [['{"Amount": 1, "amount": 2}'], ['{"Amount": 1}', '{"amount": 2}']])
def test_keys_that_differ_in_case_alone_are_refused_naming_both(tmp_path, raw, lines):
    assert "'Amount' and 'amount' differ in case alone" in refusal(tmp_path, path=raw(*lines), columns="Amount INT")


def test_a_key_that_no_line_has_is_refused_with_the_nearest(tmp_path, raw):
    said = refusal(tmp_path, path=raw('{"shade": 1}'), columns="shad INT")
    assert "no line has the key 'shad', which etl.sources.raw.columns declares; did you mean 'shade'?" in said


def test_an_empty_file_is_refused(tmp_path, raw):
    assert "raw.jsonl is empty" in refusal(tmp_path, path=raw(""), columns="a INT")


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, raw):
    assert rows(tmp_path, path=raw('\ufeff{"a": 1}'), columns="a INT") == [("1",)]


def test_a_line_that_is_not_utf_8_is_refused(tmp_path, raw):
    path = raw()
    path.write_bytes('{"a": 1}\n{"a": "größe"}\n'.encode("latin-1"))
    assert "line 2 is not UTF-8 text" in refusal(tmp_path, path=path, columns="a STRING")


def test_several_files_and_a_gzip(tmp_path, raw):
    raw('{"a": 1}', name="1.jsonl")
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(b'{"a": 2}\n'))
    assert rows(tmp_path, path=tmp_path, kind="json", columns="a INT") == [("1",), ("2",)]


def test_a_long_file_comes_in_parts(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(packed, "BATCH_BYTES", 100)
    path = raw(*[f'{{"a": {n}}}' for n in range(1000)])
    assert rows(tmp_path, path=path, columns="a INT") == [(str(n),) for n in range(1000)]
