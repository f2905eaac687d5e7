"""The archive of Spark's classes: written whole, refused where the jars are others, and of the Spark that is pinned."""

import re
import zipfile
from pathlib import Path

import pyspark
import pytest
import ray
import raydp

from rayloom.errors import ResourceError
from rayloom.etl import archive

FEW = "java/lang/Object\norg/apache/spark/SparkConf\norg/apache/spark/SparkContext\n"


@pytest.fixture
def own_archive(monkeypatch, tmp_path):
    """The archive of this test, of a few classes."""
    (tmp_path / "classes.txt").write_text(FEW)
    monkeypatch.setattr(archive, "ARCHIVE", tmp_path / "environment" / "spark.jsa")
    monkeypatch.setattr(archive, "CLASSES", tmp_path / "classes.txt")
    return archive.ARCHIVE


def test_an_archive_is_written_and_used(own_archive):
    assert (archive.options(), archive.is_usable()) == ("", False)
    archive.write()
    assert (archive.options(), archive.is_usable()) == (f"-XX:SharedArchiveFile={own_archive}", True)
    assert [path.name for path in own_archive.parent.iterdir()] == ["spark.jsa"]


def test_an_archive_of_other_jars_is_told(own_archive, monkeypatch, tmp_path):
    with zipfile.ZipFile(tmp_path / "other.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
    usual = archive._class_path()
    monkeypatch.setattr(archive, "_class_path", lambda: f"{tmp_path}/other.jar:{usual}")
    archive.write()
    assert archive.is_usable()
    monkeypatch.setattr(archive, "_class_path", lambda: usual)
    assert not archive.is_usable()


def test_a_list_that_java_cannot_read_is_an_error_and_nothing_is_left(own_archive, monkeypatch, tmp_path):
    monkeypatch.setattr(archive, "CLASSES", tmp_path / "missing.txt")
    with pytest.raises(ResourceError, match="classlist failed"):
        archive.write()
    assert list(own_archive.parent.iterdir()) == []


def test_the_list_is_of_the_pinned_spark():
    """Names that no jar has would be passed over in silence, and Spark would start later than it could."""
    jars = [jar for package in (pyspark, raydp, ray) for jar in Path(package.__file__).parent.glob("jars/*.jar")]
    files = {re.sub(r"^META-INF/versions/\d+/", "", name) for jar in jars for name in zipfile.ZipFile(jar).namelist()}
    listed = [name for name in archive.CLASSES.read_text().splitlines() if name.startswith(("org/apache/", "scala/", "io/"))]
    assert len(listed) > 8000
    assert [name for name in listed if f"{name}.class" not in files] == []
