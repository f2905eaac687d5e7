"""A process of Ray's leaves the session that it was started in."""

import subprocess
import sys

import pytest

SHOWN = "import os; from rayloom.launchers import session; session.lead(); session.lead(); print(os.getpid(), os.getsid(0))"


@pytest.mark.parametrize("started", [{}, {"process_group": 0}, {"start_new_session": True}], ids=["plain", "group", "session"])
def test_a_process_leads_a_session_however_it_was_started(started):
    done = subprocess.run([sys.executable, "-c", SHOWN], text=True, capture_output=True, check=True, **started)
    pid, leader = done.stdout.split()
    assert pid == leader
