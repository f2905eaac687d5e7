"""Folders of texts and images: a row a file, its folder's name the label, its bytes unchanged."""

import io

import pytest
from PIL import Image

from rayloom.etl.sources import packed
from tests.unit.fetching import fetched, refusal, rows

PNG = io.BytesIO()
Image.new("L", (8, 8)).save(PNG, "PNG")


@pytest.fixture
def raw(tmp_path):
    """Writes files, given by path, into a folder."""

    def write(files: dict[str, bytes]):
        folder = tmp_path / "raw"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    return write


TEXTS = {"sport/2.txt": b"b\r\n", "sport/1.txt": "größe".encode(), "train/tech/x y.txt": b""}


def test_each_text_is_a_row_with_its_folder_as_label(tmp_path, raw):
    assert rows(tmp_path, path=raw(TEXTS), kind="text") == [
        ("sport/1.txt", "sport", "größe"),
        ("sport/2.txt", "sport", "b\r\n"),
        ("train/tech/x y.txt", "tech", ""),
    ]


def test_columns_of_texts(tmp_path, raw):
    found = fetched(tmp_path, path=raw(TEXTS), kind="text")
    assert found.opened.types == found.raw == {"path": "STRING", "label": "STRING", "text": "STRING"}


def test_images_keep_their_bytes(tmp_path, raw):
    folder = raw({"0/a.png": PNG.getvalue(), "1/b.png": PNG.getvalue()})
    found = rows(tmp_path, path=folder, kind="images")
    assert found == [("0/a.png", "0", PNG.getvalue()), ("1/b.png", "1", PNG.getvalue())]


@pytest.mark.parametrize("data, found", [(b"", "is empty"), (b"no image", "begins with 6e 6f 20")])
def test_what_is_no_image_is_refused_with_the_file(tmp_path, raw, data, found):
    folder = raw({"0/a.png": PNG.getvalue(), "0/b.png": data})
    said = refusal(tmp_path, path=folder, kind="images")
    assert said.startswith(f"{folder}/0/b.png is no image") and found in said


def test_bytes_that_are_not_of_the_encoding_are_refused_with_the_file(tmp_path, raw):
    folder = raw({"a/1.txt": "größe".encode("latin-1")})
    assert refusal(tmp_path, path=folder, kind="text").startswith(f"{folder}/a/1.txt: byte 2 (0xf6) is not utf-8 text")


def test_another_encoding(tmp_path, raw):
    assert rows(tmp_path, path=raw({"a/1.txt": b"gr\xf6\xdfe"}), kind="text", encoding="latin-1")[0][2] == "größe"


def test_of_several_encodings_the_first_that_decodes_the_whole_file_counts(tmp_path, raw):
    folder = raw({"a/1.txt": "größe".encode(), "a/2.txt": b"gr\xf6\xdfe"})
    assert [row[2] for row in rows(tmp_path, path=folder, kind="text", encoding=["utf-8", "cp1252"])] == ["größe", "größe"]


def test_bytes_of_none_of_several_encodings_are_refused_with_each(tmp_path, raw):
    said = refusal(tmp_path, path=raw({"a/1.txt": b"\xe9 \x81"}), kind="text", encoding=["utf-8", "cp1252"])
    assert "byte 0 (0xe9) is not utf-8 text, byte 2 (0x81) is not cp1252 text; convert" in said


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8"])
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path, raw, encoding):
    assert rows(tmp_path, path=raw({"a/1.txt": b"\xef\xbb\xbfx"}), kind="text", encoding=encoding)[0][2] == "x"


@pytest.mark.parametrize("encoding", ["utf-9", ["utf-8", "utf-9"]], ids=["alone", "in a list"])
def test_an_unknown_encoding_is_refused(tmp_path, raw, encoding):
    with pytest.raises(ValueError, match="there is no text encoding 'utf-9'"):
        rows(tmp_path, path=raw(TEXTS), kind="text", encoding=encoding)


def test_columns_do_not_go_with_a_folder(tmp_path, raw):
    with pytest.raises(ValueError, match="`columns` does not go with a folder"):
        rows(tmp_path, path=raw(TEXTS), kind="text", columns="text STRING")


def test_files_of_other_names_are_left_out(tmp_path, raw):
    folder = raw({"a/1.txt": b"x", "a/1.md": b"y", "a/.2.txt": b"z", "README": b""})
    assert [row[0] for row in rows(tmp_path, path=folder, kind="text")] == ["a/1.txt"]


def test_a_file_without_a_label_is_refused(tmp_path, raw):
    folder = raw({"1.txt": b"x", "a/1.txt": b"x"})
    assert refusal(tmp_path, path=folder, kind="text").startswith(f"{folder}/1.txt has no label")


def test_a_folder_without_such_files_is_refused(tmp_path, raw):
    assert "is named *.csv; correct path or pattern" in refusal(tmp_path, path=raw(TEXTS), kind="text", pattern="*.csv")


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    said = refusal(tmp_path, path=tmp_path / "no", kind="text")
    assert said == f"etl.sources.raw: there is no folder {tmp_path}/no; correct etl.sources.raw.path."


@pytest.mark.parametrize("change", [{"sport/1.txt": b"another"}, {"sport/3.txt": b""}])
def test_the_fingerprint_changes_with_a_byte_or_a_name(tmp_path, raw, change):
    before = fetched(tmp_path, path=raw(TEXTS), kind="text").sha256
    assert fetched(tmp_path, path=raw(change), kind="text").sha256 != before


def test_many_files_come_in_parts(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(packed, "BATCH_BYTES", 1000)
    folder = raw({f"a/{n:04}.txt": b"x" * 99 for n in range(300)})
    assert [row[0] for row in rows(tmp_path, path=folder, kind="text")] == [f"a/{n:04}.txt" for n in range(300)]
