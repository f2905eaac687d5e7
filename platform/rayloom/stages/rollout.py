"""A rollout, seen from the command line: begun, followed to its end, or ended by hand."""

import time
from typing import Any

import ray

from rayloom import config
from rayloom.errors import RayloomError, ServingError
from rayloom.runs import say
from rayloom.serving import app, rollouts

LOOK_S = 0.2
"""Seconds between two looks at a rollout's state."""

PATIENCE_S = 120.0
"""How long replicas may take to load a version, and to take up the plan that ended a rollout."""


def is_served(name: str) -> bool:
    """Whether replicas of the model answer on this cluster, or would if they were asked."""
    try:
        return bool(status(name)["replicas"]) or app.sleeps(name)
    except ServingError:
        return False


def status(name: str) -> dict[str, Any]:
    """The plan, and how far its replicas are; see `rayloom.serving.coordinator`.

    Raises:
        ServingError: the model is not served.
    """
    return _ask(name, "status")


def has_front(name: str) -> bool:
    """Whether requests come through HAProxy, straight to the replicas."""
    return bool(_ask(name, "has_front"))


def roll_out(pipeline: config.Pipeline, version: int) -> dict[str, Any]:
    """Rolls a version out by the strategy of serve.rollout, and returns the last status once all replicas have switched. An
    application that is scaled to zero starts a replica for it.

    A/B tests and bandits have no end of their own that is worth waiting for: these return when they have begun.

    Raises:
        ServingError: the version was refused or rolled back (the sentence says why), or replicas do not come along.
    """
    name, settings = pipeline.name, pipeline.serve.rollout
    if not status(name)["replicas"] and app.sleeps(name):
        app.wake(name)
    if (found := status(name))["plan"]["stable"] == version and found["pending"] is None:
        return _settled(name)
    _ask(name, "roll_out", version, settings)
    return follow(name, version, waits=settings.strategy not in ("ab", "bandit"))


def follow(name: str, version: int, waits: bool) -> dict[str, Any]:
    """Prints each step of a rollout, until its end or, with `waits` false, its beginning."""
    said, deadline = "", time.monotonic() + PATIENCE_S
    while True:
        found = status(name)
        plan = found["plan"]
        if found["pending"] == version:
            if time.monotonic() > deadline:
                _ask(name, "roll_back", f"replicas did not load version {version} within {PATIENCE_S:g} s")
        elif plan["stable"] == version:
            return _settled(name)
        elif plan["state"] == "rolled back":
            raise ServingError(f"{plan['reason'].rstrip('.')}; version {plan['stable']} answers.")
        elif (line := f"  step {plan['step']}: version {version} answers {plan['share']:.0%}") != said:
            said = line
            say(line)
            if not waits:
                return found
        time.sleep(LOOK_S)


def _settled(name: str) -> dict[str, Any]:
    """The status, once all replicas have the newest plan: from then on no other version answers."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := status(name))["switched"]:
        if time.monotonic() > deadline:
            raise ServingError(f"Not all replicas of {name} took up the plan within {PATIENCE_S:g} s; see their logs.")
        time.sleep(LOOK_S)
    return found


def roll_back(name: str) -> dict[str, Any]:
    """Ends a rollout: the version that answered before answers all."""
    _ask(name, "roll_back", "rolled back by hand")
    return _settled(name)


def finish(name: str) -> dict[str, Any]:
    """Ends a rollout: the new version answers all."""
    _ask(name, "finish", "finished by hand")
    return _settled(name)


def _ask(name: str, method: str, *arguments: Any) -> Any:
    try:
        return ray.get(getattr(rollouts.find(name), method).remote(*arguments), timeout=30)
    except ValueError:
        raise ServingError(f"No model {name} is served on this cluster; deploy it with jobs.deploy first.") from None
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, RayloomError) else error) from None
