"""The searched keys: a trial's values from Optuna, and the pipeline that they make."""

import json
from collections.abc import Callable
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, ValidationError

from rayloom import config
from rayloom.config.tuning import Param
from rayloom.errors import ConfigError


def distribution(param: Param) -> BaseDistribution:
    """What Optuna draws a key's value from; choices are written as JSON, since Optuna takes no lists."""
    match param.kind:
        case "choice":
            return CategoricalDistribution([json.dumps(value) for value in param.choice or []])
        case "int":
            low, high = param.int  # type: ignore[misc]
            return IntDistribution(low, high, step=int(param.step or 1))
        case "uniform":
            low, high = param.uniform  # type: ignore[misc]
            return FloatDistribution(low, high, step=param.step)
        case _:
            low, high = param.loguniform  # type: ignore[misc]
            return FloatDistribution(low, high, log=True)


def draw(suggest: Callable[[str, BaseDistribution], Any], space: dict[str, Param]) -> dict[str, Any]:
    """A value for each key whose `when` holds, drawn in the order in which they stand.

    Args:
        suggest: draws a value for a key, as Optuna has it.
    """
    drawn: dict[str, Any] = {}
    for key, param in space.items():
        if applies(param, drawn):
            drawn[key] = decoded(param, suggest(key, distribution(param)))
    return drawn


def applies(param: Param, drawn: dict[str, Any]) -> bool:
    """Whether the keys that a key depends on have one of the values that it wants."""
    return all(
        key in drawn and drawn[key] in (wanted if isinstance(wanted, list) else [wanted]) for key, wanted in param.when.items()
    )


def encoded(param: Param, value: Any) -> Any:
    """A value as Optuna has it."""
    return json.dumps(value) if param.kind == "choice" else value


def decoded(param: Param, value: Any) -> Any:
    """A value as the pipeline file has it.

    >>> decoded(Param(choice=[[64], [128, 64]]), "[128, 64]")
    [128, 64]
    """
    return json.loads(value) if param.kind == "choice" else value


def check(pipeline: config.Pipeline) -> None:
    """Tries each key's ends or choices, before hours of trials that would all fail alike.

    Raises:
        ConfigError: the pipeline file would not take a value, or `tune.first` has one that the space has not.
    """
    space = pipeline.tune.space
    for key, param in space.items():
        base = {other: wanted[0] if isinstance(wanted, list) else wanted for other, wanted in param.when.items()}
        ends = param.choice if param.choice is not None else (param.uniform or param.loguniform or param.int)
        for value in ends or []:
            try:
                apply(pipeline, {**base, key: value})
            except ConfigError as error:
                raise ConfigError(f"tune.space: {error}") from None
    for index, point in enumerate(pipeline.tune.first):
        for key, value in point.items():
            if not distribution(space[key])._contains(_internal(space[key], value)):
                raise ConfigError(f"tune.first.{index}: {key} is {value!r:.80}, which tune.space does not contain; widen it.")


def _internal(param: Param, value: Any) -> float:
    try:
        return distribution(param).to_internal_repr(encoded(param, value))
    except ValueError:
        return float("nan")


def apply(pipeline: config.Pipeline, params: dict[str, Any]) -> config.Pipeline:
    """The pipeline with these values in place.

    Args:
        params: value by dotted key of the train or model section.

    Raises:
        ConfigError: the section does not take a value.
    """
    updated = {}
    for name in ("train", "model"):
        section: BaseModel = getattr(pipeline, name)
        own = {key.removeprefix(f"{name}."): value for key, value in params.items() if key.startswith(f"{name}.")}
        if own:
            updated[name] = _laid_over(section, own, name)
    return pipeline.model_copy(update=updated)


def _laid_over(section: BaseModel, values: dict[str, Any], name: str) -> BaseModel:
    data = section.model_dump()
    for key, value in values.items():
        *parents, last = key.split(".")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{name}.{key} names a key inside of {parent}, which has none; correct the name.")
        place[last] = value
    try:
        return type(section).model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        shown = ", ".join(f"{name}.{key}={value!r:.60}" for key, value in values.items())
        raise ConfigError(
            f"{shown}: {first['msg'].removeprefix('Value error, ')} (at {_dotted(name, first['loc'])})."
        ) from None


def _dotted(name: str, location: tuple) -> str:
    return ".".join([name, *map(str, location)])
