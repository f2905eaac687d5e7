"""A user's own family: the tabular network, to which something happens in a step of training."""

from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from rayloom import config
from rayloom.features import FeatureState
from rayloom.models import tabular

NETWORK = {"hidden": [16], "embedding": 2, "dropout": 0.2}
BUILT: list[nn.Module] = []
"""What this process built, so that a rank can show its final weights."""


class Stopped(Exception):
    """The worker was ended from outside."""


class Breaking(nn.Module):
    """Lets `fault` happen in training's forward pass `at`, counted from 1, on rank `rank` (default: on all).

    The pass `last`, where it is given, ends the worker.
    """

    def __init__(self, network: nn.Module, settings: dict):
        super().__init__()
        self.network, self.settings, self.begun = network, settings, 0

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.network(batch)
        self.begun += self.training
        is_here = self.settings.get("rank") in (None, distributed.get_rank() if distributed.is_initialized() else 0)
        if self.training and is_here and self.begun == self.settings.get("at"):
            return FAULTS[self.settings["fault"]](logits, self.settings)
        if self.training and self.begun == self.settings.get("last"):
            raise Stopped
        return logits


def stop(logits: Tensor, settings: dict) -> Tensor:
    raise Stopped


def diverge(logits: Tensor, settings: dict) -> Tensor:
    return logits * torch.nan


def explode(logits: Tensor, settings: dict) -> Tensor:
    """The loss stays finite, its gradient does not."""
    logits.register_hook(lambda gradient: gradient * torch.inf)
    return logits


def hang(logits: Tensor, settings: dict) -> Tensor:
    Path(settings["pipe"]).read_text()  # until somebody has written to it
    raise Stopped


FAULTS = {"stop": stop, "diverge": diverge, "explode": explode, "hang": hang}


def build(model: config.Own, state: FeatureState) -> nn.Module:
    BUILT.append(Breaking(tabular.build(config.Tabular(**NETWORK), state), model.settings))
    return BUILT[-1]


def section(fault: str | None = None, at: int | None = None, **more) -> dict:
    """The model section."""
    return {"family": f"{__name__}:build", "settings": {"fault": fault, "at": at, **more}}
