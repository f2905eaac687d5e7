"""Optimizer, learning rate and moving average are what the train section asks for, by values worked out by hand."""

import math

import pytest
import torch
from torch import nn

from rayloom import config
from rayloom.optimization import Average, factor, optimizer, rate, restore, schedule, weight_decay_groups


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Conv1d(3, 2, 1))


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("sqrt", 0.2), ("linear", 0.4)])
def test_the_learning_rate_grows_with_four_ranks_by_its_rule(rule, expected):
    assert rate(config.Train(lr=0.1, lr_scaling=rule), 4) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_the_optimizer_is_the_one_that_is_named(model, name, kind):
    assert type(optimizer(model, config.Train(optimizer=name), 0.1)) is kind


def test_matrices_and_kernels_decay(model):
    assert {id(one) for one in weight_decay_groups(model, 0.3)[0]["params"]} == {id(model[1].weight), id(model[3].weight)}


def test_what_does_not_decay_is_the_rest(model):
    decayed, rest = weight_decay_groups(model, 0.3)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.3, 0.0)
    assert len(decayed["params"]) + len(rest["params"]) == len(list(model.parameters()))


def test_weights_that_are_not_trained_are_in_no_group(model):
    model.requires_grad_(False)
    assert weight_decay_groups(model, 0.3) == []


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, *(0.5 * (1 + math.cos(math.pi * done)) for done in (0, 0.25, 0.5, 0.75))]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_learning_rate_warms_up_and_then_has_its_shape(shape, expected):
    assert [factor(step, 2, 6, shape) for step in range(6)] == pytest.approx(expected)


def test_the_schedule_sets_the_optimizers_learning_rate(model):
    made, found = optimizer(model, config.Train(), 0.2), []
    plan = schedule(config.Train(lr=0.1, lr_scaling="linear", warmup=0.5, schedule="linear"), 2, 4)
    for step in range(4):
        plan.set(made, step)
        found.append([group["lr"] for group in made.param_groups])
    assert found == [pytest.approx([rate, rate]) for rate in (0.1, 0.2, 0.2, 0.1)]


def averaged(decay: float, values: list[float]) -> float:
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    average = Average(model, decay)
    for value in values:
        model.weight.data.fill_(value)
        average.update(model)
    return float(average.model.weight)


def test_the_average_is_the_one_worked_out_by_hand():
    first = 1.0 * (1 - 1 / 11)
    second = first * (2 / 12) + 4.0 * (1 - 2 / 12)
    assert averaged(0.9, [1.0, 4.0]) == pytest.approx(second)


def test_later_the_average_keeps_as_much_as_the_decay_says():
    assert averaged(0.05, [1.0, 4.0]) == pytest.approx(0.95 * 0.05 + 4.0 * 0.95)


def test_an_average_goes_on_where_it_was():
    model = nn.Linear(2, 1)
    left, right = Average(model, 0.9), Average(nn.Linear(2, 1), 0.9)
    left.update(model)
    right.load(left.model.state_dict(), left.steps)
    model.weight.data.mul_(2)
    left.update(model), right.update(model)
    assert torch.equal(left.model.weight, right.model.weight)


@pytest.mark.parametrize("lr", [0.1, 0.02])
def test_a_run_that_goes_on_has_the_settings_of_now(model, lr):
    before, made = (optimizer(model, config.Train(weight_decay=decay), 0.1) for decay in (0.5, 0.25))
    model[1].weight.grad = torch.ones_like(model[1].weight)
    before.step()
    restore(made, before.state_dict())
    schedule(config.Train(lr=lr, warmup=0.0), 1, 10).set(made, 4)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([lr * factor(4, 0, 10, "cosine")] * 2)
    assert [group["weight_decay"] for group in made.param_groups] == [0.25, 0.0]
    assert torch.equal(made.state[model[1].weight]["exp_avg"], before.state[model[1].weight]["exp_avg"])
