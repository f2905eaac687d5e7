"""What every command line shares: arguments, errors as exit codes, the cluster, the summary."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from rayloom import config, environment
from rayloom.errors import LeftoverError, RayloomError

if TYPE_CHECKING:
    from rayloom.runs import Run


DEFAULT_CONFIG = "configs/flights.yaml"


def arguments(description: str | None, *settings: str) -> argparse.ArgumentParser:
    """The arguments that every job takes.

    Args:
        settings: 'key=value' each, which --set overrides.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config(parser, *settings)
    return parser


def training_arguments(description: str | None, *settings: str) -> argparse.ArgumentParser:
    """As `arguments`, for a job that trains: with --launcher."""
    parser = arguments(description, *settings)
    parser.add_argument(
        "--launcher",
        dest="set",
        action="append",
        type="train.launcher={}".format,
        metavar="NAME",
        help="ray, torchrun, spark or inline: who starts the workers; short for --set train.launcher=NAME",
    )
    return parser


def add_config(parser: argparse.ArgumentParser, *settings: str) -> None:
    """Adds --config, and --set with what is set to begin with."""
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help=f"pipeline file (default: {DEFAULT_CONFIG}); again for an overlay whose keys win",
    )
    parser.add_argument(
        "--set", action="append", default=[*settings], metavar="KEY=VALUE", help="one key, such as train.lr=0.01"
    )


def at_least(least: int) -> Callable[[str], int]:
    """An argument's type: a whole number, not below `least`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found '{text:.40}'")
        return int(text)

    return number


def pipeline_of(parsed: argparse.Namespace) -> config.Pipeline:
    """The pipeline file that --config and --set say. Raises ConfigError as `config.load` does."""
    return config.load(parsed.config or [DEFAULT_CONFIG], parsed.set)


@contextmanager
def command(parsed: argparse.Namespace, serves: bool = False) -> "Iterator[Run]":
    """A job's whole life: config, checks, cluster, the block, clean-up, audit, summary, exit code.

    Args:
        parsed: what `arguments` parsed.
        serves: whether the block opens the HTTP port, which must then be free.

    Whatever a user can meet ends as one sentence and the error's exit code; nothing is printed as a traceback but our bugs.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    with errors_as_exit_codes():
        # Commands that only read what is there do without the SQL parser and the tokenizers.
        from rayloom import features
        from rayloom.etl.check import check

        pipeline = pipeline_of(parsed)
        files = check(pipeline)
        features.check(pipeline.features)
        if serves:
            from rayloom.serving import tls

            tls.require(pipeline.serve.tls)
        environment.prepare()
        # Ray reads its environment when it is first imported: everything that imports it comes after prepare().
        from rayloom import cluster, runs

        ports = [pipeline.serve.port] if serves else []
        with cluster.connect(pipeline.storage.path(), ports) as connected:
            signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own in its place
            run = runs.start(pipeline, files)
            run.local = connected.local
            with run.cleanup:
                yield run
        if connected.local:  # what a shared cluster holds may be anybody's
            run.summary["audit"] = {"leftovers": connected.leftovers}
        print(runs.screen(run, run.write_summary()), flush=True)
        if connected.leftovers:
            raise LeftoverError(f"Left behind: {'; '.join(connected.leftovers)}. End these by hand and report this line.")


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt  # SIGTERM ends a command as Ctrl-C does: through its clean-up


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turns an error that a user can meet into its sentence on stderr and its exit code."""
    try:
        yield
    except RayloomError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        sys.exit(130)
