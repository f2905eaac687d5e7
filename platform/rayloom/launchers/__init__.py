"""Launchers run `rayloom.training.train` on a number of workers. Adding one is one file and one line here."""

from collections.abc import Callable

from rayloom import config
from rayloom.datasets import Encoded
from rayloom.errors import ConfigError, hint
from rayloom.features import FeatureState
from rayloom.launchers import ray_train
from rayloom.launchers.result import Result

Launcher = Callable[[config.Pipeline, FeatureState, dict[str, Encoded], str], Result]

LAUNCHERS: dict[str, Launcher] = {
    "ray": ray_train.launch,
}


def find(name: str) -> Launcher:
    """The launcher that `train.launcher` names.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"train.launcher: unknown launcher '{name}'{hint(name, LAUNCHERS)}")
    return LAUNCHERS[name]
