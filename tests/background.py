"""Runs a command, for the Makefile, that leaves the CPUs to whatever else wants them, as `nice` alone does not.

Linux shares CPUs among sessions first (sched_autogroup), and within one by niceness: the command gets a session of its own,
and that session the low priority. Elsewhere this is `nice -n 10`.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

NICENESS = 10
"""A tenth of a busy CPU: what runs here goes on, and its time-outs hold."""


def main() -> None:
    os.setsid()
    os.nice(NICENESS)
    with suppress(OSError):  # not Linux, without autogroups, or a container that may not
        Path("/proc/self/autogroup").write_text(str(NICENESS))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
