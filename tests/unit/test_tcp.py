import socket
import subprocess
import sys

import pytest

from rayloom import tcp
from rayloom.errors import ResourceError


@pytest.fixture
def few(monkeypatch):
    """Two ports to choose from, of which one is taken."""
    for low in tcp.KEPT:
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", low))
            except OSError:
                continue
            monkeypatch.setattr(tcp, "KEPT", range(low, low + 2))
            yield low + 1
            return


def test_ports_are_those_that_nobody_has(few):
    assert tcp.free_ports(1) == [few]


def test_too_few_ports_are_refused(few):
    with pytest.raises(ResourceError, match="2 free TCP ports from"):
        tcp.free_ports(2)


def test_ports_differ():
    assert len(set(tcp.free_ports(50))) == 50


def test_no_connection_takes_a_port_that_was_free():
    """As a cluster that starts does: hundreds of connections between the choice of a port and whoever listens on it."""
    chosen = set(tcp.free_ports(400))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        opened = []
        try:
            for _ in range(250):  # three sockets each: below the 1,024 files that a process may commonly open
                opened.append(socket.create_connection(server.getsockname()))
                opened.append(server.accept()[0])
                opened.append(bound := socket.socket())
                bound.bind(("127.0.0.1", 0))
            assert not chosen & {each.getsockname()[1] for each in opened}
        finally:
            for each in opened:
                each.close()


def test_ports_are_given_where_the_kernel_takes_its_own_from_all(monkeypatch):
    monkeypatch.setattr(tcp, "_ephemeral", lambda: range(1024, 65536))
    assert tcp.free_ports(1)[0] in tcp.KEPT


def test_a_port_on_which_somebody_listens_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ResourceError, match=f"Port {port} on 127.0.0.1 is in use"):
            tcp.require_free_port(port)
    tcp.require_free_port(port)


def test_two_processes_choose_different_ports():
    command = [sys.executable, "-c", "from rayloom import tcp; print(tcp.free_ports(4))"]
    assert subprocess.check_output(command) != subprocess.check_output(command)
