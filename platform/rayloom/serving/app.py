"""The model as a Ray Serve application: replicas that hold its versions, and the actor that says which of them answers.

A replica is ready only after the golden rows of the version that answers gave what training gave. A new version is loaded
beside the old one, in the replicas that run: nothing is restarted, so no request is lost.
"""

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import ray.exceptions
import torch
from ray import serve
from ray._private.state import actors
from ray.serve.context import _get_global_client

from rayloom import bundle, config, tracking
from rayloom.errors import RayloomError, RegistryError, ServingError
from rayloom.serving import capture, front, keys
from rayloom.serving.application import Application
from rayloom.serving.capture import Capture
from rayloom.serving.coordinator import Coordinator, audit_path, last_plan
from rayloom.serving.keys import Keys
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions

SYNC_S = 0.5
"""Seconds between two reports of a replica: what a change of the plan takes at most to reach it, besides loading."""

SILENT_S = 2.0
"""Of a replica that has not come for so long Ray is asked whether its process has ended."""

ABANDONED_S = 120.0
"""A coordinator that no replica has come to for so long looks whether the application is still deployed, and ends if not."""

AVERAGED_S = 12.0
"""Serve averages the requests under way over so long, and wants it to be more than 10."""

WAKE_S = 120.0
"""How long the first replica of an application that is scaled to zero may take."""

NAMESPACE = "rayloom"

logger = logging.getLogger("rayloom.serving")


def device_of(settings: config.Serve) -> str:
    """Where a replica's model computes: on its share of a GPU, whose memory it does not exceed, or on the CPU.

    Raises:
        ServingError: it has a GPU, but a torch that cannot use one.
    """
    if not settings.gpus:
        return "cpu"
    if not torch.cuda.is_available():
        raise ServingError(
            f"serve.gpus is {settings.gpus:g}, and torch {torch.__version__} sees no GPU here; install a build for CUDA."
        )
    torch.cuda.set_per_process_memory_fraction(settings.gpus)
    return "cuda"


def load(pipeline: config.Pipeline, number: int) -> Predictor:
    """The predictor of a registered version, after it gave its golden answers.

    Raises:
        RegistryError, BundleError: there is no such version, or it is not fit to be served.
    """
    version = tracking.resolve(pipeline, str(number))
    with TemporaryDirectory(prefix="rayloom-bundle-") as folder:
        loaded = bundle.load(tracking.download(pipeline, version, Path(folder)))
        predictor = Predictor(loaded, device_of(pipeline.serve), pipeline.serve.max_batch_tokens)
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
        log_at_once()
        torch.set_num_threads(1)  # passes say for themselves how many they take
        self.pipeline = pipeline
        self.coordinator = coordinator(pipeline, version, follows)
        self.name = ray.get_runtime_context().get_actor_id()
        self.versions = Versions(pipeline.name, pipeline.serve, kept_by(pipeline, str(self.name)))
        self.keys = known_to(pipeline)
        self.failed: dict[int, str] = {}
        self.loading: set[int] = set()
        self.ended, self.lock = threading.Event(), threading.Lock()
        plan, _ = self.exchange()
        self.versions.add(plan.stable, load(pipeline, plan.stable))
        self.versions.plan = plan
        for _ in range(2):  # what is being rolled out, and what came while that was loaded
            for number in self.take_up():
                self.hold(number)
        threading.Thread(target=self.keep_up, name="rayloom-versions", daemon=True).start()

    def __serve_build_asgi_app__(self) -> Application:
        return Application(self.versions, self.keys)

    def __del__(self) -> None:
        """Serve calls it when a replica is to end."""
        self.ended.set()
        self.coordinator.leave.remote(self.name)
        if self.versions.capture is not None:
            self.versions.capture.close()

    def exchange(self) -> tuple[Plan, list[int]]:
        """Reports to the coordinator; returns the newest plan and the versions to hold. Keys' rates are shared anew."""
        plan = self.versions.plan
        counts = {number: counts.as_dict() for number, counts in self.versions.counts.items()}
        report = (self.name, plan.epoch if plan else -1, list(self.versions.held), self.failed, counts)
        said: Any = ray.get(self.coordinator.sync.remote(*report), timeout=30)
        text, wanted, replicas = said
        if self.keys is not None:
            self.keys.replicas = max(1, replicas)
        return Plan.model_validate_json(text), wanted

    def keep_up(self) -> None:
        """Does what the coordinator wants, as long as the replica lives; while nobody answers there, the last plan holds."""
        while not self.ended.wait(SYNC_S):
            try:
                missing = self.take_up()
            except (ray.exceptions.RayError, ValueError) as error:
                logger.warning("no word from the coordinator: %s", error)
                continue
            for number in missing:  # in a thread, since the coordinator takes one that does not come for dead
                threading.Thread(target=self.hold, args=(number,), name=f"rayloom-load-{number}", daemon=True).start()

    def take_up(self) -> list[int]:
        """Takes the newest plan, where its version is there; returns what is to be loaded."""
        plan, wanted = self.exchange()
        with self.lock:
            if plan.stable in self.versions.held:
                self.versions.plan = plan
                self.versions.keep(set(wanted))
        self.failed = {number: reason for number, reason in self.failed.items() if number in wanted}
        missing = [number for number in wanted if number not in self.loading | self.versions.held.keys() | self.failed.keys()]
        self.loading = self.loading | {*missing}
        return missing

    def hold(self, number: int) -> None:
        try:
            predictor = load(self.pipeline, number)
            with self.lock:
                self.versions.add(number, predictor)
        except Exception as error:  # whatever a bundle does, the version that answers goes on answering
            logger.exception("version %d cannot be loaded", number)
            reason = str(error) if isinstance(error, RayloomError) else f"{type(error).__name__}: {error!s:.200}"
            self.failed = {**self.failed, number: reason}
        finally:
            self.loading = self.loading - {number}

    def wake(self) -> None:
        """Whoever calls this waits until a replica is up."""


def known_to(pipeline: config.Pipeline) -> Keys | None:
    """The API keys of those who may ask; None where everybody may."""
    settings, path = pipeline.serve, keys.path_of(pipeline.storage.path(), pipeline.name)
    return Keys(path, settings.fewest) if keys.required(settings.keys, settings.host) else None


def log_at_once() -> None:
    """Has our lines in the process's own file of errors. Serve takes what goes to sys.stderr for lines of little weight, and
    keeps a thousand of them in memory before it writes any."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.handlers = [handler]


def kept_by(pipeline: config.Pipeline, replica: str) -> Capture | None:
    """What keeps a share of a replica's requests with their answers; None where none are to be kept."""
    settings = pipeline.serve.records
    if not settings.share:
        return None
    kept = Capture(settings, capture.folder_of(pipeline.storage.path(), pipeline.name, settings), replica)
    kept.start()
    return kept


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


def require_route(pipeline: config.Pipeline) -> None:
    """Sees that the model can answer where its pipeline file says; raises ServingError as `front.require` does."""
    told = _get_global_client().get_serve_details()  # type: ignore[union-attr]  # Serve's public functions say no routes
    routes = {name: one.get("route_prefix") for name, one in told["applications"].items()}
    front.require(pipeline, (told.get("http_options") or {}).get("port"), routes)


def sleeps(name: str) -> bool:
    """Whether the application is scaled to zero."""
    found = serve.status().applications.get(name)
    return found is not None and found.status == "RUNNING" and not any(one.replica_states for one in found.deployments.values())


def wake(name: str) -> None:
    """Has an application that is scaled to zero start a replica.

    Raises:
        ServingError: it does not come.
    """

    handle = serve.get_app_handle(name)
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)  # behind HAProxy Serve would have this process run an event loop
    try:
        handle.wake.remote().result(timeout_s=WAKE_S)
    except TimeoutError:
        raise ServingError(f"{name} is scaled to zero, and no replica came within {WAKE_S:g} s; see `ray status`.") from None


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
        **replicas(settings),
        max_constructor_retry_count=1,  # a bundle that fails its golden rows once will fail them again
        max_ongoing_requests=settings.max_waiting_rows,  # our own queue is bounded, in rows
        graceful_shutdown_timeout_s=20,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus, "resources": settings.resources},
    ).bind(pipeline, version, follows)


def replicas(settings: config.Serve) -> dict[str, Any]:
    """How many there are, as Ray Serve takes it.

    Behind HAProxy each replica tells the controller of its own requests; those that wait for the first one are counted where
    they wait, in Serve's proxy.
    """
    wanted = settings.replicas
    if not isinstance(wanted, config.Scaling):
        return {"num_replicas": wanted}
    scaling = {
        "min_replicas": wanted.min,
        "max_replicas": wanted.max,
        "initial_replicas": settings.fewest,  # one at least, so that a deployment shows whether it can answer
        "target_ongoing_requests": wanted.requests,
        "upscale_delay_s": wanted.up_s,
        "downscale_delay_s": wanted.down_s,
        "look_back_period_s": AVERAGED_S,
    }
    return {"autoscaling_config": scaling}
