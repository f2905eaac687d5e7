"""How a model is spread over ranks, where one process can tell. test_ddp.py has two."""

import pytest
import torch
from torch import nn

from rayloom import config, parallel
from rayloom.errors import ConfigError
from rayloom.worker import Worker


@pytest.fixture
def alone(tmp_path) -> Worker:
    return Worker(0, 1, "cpu", tmp_path)


class Checkpointed(nn.Linear):
    """Remembers that it was asked."""

    asked = False

    def checkpoint_activations(self) -> None:
        self.asked = True


def test_a_model_of_one_rank_is_not_wrapped(alone):
    model = nn.Linear(2, 1)
    assert parallel.unwrap(parallel.wrap(model, alone, config.Train())) is parallel.wrap(model, alone, config.Train()) is model


def test_gradient_checkpointing_asks_the_family(alone):
    assert parallel.wrap(Checkpointed(2, 1), alone, config.Train(gradient_checkpointing=True)).asked


def test_without_gradient_checkpointing_the_family_is_not_asked(alone):
    assert not parallel.wrap(Checkpointed(2, 1), alone, config.Train()).asked


def test_a_family_without_gradient_checkpointing_is_named():
    with pytest.raises(ConfigError, match="Linear has no method checkpoint_activations; set it to false"):
        parallel.checkpoint_activations(nn.Linear(2, 1))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matrix_products_are_computed_in_the_precision_that_is_named(alone, precision, dtype):
    with parallel.autocast(alone, precision):
        assert nn.Linear(2, 1)(torch.ones(3, 2)).dtype is dtype


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0), (2, 12), (4, 18)])
def test_a_ring_sends_each_gradient_almost_twice(ranks, expected):
    assert parallel.wire_bytes(nn.Linear(2, 1), ranks) == expected


def test_weights_that_are_not_trained_are_not_sent():
    assert parallel.wire_bytes(nn.Linear(2, 1).requires_grad_(False), 2) == 0


def test_one_rank_shares_and_gathers_with_itself(alone):
    rows = torch.arange(3)
    assert parallel.gather_rows(rows, 3, alone).tolist() == [0, 1, 2] and parallel.share({"a": 1}, alone) == {"a": 1}


def test_an_error_that_is_no_time_out_is_passed_on(alone):
    with pytest.raises(RuntimeError, match="odd"), parallel.naming_hung_ranks(alone, 1.0):
        raise RuntimeError("odd")
