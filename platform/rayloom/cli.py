"""What every command line shares: arguments, errors as exit codes, the cluster, the summary. And the command `rayloom`."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from rayloom import config, doctor, environment
from rayloom.errors import LeftoverError, RayloomError
from rayloom.etl.check import check

if TYPE_CHECKING:
    from rayloom.runs import Run


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every job takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config",
        action="append",
        metavar="FILE",
        help="pipeline file (default: configs/flights.yaml); again for an overlay whose keys win",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one key, such as train.lr=0.01")
    return parser


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
        pipeline = config.load(parsed.config or ["configs/flights.yaml"], parsed.set)
        files = check(pipeline)
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


def main() -> None:
    """The command `rayloom`."""
    parser = argparse.ArgumentParser(
        prog="rayloom",
        description="Rayloom's own commands. Pipelines run as jobs: python -m jobs.pipeline --config configs/flights.yaml",
        epilog="example: rayloom doctor",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checks = commands.add_parser("doctor", help="check this machine and say what to do about what is wrong")
    checks.add_argument(
        "--port", type=int, choices=range(1, 65536), metavar="N", action="append", help="port that must be free (default: 8000)"
    )
    parsed = parser.parse_args()
    with errors_as_exit_codes():
        findings = doctor.examine(parsed.port or [8000], os.getcwd())
        print("\n".join(map(str, findings)))
        sys.exit(0 if all(finding.good for finding in findings) else 1)


if __name__ == "__main__":
    main()
