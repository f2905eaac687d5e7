"""`rayloom keys create|list|revoke`: the API keys of a served model."""

import argparse
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rayloom.cli import pipeline_of
from rayloom.commands.layout import table
from rayloom.commands.verbs import noun, verb
from rayloom.serving import keys


def add(commands: Any) -> None:
    verbs = noun(commands, "keys", "the API keys of a served model", "rayloom keys create dashboard")
    example = "KEY=$(rayloom keys create dashboard --rate 20 --expires 30d)"
    parser = verb(verbs, "create", create, "make a key and print it, this once; only its hash is kept", example)
    parser.add_argument("name", metavar="NAME", help="who is to use it: letters, digits, '-' and '_'")
    parser.add_argument("--rate", type=float, default=100.0, metavar="N", help="requests a second (default: 100)")
    parser.add_argument("--burst", type=float, metavar="N", help="requests at once after a pause (default: those of a second)")
    parser.add_argument("--expires", type=_duration, metavar="SPAN", help="90m, 12h, 30d or 4w from now (default: never)")
    parser = verb(verbs, "list", list_keys, "list the keys, without what is secret", "rayloom keys list")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = verb(verbs, "revoke", revoke, "remove a key; it is refused within a second", "rayloom keys revoke dashboard")
    parser.add_argument("name", metavar="NAME", help="the key's name")


def _duration(text: str) -> timedelta:
    try:
        return keys.duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _path(parsed: argparse.Namespace) -> Path:
    pipeline = pipeline_of(parsed)
    return keys.path_of(pipeline.storage.path(), pipeline.name)


def create(parsed: argparse.Namespace) -> None:
    """Prints the key alone on stdout, for a script to take."""
    key = keys.create(_path(parsed), parsed.name, keys.utcnow(), parsed.rate, parsed.burst, parsed.expires)
    print(
        f"Keep the key of '{parsed.name}' safe: it is shown only now. Send it as 'Authorization: Bearer KEY'.", file=sys.stderr
    )
    print(key)


def list_keys(parsed: argparse.Namespace) -> None:
    """Prints a line for each key."""
    path, now = _path(parsed), keys.utcnow()
    found = keys.read(path)
    if parsed.json:
        print(json.dumps([key.model_dump(mode="json", exclude={"salt", "hash"}) for key in found], indent=2))
    elif not found:
        print(f"No key in {path}; make one with `rayloom keys create NAME`.")
    else:
        rows = [["name", "begins with", "requests/s", "at once", "created (UTC)", "expires (UTC)"]]
        print("\n".join(table(rows + [_line(key, now) for key in found], right=[2, 3])))


def _line(key: keys.Key, now: datetime) -> list[str]:
    expires = f"{key.expires:%Y-%m-%d %H:%M}" if key.expires else "never"
    over = " (over)" if key.expires and key.expires <= now else ""
    begins = f"{keys.PREFIX}{key.id}"
    return [key.name, begins, f"{key.rate:g}", f"{key.burst:g}", f"{key.created:%Y-%m-%d %H:%M}", expires + over]


def revoke(parsed: argparse.Namespace) -> None:
    """Says what was revoked."""
    keys.revoke(_path(parsed), parsed.name)
    print(f"Revoked '{parsed.name}'; running replicas refuse it within a second.")
