"""Peer `parameter_server`: the same model, with weights and optimizer in one process (Li et al., 2014), instead of all-reduce.

Each step, every worker pulls the weights, computes the gradients of its part of the batch, and pushes them; the server adds
them up and takes the step when all are there. All are Ray actors, and weights and gradients go through Ray's object store.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rayloom import config, feeding, models, optimization, training
from rayloom.costs.table import Cost
from rayloom.datasets import Encoded
from rayloom.features import FeatureState
from rayloom.worker import Shard, bounds, shard_sizes

LOOK = 10
"""Steps after which the driver looks whether there is time for more."""


class Server:
    """Holds weights and optimizer."""

    def __init__(self, pipeline: config.Pipeline, state: FeatureState):
        self.model = _network(pipeline, state)
        rate = optimization.rate(pipeline.train, pipeline.train.workers)
        self.optimizer = optimization.optimizer(self.model, pipeline.train, rate)

    def weights(self) -> np.ndarray:
        """All weights, float32 (n,)."""
        return parameters_to_vector(self.model.parameters()).detach().numpy()

    def step(self, *gradients: np.ndarray) -> np.ndarray:
        """Takes a step along the sum of all workers' gradients; returns the new weights."""
        total = torch.from_numpy(np.sum(gradients, axis=0))
        for weight, gradient in zip(self.model.parameters(), _cut(total, self.model), strict=True):
            weight.grad = gradient
        self.optimizer.step()
        return self.weights()


class Learner:
    """A worker: its rows, and a model that takes the weights it is given."""

    def __init__(self, pipeline: config.Pipeline, state: FeatureState, train: Encoded, rank: int):
        workers = pipeline.train.workers
        self.model = _network(pipeline, state).train()
        self.sizes = shard_sizes(train.rows, workers)
        self.steps = training.count_steps(self.sizes, pipeline.train.batch_size)
        starts = bounds(train.rows, workers)
        shard = Shard(train.read(starts[rank], starts[rank + 1]), train.rows)
        self.rows, self.own = feeding.Resident(shard.arrays, "cpu"), self.sizes[rank]
        self.smoothing = pipeline.train.label_smoothing
        training.seed_rank(pipeline.seed, 0, rank)
        self.parts: list[Tensor] = []

    def gradient(self, weights: np.ndarray, step: int) -> np.ndarray:
        """This worker's part, float32 (n,), of the gradient of the step's mean loss."""
        place = step % self.steps
        if place == 0:
            self.parts = list(torch.randperm(self.own).tensor_split(self.steps))
        batch = next(iter(self.rows.take([self.parts[place]])))
        vector_to_parameters(torch.tensor(weights), self.model.parameters())
        loss = training.summed_loss(self.model(batch), batch["label"], None, self.smoothing)
        (loss / training.batch_rows(self.sizes, self.steps, place)).backward()
        found = torch.cat([_gradient(weight).flatten() for weight in self.model.parameters()])
        self.model.zero_grad(set_to_none=True)
        return found.numpy()


def _network(pipeline: config.Pipeline, state: FeatureState) -> nn.Module:
    training.prepare(pipeline)
    network = models.build(pipeline.model, state)
    models.load_pretrained(network, pipeline.model)
    return network


def _gradient(weight: nn.Parameter) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _cut(vector: Tensor, model: nn.Module) -> Iterator[Tensor]:
    """The vector's parts in the shapes of the model's weights."""
    shapes = [weight.shape for weight in model.parameters()]
    parts = vector.split([shape.numel() for shape in shapes])
    return (part.view(shape) for part, shape in zip(parts, shapes, strict=True))


class Group:
    """A server and its workers at work.

    Args:
        pipeline: its `train.workers` take `train.cpus` each; the server takes none, as it works while they wait.
        train: the training split.
    """

    def __init__(self, pipeline: config.Pipeline, state: FeatureState, train: Encoded):
        settings = pipeline.train
        given = [ray.put(one) for one in (pipeline, state)]
        learner = ray.remote(num_cpus=settings.cpus, resources=settings.resources)(Learner)
        server: Any = ray.remote(num_cpus=0)(Server)
        self.server: Any = server.remote(*given)
        self.learners: list[Any] = [learner.remote(*given, train, rank) for rank in range(settings.workers)]
        self.current, self.step = self.server.weights.remote(), 0

    def advance(self) -> None:
        """Asks for a step; returns before it is done."""
        gradients = [learner.gradient.remote(self.current, self.step) for learner in self.learners]
        self.current, self.step = self.server.step.remote(*gradients), self.step + 1

    def weights(self) -> np.ndarray:
        """The weights after all steps that were asked for."""
        return ray.get(self.current)

    def close(self) -> None:
        for actor in (self.server, *self.learners):
            ray.kill(actor)


@contextmanager
def started(pipeline: config.Pipeline, state: FeatureState, train: Encoded) -> Iterator[Group]:
    """A group for the length of the block, on CPUs."""
    group = Group(pipeline, state, train)
    try:
        yield group
    finally:
        group.close()


def measure(pipeline: config.Pipeline, state: FeatureState, train: Encoded, steps: int, seconds: float) -> Cost:
    """The row of `steps` steps, or as many as `seconds` leave time for, after a first one, which warms up."""
    batch = train.rows / training.count_steps(shard_sizes(train.rows, pipeline.train.workers), pipeline.train.batch_size)
    with started(pipeline, state, train) as group:
        group.advance()
        size = group.weights().nbytes
        began, spent = time.perf_counter(), 0.0
        while group.step <= steps and spent < seconds:
            for _ in range(LOOK):
                group.advance()
            group.weights()
            spent = time.perf_counter() - began
        taken = group.step - 1
    return Cost(
        "parameter_server",
        f"Ray actors, {taken} steps",
        samples_per_s=batch * taken / spent,
        wire_bytes=wire_bytes(size, pipeline.train.workers),
    )


def wire_bytes(size: int, workers: int) -> int:
    """Bytes that go in and out of the server in a step: each worker pulls the weights and pushes as large a gradient.

    >>> wire_bytes(1000, 4)
    8000
    """
    return 2 * size * workers
