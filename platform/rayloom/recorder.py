"""The one process that writes a sweep's runs into MLflow: a parent run, and below it a child run a trial.

MLflow on SQLite has one writer at a time, and looks first and writes then: writers that meet on a fresh file break each other's
tables and experiments, and on any file they wait for each other (`python -m benchmarks.recorder`). So trials send their points
to a `Recorder`. It is made for repetition: opening a run again finds it, and a point that is sent twice is stored once, also by
another recorder after a crash, since what is there already is asked of the store.

Not covered: two recorders that open the same run for the first time at the same moment on a tracking server; on SQLite the
file's lock keeps them apart.
"""

import atexit
import hashlib
import json
import math
import operator
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from rayloom import config
from rayloom.errors import RayloomError, RegistryError, hint
from rayloom.metric_names import LONGEST, LONGEST_TAG, encode, whole_tags

KEY_TAG = "rayloom.recorder.key"
"""Tag by which a run is found again: a digest of its parent and name."""

PARENT_TAG = "mlflow.parentRunId"

STATUSES = ("FINISHED", "FAILED", "KILLED")

WAIT_SECONDS = 1.0
"""How long a point waits for others to be written with: as much as a recorder that is killed can lose."""

METRICS, LABELS, SIZE = 1000, 100, 900_000
"""What one request to MLflow takes: metrics; params or tags; bytes (it allows 1 MB), a letter taking up to six in JSON."""

LONGEST_PARAM = 6000
LARGEST = 2**63 - 1


class Point(NamedTuple):
    """One value of a curve. `timestamp` is in milliseconds since 1970."""

    key: str
    value: float
    step: int
    timestamp: int


class Recorder:
    """The writer of one pipeline's tracking store. May be called from several threads.

    Args:
        wait_s: how long a point may wait for others.
    """

    def __init__(self, pipeline: config.Pipeline, wait_s: float = WAIT_SECONDS):
        from rayloom import tracking  # imports MLflow, which takes seconds: in this process only

        self._tracking = tracking
        self._pipeline, self._wait_s = pipeline, wait_s
        self._experiment: str | None = None
        self._client: Any = None
        self._seen: dict[str, set[tuple[str, int]]] = {}
        self._waiting: dict[str, list[Point]] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        atexit.register(self.stop)

    def open(self, name: str, parent: str | None = None, params: Mapping[str, Any] = {}, tags: Mapping[str, Any] = {}) -> str:
        """The id of the run that has this name below this parent; made where there is none yet.

        A param that the run has already keeps its first value, a tag takes the new one, the status stays as it is. Values
        that are URLs lose user and password.

        Args:
            parent: id of the parent run.
        """
        digest = hashlib.sha256(json.dumps([parent, name]).encode()).hexdigest()
        own = {KEY_TAG: digest, **({PARENT_TAG: parent} if parent else {})}
        with self._store() as client:
            if found := client.search_runs([self._experiment], f"tags.`{KEY_TAG}` = '{digest}'", max_results=1):
                run = found[0]
                params = {name: value for name, value in params.items() if encode(name) not in run.data.params}
            else:
                given = own | self._labels([*params], tags)  # each tag that comes later costs as much as twenty points
                run, tags = client.create_run(self._experiment, tags=given, run_name=name[:LONGEST]), {}
            key = run.info.run_id
            self._send(client, key, params, tags)
            if key not in self._seen:
                self._seen[key] = _stored_places(client, run)
        return key

    def log(self, run: str, points: Iterable[tuple[str, float, int, int]]) -> int:
        """Takes points (key, value, step, timestamp in ms), to be written within `wait_s`.

        Of the points of one (run, key, step) the first one counts. NaN is stored as NaN; MLflow's database keeps an infinite
        value as the largest number of its sign.

        Returns:
            How many of them were new.

        Raises:
            RegistryError: the store has no such run, or a point is none; the other points are taken all the same.
        """
        refused, taken = [], 0
        with self._lock:
            seen = self._places(run)
            for given in points:
                try:
                    point = _checked(*given)
                    place = (encode(point.key), point.step)
                except (RayloomError, TypeError, ValueError, OverflowError):
                    refused.append(given)
                    continue
                if place not in seen:
                    seen.add(place)
                    self._waiting.setdefault(run, []).append(point)
                    taken += 1
            self._write_later()
        if refused:
            raise RegistryError(
                f"{len(refused)} points are none, such as {refused[0]!r:.200}; send (name, number, whole step, milliseconds)."
            )
        return taken

    def close(
        self, run: str, status: str = "FINISHED", tags: Mapping[str, Any] = {}, metrics: Mapping[str, float] = {}
    ) -> None:
        """Writes what waits for this run, its last tags and figures, and its end.

        Args:
            status: one of `STATUSES`.
            metrics: figures of the whole run, with names that no curve has. One that the run has already, with the same
                value, is not written again; one with another value is written at the next step, so that MLflow shows it.

        Raises:
            RegistryError: the status is unknown, or MLflow refuses.
        """
        if status not in STATUSES:
            raise RegistryError(f"A run cannot end as '{status:.40}'{hint(status, STATUSES)}")
        try:
            figures = {name: float(value) for name, value in metrics.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise RegistryError(
                f"A figure of the run is no number ({error}); send numbers as metrics, other things as tags."
            ) from None
        with self._store() as client:
            waiting = self._waiting.setdefault(run, [])
            if figures:
                latest = {**client.get_run(run).data.metrics, **{encode(point.key): point.value for point in waiting}}
                waiting += self._figures(latest, run, figures)
            self._send(client, run, {}, tags)
            client.set_terminated(run, status)
            self._seen.pop(run, None)  # a point that comes later asks the store

    def flush(self) -> None:
        """Writes all that waits. A run that MLflow refuses does not keep the others from being written.

        Raises:
            RegistryError: MLflow refused one; its points wait on.
        """
        errors = []
        with self._lock:
            for run in list(self._waiting):
                try:
                    with self._store() as client:
                        self._send(client, run)
                except RegistryError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Writes all that waits, and leaves no thread behind. Also called when the process ends in an orderly way."""
        with self._lock:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            self.flush()

    @contextmanager
    def _store(self) -> Iterator[Any]:
        """MLflow's client, with the store's lock held. Blocks may nest; the file's lock may not: it would wait for itself."""
        with self._lock:
            if self._client is not None:
                yield self._client
                return
            with self._tracking._client(self._pipeline) as client:
                if self._experiment is None:
                    self._experiment = self._tracking._experiment(client, self._pipeline)
                self._client = client
                try:
                    yield client
                finally:
                    self._client = None

    def _places(self, run: str) -> set[tuple[str, int]]:
        """(encoded key, step) of all points of this run, stored and waiting."""
        if run not in self._seen:
            with self._store() as client:
                self._seen[run] = _stored_places(client, client.get_run(run))
        return self._seen[run]

    def _write_later(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = threading.Timer(self._wait_s, self._write_now)
            self._timer.daemon = True
            self._timer.start()

    def _write_now(self) -> None:
        with self._lock:
            if self._timer is None:  # stopped while this waited for the lock
                return
            self._timer = None
            try:
                self.flush()
            except RegistryError as error:
                print(f"recorder: {error} Trying again.", file=sys.stderr)
            finally:
                self._write_later()

    def _send(self, client: Any, run: str, params: Mapping[str, Any] = {}, tags: Mapping[str, Any] = {}) -> None:
        """Writes what waits for this run, with these params and tags, in as few requests as may be."""
        from mlflow.entities import Metric, Param, RunTag

        waiting = self._waiting.get(run, [])
        labels = self._labels([*params, *(point.key for point in waiting)], tags)
        entities = [
            *(Param(encode(name), self._shown(value, LONGEST_PARAM)) for name, value in params.items()),
            *(RunTag(name, value) for name, value in labels.items()),
            *(Metric(encode(point.key), point.value, point.timestamp, point.step) for point in waiting),
        ]
        for batch in _batches(entities):
            kinds = {kind: [one for one in batch if isinstance(one, kind)] for kind in (Metric, Param, RunTag)}
            client.log_batch(run, metrics=kinds[Metric], params=kinds[Param], tags=kinds[RunTag])
            del waiting[: len(kinds[Metric])]
        self._waiting.pop(run, None)

    def _labels(self, names: list[str], tags: Mapping[str, Any]) -> dict[str, str]:
        """Tags as MLflow takes them, with those that keep what it cuts off of these names."""
        whole = {**whole_tags([*names, *tags]), **tags}
        return {encode(name): self._shown(value, LONGEST_TAG) for name, value in whole.items()}

    def _shown(self, value: Any, longest: int) -> str:
        text = self._tracking.without_password(str(value))
        return text if len(text) <= longest else text[: longest - 1] + "…"

    def _figures(self, latest: Mapping[str, float], run: str, metrics: Mapping[str, float]) -> list[Point]:
        places, now, found = self._places(run), int(time.time() * 1000), []
        for name, value in metrics.items():
            key = encode(name)
            if key not in latest or not _same(latest[key], value):
                step = max((step for one, step in places if one == key), default=-1) + 1
                found.append(Point(name, value, step, now))
        places.update((encode(point.key), point.step) for point in found)
        return found


def _batches(entities: list[Any]) -> Iterator[list[Any]]:
    """The entities in order, as many together as one request takes; each fills a part of it by its number and its size."""
    batch: list[Any] = []
    filled = 0.0
    for one in entities:
        part = 1 / (METRICS if hasattr(one, "step") else LABELS) + 6 * (len(one.key) + len(str(one.value)) + 40) / SIZE
        if batch and filled + part > 1:
            yield batch
            batch, filled = [], 0.0
        batch.append(one)
        filled += part
    if batch:
        yield batch


def _stored_places(client: Any, run: Any) -> set[tuple[str, int]]:
    """(encoded key, step) of all points that the store has of this run."""
    key = run.info.run_id
    return {(point.key, point.step) for name in run.data.metrics for point in client.get_metric_history(key, name)}


def _checked(key: str, value: float, step: int, timestamp: int) -> Point:
    point = Point(key, float(value), operator.index(step), operator.index(timestamp))
    if not isinstance(key, str) or abs(point.step) > LARGEST or not 0 <= point.timestamp <= LARGEST:
        raise ValueError(point)
    return point


def _same(stored: float, value: float) -> bool:
    largest = sys.float_info.max  # how MLflow's database keeps an infinite value
    return stored == min(max(value, -largest), largest) or (math.isnan(stored) and math.isnan(value))


def start(pipeline: config.Pipeline) -> Any:
    """A `Recorder` as a Ray actor without CPUs, on this node, where an SQLite file lies; end it with `stop`.

    One that dies is started again, and calls that it had not answered are repeated: they are made for that. At most the points
    of its last `WAIT_SECONDS` are lost.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0, max_restarts=3, max_task_retries=3)(Recorder)
    return actor.options(scheduling_strategy=here).remote(pipeline)


def stop(recorder: Any) -> None:
    """Writes all that the actor of `start` has taken, and ends it.

    Raises:
        RegistryError: MLflow refused a part.
    """
    import ray

    try:
        ray.get(recorder.stop.remote())
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        ray.kill(recorder)
