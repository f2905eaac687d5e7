"""`rayloom serve`: a registered model behind HTTP, in the foreground."""

import argparse
from pathlib import Path
from typing import Any

from rayloom.cli import command
from rayloom.commands.verbs import verb
from rayloom.errors import ConfigError, hint

CONFIGS = Path("configs")

EXAMPLE = """rayloom serve flights
         rayloom serve flights --model 3 --port 9000 --replicas 2
         rayloom serve --config my/pipeline.yaml --set serve.records.share=1%"""


def add(commands: Any) -> None:
    said = "serve a registered model over HTTP, until Ctrl-C; on the cluster of RAY_ADDRESS it stays deployed"
    parser = verb(commands, "serve", serve, said, EXAMPLE)
    parser.add_argument(
        "pipeline", nargs="?", metavar="PIPELINE", help=f"name of a file in {CONFIGS}/, or its path; short for --config"
    )
    parser.add_argument("--model", default="@champion", help="alias or version (default: @champion, and who succeeds it)")
    for name, of in (("port", "N"), ("replicas", "N"), ("host", "ADDRESS")):
        parser.add_argument(
            f"--{name}", dest="set", action="append", type=f"serve.{name}={{}}".format, metavar=of,
            help=f"short for --set serve.{name}={of}",
        )  # fmt: skip


def serve(parsed: argparse.Namespace) -> None:
    """Deploys the model and says how to ask it."""
    if parsed.pipeline:
        parsed.config = [str(file_of(parsed.pipeline)), *(parsed.config or [])]
    with command(parsed, serves=True) as run:
        from rayloom import stages

        stages.serve(run, parsed.model)


def file_of(pipeline: str) -> Path:
    """The pipeline file of a name or a path.

    Raises:
        ConfigError: there is none.
    """
    named = CONFIGS / f"{pipeline}.yaml"
    for path in (named, Path(pipeline)):
        if path.is_file():
            return path
    known = [path.stem for path in CONFIGS.glob("*.yaml")]
    raise ConfigError(f"There is no pipeline file {named}{hint(pipeline, known)}")
