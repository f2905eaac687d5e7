"""Files of sources: on this machine, S3 or HDFS; named one by one, by folder or by glob; plain, zip or gzip. No Spark.

Credentials and endpoints come from the environment, never from the pipeline file: AWS_ACCESS_KEY_ID and its like,
AWS_ENDPOINT_URL, AWS_REGION; for HDFS what Hadoop's own client needs (HADOOP_HOME, CLASSPATH).
"""

import fnmatch
import gzip
import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from rayloom import places
from rayloom.errors import SourceError

MAX_UNPACKED_BYTES = 64 * 2**30
"""What unpacks to more is refused before it fills the disk."""

READERS = 16
"""Remote files that are asked for at a time: each answer takes a while, and little else."""

GLOB = re.compile(r"[*?\[]")

Answer = TypeVar("Answer")
Readable = Any
"""A binary stream: Python's, or one of Arrow's, which have its methods and not its type."""


@dataclass(frozen=True)
class File:
    """A file of a source.

    Attributes:
        system: the file system that holds it.
        path: where, within the system.
        shown: its name in sentences.
    """

    system: fs.FileSystem
    path: str
    shown: str

    @property
    def local(self) -> Path | None:
        """Its path, where it is on this machine."""
        return Path(self.path) if isinstance(self.system, fs.LocalFileSystem) else None


@dataclass(frozen=True)
class Place:
    """A place that the pipeline file names.

    Attributes:
        system, path: a file, folder or glob in a file system.
        prefix: what stands before a path of this system in sentences, as 's3://'.
        key: the dotted key that names it.
        remedy: what to do where nothing is there.
    """

    system: fs.FileSystem
    path: str
    prefix: str
    key: str
    remedy: str

    @property
    def shown(self) -> str:
        return self.prefix + self.path

    def file(self, path: str) -> File:
        return File(self.system, path, self.prefix + path)

    def missing(self, what: str) -> SourceError:
        return SourceError(f"{places.section(self.key)}: {what}; {self.remedy}.")


def find(named: str | list[str], key: str, suffixes: tuple[str, ...]) -> list[File]:
    """The files that a source's `path` names, in the order of their names within each place.

    Args:
        key: the dotted key that names them, for errors.
        suffixes: how the names of a folder's files end, without '.gz' and '.zip'.

    Raises:
        SourceError: a place cannot be reached, has no file, or a file is named twice.
    """
    found: dict[str, File] = {}
    for name in [named] if isinstance(named, str) else named:
        for file in _files_at(place(name, key), suffixes):
            if file.shown in found:
                raise SourceError(f"{key} names {file.shown} twice, which would double its rows; remove one.")
            found[file.shown] = file
    return list(found.values())


def place(name: str, key: str) -> Place:
    """The file system and path that a name in the pipeline file means."""
    scheme, _, rest = name.partition("://")
    if not rest:
        return Place(fs.LocalFileSystem(), str(places.resolve(name, key)), "", key, places.remedy(name, key))
    with reachable(name):
        if scheme in ("s3", "s3a"):
            return Place(_s3(rest.partition("/")[0]), rest.rstrip("/"), "s3://", key, f"correct {key}")
        if scheme == "hdfs":
            authority, _, path = rest.partition("/")
            return Place(_hdfs(authority, key), f"/{path.rstrip('/')}", f"hdfs://{authority}", key, f"correct {key}")
    raise SourceError(f"{key}: '{scheme}://' is not known; write a path, s3://bucket/…, hdfs://host/… or package:NAME/FILE.")


def _s3(bucket: str) -> fs.S3FileSystem:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return fs.S3FileSystem(
        endpoint_override=endpoint,  # pyarrow does not look at the variables itself
        region=region or (fs.resolve_s3_region(bucket) if not endpoint else "us-east-1"),
        connect_timeout=5,
        request_timeout=60,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )


def _hdfs(authority: str, key: str) -> fs.HadoopFileSystem:
    user, _, address = authority.rpartition("@")
    host, _, port = address.partition(":")
    try:
        return fs.HadoopFileSystem(host or "default", int(port or 0), user=user or None)
    except OSError as error:
        if "libjvm" in str(error) or "libhdfs" in str(error):
            raise SourceError(
                f"{key}: hdfs:// needs Hadoop's client, and libhdfs or its Java was not found; install Hadoop and set "
                f"HADOOP_HOME, JAVA_HOME and CLASSPATH (`hadoop classpath --glob`)."
            ) from None
        raise


@contextmanager
def reachable(shown: str) -> Iterator[None]:
    """What a file system says on failure, as a SourceError."""
    try:
        yield
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{shown} is damaged ({str(error) or 'it ends too early'}); fetch it again.") from None
    except OSError as error:
        aws = re.search(r"AWS Error ([A-Z_]+)", str(error))
        reason = aws[1].lower().replace("_", " ") if aws else error.strerror or str(error).splitlines()[0]
        check = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"
        remedy = check if shown.startswith("s3") else "see that it exists and may be read"
        raise SourceError(f"{shown}: cannot be read ({reason:.200}); {remedy}.") from None


def _files_at(at: Place, suffixes: tuple[str, ...]) -> list[File]:
    with reachable(at.shown):
        info = at.system.get_file_info(at.path)
        if info.type == fs.FileType.File:
            return [at.file(at.path)]
        if info.type == fs.FileType.Directory:
            names = _names_below(at.system, at.path, recursive=False)
            found = [name for name in names if _plain_name(name).endswith(suffixes)]
            if not found:
                raise at.missing(f"the folder {at.shown} has no file that ends with {' or '.join(suffixes)}")
        elif GLOB.search(at.path):
            found = _matches(at)
            if not found:
                raise at.missing(f"no file matches {at.shown}")
        else:
            raise at.missing(f"there is no file {at.shown}")
    return [at.file(name) for name in found]


def _plain_name(path: str) -> str:
    return path.lower().removesuffix(".gz").removesuffix(".zip")


def _names_below(system: fs.FileSystem, folder: str, recursive: bool) -> list[str]:
    """Files below a folder, sorted; names that begin with '.' or '_' are what writers leave for themselves."""
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    files = [info.path for info in system.get_file_info(selector) if info.type == fs.FileType.File]
    hidden = re.compile(r"/[._]")
    return sorted(path for path in files if not hidden.search(path.removeprefix(folder)))


def _matches(at: Place) -> list[str]:
    parts = at.path.split("/")
    first = next(index for index, part in enumerate(parts) if GLOB.search(part))
    pattern = re.compile("".join(_glob_part(part, index == len(parts) - 1) for index, part in enumerate(parts)))
    names = _names_below(at.system, "/".join(parts[:first]) or "/", recursive=True)
    return [name for name in names if pattern.fullmatch(name)]


def _glob_part(part: str, last: bool) -> str:
    """A regular expression for a part of a glob: '**' is any folders, '*' stays within one."""
    if part == "**":
        return ".*" if last else "(?:.*/)?"
    pieces = re.split(r"(\*|\?|\[!?[^\]]+\])", part)
    wild = {"*": "[^/]*", "?": "[^/]"}
    text = "".join(
        wild.get(p, f"[^{p[2:]}" if p.startswith("[!") else p if p.startswith("[") else re.escape(p)) for p in pieces
    )
    return text + ("" if last else "/")


def below(at: Place, pattern: str) -> list[str]:
    """Paths, relative to the folder `at`, of all files below it whose name matches `pattern`; sorted."""
    with reachable(at.shown):
        if at.system.get_file_info(at.path).type != fs.FileType.Directory:
            raise at.missing(f"there is no folder {at.shown}")
        names = [name.removeprefix(at.path).lstrip("/") for name in _names_below(at.system, at.path, recursive=True)]
    return [name for name in names if fnmatch.fnmatchcase(name.rpartition("/")[2], pattern)]


def each(function: Callable[[File], Answer], files: list[File]) -> list[Answer]:
    """`function` of each file, several at a time; the first error in the order of the files is raised."""
    if len(files) == 1:
        return [function(files[0])]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(function, files))


class Hashed(io.RawIOBase):
    """A stream that fingerprints what is read through it.

    Args:
        source: the content.
        tail: bytes that follow the content, for whoever reads; no part of the fingerprint.
        check: sees each piece of the content, and raises where it must not be so.
    """

    def __init__(self, source: Readable, tail: bytes = b"", check: Callable[[bytes], None] | None = None) -> None:
        self._source, self._tail, self._check, self._sha256 = source, tail, check, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, unless the end comes before: a header and what follows it come together."""
        parts, left = [], size
        while left and (data := self._some(left)):
            parts.append(data)
            left = left - len(data) if size > 0 else size
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        data = self._source.read(size)
        self._sha256.update(data)
        if self._check:
            self._check(data)
        if not data:
            end = len(self._tail) if size < 0 else size
            data, self._tail = self._tail[:end], self._tail[end:]
        return data

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


@contextmanager
def content(file: File) -> Iterator[Readable]:
    """A file's bytes; of a .gz or .zip (with one file in it) what is packed.

    Raises:
        SourceError: the file cannot be read, here or within the block, is damaged, or unpacks to too much.
    """
    with reachable(file.shown):
        if file.path.lower().endswith(".zip"):
            with file.system.open_input_file(file.path) as packed, _unzipped(file, packed) as plain:
                yield plain
        elif file.path.lower().endswith(".gz"):
            with file.system.open_input_stream(file.path, compression=None) as packed, gzip.open(packed) as plain:
                yield _Limited(file, plain)
        else:
            with file.system.open_input_stream(file.path, compression=None) as plain:
                yield plain


@contextmanager
def _unzipped(file: File, packed: Readable) -> Iterator[Readable]:
    try:
        archive = zipfile.ZipFile(packed)
    except (zipfile.BadZipFile, pa.ArrowInvalid):  # Arrow's, where a file is too short to have a zip's last part
        raise SourceError(f"{file.shown} is not a whole zip file; fetch it again.") from None
    with archive:
        members = [item for item in archive.infolist() if not item.is_dir()]
        if len(members) != 1:
            raise SourceError(f"{file.shown} holds {len(members)} files; a zipped source holds one file.")
        if members[0].file_size > MAX_UNPACKED_BYTES:
            raise _too_much(file)
        with archive.open(members[0]) as plain:
            yield plain


def _too_much(file: File) -> SourceError:
    return SourceError(f"{file.shown} unpacks to more than the limit of {MAX_UNPACKED_BYTES:,} bytes; unpack and split it.")


class _Limited(io.RawIOBase):
    """A gzip does not say how much it unpacks to: it is counted."""

    def __init__(self, file: File, plain: Readable) -> None:
        self._file, self._plain, self._left = file, plain, MAX_UNPACKED_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._plain.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _too_much(self._file)
        return data

    def readinto(self, buffer) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def digest(file: File, copy: Path | None = None) -> str:
    """sha256 of a file's bytes as they are, read in chunks; with `copy`, also written there."""
    with reachable(file.shown), file.system.open_input_stream(file.path, compression=None) as source:
        hashed = Hashed(source)
        target = copy.open("wb") if copy else None
        try:
            while data := hashed.read(2**20):
                if target:
                    target.write(data)
        finally:
            if target:
                target.close()
    return hashed.hexdigest()
