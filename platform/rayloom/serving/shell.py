"""How to ask a served model from the shell."""

import json
import shlex
from typing import Any

from rayloom import config
from rayloom.serving import keys

SHOWN_RECORD = 1000
"""Characters of a record that still fit into a line of the shell."""


def how_to_ask(settings: config.Serve, url: str, example: dict[str, Any] | None) -> str:
    """Lines that say where the page is, how to ask by curl, and how to get a key where one is needed.

    Args:
        url: of the application.
        example: a record; None where none is known.
    """
    curl = ["curl", "-s"] + (["--cacert", settings.tls.certificate] if settings.tls else [])
    needs_key = keys.required(settings.keys, settings.host)
    asking = shlex.join(curl) + (' -H "Authorization: Bearer $KEY"' if needs_key else "")
    records = json.dumps([example], ensure_ascii=False)
    fits = example is not None and len(records) <= SHOWN_RECORD
    lines = [f"  page   {url}/"]
    if needs_key:
        lines.append("  key    KEY=$(rayloom keys create NAME), with the same --config and --set")
    lines.append(f"  ask    {asking} {url}/predict -d {shlex.quote(records) if fits else '@records.json'}")
    if not fits:
        lines.append(f"         {asking} {url}/model shows a record")
    return "\n".join(lines)
