"""The train section of the pipeline file: who trains, on what, and how the loop goes about it."""

from typing import Literal

from pydantic import Field, model_validator

from rayloom.config.base import Fraction, Memory, Resources, Section


class Checkpoints(Section):
    """When the loop saves where it is. Resuming goes on from there, inside the epoch."""

    every_steps: int | None = Field(default=None, ge=1, description="optimizer steps between two checkpoints")
    every_seconds: float | None = Field(default=None, gt=0, description="seconds between two checkpoints")
    epoch_seconds: float = Field(
        default=0.0,
        ge=0,
        description="seconds of epochs after which an epoch's end is saved; 0: each is; the last one always is",
    )
    keep: int = Field(default=1, ge=1, le=1000, description="how many of the best epochs to keep; the last is kept as well")


class Train(Section):
    """The training loop. `batch_size` counts rows of an optimizer's step, over all ranks and `accumulate` parts."""

    launcher: str = Field(default="ray", description="ray, torchrun, spark or inline; see rayloom.launchers")
    workers: int = Field(default=2, ge=1, le=4096)
    min_workers: int | None = Field(
        default=None,
        ge=1,
        description="launcher ray: as few will do where the cluster has no more; CPUs of others are waited for",
    )
    cpus: int = Field(default=1, ge=1, le=1024, description="CPUs of a worker, and threads that torch computes with")
    reserved_cpus: float | None = Field(
        default=None,
        gt=0,
        le=1024,
        description="what Ray sets aside for a worker, if not `cpus`: less, where runs share CPUs; not spark",
    )
    gpu: bool = False
    resources: Resources = Field(default={}, description="Ray resources a worker asks for besides its CPUs and GPU")
    local_mode: bool = Field(default=False, description="launcher spark: train in the driver's node, not on executors")

    epochs: int = Field(default=4, ge=1, le=100_000)
    batch_size: int = Field(default=1024, ge=1)
    accumulate: int = Field(default=1, ge=1, le=65536, description="parts that a rank's batch is computed in, to save memory")
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: Fraction = Field(default=0.9, description="of sgd")
    lr: float = Field(default=2e-3, gt=0, le=10)
    lr_scaling: Literal["none", "sqrt", "linear"] = Field(
        default="none", description="how lr grows with the number of workers; for a batch_size that grows with them"
    )
    weight_decay: float = Field(default=1e-2, ge=0, description="on matrices; biases, norms and embeddings have none")
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Fraction = Field(default=0.1, description="part of all steps in which lr rises from 0")
    clip_norm: float | None = Field(default=None, gt=0, description="longest that the gradient of all weights may be")
    label_smoothing: Fraction = 0.0
    balance: Literal["none", "class_weights", "weighted_sampling", "down_sampling"] = Field(
        default="none", description="what is done about classes of different sizes in training; see rayloom.balance"
    )
    ema: Fraction | None = Field(default=None, description="decay of a moving average of the weights, which is then the model")
    patience: int | None = Field(default=None, ge=1, description="stop after as many epochs in a row without a better one")

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    gradient_checkpointing: bool = Field(default=False, description="compute activations twice instead of keeping them")
    compile: bool = Field(default=False, description="torch.compile; a minute of compiling, then faster steps")
    deterministic: bool = Field(default=True, description="the same weights in every run, at the price of some speed on GPUs")
    memory: Memory = Field(default="2g", description="a rank's rows stay on its device up to this size; more are streamed")

    checkpoint: Checkpoints = Checkpoints()
    max_failures: int = Field(default=1, ge=0, description="how often a failed group of workers is started again")
    timeout_s: float = Field(default=600.0, gt=0, description="how long ranks wait for one that is late before they give up")

    @model_validator(mode="after")
    def _fits(self) -> "Train":
        if self.precision == "fp16" and not self.gpu:
            raise ValueError("precision fp16 needs `gpu: true`; on CPUs use bf16 or fp32")
        if self.min_workers and self.min_workers > self.workers:
            raise ValueError(f"min_workers is {self.min_workers}, more than workers ({self.workers}); lower it")
        if self.min_workers and self.launcher != "ray":
            raise ValueError(f"min_workers goes with `launcher: ray`, not with {self.launcher}; remove one of them")
        if self.local_mode and self.launcher != "spark":
            raise ValueError(f"local_mode goes with `launcher: spark`, not with {self.launcher}; remove one of them")
        if self.launcher == "inline" and self.workers > 1:
            raise ValueError(f"launcher inline trains in this process, and workers is {self.workers}; set train.workers to 1")
        return self
