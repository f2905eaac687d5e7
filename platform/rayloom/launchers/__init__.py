"""Launchers run `rayloom.training.train` on a number of workers. Adding one is one file and one line here.

A launcher is a module with two functions:

    require_room(pipeline)                    refuses, within seconds, what the cluster has no room for
    launch(pipeline, state, splits, run)      trains and returns a `rayloom.launchers.result.Result`

`pipeline` has its model section resolved, `splits` are "train" and "validation" as model inputs in Ray's object store, and
`run` is the run's id: checkpoints go to <root>/runs/<run>/checkpoints, and a run that has some goes on from the last. `launch`
raises

    DataError         a split has fewer rows than there are workers, or lacks what training needs
    ResourceError     the cluster has no room for the workers
    DivergedError     the loss is not finite
    TrainingError     a worker failed more often than `train.max_failures`; the sentence names the rank and its error
"""

from importlib import import_module
from types import ModuleType

from rayloom.errors import ConfigError, hint

LAUNCHERS = {
    "ray": "rayloom.launchers.ray_train",
    "torchrun": "rayloom.launchers.torchrun",
    "spark": "rayloom.launchers.spark",
    "inline": "rayloom.launchers.inline",
}
"""By name, each imported when it is chosen: a training process starts without Ray, and a driver without Spark."""


def find(name: str) -> ModuleType:
    """The launcher that `train.launcher` names.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"train.launcher: unknown launcher '{name}'{hint(name, LAUNCHERS)}")
    return import_module(LAUNCHERS[name])
