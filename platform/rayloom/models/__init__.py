"""Model families. A family is a function `build(model, state) -> torch.nn.Module` whose module maps a batch
{"numbers": (n, k), "categories": (n, c)} to logits (n,). Adding one is one file and one line here."""

from collections.abc import Callable
from importlib import import_module

from torch import nn

from rayloom import config
from rayloom.errors import ConfigError, hint
from rayloom.features import FeatureState
from rayloom.models import tabular

Family = Callable[[config.Model, FeatureState], nn.Module]

FAMILIES: dict[str, Family] = {
    "tabular": tabular.build,
}


def build(model: config.Model, state: FeatureState) -> nn.Module:
    """The network that the pipeline file's `model` section describes, with fresh weights.

    Raises:
        ConfigError: the family is neither a known name nor an importable 'package.module:function'.
    """
    return find(model.family)(model, state)


def find(family: str) -> Family:
    """A family by its name in FAMILIES, or a user's own as 'package.module:function'."""
    if family in FAMILIES:
        return FAMILIES[family]
    if ":" not in family:
        raise ConfigError(f"model.family: unknown family '{family}'{hint(family, FAMILIES)}")
    module, _, function = family.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model.family: '{family}' cannot be imported ({error}); install or correct it.") from None
