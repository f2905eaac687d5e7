"""`rayloom doctor`."""

import argparse
import os
import sys
from typing import Any

from rayloom.commands.verbs import verb


def add(commands: Any) -> None:
    help = "check this machine and say what to do about what is wrong"
    parser = verb(commands, "doctor", examine, help, "rayloom doctor --port 8080", takes_config=False)
    parser.add_argument(
        "--port", type=int, choices=range(1, 65536), metavar="N", action="append", help="port that must be free (default: 8000)"
    )


def examine(parsed: argparse.Namespace) -> None:
    """Prints the findings; exit code 1 where one is bad."""
    from rayloom import doctor

    findings = doctor.examine(parsed.port or [8000], os.getcwd())
    print("\n".join(map(str, findings)))
    sys.exit(0 if all(finding.good for finding in findings) else 1)
