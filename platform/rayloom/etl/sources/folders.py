"""Folders of text or image files: a row a file, with its path within the folder, and the name of its own folder as label.

Many small files become one of Parquet, since each is read for the fingerprint anyway. Not here: looking into images.
"""

import codecs
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from rayloom import config
from rayloom.errors import SourceError
from rayloom.etl.sources import packed
from rayloom.etl.sources.files import File, below, each, place, reachable
from rayloom.etl.sources.opened import Fetched, Opened
from rayloom.etl.sources.packed import read as read

TOGETHER = 64
"""Files read at a time."""

MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"RIFF")
"""How PNG, JPEG, GIF, BMP, TIFF and WebP files begin."""


def open(name: str, settings: config.Text | config.Images) -> Opened:
    """Lists a folder's files.

    Raises:
        SourceError: there is no folder, no file in it has such a name, or one lies in no label's folder.
    """
    at = place(settings.path, f"etl.sources.{name}.path")
    names = below(at, settings.pattern)
    if not names:
        raise SourceError(f"etl.sources.{name}: no file in {at.shown} is named {settings.pattern}; correct path or pattern.")
    bare = next((path for path in names if "/" not in path), None)
    if bare:
        raise SourceError(
            f"{at.shown}/{bare} has no label: it lies in no folder of its own; move it into one named by its label."
        )
    kind = "BINARY" if settings.kind == "images" else "STRING"
    types = {"path": "STRING", "label": "STRING", "image" if settings.kind == "images" else "text": kind}
    return Opened(name, settings, types, [(path, at.file(f"{at.path}/{path}")) for path in names])


def fetch(opened: Opened, scratch: Path) -> Fetched:
    """Brings all files into one of Parquet, in bounded memory, and fingerprints names and bytes.

    Raises:
        SourceError: a file cannot be read, is not text in the declared encoding, or no image.
    """
    *_, (content, kind) = opened.types.items()
    of_content = pa.field(content, pa.binary() if kind == "BINARY" else pa.string())
    schema = pa.schema([pa.field("path", pa.string()), pa.field("label", pa.string()), of_content])
    sha256 = hashlib.sha256()
    target = scratch / f"{opened.name}.parquet"
    packed.write(target, schema, _batches(opened, schema, sha256))
    return Fetched(opened, [target], sha256.hexdigest(), opened.types)


def _batches(opened: Opened, schema: pa.Schema, sha256: "hashlib._Hash") -> Iterator[pa.Table]:
    understand = _image if opened.settings.kind == "images" else _text(opened.settings.encoding)
    rows: list[tuple] = []
    size = 0
    for start in range(0, len(opened.files), TOGETHER):
        group = opened.files[start : start + TOGETHER]
        for (path, file), data in zip(group, each(_bytes, [file for _, file in group]), strict=True):
            sha256.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\n".encode())
            rows.append((path, path.split("/")[-2], understand(file, data)))
            size += len(data)
            if size >= packed.BATCH_BYTES:
                yield _table(rows, schema)
                rows, size = [], 0
    yield _table(rows, schema)


def _table(rows: list[tuple], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _bytes(file: File) -> bytes:
    with reachable(file.shown), file.system.open_input_stream(file.path, compression=None) as source:
        return source.read()


def _text(encoding: str | list[str]) -> Callable[[File, bytes], str]:
    names = [encoding] if isinstance(encoding, str) else encoding
    # A byte order mark is no part of a UTF-8 text.
    readers = {name: "utf-8-sig" if codecs.lookup(name).name == "utf-8" else name for name in names}

    def decode(file: File, data: bytes) -> str:
        wrong: list[str] = []
        for name, codec in readers.items():
            try:
                return data.decode(codec)
            except UnicodeDecodeError as error:
                wrong.append(f"byte {error.start} (0x{data[error.start]:02x}) is not {name} text")
        raise SourceError(f"{file.shown}: {', '.join(wrong)}; convert the file, or say by `encoding` what it is.")

    return decode


def _image(file: File, data: bytes) -> bytes:
    if not data.startswith(MAGIC):
        found = f"begins with {data[:8].hex(' ')}" if data else "is empty"
        raise SourceError(
            f"{file.shown} is no image that is known here (PNG, JPEG, GIF, BMP, TIFF, WebP): it {found}; remove it."
        )
    return data
