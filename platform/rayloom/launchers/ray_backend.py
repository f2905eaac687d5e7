"""How Ray Train's controller and workers differ from Ray's own: the controller runs in the process that launches, no actor
stands between ranks, and a worker answers when it has something to tell.

Each actor less is a process less that starts beside the workers, with seconds of imports, and then wakes up a hundred times a
second beside the training. Workers import this module before they train, so it imports nothing of torch.
"""

import asyncio
import os
import socket
from contextlib import closing
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import autoscaling_coordinator_client
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2.api.result import Result

from rayloom import environment

POLL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"

SETTINGS = {
    # How long a worker that has nothing to tell lets the controller wait; Ray's own default, of its own kind of poll.
    POLL: "2",
    # It looks for spot nodes that are about to go: a process more at each start, where a lost worker is replaced anyway.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What a controller reads from its environment when it is made, where the user has not set it."""

PAUSE_S, GRACE_S = 0.05, 5.0
"""How long the controller waits between two polls at least; how late an answer may be."""


class OwnGroup(BackendConfig):
    """Leaves the process group to the workers (`rayloom.launchers.ray_worker`), and tells them where they meet."""

    backend = "own"  # TorchTrainer asks for it

    @property
    def backend_cls(self) -> type[Backend]:
        return Meeting


class Meeting(Backend):
    """Tells all ranks where rank 0 listens, in the variables that torch names for it."""

    share_cuda_visible_devices = True  # NCCL moves data between GPUs of a node directly where each sees the other

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        if len(worker_group) > 1:
            worker_group.execute(be_told, worker_group.execute_single(0, listen))


listening: list[socket.socket] = []
"""Where rank 0 listens, in its process, until its store takes it over."""


def listen() -> dict[str, str]:
    """Listens on a port that the system picks, so that two runs at once do not collide; torch's variables for it."""
    host = ray.util.get_node_ip_address()
    listening.append(socket.create_server((host, 0)))
    return {"MASTER_ADDR": host, "MASTER_PORT": str(listening[0].getsockname()[1])}


def be_told(meeting: dict[str, str]) -> None:
    os.environ.update(meeting)


def report(metrics: dict[str, float]) -> None:
    """Reports an epoch, as `ray.train.report` does; without a checkpoint, for whose folder ranks would have to meet."""
    context = get_train_context()
    context.report_call_index += 1
    context._wait_then_report(_TrainingReport(None, metrics, False), context.report_call_index)


class Worker(RayTrainWorker):
    def run_train_fn(self, train_fn_ref: Any) -> None:
        super().run_train_fn(train_fn_ref)
        here = get_train_context().execution_context
        Thread(target=_tell_the_end, args=(here.training_thread_runner._thread, here.result_queue), daemon=True).start()

    def poll_status(self) -> WorkerStatus:
        """Answers as soon as there is a report, an error or an end, or else after a while.

        Ray's own answers at once, and is asked by the clock: an epoch that is shorter waits until its report is taken. And the
        thread that waits here is one in which Ray looks for signals a hundred times a second otherwise, each time taking
        Python's lock and a CPU from the training.
        """
        here = get_train_context().execution_context
        reports, runner = here.result_queue, here.training_thread_runner
        with reports.not_empty:
            patience = float(os.environ.get(POLL, SETTINGS[POLL]))
            reports.not_empty.wait_for(lambda: reports.queue or not runner.is_running(), patience)
        return super().poll_status()


def _tell_the_end(training: Thread, reports: Queue) -> None:
    """Wakes who waits for a report when none comes any more."""
    training.join()
    with reports.not_empty:
        reports.not_empty.notify_all()


class Group(worker_group.WorkerGroup):
    _worker_cls = Worker

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


class NoBarrier:
    """Stands where Ray Train starts an actor at which ranks meet: ours need none for reports (`report`), nor to find each other
    (`Meeting`)."""

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
        with environment.variables({name: value for name, value in SETTINGS.items() if name not in os.environ}):
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
