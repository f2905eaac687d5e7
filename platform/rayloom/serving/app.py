"""The model as a Ray Serve application: replicas that hold its versions, and the actor that says which of them answers.

A replica is ready only after the golden rows of the version that answers gave what training gave. A new version is loaded
beside the old one, in the replicas that run: nothing is restarted, so no request is lost.
"""

import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import ray
import ray.exceptions
import torch
from ray import serve

from rayloom import bundle, config, tracking
from rayloom.errors import RayloomError, RegistryError
from rayloom.serving import keys
from rayloom.serving.application import Application
from rayloom.serving.coordinator import Coordinator, audit_path, last_plan
from rayloom.serving.keys import Keys
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions

SYNC_S = 0.5
"""Seconds between two reports of a replica: what a change of the plan takes at most to reach it, besides loading."""

ABANDONED_S = 120.0
"""A coordinator that no replica has come to for so long ends: the application was deleted."""

NAMESPACE = "rayloom"

logger = logging.getLogger("rayloom.serving")


def load(pipeline: config.Pipeline, number: int) -> Predictor:
    """The predictor of a registered version, after it gave its golden answers.

    Raises:
        RegistryError, BundleError: there is no such version, or it is not fit to be served.
    """
    version = tracking.resolve(pipeline, str(number))
    with TemporaryDirectory(prefix="rayloom-bundle-") as folder:
        predictor = Predictor(bundle.load(tracking.download(pipeline, version, Path(folder))))
    predictor.replay(pipeline.serve.tolerance)
    return predictor


@serve.deployment
@serve.ingress()
class PredictService:
    """A replica.

    Args:
        pipeline: the pipeline file; says where the registry is and what a request may hold.
        version, follows: for the coordinator, where none runs yet.

    Raises:
        RegistryError, BundleError: the version that answers cannot be loaded; the replica does not become ready.
    """

    def __init__(self, pipeline: config.Pipeline, version: int, follows: bool):
        torch.set_num_threads(1)  # a replica is given one CPU
        self.pipeline = pipeline
        self.coordinator = coordinator(pipeline, version, follows)
        self.versions = Versions(pipeline.name, pipeline.serve)
        self.failed: dict[int, str] = {}
        self.name = ray.get_runtime_context().get_actor_id()
        plan, _ = self.exchange()
        self.versions.add(plan.stable, load(pipeline, plan.stable))
        self.versions.plan = plan
        threading.Thread(target=self.keep_up, name="rayloom-versions", daemon=True).start()

    def __serve_build_asgi_app__(self) -> Application:
        settings, path = self.pipeline.serve, keys.path_of(self.pipeline.storage.path(), self.pipeline.name)
        return Application(
            self.versions, Keys(path, settings.replicas) if keys.required(settings.keys, settings.host) else None
        )

    def exchange(self) -> tuple[Plan, list[int]]:
        """Reports to the coordinator; returns the newest plan and the versions to hold."""
        plan = self.versions.plan
        counts = {number: counts.as_dict() for number, counts in self.versions.counts.items()}
        report = (self.name, plan.epoch if plan else -1, list(self.versions.held), self.failed, counts)
        text, wanted = cast(tuple[str, list[int]], ray.get(self.coordinator.sync.remote(*report), timeout=30))
        return Plan.model_validate_json(text), wanted

    def keep_up(self) -> None:
        """Does what the coordinator wants, as long as the replica lives; while nobody answers there, the last plan holds."""
        while True:
            time.sleep(SYNC_S)
            try:
                plan, wanted = self.exchange()
            except (ray.exceptions.RayError, ValueError) as error:
                logger.warning("no word from the coordinator: %s", error)
                continue
            for number in wanted:
                self.hold(number)
            if plan.stable in self.versions.held:
                self.versions.plan = plan
                self.versions.keep(set(wanted))
            self.failed = {number: reason for number, reason in self.failed.items() if number in wanted}

    def hold(self, number: int) -> None:
        if number in self.versions.held or number in self.failed:
            return
        try:
            self.versions.add(number, load(self.pipeline, number))
        except Exception as error:  # whatever a bundle does, the version that answers goes on answering
            logger.exception("version %d cannot be loaded", number)
            self.failed[number] = str(error) if isinstance(error, RayloomError) else f"{type(error).__name__}: {error!s:.200}"


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

    def end_with_replicas(self) -> None:
        """Ends this actor once no replica has come for a while: the application was deleted."""
        began = self.clock()
        while self.clock() - max([began, *(one.seen for one in self.replicas.values())]) < ABANDONED_S:
            time.sleep(1)
        ray.kill(ray.get_runtime_context().current_actor)

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


def coordinator(pipeline: config.Pipeline, version: int, follows: bool) -> ray.actor.ActorHandle:
    """The model's coordinator; where there is none, a new one.

    Args:
        version: number of the version that answers to begin with.
        follows: whether a moved @champion is rolled out by itself.
    """
    return ray.remote(Rollouts).options(  # type: ignore[return-value]  # Ray's stubs
        name=_actor(pipeline.name), namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
        num_cpus=0, max_restarts=-1, max_concurrency=8,
    ).remote(pipeline, version, follows)  # fmt: skip


def end_coordinator(name: str) -> None:
    """Ends a model's coordinator, where one runs."""
    with suppress(ValueError):
        ray.kill(find(name))


def build(pipeline: config.Pipeline, version: int, follows: bool = False) -> serve.Application:
    """The application.

    Args:
        version: number of the version that answers to begin with.
        follows: whether a moved @champion is rolled out by itself.
    """
    settings = pipeline.serve
    return PredictService.options(  # type: ignore[attr-defined]  # @serve.deployment made it a Deployment
        num_replicas=settings.replicas,
        max_constructor_retry_count=1,  # a bundle that fails its golden rows once will fail them again
        max_ongoing_requests=settings.max_waiting_rows,  # our own queue is bounded, in rows
        graceful_shutdown_timeout_s=20,
        ray_actor_options={"num_cpus": 1, "resources": settings.resources},
    ).bind(pipeline, version, follows)
