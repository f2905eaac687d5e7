"""Model families. A family is a module with two functions:

    build(model, state)      a torch.nn.Module that maps a batch, as `features.apply` gives it, to logits (n,)
    require(model, state)    raises ConfigError where the family cannot use these columns

Adding one is one file and one line here. A user's own is one function `build`, named 'package.module:function'.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from torch import nn

from rayloom import config
from rayloom.errors import ConfigError, hint
from rayloom.features import FeatureState
from rayloom.models import tabular

FAMILIES: dict[str, ModuleType] = {
    "tabular": tabular,
}


def require(model: config.Model, state: FeatureState) -> None:
    """Refuses what the family or the training loop cannot train on, before a worker starts.

    Raises:
        ConfigError: the family is not known or cannot use the columns, or the label has more than the two classes that the
            loop tells apart.
    """
    find(model.family)
    if len(state.classes) > 2:
        classes = ", ".join(map(repr, state.classes[:5])) + (", …" if len(state.classes) > 5 else "")
        raise ConfigError(
            f"features.label: '{state.label}' has {len(state.classes)} classes ({classes}), and training tells two apart; make "
            f"it one of two in the SQL."
        )
    if model.family in FAMILIES:
        FAMILIES[model.family].require(model, state)


def build(model: config.Model, state: FeatureState) -> nn.Module:
    """The network that the pipeline file's `model` section describes, with fresh weights.

    Raises:
        ConfigError: as `require`.
    """
    require(model, state)
    return find(model.family)(model, state)


def resolve(model: config.Model, state: FeatureState) -> config.Model:
    """The model section with all that `build` needs of the disk or a hub written into it: a replica has neither.

    Raises:
        ConfigError: as `require`.
    """
    require(model, state)
    return model


def load_pretrained(network: nn.Module, model: config.Model) -> None:
    """Gives a fresh network the pretrained weights that the model section names, where it names some."""


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
