"""Optimizer, learning rate and moving average, as the train section asks for them.

rate(settings, world_size)              the learning rate at its highest
optimizer(model, settings, lr)          AdamW or SGD, with weight decay on matrices alone
schedule(settings, world_size, steps)   warm-up from 0, then cosine, linear or constant
restore(optimizer, state)               goes on from a checkpoint, with the settings of now
Average(model, decay)                   an exponential moving average of the weights
"""

import math
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rayloom import config


def rate(settings: config.Train, world_size: int) -> float:
    """The highest learning rate: lr, times the workers (linear: Goyal et al., 2017) or their root (sqrt: Krizhevsky, 2014).

    >>> rate(config.Train(lr=0.1, lr_scaling="sqrt"), 4)
    0.2
    """
    factors = {"none": 1.0, "sqrt": math.sqrt(world_size), "linear": float(world_size)}
    return settings.lr * factors[settings.lr_scaling]


def optimizer(model: nn.Module, settings: config.Train, lr: float) -> Optimizer:
    """The optimizer of all weights that are trained."""
    groups = weight_decay_groups(model, settings.weight_decay)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=settings.momentum, nesterov=settings.momentum > 0)
    return torch.optim.AdamW(groups, lr=lr, fused=True)  # one pass over the weights, where the default takes a dozen


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices and kernels decay; biases, norms and embeddings do not: with those at zero a function is not simpler."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    embeddings = {id(weight) for table in tables for weight in table.parameters()}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    decays = [weight.dim() > 1 and id(weight) not in embeddings for weight in trained]
    groups = [
        {"params": [weight for weight, does in zip(trained, decays, strict=True) if does == decay], "weight_decay": amount}
        for decay, amount in ((True, weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True)
class Schedule:
    """The learning rate by step. torch's schedulers look into the optimizer as well: 2 % of a small model's step.

    Attributes:
        highest: the learning rate after warm-up.
        warmup, steps: optimizer steps, of the warm-up and of the whole run with it.
        shape: cosine, linear or constant.
    """

    highest: float
    warmup: int
    steps: int
    shape: str

    def set(self, optimizer: Optimizer, step: int) -> None:
        """Gives the optimizer the learning rate of a step, counted from 0."""
        rate = self.highest * factor(step, self.warmup, self.steps, self.shape)
        for group in optimizer.param_groups:
            group["lr"] = rate


def schedule(settings: config.Train, world_size: int, steps: int) -> Schedule:
    """The schedule of a run of `steps` optimizer steps."""
    return Schedule(rate(settings, world_size), round(settings.warmup * steps), steps, settings.schedule)


def factor(step: int, warmup: int, steps: int, shape: str) -> float:
    """Part of the highest learning rate in a step, counted from 0: never 0 in a step that is taken.

    >>> [round(factor(step, 2, 6, "linear"), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    if shape == "constant":
        return 1.0
    return max(0.0, 1 - done) if shape == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def restore(optimizer: Optimizer, state: dict) -> None:
    """Goes on from a checkpoint. What the settings say now wins over what they said then, such as another weight decay:
    population based training changes them, and so may a user before a run goes on."""
    settings = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, now in zip(optimizer.param_groups, settings, strict=True):
        group |= now


class Average:
    """The exponential moving average of a model's weights (Polyak and Juditsky, 1992): steadier than any one step's.

    Args:
        model: whose weights are averaged from now on.
        decay: what remains of the average in a step. Early on less remains, so that the first weights do not linger.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.steps = decay, 0
        self.model = deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Takes a step's weights in."""
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 10))
        ours, theirs = self.model.state_dict(), model.state_dict()
        for name, value in theirs.items():
            if value.is_floating_point():
                ours[name].lerp_(value, 1 - decay)
            else:
                ours[name].copy_(value)

    def load(self, weights: dict[str, Tensor], steps: int) -> None:
        """Goes on from a checkpoint."""
        self.model.load_state_dict(weights)
        self.steps = steps
