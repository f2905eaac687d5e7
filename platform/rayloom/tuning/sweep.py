"""A sweep on Ray Tune: the study says what to train and what to stop, Tune's actors train it, and everybody hears of it.

Tune is given its own kinds of parts: a Searcher that asks the study, a Stopper that reports to it, and a Callback that watches.
Tune's own state is written but never read back: what a sweep goes on from is the study's storage and the trials' checkpoints.
"""

import fcntl
import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, Stopper, TuneConfig, Tuner
from ray.tune.callback import Callback
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import Searcher

from rayloom import checkpoints, cluster, config, environment
from rayloom.config.tuning import Param
from rayloom.datasets import Encoded
from rayloom.errors import ConfigError, ResourceError
from rayloom.tuning import records, trial
from rayloom.tuning.study import Given, Study

AHEAD = 1
"""Trials whose settings are drawn before a place for them is free, so that no place waits for the sampler. None where
`tune.concurrency` says how many run at once: one that waited could find room."""

LOOK_SECONDS = 1.0
"""How often the watchdog looks."""

MUTABLE = ("train.lr", "train.weight_decay", "train.momentum", "train.label_smoothing", "train.clip_norm")
"""Keys that population based training may change while a trial runs: the weights fit whatever they are."""


class Listener(Protocol):
    """Hears of a sweep while it runs."""

    def begin(self, number: int, params: dict[str, Any]) -> None: ...

    def epoch(self, number: int, epoch: int, value: float, metrics: dict[str, float]) -> None: ...

    def end(self, ended: records.Trial) -> None: ...

    def warn(self, text: str) -> None: ...


def require_room(pipeline: config.Pipeline) -> tuple[int, str]:
    """How many trials run at once, and the arithmetic in a sentence.

    Raises:
        ResourceError: there is no room for a single one.
    """
    settings = pipeline.tune
    one = cluster.times(trial.per_worker(pipeline), settings.workers_per_trial)
    cluster.require(one, "a trial", "lower tune.workers_per_trial or train.cpus", pipeline.cluster)
    wanted = min(settings.concurrency or settings.trials, settings.trials)
    asks = ", ".join(f"{amount:g} {name}" for name, amount in one.items())
    if pipeline.cluster.autoscales:
        slots = wanted if settings.concurrency else min(wanted, 8)
        return slots, f"{settings.trials} trials of {asks} each, {slots} at once: the cluster grows to them"
    total, free = ray.cluster_resources(), ray.available_resources()
    room = min(_whole(free.get(name, 0.0), amount) for name, amount in one.items() if amount)
    has = ", ".join(f"{total.get(name, 0):g} {name} ({free.get(name, 0):g} free)" for name in one)
    slots = max(1, min(wanted, room))
    capped = " (tune.concurrency does not fit)" if settings.concurrency and room < settings.concurrency else ""
    return slots, f"{settings.trials} trials of {asks} each, the cluster has {has}: {slots} at once{capped}"


def _whole(free: float, amount: float) -> int:
    return int(free / amount + 1e-6)


def require_searchable(pipeline: config.Pipeline) -> None:
    """Raises ConfigError where population based training would have to change what weights cannot follow."""
    if pipeline.tune.scheduler != "pbt":
        return
    for key in pipeline.tune.space:
        if key not in MUTABLE:
            raise ConfigError(
                f"tune.space: pbt changes settings while a trial trains, and '{key}' cannot change then; search "
                f"{', '.join(MUTABLE)} alone, or choose another tune.scheduler."
            )


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps other commands off a sweep's folder for the length of the block.

    Raises:
        ResourceError: one is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".sweep.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(f"The sweep {folder.name} is at work in another process; wait for it, or stop it.") from None
        yield


def consolidated(splits: dict[str, Encoded]) -> dict[str, Encoded]:
    """The splits in a block each, so that every actor of a node reads the same memory."""
    return {name: Encoded([ray.put(encoded.read(0, encoded.rows))], [encoded.rows]) for name, encoded in splits.items()}


def run(job: trial.Job, study: Study, slots: int, listeners: list[Listener]) -> float:
    """Runs trials until the study gives out no more; each is in the study when this returns. Returns the seconds it took.

    Args:
        slots: trials at once.
        listeners: hear of each trial in the order given.
    """
    pipeline, began = job.pipeline, time.perf_counter()
    most = slots + (0 if pipeline.tune.concurrency else AHEAD)
    search = _Search(study, slots, most)
    judge = _Judge(study, job, search, listeners)
    with _environment(most):
        Tuner(
            tune.with_resources(tune.with_parameters(trial.Training, job=job), trial.resources(pipeline)),
            tune_config=TuneConfig(
                search_alg=search,
                scheduler=_scheduler(pipeline, study.sign),
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=RunConfig(
                name="tune",
                storage_path=str(job.folder),
                stop=judge,
                callbacks=[judge.watch],
                failure_config=FailureConfig(max_failures=pipeline.tune.max_failures),
                checkpoint_config=CheckpointConfig(num_to_keep=3, checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
    shutil.rmtree(job.folder / "tune", ignore_errors=True)
    judge.keep_the_best()
    return time.perf_counter() - began


@contextmanager
def _environment(pending: int) -> Iterator[None]:
    """What Tune reads from the environment, and its silence, for the length of the block."""
    wanted = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # MLflow has each curve; files beside it would cost a write a result
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that failed has no value, and says so
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends a sweep as it ends any command
        "TUNE_MAX_PENDING_TRIALS_PG": str(pending),
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune's own state is never read
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",
        "RAY_AIR_NEW_OUTPUT": "0",  # the older output keeps silent where it is told to
    }
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with environment.variables(wanted):
            yield
    finally:
        logger.setLevel(level)


def _scheduler(pipeline: config.Pipeline, sign: int) -> TrialScheduler:
    settings = pipeline.tune
    if settings.scheduler != "pbt":
        return FIFOScheduler()  # the study stops trials
    return _Population(
        time_attr="epoch",
        metric="value",
        mode="max" if sign > 0 else "min",
        perturbation_interval=settings.grace,
        quantile_fraction=min(0.5, 1 / settings.reduction),
        hyperparam_mutations={"params": {key: _domain(param) for key, param in settings.space.items()}},
    )


class _Population(PopulationBasedTraining):
    """Population based training (Jaderberg et al., 2017) in which a trial that takes over another's weights and settings stays
    itself. Tune refuses searchers beside its own, which draws settings; here the study gives them out, and keeps count."""

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        super().on_trial_add(SimpleNamespace(search_alg=None), trial)  # type: ignore[arg-type]

    def _get_new_config(self, trial: TuneTrial, trial_to_clone: TuneTrial) -> tuple[dict, dict]:
        new_config, operations = super()._get_new_config(trial, trial_to_clone)
        return {**new_config, "number": trial.config["number"]}, operations


def _domain(param: Param) -> Any:
    match param.kind:
        case "choice":
            return tune.choice(param.choice or [])
        case "int":
            return tune.randint(param.int[0], param.int[1] + 1)  # type: ignore[index]
        case "uniform":
            return tune.uniform(*param.uniform)  # type: ignore[misc]
        case _:
            return tune.loguniform(*param.loguniform)  # type: ignore[misc]


class _Unsaved:
    """A part of Tune's that has nothing to save: Tune pickles its parts, for a start anew that we never ask of it."""

    def __reduce__(self) -> tuple:
        return type(None), ()

    def __deepcopy__(self, memo: dict) -> Any:
        return self


class _Search(_Unsaved, Searcher):
    """Gives Tune what the study gives out."""

    def __init__(self, study: Study, slots: int, most: int):
        super().__init__()
        self.study, self.slots, self.most = study, slots, most
        self.given: dict[str, Given] = {}
        self.ended: Any = lambda trial_id, error: None

    def suggest(self, trial_id: str) -> Any:
        if len(self.given) >= self.most:
            return None
        given = self.study.take()
        if given is None:
            return None if self.given else Searcher.FINISHED
        self.given[trial_id] = given
        return {"number": given.number, "params": given.params}

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        self.ended(trial_id, error)
        self.given.pop(trial_id, None)

    def save(self, checkpoint_path: str) -> None:
        """Has nothing to save: the study's storage is its memory."""

    def restore(self, checkpoint_path: str) -> None:
        """Has nothing to restore."""


class _Judge(_Unsaved, Stopper):
    """Tells the study and the listeners of each result, and Tune whether the study stops the trial."""

    def __init__(self, study: Study, job: trial.Job, search: _Search, listeners: list[Listener]):
        self.study, self.job, self.search, self.listeners = study, job, search, listeners
        self.watch = _Watch(self)
        self.results: dict[str, dict[str, Any]] = {}
        self.best: records.Trial | None = None
        search.ended = self.end

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.results[trial_id] = result
        self.watch.heard(trial_id)
        is_stopped = [self._hear(result["number"], metrics) for metrics in json.loads(result["epochs"])]
        return "failed" in result or any(is_stopped)

    def _hear(self, number: int, metrics: dict[str, float]) -> bool:
        """An epoch is over; returns whether the study stops the trial after it."""
        epoch, value = int(metrics["epoch"]) + 1, metrics[f"validation_{self.job.metric}"]
        for listener in self.listeners:
            listener.epoch(number, epoch, value, metrics)
        return self.study.report(number, epoch, value, metrics)

    def stop_all(self) -> bool:
        return False

    def end(self, trial_id: str, error: bool) -> None:
        """A trial is over: in the study, and then in everybody's ears."""
        given, result = self.search.given.get(trial_id), self.results.pop(trial_id, {})
        if given is None:
            return
        seconds = result.get("seconds", 0.0)
        reason = result.get("failed", "")
        if error and not reason:
            reason = self.watch.reason(trial_id)
        trained = json.loads(result.get("params", "{}"))
        changed = trained if trained != given.params else {}
        ended = self.study.end(given.number, seconds, reason, self._cost(seconds), changed)
        if ended is None:
            return
        self._forget(ended)
        for listener in self.listeners:
            listener.end(ended)

    def _cost(self, seconds: float) -> float:
        settings = self.job.pipeline.tune
        hourly = {name: amount * settings.prices.get(name, 0.0) for name, amount in trial.per_worker(self.job.pipeline).items()}
        return sum(hourly.values()) * settings.workers_per_trial * seconds / 3600

    def _forget(self, ended: records.Trial) -> None:
        """Removes the checkpoints of all but the best trial: a sweep of thousands keeps one model."""
        rest: records.Trial | None = ended
        if ended.state == "complete" and ended.value is not None:
            if self.best is None or self.study.sign * ended.value > self.study.sign * (self.best.value or 0.0):
                self.best, rest = ended, self.best
        if rest is not None:
            checkpoints.remove(trial.folder_of(self.job.folder, rest.number).parent)

    def keep_the_best(self) -> None:
        """Removes what a trial has written after it was stopped, and the models of an earlier start that were surpassed."""
        best = records.best(self.study.trials(), self.study.sign)
        kept = trial.folder_of(self.job.folder, best.number).parent if best else None
        for folder in (self.job.folder / "trials").glob("*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)


class _Watch(_Unsaved, Callback):
    """Says of a trial that begins that it does, of one that waits or is silent for long what for, and why one has died."""

    def __init__(self, judge: _Judge):
        self.judge = judge
        self.since: dict[str, float] = {}
        self.begun: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.looked = 0.0

    def heard(self, trial_id: str) -> None:
        self.since[trial_id] = time.monotonic()

    def reason(self, trial_id: str) -> str:
        return self.reasons.get(trial_id, "its process died (killed, or out of memory)")

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        self.heard(trial.trial_id)
        given = self.judge.search.given.get(trial.trial_id)
        if given is not None and trial.trial_id not in self.begun:
            self.begun.add(trial.trial_id)
            for listener in self.judge.listeners:
                listener.begin(given.number, given.params)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        error = trial.get_error()
        if error is not None:
            lines = str(getattr(error, "cause", None) or error).strip().splitlines() or [type(error).__name__]
            self.reasons[trial.trial_id] = f"its process died: {lines[0]:.300}"

    def on_step_begin(self, iteration: int, trials: list[TuneTrial], **info: Any) -> None:
        now = time.monotonic()
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        limit = self.judge.job.pipeline.tune.wait_s
        given = self.judge.search.given
        active = [one for one in trials[-2 * len(given) - 8 :] if one.trial_id in given]
        running = sum(one.status == TuneTrial.RUNNING for one in active)
        for one in active:
            waited = now - self.since.setdefault(one.trial_id, now)
            is_next = one.status == TuneTrial.PENDING and running >= self.judge.search.slots
            if is_next or waited < limit:
                if is_next:
                    self.since[one.trial_id] = now
                continue
            self.since[one.trial_id] = now  # again after as long
            self._name(one, waited)

    def _name(self, one: TuneTrial, waited: float) -> None:
        number = self.judge.search.given[one.trial_id].number
        if one.status == TuneTrial.PENDING:
            wants = trial.resources(self.judge.job.pipeline).required_resources
            free = ray.available_resources()
            lacks = ", ".join(f"{amount:g} {name} ({free.get(name, 0):g} free)" for name, amount in wants.items() if amount)
            text = f"trial {number} has waited {waited:.0f} s for {lacks}; see who holds the rest with `ray status`"
        else:
            text = f"trial {number} has said nothing for {waited:.0f} s; it trains, or hangs: see its worker's log"
        for listener in self.judge.listeners:
            listener.warn(text)
