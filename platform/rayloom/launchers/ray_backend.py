"""What Ray Train's controller knows of torch: nothing. It imports this module, and `rayloom.launchers.ray_train` imports torch.

Ray's own set-up of torch has the controller import it first, for seconds, while no worker is started yet.
"""

from ray.train.backend import Backend, BackendConfig


class SharedGpus(Backend):
    share_cuda_visible_devices = True  # NCCL moves data between GPUs of a node directly where each sees the other


class OwnGroup(BackendConfig):
    """Leaves the process group to the workers (`rayloom.launchers.ray_worker`)."""

    backend = "own"  # TorchTrainer asks for it

    @property
    def backend_cls(self) -> type[Backend]:
        return SharedGpus
