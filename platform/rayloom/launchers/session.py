"""A session of its own for a process of Ray's that trains, as torchrun gives each of its workers.

Linux shares CPUs among sessions first (autogroup, see `man 7 sched`), and all that Ray starts on a node is one. Its daemons and
idle actors, which wake up a hundred times a second, would each weigh as much as a training worker: 5 % of two CPUs.
"""

import os
from contextlib import suppress


def lead() -> None:
    """Makes this process the leader of a new session; one that leads a session already stays as it is."""
    with suppress(PermissionError):  # it leads one, or its parent is in another
        os.setpgid(0, os.getpgid(os.getppid()))  # who leads a process group, as Ray's workers do, may not leave the session
        os.setsid()
