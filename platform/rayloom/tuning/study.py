"""A sweep's memory: which settings were given out, what they reached, which go on. All of it is in Optuna's storage, as it
happens, so that a sweep whose driver is killed goes on where it was, and several machines may share one.

It may be killed between any two writes: a trial comes into the storage whole, settings and owner in one, and is judged from
values alone, before its own is written. Nothing is pickled.
"""

import copy
import json
import logging
import time
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event, exc

from rayloom import config
from rayloom.config.tuning import Tune
from rayloom.errors import ConfigError, ResourceError
from rayloom.tuning import records, space
from rayloom.tuning.drawing import Drawing, sampler
from rayloom.tuning.stopping import pruner

POINT = "point"
"""Attribute of a trial that tries one of `tune.first`: its index there."""


@dataclass(frozen=True)
class Given:
    """Settings that a trial is to train.

    Attributes:
        number: the trial's.
        params: value by searched key.
        reported: epochs, counted from 1, that the study has heard of already: of a trial that goes on.
    """

    number: int
    params: dict[str, Any]
    reported: int = 0


@dataclass
class Study:
    """One sweep's view of an Optuna study.

    Attributes:
        owner: the sweep's id; trials that it has begun carry it.
        sign: 1 where a higher value is better, -1 where a lower one is.
        metric: name of what is reported.
        deadline: time.time() after which no trial begins.
    """

    study: optuna.Study
    settings: Tune
    seed: int
    owner: str
    metric: str
    sign: int
    deadline: float = float("inf")
    spent: float = 0.0
    waiting: list[Given] = field(default_factory=list)
    live: dict[int, Trial] = field(default_factory=dict)
    reading: Thread | None = None
    best_metrics: dict[int, tuple[float, dict[str, float]]] = field(default_factory=dict)

    def take(self) -> Given | None:
        """The next settings to train; None where the numbers, the time or the money of the sweep are used up.

        Settings that were given out before are not given out again: such a trial gets the other one's result.
        """
        if self.waiting:
            return self.waiting.pop(0)
        while not self._is_over():
            given = self._give(self._begin())
            if given is not None:
                return given
        return None

    def _begin(self) -> Trial:
        """Draws a trial's settings and writes it, all at once."""
        trials, keys = self.study.get_trials(deepcopy=False), self.settings.space
        tried = len({trial.user_attrs[POINT] for trial in trials if POINT in trial.user_attrs})
        point = self.settings.first[tried] if tried < len(self.settings.first) else None
        fixed = {key: space.encoded(keys[key], value) for key, value in (point or {}).items()}
        drawing = Drawing(self.study, sampler(self.settings, self.seed, len(trials)), fixed)
        space.draw(drawing.suggest, keys)
        drawn = drawing.trial({"owner": self.owner} | ({} if point is None else {POINT: tried}))
        return Trial(self.study, self.study._storage.create_new_trial(self.study._study_id, drawn))

    def _give(self, trial: Trial, reported: int = 0) -> Given | None:
        """What a trial is to train; None where another machine was faster with the last one, or its settings were given out
        before. Both are told by trials of lower numbers alone, so that whoever asks again hears the same."""
        if trial.number >= self.settings.trials:
            trial.set_user_attr("surplus", True)
            self.study.tell(trial, state=TrialState.FAIL)
            return None
        params = self._params(self._frozen(trial))
        twin = self._twin(trial, params)
        if twin is None:
            self.live[trial.number] = trial
            return Given(trial.number, params, reported)
        trial.set_user_attr("repeats", twin)
        self._settle()
        return None

    def _is_over(self) -> bool:
        """As `is_spent`; a place is free then, in which what the report needs is imported: it takes seconds."""
        if not self.is_spent():
            return False
        if self.reading is None:
            self.reading = Thread(target=import_module, args=("optuna.importance",), daemon=True)
            self.reading.start()
        return True

    def is_spent(self) -> bool:
        """Whether no further trial may begin."""
        money = self.settings.cost_budget is not None and self.spent >= self.settings.cost_budget
        return money or time.time() > self.deadline or self._given_out() >= self.settings.trials

    def _given_out(self) -> int:
        return sum(not _is_surplus(trial) for trial in self.study.get_trials(deepcopy=False))

    def _twin(self, trial: Trial, params: dict[str, Any]) -> int | None:
        """The earlier trial that has these settings."""
        for other in self.study.get_trials(deepcopy=False):
            is_first = "repeats" not in other.user_attrs and not _is_surplus(other) and other.number < trial.number
            if is_first and self._params(other) == params:
                return other.number
        return None

    def report(self, number: int, epoch: int, value: float, metrics: dict[str, float]) -> bool:
        """Notes an epoch's value; returns whether the scheduler stops the trial here. An epoch counts once.

        Args:
            epoch: counted from 1.
        """
        trial = self.live.get(number)
        if trial is None:
            return True
        best = self.best_metrics.get(number)
        if best is None or self.sign * value > self.sign * best[0]:
            self.best_metrics[number] = value, metrics
        seen = copy.copy(self._frozen(trial))
        if epoch in seen.intermediate_values:
            return False
        seen.intermediate_values = {**seen.intermediate_values, epoch: value}
        is_stopped = self.study.pruner.prune(self.study, seen)
        if is_stopped:
            stopped = {"epoch": epoch, "value": value, "metrics": self.best_metrics[number][1]}
            trial.set_user_attr("stopped", stopped)
        trial.report(value, epoch)
        return is_stopped

    def end(
        self, number: int, seconds: float, reason: str = "", cost: float = 0.0, params: dict[str, Any] = {}
    ) -> records.Trial | None:
        """Notes that a trial has ended; the first to say so is right, and the others hear None.

        Args:
            seconds: that it trained.
            reason: why it failed; empty where it did not.
            cost: what it spent, in the currency of `tune.prices`.
            params: what it was trained with in the end, where population based training has changed it.
        """
        trial = self.live.pop(number, None)
        if trial is None:
            return None
        self.spent += cost
        known = self._frozen(trial)
        _, metrics = self.best_metrics.pop(number, (None, known.user_attrs.get("stopped", {}).get("metrics", {})))
        about = {"seconds": seconds, "metrics": metrics, "reason": reason, "cost": cost}
        for name, what in {**about, **({"params": params} if params else {})}.items():
            trial.set_user_attr(name, what)
        if reason or not known.intermediate_values:
            self.study.tell(trial, state=TrialState.FAIL)
        elif known.user_attrs.get("stopped"):
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, self.sign * max(self.sign * value for value in known.intermediate_values.values()))
        self._settle()
        return self._record(self._frozen(trial))

    def _settle(self) -> None:
        """Gives repeated settings the result of those that were trained, where there is one by now."""
        trials = self.study.get_trials(deepcopy=False)
        for trial in trials:
            twin = trial.user_attrs.get("repeats")
            if trial.state != TrialState.RUNNING or twin is None or not trials[twin].state.is_finished():
                continue
            state, value = trials[twin].state, trials[twin].value
            self.study.tell(trial.number, value if state == TrialState.COMPLETE else None, state=state)

    def adopt(self) -> int:
        """Takes up the trials that this sweep had begun when its driver ended; returns how many."""
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state != TrialState.RUNNING or frozen.user_attrs.get("owner") != self.owner:
                continue
            if "repeats" in frozen.user_attrs:
                continue
            trial = Trial(self.study, frozen._trial_id)
            if stopped := frozen.user_attrs.get("stopped"):
                self.live[frozen.number] = trial
                if stopped["epoch"] not in frozen.intermediate_values:
                    trial.report(stopped["value"], stopped["epoch"])
                self.end(frozen.number, 0.0)
            elif given := self._give(trial, max(frozen.intermediate_values, default=0)):
                self.waiting.append(given)
        self._settle()
        return len(self.waiting)

    def trials(self) -> list[records.Trial]:
        """All trials by number."""
        return [self._record(trial) for trial in self.study.get_trials(deepcopy=False) if not _is_surplus(trial)]

    def close(self) -> None:
        """Closes the database; SQLite's journal goes into its file."""
        if isinstance(backend := getattr(self.study._storage, "_backend", self.study._storage), RDBStorage):
            backend.remove_session()
            backend.engine.dispose()

    def importance(self) -> dict[str, float]:
        """Part of the metric's variance by key (fANOVA; Hutter et al., 2014); empty where too few trials were trained."""
        done = [trial for trial in self.study.get_trials(deepcopy=False) if trial.state == TrialState.COMPLETE]
        if len({trial.value for trial in done}) < 2 or len(self.settings.space) < 2:
            return {}
        try:
            return optuna.importance.get_param_importances(self.study)
        except (ValueError, RuntimeError):  # no key that all trials have, or values that do not vary
            return {}

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return self.study._storage.get_trial(trial._trial_id)

    def _params(self, trial: FrozenTrial) -> dict[str, Any]:
        keys = self.settings.space
        return {key: space.decoded(keys[key], trial.params[key]) for key in keys if key in trial.params}

    def _record(self, trial: FrozenTrial) -> records.Trial:
        values, about = dict(sorted(trial.intermediate_values.items())), trial.user_attrs
        best = max(values, key=lambda epoch: self.sign * values[epoch], default=None)
        states: dict[TrialState, records.State] = {
            TrialState.COMPLETE: "complete",
            TrialState.PRUNED: "stopped",
            TrialState.FAIL: "failed",
        }
        return records.Trial(
            number=trial.number,
            state="repeat" if "repeats" in about else states.get(trial.state, "running"),
            params=about.get("params") or self._params(trial),
            values=values,
            value=None if best is None else values[best],
            best_epoch=best,
            seconds=about.get("seconds", 0.0),
            reason=about.get("reason", ""),
            repeats=about.get("repeats"),
            metrics=about.get("metrics", {}),
        )


def _is_surplus(trial: FrozenTrial) -> bool:
    return trial.user_attrs.get("surplus", False)


def open_study(pipeline: config.Pipeline, folder: Path, owner: str, about: dict[str, str], metric: str, sign: int) -> Study:
    """The sweep's study: made, or found where the sweep or another machine has made it.

    Args:
        folder: the sweep's own, for a database where none is named.
        about: what all its trials must have in common, such as the dataset version's id.
        metric: what is reported.
        sign: 1 where a higher value is better, -1 where a lower one is.

    Raises:
        ConfigError: a study of this name searches something else.
        ResourceError: its database cannot be opened.
    """
    settings = pipeline.tune
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        study = optuna.create_study(
            storage=_storage(settings.storage, folder),
            study_name=settings.study or owner,
            direction="maximize" if sign > 0 else "minimize",
            pruner=pruner(settings),
            load_if_exists=True,
        )
    except (exc.SQLAlchemyError, ImportError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ResourceError(f"tune.storage: the study's database cannot be opened ({reason:.200}); correct its URL.") from None
    _require_same(study, {**about, "metric": metric, "space": _described(settings)})
    own = [one for one in study.get_trials(deepcopy=False) if one.user_attrs.get("owner") == owner]
    spent = sum(one.user_attrs.get("cost", 0.0) for one in own)
    return Study(study, settings, pipeline.seed, owner, metric, sign, _deadline(settings, study), spent)


def _described(settings: Tune) -> str:
    return json.dumps({key: param.model_dump() for key, param in settings.space.items()})


def _deadline(settings: Tune, study: optuna.Study) -> float:
    """Counts from the study's first trial, so that a sweep that goes on has no more time than one that was not interrupted."""
    if settings.time_budget_s is None:
        return float("inf")
    begun = [one.datetime_start.timestamp() for one in study.get_trials(deepcopy=False) if one.datetime_start]
    return min([time.time(), *begun]) + settings.time_budget_s


def _storage(address: str | None, folder: Path) -> BaseStorage:
    """The database of this URL, else Optuna's journal in the folder: lines of JSON, each of which outlives a killed process. It
    keeps the trials in memory, where a database is asked for all of them again and again."""
    if address is None:
        return JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    if not address.startswith("sqlite"):
        return RDBStorage(address)
    storage = RDBStorage(address, engine_kwargs={"connect_args": {"timeout": 60}})
    event.listen(storage.engine, "connect", _write_ahead)
    storage.engine.dispose()
    return storage


def _write_ahead(connection: Any, _: Any) -> None:
    """A commit goes to SQLite's journal without waiting for the disk: it outlives a killed process, and costs no time."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _require_same(study: optuna.Study, described: dict[str, str]) -> None:
    known = study.user_attrs
    for name, value in described.items():
        if known.get(name, value) != value:
            raise ConfigError(
                f"tune: the study {study.study_name} was made for another {name} ({known[name]!s:.200}, now {value:.200}); "
                f"go on with the same pipeline file, or name another study."
            )
        if name not in known:
            study.set_user_attr(name, value)
