"""`rayloom schema infer`: sources as a pipeline file has them, with the types that their content suggests."""

import argparse
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from rayloom import config
from rayloom.cli import pipeline_of
from rayloom.commands.verbs import noun, verb
from rayloom.errors import ConfigError

WIDTH = 110


def add(commands: Any) -> None:
    verbs = noun(commands, "schema", "the types of a source's columns", "rayloom schema infer measurements.csv")
    example = "rayloom schema infer measurements.csv --missing NA\n         rayloom schema infer --config configs/mine.yaml"
    parser = verb(verbs, "infer", infer, "print sources, their types proposed, to paste into a pipeline file", example)
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="FILE_OR_SOURCE",
        help="a file, folder or glob, or a source of the pipeline file (default: those of its sources that lack columns)",
    )
    parser.add_argument("--kind", help="of a FILE: csv, json, parquet, text, images, delta (default: by its suffix)")
    parser.add_argument("--missing", action="append", metavar="TEXT", help="of a CSV FILE: a text that means a missing value")
    parser.add_argument("--delimiter", metavar="C", help="of a CSV FILE (default: a comma)")


def infer(parsed: argparse.Namespace) -> None:
    """Prints YAML that `etl:` of a pipeline file takes."""
    from rayloom.etl.sources import schema  # with what reads the files

    wanted = _wanted(parsed)
    if not wanted:
        print("# every source that needs columns has them; name one to see what its content suggests")
        return
    print("\n".join(["sources:", *[_yaml(name, settings, schema.infer(name, settings)) for name, settings in wanted.items()]]))


def _wanted(parsed: argparse.Namespace) -> dict[str, config.Source]:
    """The sources asked for, by name: a pipeline file is read only where one is meant."""
    given = [text for text in parsed.sources if _is_name(text)]
    sources = pipeline_of(parsed).etl.sources if parsed.config or not parsed.sources or given else {}
    if not parsed.sources:
        return {name: source for name, source in sources.items() if source.columns is None and source.kind in ("csv", "json")}
    return {
        (text if text in sources else _name(text)): sources[text] if text in sources else _settings(text, parsed)
        for text in parsed.sources
    }


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", text) is not None and not Path(text).exists()


def _settings(path: str, parsed: argparse.Namespace) -> config.Source:
    given = {"kind": parsed.kind, "missing": parsed.missing, "delimiter": parsed.delimiter}
    settings = {"path": path, **{key: value for key, value in given.items() if value is not None}}
    try:
        return TypeAdapter(config.Source).validate_python(settings)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        place = ".".join(map(str, mistake["loc"]))
        raise ConfigError(f"{path}: {place}: {mistake['msg']}; correct the arguments.") from None


def _name(path: str) -> str:
    """A source's name from a path: what the file or folder is called, in the characters that a name may have."""
    stem = Path(path.rstrip("/*")).name.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-")[:63]
    return name if name[:1].isalpha() else f"source_{name}".rstrip("_")


def _yaml(name: str, settings: config.Source, ddl: str) -> str:
    given = settings.model_dump(mode="json", exclude_unset=True, exclude={"columns"})
    text = yaml.safe_dump({name: given}, sort_keys=False, allow_unicode=True, default_flow_style=False).rstrip()
    columns = textwrap.wrap(ddl, WIDTH, break_long_words=False, break_on_hyphens=False)
    lines = [*text.splitlines(), "  columns: >-", *(f"    {line}" for line in columns)]
    return "\n".join(f"  {line}" for line in lines)
