"""Ray Train's controller, run by the process that launches, and with no actor between its workers.

Each actor less is a process less that starts beside the workers, with seconds of imports, and then wakes up a hundred times a
second beside the training.
"""

import asyncio
from contextlib import closing
from typing import Any

import ray
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import autoscaling_coordinator_client
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2.api.result import Result

from rayloom import environment
from rayloom.launchers import ray_backend

SETTINGS = {
    ray_backend.POLL: str(ray_backend.POLL_S),
    # It looks for spot nodes that are about to go: a process more at each start, where a lost worker is replaced anyway.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What a controller reads from its environment when it is made, where the user has not set it."""

PAUSE_S, GRACE_S = 0.05, 5.0
"""How long the controller waits between two polls at least; how late an answer may be."""


class Group(worker_group.WorkerGroup):
    _worker_cls = ray_backend.Worker

    def _init_train_context_on_workers(self, workers: list, sync_actor: Any, train_context_args: dict[str, list]) -> None:
        """As Ray's, but for the handles of actors that are not there: of the controller and of the ranks' barrier."""
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=None,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,
                    **{name: values[number] for name, values in train_context_args.items()},
                )
                for number, worker in enumerate(workers)
            ]
        )
        self._decorate_worker_log_file_paths(workers)

    def set_required_barrier_ranks(self, ranks: Any) -> bool:
        return True  # a rank that is about to go keeps nobody at a barrier that is not there


class NoBarrier:
    """Stands where Ray Train starts an actor at which ranks meet: ours need none for reports (`ray_backend.report`), nor to
    find each other (`ray_backend.Meeting`)."""

    @classmethod
    def options(cls, **_: Any) -> type["NoBarrier"]:
        return cls

    @classmethod
    def remote(cls, **_: Any) -> "NoBarrier":
        return cls()


# Of a controller in this process alone: another's, such as a user's own TorchTrainer starts, is a process that has Ray's.
worker_group.SynchronizationActor = NoBarrier  # type: ignore[assignment, misc]
state._shutdown_sync_actor = lambda barrier: None  # type: ignore[assignment]
# The one that shares out CPUs: that which Ray Data has by now (`rayloom.alone`).
autoscaling_coordinator_client.get_or_create_autoscaling_coordinator = lambda: (
    default_autoscaling_coordinator.get_or_create_autoscaling_coordinator()
)


class Controller(TrainController):
    """Ray Train's controller, run by who makes it, with workers that say when to ask again."""

    worker_group_cls = Group

    def __init__(self, **given: Any):
        """
        Args:
            given: as Ray's.
        """
        with environment.defaults(SETTINGS):
            super().__init__(**given)
        self._health_check_interval_s += GRACE_S

    def end_workers(self) -> None:
        if self._worker_group and self._worker_group.has_started():
            self._worker_group.abort()

    async def _poll_workers(self) -> Any:
        await asyncio.sleep(PAUSE_S)
        self._latest_poll_time = float("-inf")  # no other pause: the workers' answers are one
        return await super()._poll_workers()


def follow(**given: Any) -> Result:
    """Trains to the end, and tells how it was; Ctrl-C ends the workers, too.

    Args:
        given: what a controller is given.
    """
    loop = asyncio.new_event_loop()  # asyncio.run would only note a Ctrl-C, and look a poll later
    with closing(loop):
        controller = Controller(**given)
        try:
            loop.run_until_complete(controller.run())
        except KeyboardInterrupt:
            controller.end_workers()
            raise
    return controller.get_result()
