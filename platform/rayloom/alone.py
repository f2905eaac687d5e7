"""What a Ray cluster of this machine alone does without: processes that serve dashboards and further nodes.

Each would take a second of a CPU to start, and wake up a hundred times a second as long as the cluster lives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import ray
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator
from ray.data._internal.stats import _StatsManager


def end_the_idle() -> None:
    """Ends the scaler of nodes, the server of a dashboard that is not there, and the one that copies workers' output here,
    which we do not ask for."""
    node: Any = ray._private.worker._global_node
    for end in (node.kill_monitor, node.kill_dashboard, node.kill_log_monitor):
        end(check_alive=False)


@contextmanager
def services_here() -> Iterator[None]:
    """Ray Data without the actor that counts for a dashboard, and with the one that shares out CPUs in this process: the first
    dataset would wait seconds for each. `rayloom.launchers.ray_controller` has Ray Train ask the same."""
    coordinator = Here(Coordinator(send_resources_request=lambda *_, **__: None))
    quiet: dict[str, Any] = {
        "gen_dataset_id_from_stats_actor": staticmethod(lambda: uuid4().hex),
        "register_dataset_to_stats_actor": staticmethod(lambda *_: None),
        "update_execution_metrics": staticmethod(lambda *_: None),
        "update_iteration_metrics": staticmethod(lambda *_: None),
    }
    with (
        patch.multiple(_StatsManager, **quiet),
        patch.object(default_autoscaling_coordinator, "get_or_create_autoscaling_coordinator", lambda: coordinator),
    ):
        yield


class Coordinator(default_autoscaling_coordinator._AutoscalingCoordinatorActor):
    TICK_INTERVAL_S = 10**8  # it looks for new nodes


class Here:
    """An object of this process that is called as an actor is: `here.method.remote(…)` gives a reference to what it answers."""

    def __init__(self, subject: object):
        self._subject = subject

    def __getattr__(self, name: str) -> SimpleNamespace:
        method = getattr(self._subject, name)
        return SimpleNamespace(remote=lambda *given, **named: ray.put(method(*given, **named)))
