"""A trial's settings: drawn in order, conditional keys only where they apply, and refused before any trial has them."""

import optuna
import pytest

from rayloom import config
from rayloom.errors import ConfigError
from rayloom.tuning import space

SPACE = {
    "train.lr": {"loguniform": [1e-4, 1e-1]},
    "train.optimizer": {"choice": ["adamw", "sgd"]},
    "train.momentum": {"uniform": [0.1, 0.9], "when": {"train.optimizer": "sgd"}},
    "train.batch_size": {"int": [16, 64], "step": 16},
    "model.hidden": {"choice": [[8], [16, 8]]},
}


@pytest.fixture
def sweeping(toy_pipeline):
    """The toy pipeline with a tune section."""

    def make(searched: dict = SPACE, **tune) -> config.Pipeline:
        return toy_pipeline({"tune": {"space": searched, **tune}})

    return make


def drawn(pipeline: config.Pipeline, fixed: dict) -> dict:
    return space.draw(optuna.trial.FixedTrial(fixed)._suggest, pipeline.tune.space)


def test_settings_are_drawn_in_order_and_choices_are_what_the_file_says(sweeping):
    fixed = {
        "train.lr": 0.01,
        "train.optimizer": '"sgd"',
        "train.momentum": 0.5,
        "train.batch_size": 32,
        "model.hidden": "[16, 8]",
    }
    values = {
        "train.lr": 0.01,
        "train.optimizer": "sgd",
        "train.momentum": 0.5,
        "train.batch_size": 32,
        "model.hidden": [16, 8],
    }
    assert list(drawn(sweeping(), fixed).items()) == list(values.items())


def test_a_key_whose_condition_does_not_hold_is_not_drawn(sweeping):
    fixed = {"train.lr": 0.01, "train.optimizer": '"adamw"', "train.batch_size": 32, "model.hidden": "[8]"}
    assert "train.momentum" not in drawn(sweeping(), fixed)


def test_settings_change_what_they_name_and_nothing_else(sweeping):
    before = sweeping()
    after = space.apply(before, {"train.lr": 0.5, "model.hidden": [4]})
    assert (after.train.lr, after.model.hidden) == (0.5, [4])
    assert after.model_copy(update={"train": before.train, "model": before.model}) == before


def test_a_section_inside_a_section_is_reached(sweeping):
    assert space.apply(sweeping(), {"train.checkpoint.keep": 3}).train.checkpoint.keep == 3


@pytest.mark.parametrize(
    ("searched", "said"),
    [
        ({"train.lr": {"uniform": [0.1, 20.0]}}, "train.lr=20.0"),
        ({"train.speed": {"uniform": [0.1, 20.0]}}, "train.speed"),
        ({"model.hidden": {"choice": [[8], "wide"]}}, "model.hidden='wide'"),
        ({"train.lr.high": {"uniform": [0.1, 0.2]}}, "has none"),
    ],
)
def test_what_no_trial_could_have_is_refused_before_the_sweep(sweeping, searched, said):
    with pytest.raises(ConfigError, match=r"tune\.space") as refused:
        space.check(sweeping(searched))
    assert said in str(refused.value)


def test_a_point_outside_the_space_is_refused(sweeping):
    with pytest.raises(ConfigError, match=r"tune\.first\.1: train\.lr is 0\.5"):
        space.check(sweeping(first=[{"train.lr": 0.01}, {"train.lr": 0.5}]))


@pytest.mark.parametrize(
    ("tune", "said"),
    [
        ({"enabled": True}, "tune.space is empty"),
        ({"space": {"train.lr": {}}}, "no range"),
        ({"space": {"train.lr": {"uniform": [0.1, 0.2], "choice": [1]}}}, "uniform and choice"),
        ({"space": {"train.lr": {"uniform": [0.2, 0.1]}}}, "lower end first"),
        ({"space": {"train.lr": {"loguniform": [0.0, 0.1]}}}, "above 0"),
        ({"space": {"train.lr": {"choice": [0.1], "step": 1}}}, "step goes with"),
        ({"space": {"train.workers": {"int": [1, 2]}}}, "cannot be searched"),
        ({"space": {"features.label": {"choice": ["a"]}}}, "cannot be searched"),
        ({"space": {"train.momentum": {"uniform": [0.1, 0.2], "when": {"train.optimizer": "sgd"}}}}, "not searched before it"),
        ({"first": [{"train.lr": 0.1}]}, "tune.space has not"),
        ({"cost_budget": 1.0}, "needs prices"),
        ({"study": "shared"}, "database"),
        ({"storage": "postgresql://me:secret@host/db"}, "password"),
    ],
)
def test_a_tune_section_that_says_nothing_sensible_is_refused(toy_pipeline, tune, said):
    with pytest.raises(ValueError, match="tune") as refused:
        toy_pipeline({"tune": tune})
    assert said in str(refused.value)


def test_an_overlay_may_search_a_key_in_another_way():
    pipeline = config.load(["configs/flights.yaml"], ["tune.space={train.lr: {choice: [0.1, 0.2]}}"])
    assert pipeline.tune.space["train.lr"].kind == "choice"
    assert pipeline.tune.space["model.dropout"].kind == "uniform"
