"""Launcher `torchrun`: PyTorch's elastic agent starts the workers, on each node in a Ray task that holds their resources.

Workers on one node find each other on a port that the system picks; on several, the first node lends one for the rendezvous.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rayloom import cluster, config
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.launchers import agent, failures, handover, room
from rayloom.launchers.result import Result, collect, folder_of


def require_room(pipeline: config.Pipeline) -> None:
    """Raises ResourceError where the cluster has no room for the workers."""
    room.require(pipeline)


def launch(pipeline: config.Pipeline, state: FeatureState, splits: dict[str, Encoded], run: str) -> Result:
    """Trains on `train.workers` processes; see `rayloom.launchers`."""
    launched = time.time()
    settings = pipeline.train
    room.require_rows(splits, settings.workers)
    require_room(pipeline)
    checkpoints = folder_of(pipeline, run)
    arrays = {name: encoded.read(0, encoded.rows) for name, encoded in splits.items()}
    nodes = _nodes(settings)
    with handover.lent(checkpoints, pipeline, state, arrays) as job, _reserved(settings, nodes) as group:
        ended = _run_agents(group, nodes, settings, job, run)
    if ended:
        failures.raise_first(checkpoints.parent / "failures", ended)
    failures.raise_final(checkpoints.parent / "failures")
    return collect(pipeline, len(state.classes), run, launched)


def _nodes(settings: config.Train) -> int:
    """On how many nodes the workers go: the fewest that take equal parts of them, as torchrun's agents need it."""
    for count in range(1, settings.workers):
        part = cluster.times(room.per_worker(settings), settings.workers // count)
        if settings.workers % count == 0 and cluster.nodes_with(part) >= count:
            return count
    return settings.workers


@contextmanager
def _reserved(settings: config.Train, nodes: int) -> Iterator[PlacementGroup]:
    """The workers' resources, a bundle a node, for the length of the block."""
    bundle = cluster.times(room.per_worker(settings), settings.workers // nodes)
    group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready())
        yield group
    finally:
        remove_placement_group(group)


def _run_agents(group: PlacementGroup, nodes: int, settings: config.Train, job: Path, run: str) -> str | None:
    """Runs an agent a node; returns what ended the workers, or None where all ended well."""
    # max_calls: the task's process ends with it, and with it whatever the agent may have left in its environment.
    task = ray.remote(max_retries=0, max_calls=1, **_share(settings, nodes))(agent.run)
    given = (job, run, nodes, settings.workers // nodes, settings.max_failures, _endpoint(group) if nodes > 1 else "")
    running = [task.options(scheduling_strategy=_bundle(group, index)).remote(*given) for index in range(nodes)]
    try:
        return next(filter(None, ray.get(running)), None)
    except ray.exceptions.WorkerCrashedError as error:
        return f"an agent was killed ({str(error).splitlines()[0]:.200})"
    except BaseException:
        for one in running:
            ray.cancel(one, force=True)
        raise


def _share(settings: config.Train, nodes: int) -> dict:
    """A node's bundle as a Ray task asks for it."""
    bundle = cluster.times(room.per_worker(settings), settings.workers // nodes)
    cpus, gpus = bundle.pop("CPU"), bundle.pop("GPU", 0)
    return {"num_cpus": cpus, "num_gpus": gpus, "resources": bundle}


def _endpoint(group: PlacementGroup) -> str:
    """'host:port' on the first node, for the agents to find each other."""
    return ray.get(ray.remote(agent.endpoint).options(num_cpus=0, scheduling_strategy=_bundle(group, 0)).remote())


def _bundle(group: PlacementGroup, index: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
