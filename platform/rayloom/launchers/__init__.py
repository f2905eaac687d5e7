"""Launchers run `rayloom.training.train` on a number of workers. Adding one is one file and one line here.

A launcher is a module with two functions:

    require_room(pipeline)                    refuses, within seconds, what the cluster has no room for
    launch(pipeline, state, splits, run)      trains and returns a `rayloom.launchers.result.Result`
"""

from types import ModuleType

from rayloom.errors import ConfigError, hint
from rayloom.launchers import ray_train

LAUNCHERS: dict[str, ModuleType] = {
    "ray": ray_train,
}


def find(name: str) -> ModuleType:
    """The launcher that `train.launcher` names.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"train.launcher: unknown launcher '{name}'{hint(name, LAUNCHERS)}")
    return LAUNCHERS[name]
