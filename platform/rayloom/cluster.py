"""The Ray cluster: start one for this command or join one, see that there is room, and see that nothing is left.

Ray is imported here and in the modules above; `rayloom.environment.prepare` has to run before any of them is imported.
"""

import fcntl
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import ray
import ray.data
import ray.exceptions
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.util import placement_group_table

from rayloom import alone, config, environment, tcp
from rayloom.errors import ResourceError

GREETING_SECONDS = 5.0
"""How long a cluster may take to say who it is before it counts as not there."""

LEFTOVER_SECONDS = 15.0
"""How long what we started may take to be gone after it was told to stop."""

QUIET_SECONDS = 5.0
"""How long a stage waits for resources without a word: an earlier stage or job may have just given them back."""


RAY_SERVICES = {
    "_AutoscalingCoordinatorActor", "_StatsActor", "TrainStateActor", "ServeController", "ProxyActor", "HAProxyManager",
}  # fmt: skip
"""Actors that Ray's libraries keep for the whole cluster, without resources: they end with it, and are no stage's leftovers."""


@dataclass
class Cluster:
    """The cluster that a command works on.

    Attributes:
        local: whether this command started it and will stop it.
        leftovers: what the audit found after the block, of a local cluster; empty when all is well.
    """

    local: bool
    leftovers: list[str] = field(default_factory=list)


@contextmanager
def connect(root: Path, ports: list[int] = []) -> Iterator[Cluster]:
    """Joins the cluster that RAY_ADDRESS names, else starts one on this machine for the length of the block.

    Args:
        root: the workspace; one command at a time serves from it.
        ports: TCP ports that a local cluster will listen on; they must be free now, and are audited at the end.

    Raises:
        ResourceError: a port is taken, another command serves from the workspace, or the cluster refuses us.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address and address != "local":
        with _joined(address) as cluster:
            yield cluster
        return
    with exclusive(root) if ports else nullcontext():
        for port in ports:
            tcp.require_free_port(port)
        with environment.own_ingress(), _started(ports) as cluster:
            yield cluster


@contextmanager
def _joined(address: str) -> Iterator[Cluster]:
    greet(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ray.exceptions.RayError, ValueError) as error:
        raise ResourceError(_unreachable(address, str(error))) from None
    try:
        _configure_data()
        yield Cluster(local=False)
    finally:
        ray.shutdown()


def greet(address: str) -> None:
    """Asks a cluster for its id. `ray.init` would try for 20 s, and say of a wrong token only that it cannot connect.

    Args:
        address: 'host:port'; anything else ('auto', 'ray://…') is left to `ray.init`.

    Raises:
        ResourceError: nobody answers there, or the token is refused.
    """
    if "://" in address or ":" not in address:
        return
    channel = init_grpc_channel(address)
    try:
        gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel).GetClusterId(
            gcs_service_pb2.GetClusterIdRequest(),  # type: ignore[attr-defined]
            timeout=GREETING_SECONDS,
        )
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:
            raise ResourceError(_unreachable(address, error.code().name)) from None
        raise ResourceError(
            f"The Ray cluster at {address} refuses the token in {environment.token_path()}; copy the cluster's token there, "
            f"or name its file with RAY_AUTH_TOKEN_PATH."
        ) from None
    finally:
        channel.close()


def _unreachable(address: str, reason: str) -> str:
    return f"No Ray cluster answers at {address} ({reason.splitlines()[0]:.200}); start it, or unset RAY_ADDRESS."


@contextmanager
def _started(ports: list[int]) -> Iterator[Cluster]:
    environment.ensure_token()
    mark = os.environ[environment.MARK]
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    alone.end_the_idle()
    cluster = Cluster(local=True)
    try:
        _configure_data()
        with alone.services_here():
            yield cluster
            cluster.leftovers += held_in_cluster()
    finally:
        started = environment.marked_processes(mark)
        ray.shutdown()
        cluster.leftovers += left_on_machine(mark, ports, started)


def _configure_data() -> None:
    """Ray Data keeps rows in order, since equal runs must give equal weights, stays quiet, and reads Parquet in its first way:
    the newer one starts 32 actors for each `read_parquet`, a process each, for the footers of a version's few files."""
    context = ray.data.DataContext.get_current()
    context.use_datasource_v2 = False
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Holds the workspace's lock for the length of the block.

    Raises:
        ResourceError: another command holds it; the sentence names its process.
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / ".rayloom.lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ResourceError(
                f"Another Rayloom command (process {file.read().strip() or 'unknown'}) is at work in {root}; wait for it, "
                f"or set storage.root to another folder."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def require(needed: dict[str, float], stage: str, remedy: str, settings: config.Cluster) -> None:
    """Checks that the cluster has room: what could never run is refused at once, and what others hold is waited for, for
    `cluster.wait_s`.

    Args:
        needed: amount by resource, such as {"CPU": 2}.
        settings: on a cluster that autoscales nothing is refused, since what is missing comes when it is asked for.

    Raises:
        ResourceError: names the resource, what the stage needs, what there is, and the remedy.
    """
    if settings.autoscales:
        return
    total = ray.cluster_resources()
    for name, amount in needed.items():
        if total.get(name, 0) < amount:
            raise ResourceError(
                f"{_needs(stage, name, amount)}, the cluster has {_amount(name, total.get(name, 0))}; {remedy}."
            )
    lacks = _short_of(needed, min(QUIET_SECONDS, settings.wait_s))
    if lacks and settings.wait_s > QUIET_SECONDS:
        print(f"  {_needs(stage, lacks, needed[lacks])}, which others hold: waiting up to {settings.wait_s:g} s", flush=True)
        lacks = _short_of(needed, settings.wait_s - QUIET_SECONDS)
    if lacks:
        has, free = (_amount(lacks, of.get(lacks, 0)) for of in (total, ray.available_resources()))
        raise ResourceError(
            f"{_needs(stage, lacks, needed[lacks])}, the cluster has {has} but only {free} free; {remedy}, or wait longer for "
            f"what holds the rest (cluster.wait_s)."
        )


def _short_of(needed: dict[str, float], seconds: float) -> str | None:
    """A resource of which less is free than is needed still after so many seconds; None as soon as there is enough of each."""

    def look() -> list[str]:
        free = ray.available_resources()
        return [name for name, amount in needed.items() if free.get(name, 0) < amount]

    return next(iter(still_found(look, seconds, pause=0.1)), None)


def _needs(stage: str, name: str, amount: float) -> str:
    return f"{stage} needs {_amount(name, amount)} {'of memory' if name == 'memory' else name}"


def _amount(name: str, amount: float) -> str:
    return f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g}"


def times(resources: config.Resources, count: int) -> dict[str, float]:
    """What `count` processes need that ask for `resources` each."""
    return {name: amount * count for name, amount in resources.items()}


def nodes_with(resources: config.Resources) -> int:
    """How many nodes have so much of each resource, free or not."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(all(node.get(name, 0) >= amount for name, amount in resources.items()) for node in nodes)


def total_cpus() -> float:
    return ray.cluster_resources().get("CPU", 0.0)


def free_cpus() -> float:
    return ray.available_resources().get("CPU", 0.0)


def held_in_cluster() -> list[str]:
    """Placement groups, actors and CPUs that are still held in the connected cluster, a sentence each."""
    gc.collect()  # an actor ends with its last handle, and handles in reference cycles wait for the collector
    return still_found(_held_now, LEFTOVER_SECONDS)


def still_found(look: Callable[[], list[str]], seconds: float, pause: float = 0.2) -> list[str]:
    """What `look` still finds after what it finds had time to end; it looks again after each pause, in seconds."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def _held_now() -> list[str]:
    groups = [key for key, group in placement_group_table().items() if group["state"] != "REMOVED"]
    actors = [actor for actor in ray._private.state.actors().values() if _is_held(actor)]
    held = ray.cluster_resources().get("CPU", 0) - free_cpus()
    return [
        *(f"placement group {key[:12]}" for key in groups),
        *(f"actor {actor['Name'] or actor['ActorClassName']} (process {actor['Pid']})" for actor in actors),
        *([f"{held:g} CPU of the Ray cluster still held"] if held else []),
    ]


def _is_held(actor: dict) -> bool:
    return actor["State"] == "ALIVE" and actor["ActorClassName"] not in RAY_SERVICES


def left_on_machine(mark: str, ports: list[int], started: list[psutil.Process] = []) -> list[str]:
    """What of ours is still here, a sentence each, after it had time to end.

    Args:
        mark: processes that carry it count, and all below them.
        ports: count where something listens on them.
        started: count while they live; those among them that hide their environment lose their parents when Ray ends.
    """
    return still_found(lambda: _left_now(mark, ports, started), LEFTOVER_SECONDS)


def _left_now(mark: str, ports: list[int], started: list[psutil.Process]) -> list[str]:
    alive = {
        process.pid: process for process in [*started, *environment.marked_processes(mark)] if environment.is_alive(process)
    }
    processes = [f"process {process.pid} ({_name(process)})" for process in alive.values()]
    return processes + [f"port {port} still listening" for port in ports if tcp.is_listening(port)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "ending"
