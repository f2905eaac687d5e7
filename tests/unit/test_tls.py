"""Certificates and keys that are refused before anything starts, and how HAProxy is told of good ones."""

import argparse
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from rayloom import cli, config, tcp
from rayloom.errors import ConfigError, ServingError
from rayloom.serving import tls
from tests.unit.certificates import sign


@pytest.fixture
def make(tmp_path) -> Callable[..., config.Tls]:
    return partial(sign, tmp_path)


def refusal(settings: config.Tls) -> str:
    with pytest.raises(ConfigError) as caught:
        tls.require(settings)
    return str(caught.value)


def test_a_certificate_with_its_key_is_taken(make):
    tls.require(make())


@pytest.mark.parametrize("name", ["certificate", "key"])
def test_a_file_that_is_not_there_is_named_with_its_config_key(make, name):
    wrong = make().model_copy(update={name: "/nowhere.pem"})
    assert refusal(wrong) == f"serve.tls.{name} is /nowhere.pem, which cannot be read (No such file or directory); correct it."


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_read_or_write_is_refused(make, mode):
    settings = make()
    Path(settings.key).chmod(mode)
    said = refusal(settings)
    assert said.startswith(f"serve.tls.key is {settings.key}, which others") and said.endswith("chmod 600 it.")


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
def test_a_key_that_its_owner_and_group_read_is_taken(make, mode):
    settings = make()
    Path(settings.key).chmod(mode)
    tls.require(settings)


def test_a_key_of_another_certificate_is_refused(make):
    settings = make().model_copy(update={"key": make("other").key})
    assert f"{settings.key}, which is not the key of the certificate {settings.certificate}" in refusal(settings)


@pytest.mark.parametrize("name", ["certificate", "key"])
def test_what_is_no_pem_is_refused(make, name):
    settings = make()
    Path(getattr(settings, name)).write_text("no PEM")
    assert refusal(settings).startswith("serve.tls has ") and "give both in PEM" in refusal(settings)


def test_an_encrypted_key_is_refused_rather_than_asked_about(make):
    assert refusal(make(password=b"secret")).startswith("serve.tls.key is encrypted")


def test_a_certificate_that_has_expired_is_refused(make):
    assert "which no client would take: certificate has expired; renew it." in refusal(make(days=-1))


def test_we_trust_our_certificate_and_no_other(make):
    ours, other = make(), make("other")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(other.certificate, other.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        tls.shake_hands(server, tls.client(ours))


def test_haproxy_gets_links_and_no_copy_of_the_key(make, tmp_path):
    settings = make()
    place = tls.linked(tmp_path / "private", tls.environment(settings))
    key = place.with_name("front.pem.key")
    assert (place.readlink(), key.readlink()) == (Path(settings.certificate), Path(settings.key))
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_links_are_replaced_by_newer_ones(make, tmp_path):
    for settings in (make(), make("other")):
        place = tls.linked(tmp_path, tls.environment(settings))
    assert place.readlink() == Path(settings.certificate) and sorted(os.listdir(place.parent)) == ["front.pem", "front.pem.key"]


def test_without_a_certificate_there_is_nothing_to_link(tmp_path):
    assert tls.linked(tmp_path, tls.environment(None)) is None and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("host", "secure", "expected"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8000"),
        ("127.0.0.1", True, "https://127.0.0.1:8000"),
        ("::1", True, "https://[::1]:8000"),
    ],
)
def test_where_the_application_answers(host, secure, expected):
    settings = config.Tls(certificate="a", key="b") if secure else None
    assert tls.url(config.Serve(host=host, tls=settings)) == expected


@pytest.fixture
def listening() -> Iterator[Callable[..., int]]:
    """Makes a server that takes one connection and, where it has a certificate, a handshake; returns its port."""
    servers = []

    def start(shown: config.Tls | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                if shown is None:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                else:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(shown.certificate, shown.key)
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=answer, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in servers:
        server.close()


def test_a_front_with_our_certificate_is_taken(make, listening):
    settings = make()
    tls.require_front(config.Serve(port=listening(settings), tls=settings))


@pytest.mark.parametrize("shows", ["nothing", "another"])
def test_a_front_without_our_certificate_is_refused(make, listening, shows):
    settings = config.Serve(port=listening(None if shows == "nothing" else make("other")), tls=make())
    with pytest.raises(ServingError, match="Serve runs on this cluster without it"):
        tls.require_front(settings)


def test_where_nothing_listens_there_is_no_front(make):
    with pytest.raises(ServingError, match="Connection refused"):
        tls.require_front(config.Serve(port=tcp.free_ports(1)[0], tls=make()))


def test_a_command_that_serves_looks_at_the_files_before_it_starts_anything(make, toy_data, toy_csv, monkeypatch, capsys):
    monkeypatch.chdir(toy_csv.parent)
    make()
    Path("front.key").chmod(0o644)
    Path("toy.yaml").write_text(yaml.safe_dump(toy_data({"serve": {"tls": {"certificate": "front.crt", "key": "front.key"}}})))
    parsed = argparse.Namespace(config=["toy.yaml"], set=[])
    with pytest.raises(SystemExit) as ended, cli.command(parsed, serves=True):
        pytest.fail("it has begun")
    assert ended.value.code == 2 and "error: serve.tls.key is front.key, which others" in capsys.readouterr().err
    assert not Path("runs").exists()
