"""How a sweep's settings are drawn: by a sampler with a seed for each trial, in memory, until they are whole."""

import warnings
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, _get_single_value
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from rayloom.config.tuning import Tune


def sampler(settings: Tune, seed: int, number: int) -> BaseSampler:
    """What draws the trial of this number: with a seed of its own, so that a sweep that goes on draws as one that was never
    interrupted would have."""
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    if settings.sampler == "random":
        return RandomSampler(own)
    with warnings.catch_warnings():  # `group` is what lets conditional keys be learned together; Optuna calls it experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(n_startup_trials=settings.startup, seed=own, multivariate=True, group=True)


class Drawing:
    """A trial's values while they are drawn.

    Optuna's own trials write each value as it is drawn: a driver that is killed between two of them leaves a part, and no seed
    draws the rest as it would have been.

    Args:
        study: what the sampler learns from.
        sampler: draws this trial alone.
        fixed: values that are not drawn, as Optuna has them, by name.
    """

    def __init__(self, study: optuna.Study, sampler: BaseSampler, fixed: dict[str, Any]):
        storage: Any = _Unwritten(study._storage)
        self.study = optuna.load_study(study_name=study.study_name, storage=storage, sampler=sampler)
        self.fixed = fixed
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}

    def suggest(self, name: str, distribution: BaseDistribution) -> Any:
        """The next value."""
        value = self._value(name, distribution)
        self.params[name], self.distributions[name] = value, distribution
        return value

    def _value(self, name: str, distribution: BaseDistribution) -> Any:
        if name in self.fixed:
            return self.fixed[name]
        if distribution.single():
            return _get_single_value(distribution)
        if name in self._together:
            return self._together[name]
        return self.study.sampler.sample_independent(self.study, self.trial({}), name, distribution)

    @cached_property
    def _together(self) -> dict[str, Any]:
        """What the sampler draws at once, for the keys that earlier trials have had together."""
        blank, own = self.trial({}), self.study.sampler
        return own.sample_relative(self.study, blank, own.infer_relative_search_space(self.study, blank))

    def trial(self, attributes: dict[str, Any]) -> FrozenTrial:
        """A running trial with the values so far; the database gives it its number."""
        return optuna.trial.create_trial(
            state=TrialState.RUNNING, params=self.params, distributions=self.distributions, user_attrs=attributes
        )


class _Unwritten:
    """A storage that is only read from: TPE notes in it what it draws for a trial whose values are not there yet, so that no
    other draws the same; ours are there as soon as the trial is."""

    def __init__(self, storage: BaseStorage):
        self.storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def set_trial_system_attr(self, *note: Any) -> None:
        pass
