"""Names of metrics, params and tags in a form that MLflow takes, and back: no two names ever share a form.

MLflow (`mlflow/utils/validation.py`) takes letters, digits, '_', '-', '.', ':', '/' and spaces, up to 250 characters, if the
name is also its own normal path. Anything else is written as its code point between colons, and so is the colon itself:
`precision@10` becomes `precision:40:10`. A name that is fine and has no colon stays as it is.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from rayloom.errors import RegistryError

LONGEST = 250
"""Characters of a name in MLflow."""

LONGEST_TAG = 8000
"""Characters of a tag's value in MLflow."""

WHOLE_TAG = "rayloom.name."
"""Begins the tag that holds a shortened name's whole form; the digest follows."""

EMPTY = "::"

_REFUSED = re.compile(r"[^\w/. -]")
_ESCAPED = re.compile(r":([0-9a-f]*):")
_ENCODED = re.compile(r"([^:]|:[0-9a-f]{0,6}:)+")
_SHORTENED = re.compile(r":x([0-9a-f]{64}):$")


@lru_cache(maxsize=10_000)
def encode(name: str) -> str:
    """The name as MLflow takes it.

    A form longer than MLflow's limit is cut, and ends with the SHA-256 of the whole: `decode` needs the tag of `whole_tags`.

    Raises:
        RegistryError: the name is too long even for a tag.
    """
    whole = _escape(name)
    if len(whole) <= LONGEST:
        return whole
    if len(whole) > LONGEST_TAG:
        raise RegistryError(
            f"The name '{name:.60}…' takes {len(whole)} characters in MLflow, which keeps at most {LONGEST_TAG}; shorten it."
        )
    end = f":x{_digest(whole)}:"
    return whole[: LONGEST - len(end)] + end


def decode(encoded: str, tags: Mapping[str, str] = {}) -> str:
    """The name that `encode` made this of.

    Args:
        tags: of the MLflow run; only a shortened name needs them.

    Raises:
        RegistryError: `encode` gives no such name, or it was shortened and its tag is missing.
    """
    whole = encoded
    if shortened := _SHORTENED.search(encoded):
        whole = tags.get(WHOLE_TAG + shortened[1], "")
        if not whole:
            raise RegistryError(f"The MLflow name '{encoded}' was shortened; pass the tags of its run, which have it whole.")
    try:
        name = _ESCAPED.sub(_character, whole) if _ENCODED.fullmatch(whole) else None
    except (ValueError, OverflowError):
        name = None
    if name is None or encode(name) != encoded:
        raise RegistryError(f"The MLflow name '{encoded:.250}' was not written by Rayloom; read it as it stands.")
    return name


def whole_tags(names: Iterable[str]) -> dict[str, str]:
    """Tags that keep whole what `encode` shortens; empty where all names are short enough."""
    escaped = [_escape(name) for name in names]
    return {WHOLE_TAG + _digest(whole): whole for whole in escaped if len(whole) > LONGEST}


def _digest(whole: str) -> str:
    return hashlib.sha256(whole.encode()).hexdigest()


def _character(escaped: re.Match) -> str:
    return chr(int(escaped[1], 16)) if escaped[1] else ""


def _escape(name: str) -> str:
    if not name:
        return EMPTY
    if _is_path(name):
        return _REFUSED.sub(_code, name)
    # Without slashes and without a dot in front, no name means another one's file.
    escaped = _REFUSED.sub(_code, name).replace("/", ":2f:")
    return f":2e:{escaped[1:]}" if escaped.startswith(".") else escaped


def _code(refused: re.Match) -> str:
    return f":{ord(refused[0]):x}:"


def _is_path(name: str) -> bool:
    """Whether MLflow takes the name as a relative path that is its own normal form."""
    return not name.startswith("..") and not {"", ".", ".."} & set(name.split("/"))
