"""What Ray Train does in a worker's process, our way: ranks meet without an actor between them, and a worker answers when it
has something to tell.

Workers import this module before they train, so it imports nothing of torch.
"""

import os
import socket
from queue import Queue
from threading import Thread
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker

POLL, POLL_S = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", 2.0
"""How long a worker that has nothing to tell lets the controller wait; the name and the default of Ray's own kind of poll."""


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
            patience = float(os.environ.get(POLL, POLL_S))
            reports.not_empty.wait_for(lambda: reports.queue or not runner.is_running(), patience)
        return super().poll_status()


def _tell_the_end(training: Thread, reports: Queue) -> None:
    """Wakes who waits for a report when none comes any more."""
    training.join()
    with reports.not_empty:
        reports.not_empty.notify_all()
