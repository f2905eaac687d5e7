"""The command `rayloom`: one module a noun, each with `add(commands)`, which adds its verbs to the command line.

Each verb is a function of the parsed arguments. Pipelines run as jobs; what is here reads what they left, or mends it.
"""

import argparse
import os
import sys

from rayloom.cli import errors_as_exit_codes
from rayloom.commands import data, keys, machine, quarantine, rollout, schema, serve

EXAMPLES = """\
examples:
  rayloom doctor                                     what this machine lacks for a run, and what to do about it
  rayloom data list                                  the dataset versions of configs/flights.yaml
  rayloom data show                                  the newest: counts, inputs, statistics of each column
  rayloom data diff 3f2a 91c0                        what changed from one version to another
  rayloom schema infer measurements.csv              a source for a pipeline file, its types proposed
  rayloom quarantine show --rule has_size            rejected rows, as they were
  rayloom quarantine replay --patch corrected.csv    tries them again, corrected
  rayloom serve flights                              the champion of configs/flights.yaml over HTTP, until Ctrl-C
  rayloom rollout start @challenger --strategy canary   another version takes over, step by step
  rayloom rollout status                             which version answers, and what was counted
  rayloom keys create dashboard --rate 20 --expires 30d   an API key for a served model
"""


def main() -> None:
    """The command `rayloom`."""
    parser = argparse.ArgumentParser(
        prog="rayloom",
        description="Rayloom's own commands. Pipelines run as jobs: python -m jobs.pipeline --config configs/flights.yaml",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for noun in (machine, data, schema, quarantine, serve, rollout, keys):
        noun.add(commands)
    parsed = parser.parse_args()
    with errors_as_exit_codes():
        try:
            parsed.run(parsed)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough, as `| head` has
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
