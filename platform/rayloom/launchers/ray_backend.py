"""What Ray Train's controller imports: nothing of torch, which `rayloom.launchers.ray_train` does.

Workers start after the controller has, so its seconds are theirs. Ray's own set-up of torch has it import torch first.
"""

import logging
import os
from typing import Any

from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.controller import TrainController

SETTINGS = {
    # It polls its workers every 2 s unless told otherwise: most of a short run's start-up. A poll takes 18 ms of a CPU, and
    # where the workers have them all, they wait for it.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",
    # It looks for spot nodes that are about to go: a process more at each start, where a lost worker is replaced anyway.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""What a controller reads from its environment when it is made, where the user has not set it."""


class SharedGpus(Backend):
    share_cuda_visible_devices = True  # NCCL moves data between GPUs of a node directly where each sees the other


class OwnGroup(BackendConfig):
    """Leaves the process group to the workers (`rayloom.launchers.ray_worker`)."""

    backend = "own"  # TorchTrainer asks for it

    @property
    def backend_cls(self) -> type[Backend]:
        return SharedGpus


class Controller(TrainController):
    """Ray Train's controller with its settings as an argument.

    Ray gives them as a runtime environment, which the workers inherit: a process that has one imports Ray twice, and those of
    a short run took a seventh of the way to its first step for it.
    """

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
        for name in own:  # or Ray would give it to the workers
            del os.environ[name]
