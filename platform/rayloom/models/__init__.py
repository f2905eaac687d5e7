"""Model families. A family is a module with these functions:

    require(model, state)             raises ConfigError where the family cannot use these columns
    build(model, state)               a torch.nn.Module, fresh, that maps a batch, as `features.apply` gives it, to logits:
                                      (n,) of the second class where there are two, else (n, classes)
    resolve(model, state)             the model section with all that `build` needs of the disk written in; where it needs any
    load_pretrained(network, model)   gives a fresh network its pretrained weights; where there are any

A network may have a method `checkpoint_activations()`, for train.gradient_checkpointing. Adding a family is one file, one line
here and one section in `rayloom.config.model`. A user's own is one function such as `build`, named 'package.module:function';
its section is a `config.Own`, whose `settings` are the user's.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from torch import nn

from rayloom import config
from rayloom.errors import ConfigError, hint
from rayloom.features import FeatureState
from rayloom.models import tabular, text, vision

FAMILIES: dict[str, ModuleType] = {
    "tabular": tabular,
    "text": text,
    "vision": vision,
}


def require(model: config.Model, state: FeatureState) -> None:
    """Refuses what the family cannot train on, before a worker starts.

    Raises:
        ConfigError: the family is not known or cannot use the columns.
    """
    find(model.family)
    if model.family in FAMILIES:
        FAMILIES[model.family].require(model, state)


def resolve(model: config.Model, state: FeatureState) -> config.Model:
    """The model section with all that `build` needs of the disk or a hub written into it: a replica has neither.

    Raises:
        ConfigError: as `require`, or what was found does not fit the columns.
        SourceError: it is not there.
    """
    require(model, state)
    write_in = getattr(FAMILIES.get(model.family), "resolve", None)
    return write_in(model, state) if write_in else model


def build(model: config.Model, state: FeatureState) -> nn.Module:
    """The network that the pipeline file's `model` section describes, with fresh weights.

    Raises:
        ConfigError: as `require`.
    """
    require(model, state)
    return find(model.family)(model, state)


def load_pretrained(network: nn.Module, model: config.Model) -> None:
    """Gives a fresh network the pretrained weights that the model section names, where it names some.

    Raises:
        SourceError: they are not to be had on this machine, or do not fit.
    """
    load = getattr(FAMILIES.get(model.family), "load_pretrained", None)
    if load:
        load(network, model)


def find(family: str) -> Callable[[config.Model, FeatureState], nn.Module]:
    """What builds a family: by its name in FAMILIES, or a user's own as 'package.module:function'.

    Raises:
        ConfigError: the family is neither a known name nor an importable function.
    """
    if family in FAMILIES:
        return FAMILIES[family].build
    if ":" not in family:
        raise ConfigError(f"model.family: unknown family '{family}'{hint(family, FAMILIES)}")
    module, _, function = family.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.family: '{family}' cannot be imported ({error}); install or correct it.") from None
