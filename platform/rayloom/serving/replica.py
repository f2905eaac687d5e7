"""A replica: the process that holds a model's versions and answers with the one that the coordinator says.

It is ready only after the golden rows of that version gave what training gave. A new version is loaded beside the old one, in
the replica that runs: nothing is restarted, so no request is lost.
"""

import logging
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
import ray.exceptions
import torch
from ray import serve

from rayloom import bundle, config, tracking
from rayloom.errors import RayloomError, ServingError
from rayloom.serving import capture, keys, rollouts
from rayloom.serving.application import Application
from rayloom.serving.capture import Capture
from rayloom.serving.keys import Keys
from rayloom.serving.plan import Plan
from rayloom.serving.predictor import Predictor
from rayloom.serving.versions import Versions

SYNC_S = 0.5
"""Seconds between two reports of a replica: what a change of the plan takes at most to reach it, besides loading."""

logger = logging.getLogger("rayloom.serving")


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
        self.coordinator = rollouts.start(pipeline, version, follows)
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


def known_to(pipeline: config.Pipeline) -> Keys | None:
    """The API keys of those who may ask; None where everybody may."""
    settings, path = pipeline.serve, keys.path_of(pipeline.storage.path(), pipeline.name)
    return Keys(path, settings.fewest) if keys.required(settings.keys, settings.host) else None


def kept_by(pipeline: config.Pipeline, replica: str) -> Capture | None:
    """What keeps a share of a replica's requests with their answers; None where none are to be kept."""
    settings = pipeline.serve.records
    if not settings.share:
        return None
    kept = Capture(settings, capture.folder_of(pipeline.storage.path(), pipeline.name, settings), replica)
    kept.start()
    return kept


def log_at_once() -> None:
    """Has our lines in the process's own file of errors. Serve takes what goes to sys.stderr for lines of little weight, and
    keeps a thousand of them in memory before it writes any."""
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.handlers = [handler]
