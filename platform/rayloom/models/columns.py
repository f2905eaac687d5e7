"""Which columns a family can use."""

from typing import TypeVar

from rayloom.errors import ConfigError
from rayloom.features import FeatureState

State = TypeVar("State")


def only(kind: type[State], name: str, family: str, state: FeatureState) -> State:
    """The one column of a family that takes a single one.

    Args:
        kind: the column's state.
        name: the kind as the pipeline file names it.

    Raises:
        ConfigError: there is none of this kind, or a column of another.
    """
    others = [column for column, found in state.columns.items() if not isinstance(found, kind)]
    if others:
        raise ConfigError(
            f"features.columns has {', '.join(others)}, and the family {family} takes one column of kind {name} and no other; "
            f"remove it."
        )
    (found,) = (column for column in state.columns.values() if isinstance(column, kind))
    return found
