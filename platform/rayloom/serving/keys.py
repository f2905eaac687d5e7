"""API keys of a served model: who may ask, and how often. No Ray.

A key is `rl_`, an id of 12 hexadecimal digits that is no secret, `_`, and 32 random bytes in URL-safe base64. The id finds
the key's entry in one step; the file keeps SHA-256 of a salt and the whole key. A slow hash, such as scrypt, is for passwords,
which people choose and others guess. Nobody guesses 256 random bits: the fast hash is as safe, and a check costs microseconds.
The salt keeps two files from showing that they hold the same key.

The file has mode 0600 and is always replaced as a whole. A replica looks at it again once a second: a key that was revoked is
refused within a second. Each replica limits rates by itself, to its part of what the key may ask.
"""

import fcntl
import hashlib
import hmac
import ipaddress
import logging
import math
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from rayloom.config.base import Name
from rayloom.errors import InvalidRecords, ServingError, hint

OPEN = frozenset({"/healthz", "/readyz", "/ping", "/v2/health/live", "/v2/health/ready"})
"""Paths that need no key: who asks there (a load balancer, the kubelet) has none, and learns nothing of the model's data."""

PREFIX, ID_DIGITS, SECRET_BYTES = "rl_", 12, 32
LENGTH = len(PREFIX) + ID_DIGITS + 1 + math.ceil(SECRET_BYTES * 4 / 3)
"""Characters of a key."""

LOOK_S = 1.0
"""Seconds between two looks at the file."""

WRONG_TRIES = 30
"""Wrong keys a minute that a replica answers with 401."""

MAX_RATE = 1e6

logger = logging.getLogger("rayloom.serving")


class Refused(InvalidRecords):
    """A request without a key that may ask now: status 401, or 429 for one that asks too often.

    Attributes:
        headers: what HTTP wants the answer to have: WWW-Authenticate (RFC 6750, 3) or Retry-After (RFC 6585, 4).
    """

    def __init__(self, status: int, message: str, header: tuple[bytes, bytes]):
        super().__init__(status, message)
        self.headers = [header]


class Key(BaseModel):
    """What the file holds of a key.

    Attributes:
        id: the key's digits that are no secret.
        salt, hash: in hexadecimal digits; the hash is SHA-256 of the salt's bytes and the key's.
        rate: requests a second in the long run.
        burst: requests that may come at once after a pause.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    id: str = Field(pattern=rf"^[0-9a-f]{{{ID_DIGITS}}}$")
    salt: str = Field(pattern=r"^([0-9a-f]{2}){16,64}$", repr=False)
    hash: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    rate: Annotated[float, Field(gt=0, le=MAX_RATE)]
    burst: Annotated[float, Field(ge=1, le=MAX_RATE)]
    created: AwareDatetime
    expires: AwareDatetime | None = None


class KeyFile(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[Key] = []


def path_of(root: Path, name: str) -> Path:
    """The key file of a pipeline.

    Args:
        root: storage.root.
        name: the pipeline's.
    """
    return root / "serving" / f"{name}-keys.json"


def required(given: bool | None, host: str) -> bool:
    """Whether requests need a key: as serve.keys says; where it says nothing, they do unless only this machine can ask.

    Args:
        given: serve.keys.
        host: serve.host, a name or an address.

    >>> required(None, "127.0.0.1"), required(None, "0.0.0.0"), required(False, "0.0.0.0")
    (False, True, False)
    """
    if given is not None:
        return given
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() != "localhost"


def read(path: Path) -> list[Key]:
    """The keys of a file; none where there is no file.

    Raises:
        ServingError: it cannot be read.
    """
    try:
        return KeyFile.model_validate_json(path.read_bytes()).keys
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ServingError(f"{path} cannot be read ({error.strerror}); its owner runs the replicas.") from None
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, mistake["loc"])) or "the whole"
        raise ServingError(f"{path}: {place}: {mistake['msg']}; remove the file and create its keys again.") from None


def create(
    path: Path, name: str, now: datetime, rate: float = 100.0, burst: float | None = None, expires: timedelta | None = None
) -> str:
    """Makes a key and returns it; nothing keeps it.

    Args:
        path: the key file; made where there is none.
        now: with a time zone.
        rate: requests a second.
        burst: requests that may come at once; as many as in a second where it is None, at least 1.
        expires: how long it holds; for ever where it is None.

    Raises:
        ServingError: there is a key of this name, or a value is out of its bounds.
    """
    id, salt = secrets.token_hex(ID_DIGITS // 2), secrets.token_bytes(16)
    key = f"{PREFIX}{id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    entry = {
        "name": name, "id": id, "salt": salt.hex(), "hash": digest(salt, key.encode()).hex(), "rate": rate,
        "burst": max(1.0, rate) if burst is None else burst, "created": now, "expires": now + expires if expires else None,
    }  # fmt: skip
    try:
        made = Key.model_validate(entry)
    except ValidationError as error:
        mistake = error.errors(include_url=False, include_input=False)[0]
        raise ServingError(f"The key '{name:.80}' has no fit {mistake['loc'][0]}: {mistake['msg']}; correct it.") from None
    with locked(path):
        known = read(path)
        if name in {one.name for one in known}:
            raise ServingError(f"{path} has a key '{name}' already; revoke it first, or choose another name.")
        write(path, [*known, made])
    return key


def revoke(path: Path, name: str) -> None:
    """Removes a key: replicas refuse it within LOOK_S.

    Raises:
        ServingError: there is none of this name.
    """
    with locked(path):
        known = read(path)
        kept = [one for one in known if one.name != name]
        if len(kept) == len(known):
            raise ServingError(f"{path} has no key '{name:.80}'{hint(name, [one.name for one in known])}")
        write(path, kept)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """While one process changes the file, another waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(path: Path, keys: list[Key]) -> None:
    """Replaces the file by one of mode 0600; whoever reads meanwhile finds the old one or the new one, whole."""
    descriptor, place = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(KeyFile(keys=keys).model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(place, path)
    except BaseException:
        os.unlink(place)
        raise


def digest(salt: bytes, key: bytes) -> bytes:
    """SHA-256 of a salt and a key."""
    return hashlib.sha256(salt + key).digest()


def given(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The key that a request brings: `Authorization: Bearer KEY`, else `x-api-key: KEY`; None where it has neither."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key")


@dataclass(slots=True, eq=False)
class Bucket:
    """A token bucket: https://en.wikipedia.org/wiki/Token_bucket

    Attributes:
        rate: tokens a second, up to `burst` of them.
        tokens: requests that may come now, as of `at`.
    """

    rate: float
    burst: float
    tokens: float
    at: float

    def wait(self, now: float) -> float:
        """Takes a token and returns 0; where there is none, the seconds until there is one."""
        self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


@dataclass(slots=True, eq=False)
class Caller(Bucket):
    """A key in memory, with the replica's part of its rate.

    Attributes:
        expires: seconds since 1970; infinite for never.
    """

    name: str
    salt: bytes
    hash: bytes
    expires: float


class Keys:
    """The keys of one model, as a replica checks them.

    Whoever tries keys is told 401 WRONG_TRIES times a minute, all together, and then 429. Good keys need not wait: they are
    looked for first.

    Args:
        path: the key file; it need not be there yet.
        replicas: how many share a key's rate; may be set anew.

    Raises:
        ServingError: the file cannot be read.
    """

    def __init__(self, path: Path, replicas: int = 1):
        self.path, self.replicas = path, replicas
        self.callers: dict[bytes, Caller] = {}
        self.wrong = Bucket(WRONG_TRIES / 60, WRONG_TRIES, WRONG_TRIES, 0.0)
        self.has_told = False
        self.seen, self.looked = (_state(path), replicas), -math.inf
        self.take(read(path))

    def check(self, headers: Mapping[bytes, bytes], now: float) -> str:
        """The name of the key that a request brings; takes one of its requests.

        The hashes are compared in constant time. That an id is unknown shows in the time, but ids are no secret.

        Args:
            headers: names in lower case.
            now: seconds since 1970.

        Raises:
            Refused: 401 where there is no key, or one that is unknown or expired; 429 where it has asked too often, or too many
                wrong ones have been tried.
        """
        if not 0 <= now - self.looked < LOOK_S:  # a clock that was set back looks, too
            self.look(now)
        key = given(headers)
        if key is None:
            raise unauthorized("this model needs an API key; send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        caller = self.callers.get(key[len(PREFIX) : len(PREFIX) + ID_DIGITS]) if len(key) == LENGTH else None
        if caller is None or not hmac.compare_digest(digest(caller.salt, key), caller.hash):
            raise self.refuse(now)
        if now >= caller.expires:
            raise unauthorized(f"the API key '{caller.name}' has expired", b', error="invalid_token"')
        if wait := caller.wait(now):
            raise too_often(f"the API key '{caller.name}' asks more often than it may", wait)
        return caller.name

    def refuse(self, now: float) -> Refused:
        """What is said to a wrong key. Many of them are told of in the log, once, until there has been a minute without."""
        wait = self.wrong.wait(now)
        if not wait:
            self.has_told &= self.wrong.tokens < WRONG_TRIES - 1
            return unauthorized("the API key is not one of this model's; it may have been revoked", b', error="invalid_token"')
        if not self.has_told:
            logger.warning("more than %d wrong API keys were tried within a minute; more of them are told 429", WRONG_TRIES)
        self.has_told = True
        return too_often("the API key is not one of this model's, and too many wrong ones were tried", wait)

    def look(self, now: float) -> None:
        """Reads the file again where it is another one, or other replicas share the rates. A broken one changes nothing until
        it is mended."""
        self.looked, state = now, (_state(self.path), self.replicas)
        if state == self.seen:
            return
        try:
            self.take(read(self.path))
            self.seen = state
        except ServingError as error:
            logger.error("the keys stay as they were: %s", error)

    def take(self, keys: list[Key]) -> None:
        """Knows these keys and no others; what a known one has used up stays used up."""
        callers = {}
        for key in keys:
            id = key.id.encode()
            rate, burst = key.rate / self.replicas, max(1.0, key.burst / self.replicas)
            expires = key.expires.timestamp() if key.expires else math.inf
            before = self.callers.get(id)
            tokens, at = (min(before.tokens, burst), before.at) if before else (burst, 0.0)
            callers[id] = Caller(rate, burst, tokens, at, key.name, bytes.fromhex(key.salt), bytes.fromhex(key.hash), expires)
        self.callers = callers


def unauthorized(said: str, more: bytes = b"") -> Refused:
    return Refused(401, said, (b"www-authenticate", b'Bearer realm="rayloom"' + more))


def too_often(said: str, wait: float) -> Refused:
    """
    Args:
        wait: seconds until the next request may come.
    """
    after = math.ceil(wait)
    return Refused(429, f"{said}; try again after {after} s", (b"retry-after", b"%d" % after))


def _state(path: Path) -> tuple[int, int, int] | None:
    """What differs between a file and the one that replaced it; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def duration(text: str) -> timedelta:
    """A time span of whole minutes, hours, days or weeks.

    Raises:
        ValueError: this is none.

    >>> duration("30d"), duration("12h")
    (datetime.timedelta(days=30), datetime.timedelta(seconds=43200))
    """
    found = re.fullmatch(r"([1-9][0-9]{0,4})([mhdw])", text)
    if not found:
        raise ValueError(f"'{text:.40}' is no time span; write 90m, 12h, 30d or 4w")
    unit = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[found[2]]
    return timedelta(**{unit: int(found[1])})


def utcnow() -> datetime:
    """The time, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
