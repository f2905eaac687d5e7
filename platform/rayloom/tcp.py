"""TCP ports of this machine: which are taken, and which stay free until whoever asked for them listens."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from rayloom.errors import ResourceError

KEPT = range(20_000, 30_000)
"""Where ports are taken from: above those that Ray gives its workers, below those that Serve gives its replicas."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nobody listens on, each one once, at random: two clusters that start on one machine should not meet.

    A port that the kernel picks (bind to 0) is one that it also picks for the next outgoing connection. A Ray cluster opens
    hundreds while it starts, so such a port may be taken before the process that it is meant for listens.

    Raises:
        ResourceError: there are not so many.
    """
    ephemeral = _ephemeral()
    # Where the kernel's own reach over all of ours, they are still as good as any other.
    choice = [port for port in KEPT if port not in ephemeral] or list(KEPT)
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(choice, len(choice)):
            if len(found) == count:
                break
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise ResourceError(f"{count} free TCP ports from {KEPT.start} to {KEPT.stop - 1} are needed on {host}.")
    return found


def is_listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections on a TCP port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def require_free_port(port: int, host: str = "127.0.0.1") -> None:
    """Raises ResourceError where something listens on the port already."""
    if is_listening(port, host):
        raise ResourceError(
            f"Port {port} on {host} is in use; stop what listens there, or choose another with --set serve.port=N."
        )


def _ephemeral() -> range:
    """The ports that the kernel gives to outgoing connections."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(32_768, 61_000)  # not Linux
    return range(int(low), int(high) + 1)
