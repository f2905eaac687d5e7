"""The coordinator of a model as an actor of the cluster, which looks at the registry, too: a moved @champion is rolled out by
itself. It outlives the replicas that it leads, is found by the model's name, and ends after the last of them.
"""

import logging
import os
import threading
import time
from contextlib import suppress

import ray
from ray import serve
from ray._private.state import actors

from rayloom import config, tracking
from rayloom.errors import RegistryError
from rayloom.serving.coordinator import Coordinator, audit_path, last_plan
from rayloom.serving.plan import Plan

SILENT_S = 2.0
"""Of a replica that has not come for so long Ray is asked whether its process has ended."""

ABANDONED_S = 120.0
"""A coordinator that no replica has come to for so long looks whether the application is still deployed, and ends if not."""

NAMESPACE = "rayloom"

logger = logging.getLogger("rayloom.serving")


class Rollouts(Coordinator):
    """The coordinator as an actor. It looks at the registry, too: a moved @champion is rolled out by itself."""

    def __init__(self, pipeline: config.Pipeline, version: int, follows: bool):
        audit = audit_path(pipeline.storage.path(), pipeline.name)
        known = last_plan(audit) if ray.get_runtime_context().was_current_actor_reconstructed else None
        super().__init__(known or Plan(stable=version), pipeline.serve.rollout, audit)
        self.pipeline = pipeline
        threading.Thread(target=self.end_with_replicas, name="rayloom-end", daemon=True).start()
        if follows:
            threading.Thread(target=self.follow, name="rayloom-champion", daemon=True).start()

    def has_front(self) -> bool:
        """Whether the cluster was started with the environment that has its models served through HAProxy."""
        return "RAY_SERVE_HAPROXY_BINARY_PATH" in os.environ

    def end_with_replicas(self) -> None:
        """Ends this actor once no replica has come for a while and the application was deleted."""
        seen = self.clock()
        while self.clock() - seen < ABANDONED_S or self.pipeline.name in serve.status().applications:
            time.sleep(1)
            self.bury()
            seen = max([seen, *(one.seen for one in [*self.replicas.values()])])
        ray.kill(ray.get_runtime_context().current_actor)

    def bury(self) -> None:
        """Lets go of replicas that ended without a word: nothing need wait until they are silent for long enough."""
        with self.lock:
            silent = [name for name, one in self.replicas.items() if self.clock() - one.seen > SILENT_S]
        for name in silent:
            if actors(name).get("State") == "DEAD":
                self.leave(name)

    def follow(self) -> None:
        while True:
            time.sleep(self.pipeline.serve.follow_s)
            try:
                champion = tracking.champion(self.pipeline)
            except RegistryError as error:
                logger.warning("the registry cannot be asked: %s", error)
                continue
            self.consider(champion.version if champion else None)

    def consider(self, version: int | None) -> None:
        """Rolls out a champion that is new here, unless it was refused."""
        with self.lock:
            known = (None, self.plan.stable, self.plan.refused)
            if self.under_way is None and version not in known:
                self.roll_out(version)


def find(name: str) -> ray.actor.ActorHandle:
    """The coordinator of a model. Raises ValueError where none runs."""
    return ray.get_actor(_actor(name), namespace=NAMESPACE)


def _actor(name: str) -> str:
    return f"rayloom-rollouts-{name}"


def start(pipeline: config.Pipeline, version: int, follows: bool) -> ray.actor.ActorHandle:
    """A model's coordinator; where there is none, a new one.

    Args:
        version: number of the version that answers to begin with.
        follows: whether a moved @champion is rolled out by itself.
    """
    return ray.remote(Rollouts).options(  # type: ignore[return-value]  # Ray's stubs
        name=_actor(pipeline.name), namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
        num_cpus=0, max_restarts=-1, max_concurrency=8,
    ).remote(pipeline, version, follows)  # fmt: skip


def end(name: str) -> None:
    """Ends a model's coordinator, where one runs."""
    with suppress(ValueError):
        ray.kill(find(name))
