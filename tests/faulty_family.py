"""A model family that trains as the tabular one until something happens to a rank, for tests/launchers."""

import os
import signal
from pathlib import Path
from threading import Event

import torch
from torch import Tensor, distributed, nn

from rayloom import config
from rayloom.features import FeatureState
from rayloom.models import tabular


class Faulty(nn.Module):
    """The tabular network, which lets `fault` happen to rank 1 as it begins step `at`, counted from 1, once.

    Each step that rank 0 begins leaves a character in the file `steps`. The file `happened` tells that it did, and `processes`
    has a line for each worker: its process id and its session.
    """

    def __init__(self, network: nn.Module, settings: dict):
        super().__init__()
        self.network, self.fault, self.at, self.begun = network, settings["fault"], settings["at"], 0
        self.steps, self.happened = (Path(settings["folder"]) / name for name in ("steps", "happened"))
        with (Path(settings["folder"]) / "processes").open("a") as file:
            file.write(f"{os.getpid()} {os.getsid(0)}\n")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        if not self.training:
            return self.network(batch)
        self.begun += 1
        rank = distributed.get_rank()
        if rank == 0:
            with self.steps.open("a") as file:
                file.write("x")
        if rank == 1 and self.begun == self.at and not self.happened.exists():
            self.happened.touch()
            return FAULTS[self.fault](self.network(batch))
        return self.network(batch)


def kill(logits: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return logits


def fail(logits: Tensor) -> Tensor:
    raise ValueError("the third row is odd")


def hang(logits: Tensor) -> Tensor:
    Event().wait()
    return logits


def diverge(logits: Tensor) -> Tensor:
    return logits * torch.nan


FAULTS = {"kill": kill, "fail": fail, "hang": hang, "diverge": diverge}


def build(model: config.Own, state: FeatureState) -> Faulty:
    return Faulty(tabular.build(config.Tabular(hidden=[16], embedding=2), state), model.settings)
