"""The peer that sends gradients to one process, held against a step of gradient descent over all rows in this process."""

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import parameters_to_vector

from rayloom import cluster, config, models, training
from rayloom.costs import parameter_server
from tests.conftest import wait_for

PLAIN = {"model.dropout": 0.0, "train.optimizer": "sgd", "train.momentum": 0.0, "train.weight_decay": 0.0}


@pytest.fixture(scope="module")
def pipeline(training_pipeline) -> config.Pipeline:
    """Two workers, plain gradient descent, and all 101 rows in a step."""
    return training_pipeline({**PLAIN, "train.workers": 2, "train.batch_size": 101, "train.lr": 0.5})


def stepped(pipeline: config.Pipeline, state, rows) -> np.ndarray:
    """Weights after one step over all rows in this process."""
    training.prepare(pipeline)
    model = models.build(pipeline.model, state)
    batch = {name: torch.tensor(values) for name, values in rows.read(0, rows.rows).items()}
    binary_cross_entropy_with_logits(model(batch), batch["label"]).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= pipeline.train.lr * weight.grad
    return parameters_to_vector(model.parameters()).detach().numpy()


def test_a_step_of_two_workers_is_the_step_over_all_rows(pipeline, training_state, tabular_rows):
    with parameter_server.started(pipeline, training_state, tabular_rows["train"]) as group:
        before = group.weights()
        group.advance()
        after = group.weights()
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, stepped(pipeline, training_state, tabular_rows["train"]), atol=1e-6, rtol=0)


def test_it_tells_its_speed_and_traffic_and_gives_its_cpus_back(pipeline, training_state, tabular_rows):
    free = cluster.free_cpus()
    cost = parameter_server.measure(pipeline, training_state, tabular_rows["train"], steps=10, seconds=60)
    wait_for(lambda: cluster.free_cpus() >= free, 15)
    weights = 3 * 2 + (2 + 2) * 16 + 16 + 16 + 1
    assert cost.samples_per_s > 0 and cost.wire_bytes == 2 * 2 * 4 * weights
