"""The train section refuses what does not go together, with the value and what to do."""

import pytest
from pydantic import ValidationError

from rayloom import config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "precision fp16 needs `gpu: true`; on CPUs use bf16 or fp32"),
        ({"workers": 2, "min_workers": 3}, r"min_workers is 3, more than workers \(2\); lower it"),
        ({"launcher": "torchrun", "min_workers": 1}, "min_workers goes with `launcher: ray`, not with torchrun"),
        ({"launcher": "ray", "local_mode": True}, "local_mode goes with `launcher: spark`, not with ray"),
        ({"launcher": "inline", "workers": 2}, "launcher inline trains in this process, and workers is 2; set train.workers"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        config.Train(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp16", "gpu": True},
        {"workers": 2, "min_workers": 2},
        {"launcher": "spark", "local_mode": True},
        {"launcher": "inline", "workers": 1},
    ],
    ids=str,
)
def test_settings_that_go_together_are_kept(settings):
    assert config.Train(**settings).model_dump(include=set(settings)) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accumulate", 0), ("lr", 0.0), ("warmup", 1.0), ("clip_norm", 0.0), ("label_smoothing", 1.0), ("ema", 1.0),
        ("patience", 0), ("memory", "2x"), ("schedule", "step"), ("lr_scaling", "log"), ("timeout_s", 0.0),
        ("checkpoint", {"every_steps": 0}), ("checkpoint", {"every_seconds": 0.0}), ("checkpoint", {"keep": 0}),
        ("checkpoint", {"epoch_seconds": -1.0}),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_by_name(name, value):
    with pytest.raises(ValidationError, match=name):
        config.Train(**{name: value})
