"""What Ray Train's controller imports: nothing of torch, which `rayloom.launchers.ray_train` does.

Workers start after the controller has, so its seconds are theirs. Ray's own set-up of torch has it import torch first.
"""

import asyncio
import logging
import os
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

POLL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"

SETTINGS = {
    # How long a worker that has nothing to tell lets the controller wait; Ray's own default, of its own kind of poll.
    POLL: "2",
    # It looks for spot nodes that are about to go: a process more at each start, where a lost worker is replaced anyway.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What a controller reads from its environment when it is made, where the user has not set it."""

TURN_S, GRACE_S = 0.05, 5.0
"""How long the controller leaves to other callers between two polls; how late an answer may be."""


class SharedGpus(Backend):
    share_cuda_visible_devices = True  # NCCL moves data between GPUs of a node directly where each sees the other


class OwnGroup(BackendConfig):
    """Leaves the process group to the workers (`rayloom.launchers.ray_worker`)."""

    backend = "own"  # TorchTrainer asks for it

    @property
    def backend_cls(self) -> type[Backend]:
        return SharedGpus


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


class Group(WorkerGroup):
    _worker_cls = Worker


class Controller(TrainController):
    """Ray Train's controller with its settings as an argument, and workers that say when to ask again.

    Ray gives them as a runtime environment, which the workers inherit: a process that has one imports Ray twice, and those of
    a short run took a seventh of the way to its first step for it.
    """

    worker_group_cls = Group

    def __init__(self, users: dict[str, str], **given: Any):
        """
        Args:
            users: what of Ray Train's variables the user has set; the workers get them, too.
            given: as Ray's.
        """
        os.environ.update(users)
        logging.getLogger("ray._private.worker").setLevel(logging.ERROR)  # it warns of the controller's own blocking calls
        own = SETTINGS.keys() - os.environ.keys()
        os.environ.update({name: SETTINGS[name] for name in own})
        super().__init__(**given)
        self._health_check_interval_s += GRACE_S
        for name in own:  # or Ray would give it to the workers
            del os.environ[name]

    async def _poll_workers(self) -> Any:
        await asyncio.sleep(TURN_S)  # whoever wants to end the run has his turn
        if self.get_state().is_terminal():  # ended: Ray looks only where it has paused, and its loop would go on for good
            ray.actor.exit_actor()
        self._latest_poll_time = float("-inf")  # no pause: the workers' answers are one
        return await super()._poll_workers()
