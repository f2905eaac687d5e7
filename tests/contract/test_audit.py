"""The leak audit finds what is left: a process, a port, an actor, a placement group. One that cannot fail proves nothing."""

import os
import signal
import subprocess
import sys

import pytest
import ray
from ray.util import placement_group, remove_placement_group

from rayloom import cluster, environment, tcp

LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); print('up', flush=True); sys.stdin.read()"
)
PARENT = """
import subprocess, sys
print(subprocess.Popen(["sleep", "60"], env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cluster, "LEFTOVER_SECONDS", 0.5)


def test_a_process_and_its_port_are_named_until_they_are_gone():
    mark, port = "mark-of-this-test", tcp.free_ports(1)[0]
    assert cluster.left_on_machine(mark, [port]) == []
    command = [sys.executable, "-c", LISTEN, str(port)]
    env = {**os.environ, environment.MARK: mark}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        found = cluster.left_on_machine(mark, [port])
        process.communicate("")
    assert [text.split(" (")[0] for text in found] == [f"process {process.pid}", f"port {port} still listening"]
    assert cluster.left_on_machine(mark, [port]) == []


def test_a_process_without_our_environment_is_named_after_its_parent_has_gone():
    """Ray's agents rename themselves over their environment, and lose their parent when the raylet ends."""
    mark = "another-mark"
    env = {**os.environ, environment.MARK: mark}
    with subprocess.Popen([sys.executable, "-c", PARENT], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        orphan = int(parent.stdout.readline())
        started = environment.marked_processes(mark)
        parent.stdin.close()
    found = cluster.left_on_machine(mark, [], started)
    os.kill(orphan, signal.SIGKILL)
    assert found == [f"process {orphan} (sleep)"]
    assert cluster.left_on_machine(mark, [], started) == []


def test_an_actor_and_its_cpu_are_named(joined):
    @ray.remote(num_cpus=1)
    class Forgotten:
        def ready(self) -> bool:
            return True

    held = cluster.total_cpus() - cluster.free_cpus()
    actor = Forgotten.remote()
    ray.get(actor.ready.remote())
    found = cluster.held_in_cluster()
    ray.kill(actor)
    assert any("Forgotten" in text for text in found)
    assert f"{held + 1:g} CPU of the Ray cluster still held" in found


def test_a_placement_group_is_named(joined):
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    found = cluster.held_in_cluster()
    remove_placement_group(group)
    assert any(text.startswith(f"placement group {group.id.hex()[:12]}") for text in found)


def test_a_second_command_in_the_same_workspace_is_refused(tmp_path):
    with cluster.exclusive(tmp_path), pytest.raises(Exception, match=f"process {os.getpid()}.*is at work"):
        with cluster.exclusive(tmp_path):
            pass


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"Port {port} on 127.0.0.1 is in use"):
            with cluster.connect(tmp_path, [port]):
                pass
