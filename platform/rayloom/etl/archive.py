"""Spark's Java classes, loaded and verified once for all: a class data archive that every JVM of a session maps into memory.

A session has four JVMs (the driver, RayDP's master and its actor, an executor) that load 5,000 to 14,000 classes each, half of
what they do until the first query is answered. They have the same jars in the same order, so one archive serves them all. It
lies in the Python environment whose jars it is of; where jars have changed since, Java leaves it aside.

  python -m rayloom.etl.archive     writes it; `make` does so when it installs

`classes.txt` beside this file names the classes. After an upgrade of Spark they are recorded anew, from real runs:

  export JAVA_TOOL_OPTIONS=-XX:DumpLoadedClassList=FOLDER/%p.lst
  python -m jobs.etl --config configs/flights.yaml        # with etl.handoff memory and parquet; and of configs/news.yaml
  cat FOLDER/*.lst | sed -n '/^[^#@]/s/ id:.*//p' | grep -v 'Proxy[0-9]\\|LambdaForm\\|Lambda[$]\\|^jdk/internal/event' |
    LC_ALL=C sort -u > platform/rayloom/etl/classes.txt
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from rayloom import environment
from rayloom.errors import ResourceError

ARCHIVE = Path(sys.prefix) / "share" / "rayloom" / "spark.jsa"
CLASSES = Path(__file__).with_name("classes.txt")
SECONDS = 300.0
"""How long Java may take to write the archive; 10 to 30 are usual."""


def options() -> str:
    """The JVM option that uses the archive; none where there is none, or where RayDP would split its path."""
    return f"-XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.is_file() and " " not in str(ARCHIVE) else ""


def is_usable() -> bool:
    """Whether the archive is there and of these jars and this Java."""
    return ARCHIVE.is_file() and _java(f"-XX:SharedArchiveFile={ARCHIVE}", "-Xshare:on", "-version").returncode == 0


def write() -> None:
    """Writes the archive, whole or not at all.

    Raises:
        ResourceError: there is no Java, or it failed; with what it said.
    """
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        new = Path(folder) / ARCHIVE.name
        done = _java("-Xshare:dump", f"-XX:SharedClassListFile={CLASSES}", f"-XX:SharedArchiveFile={new}", "-XX:+UseSerialGC")
        if done.returncode or not new.is_file():
            raise ResourceError(f"Java could not archive Spark's classes: {done.stdout.strip()[-2000:]}")
        new.replace(ARCHIVE)


def _java(*given: str) -> subprocess.CompletedProcess[str]:
    """Runs Java on the class path of Spark's JVMs."""
    command = [str(environment.java_home() / "bin" / "java"), "-Xlog:all=error:stdout", "-cp", _class_path(), *given]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS)


def _class_path() -> str:
    """As RayDP makes it: its own jars, Spark's, and Ray's, in the order in which their folders list them."""
    spark = os.environ.get("SPARK_HOME") or _folder("pyspark")
    raydp, ray = (glob.glob(f"{_folder(package)}/jars/*") for package in ("raydp", "ray"))
    return os.pathsep.join([*raydp, f"{spark}/jars/*", *ray])


def _folder(package: str) -> str:
    """Where a package lies, without importing it: that would take seconds.

    Raises:
        ResourceError: it is not installed.
    """
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ResourceError(f"{package} is not installed; run pip install -c constraints.txt -e '.[demo]'.")
    return os.path.dirname(os.path.abspath(found.origin))


def main() -> None:
    """Writes the archive and says so."""
    what = "Archives Spark's Java classes in this Python environment, so that Spark starts in less time."
    argparse.ArgumentParser(prog="python -m rayloom.etl.archive", description=what).parse_args()
    began = time.monotonic()
    try:
        write()
    except (ResourceError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: Spark's classes are not archived, and each session will take longer to start: {error}")
    print(f"Spark's classes: {ARCHIVE} ({ARCHIVE.stat().st_size / 1e6:.0f} MB, {time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
