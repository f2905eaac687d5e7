"""The tune section of the pipeline file: what is searched, how, and within which limits."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rayloom.config.base import Name, Resources, Section, Share

SWEPT = ("train.", "model.")
"""Sections whose keys a sweep may vary: rows and features are made once for all trials."""

FIXED = (
    "train.launcher",
    "train.workers",
    "train.min_workers",
    "train.cpus",
    "train.gpu",
    "train.resources",
    "train.local_mode",
)
"""Keys that decide where a trial runs, not how good it is."""

KINDS = ("uniform", "loguniform", "int", "choice")
"""What a searched key may be."""

Range = Annotated[list[float], Field(min_length=2, max_length=2)]
Whole = Annotated[list[int], Field(min_length=2, max_length=2)]


class Param(Section):
    """What a key may be: exactly one of `uniform`, `loguniform`, `int` and `choice`. Ranges contain both ends."""

    uniform: Range | None = None
    loguniform: Range | None = None
    int: Whole | None = None
    choice: Annotated[list[Any], Field(min_length=1, max_length=1000)] | None = None
    step: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="with uniform and int: only every step-th value"
    )
    when: dict[str, Any] = Field(default={}, description="only where these searched keys have these values (one, or a list)")

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _one_kind(self) -> "Param":
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a searched key has {' and '.join(given) or 'no range'}; write one of uniform, loguniform, int, choice"
            )
        if given != ["choice"]:
            low, high = getattr(self, given[0])
            if low >= high:
                raise ValueError(f"{given[0]} goes from {low} to {high}; write the lower end first")
            if given == ["loguniform"] and low <= 0:
                raise ValueError(f"loguniform begins at {low}; it must be above 0")
        if self.step is not None and given[0] not in ("uniform", "int"):
            raise ValueError(f"step goes with uniform and int, not with {given[0]}; remove it")
        if self.step is not None and given == ["int"] and self.step != round(self.step):
            raise ValueError(f"step is {self.step} for whole numbers; write a whole one")
        return self


class Tune(Section):
    """A sweep over `space`. A trial is one training run; it is judged by its best epoch's validation metric."""

    enabled: bool = Field(default=False, description="whether jobs.pipeline sweeps before it trains the winner")
    space: dict[str, Param] = Field(default={}, description="train.* and model.* keys by their dotted names")
    trials: int = Field(default=20, ge=1, le=100_000)
    metric: str | None = Field(default=None, description="of validation; default: evaluate.metric, or what that is by default")
    mode: Literal["max", "min"] | None = Field(default=None, description="default: the metric's own direction")
    sampler: Literal["tpe", "random"] = "tpe"
    startup: int = Field(default=10, ge=1, description="sampler tpe: trials drawn at random before it learns")
    first: list[dict[str, Any]] = Field(default=[], description="values to try first, by searched key; missing ones are drawn")
    scheduler: Literal["asha", "median", "pbt", "none"] = "asha"
    grace: int = Field(default=1, ge=1, description="epochs that every trial has before it may be stopped")
    reduction: int = Field(
        default=3, ge=2, le=100, description="asha: one in so many goes on at each rung; pbt: so many quarters"
    )
    concurrency: int | None = Field(
        default=None, ge=1, description="trials at once; default: as many as the cluster has room for"
    )
    workers_per_trial: int = Field(default=1, ge=1, le=4096)
    gpu_share: float = Field(default=1.0, gt=0, le=1, description="part of a GPU that a worker takes, where train.gpu is set")
    time_budget_s: float | None = Field(default=None, gt=0, description="no trial starts after so many seconds")
    cost_budget: float | None = Field(default=None, gt=0, description="no trial starts once so much is spent; needs prices")
    prices: Resources = Field(default={}, description="of an hour of one CPU, one GPU and so on, for cost_budget")
    wait_s: float = Field(
        default=60.0, gt=0, description="a trial that waits longer, or is silent longer, is named with what for"
    )
    max_failed: Share = Field(default=0.5, description="a larger part of failed trials makes the sweep fail")
    max_failures: int = Field(
        default=0, ge=0, description="how often a trial whose process died starts again, from its checkpoint"
    )
    storage: str | None = Field(
        default=None, description="Optuna's database, such as postgresql://host/name; default: a journal in the run's folder"
    )
    study: Name | None = Field(default=None, description="name in `storage`; machines with the same one share its trials")
    seeds: int = Field(default=3, ge=1, le=100, description="how often the winner is trained again, with seeds of their own")

    @field_validator("space")
    @classmethod
    def _keys(cls, space: dict[str, Param]) -> dict[str, Param]:
        for key in space:
            if not key.startswith(SWEPT) or key in FIXED or key == "model.family":
                raise ValueError(f"'{key:.80}' cannot be searched; name a key of train or model that changes what is learned")
        return space

    @model_validator(mode="after")
    def _fits(self) -> "Tune":
        if self.enabled and not self.space:
            raise ValueError("tune.enabled is true and tune.space is empty; name keys to search, or set it to false")
        known = list(self.space)
        for key, param in self.space.items():
            for other in param.when:
                if other not in known or known.index(other) >= known.index(key):
                    raise ValueError(
                        f"'{key}' has `when: {other:.80}`, which is not searched before it; move it, or search that key"
                    )
        for point in self.first:
            if unknown := sorted(set(point) - set(known)):
                raise ValueError(f"tune.first names '{unknown[0]:.80}', which tune.space has not; search it, or remove it")
        if self.cost_budget and not self.prices:
            raise ValueError("cost_budget needs prices, such as {CPU: 0.04}; write them, or remove it")
        if self.storage and re.search(r"//[^/@]*:[^/@]+@", self.storage):
            raise ValueError("storage holds a password; put it where the database's driver looks for one, as in ~/.pgpass")
        if self.study and not self.storage:
            raise ValueError("study names trials in a shared database; write its URL into storage, or remove study")
        return self
