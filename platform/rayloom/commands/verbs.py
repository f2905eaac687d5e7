"""How a noun adds its verbs: each with a line of help, an example, and the function that it is."""

import argparse
from collections.abc import Callable
from typing import Any

from rayloom.cli import add_config

Verb = Callable[[argparse.Namespace], None]


def noun(commands: Any, name: str, help: str, example: str) -> Any:
    """A noun without verbs; returns what `verb` adds them to."""
    parser = commands.add_parser(name, help=help, description=help, epilog=f"example: {example}")
    return parser.add_subparsers(required=True, metavar="VERB")


def verb(commands: Any, name: str, run: Verb, help: str, example: str, takes_config: bool = True) -> argparse.ArgumentParser:
    """A verb (or a command without verbs), with --config and --set where it takes them."""
    parser = commands.add_parser(
        name, help=help, description=help, epilog=f"example: {example}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if takes_config:
        add_config(parser)
    parser.set_defaults(run=run)
    return parser
