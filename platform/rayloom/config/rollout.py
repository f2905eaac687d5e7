"""The serve.rollout section of the pipeline file: how a new version takes over from the one that answers."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from rayloom.config.base import Section, Share

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rollout(Section):
    """How a new version takes over. Margins say how much worse it may be before it counts as worse at all.

    Keys that a strategy does not read may stand there: a sweep over strategies, or an overlay, then changes one key.
    """

    strategy: Literal["replace", "canary", "shadow", "ab", "bandit"] = Field(
        default="replace",
        description="replace: at once, after the golden rows; canary: a growing share, tested at each step; shadow: answers "
        "are compared, not returned; ab: a fixed share, by session; bandit: a share that follows the rewards of /feedback",
    )
    steps: list[Share] = Field(
        default=[0.05, 0.25, 0.5, 1.0], min_length=1, max_length=100, description="canary: shares of the requests, growing"
    )
    min_requests: int = Field(
        default=500,
        ge=1,
        description="canary: answers of the new version in each step; shadow: comparisons; bandit: rewards of each version",
    )
    hold_s: Seconds = Field(default=60.0, description="canary, shadow: seconds that a step lasts at least")
    max_hold_s: Seconds = Field(default=3600.0, description="canary, shadow: seconds in which a step must pass")
    late: Literal["rollback", "hold"] = Field(
        default="rollback", description="canary, shadow: what becomes of a step that has not passed after max_hold_s"
    )
    alpha: float = Field(
        default=0.05,
        gt=0,
        le=0.5,
        description="chance that a version within all margins is called worse, over all steps, measures and looks together",
    )
    errors_margin: Share = Field(default=0.005, description="share of failed answers that may come on top")
    latency_quantiles: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[0.5, 0.95],
        min_length=1,
        max_length=10,
        description="canary: the old version's latencies that answers are held against: as many should stay below",
    )
    latency_factor: float = Field(
        default=1.25, ge=1, le=100, description="canary: the new version's answers may take so many times as long"
    )
    latency_margin: Share = Field(default=0.05, description="canary: share of slower answers that may come on top")
    score_margin: Share = Field(
        default=0.1,
        description="canary: how far apart the mean scores (probability, or the label's) may be; 1 never looks at them",
    )
    share: Share = Field(default=0.5, description="ab: the new version's share of the sessions")
    header: str = Field(
        default="x-session-id",
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$",
        description="ab: the request header whose value decides which version answers; without it, chance does",
    )
    shadow_share: Share = Field(default=1.0, description="shadow: share of the requests that the new version answers, too")
    shadow_tolerance: float = Field(
        default=0.01, ge=0, le=1, description="shadow: how far apart two probabilities may be and still count as equal"
    )
    shadow_differing: Share = Field(default=0.01, description="shadow: share of answers that may differ by more than that")
    then: Literal["replace", "hold"] = Field(
        default="replace", description="shadow: what becomes of a version that passed; hold: goes on comparing"
    )
    bandit_threshold: float = Field(
        default=0.99, gt=0.5, lt=1, description="bandit: probability of being better with which a version wins"
    )
    bandit_floor: float = Field(
        default=0.05, gt=0, le=0.5, description="bandit: share that each version keeps while it is undecided"
    )

    @field_validator("header")
    @classmethod
    def _lower(cls, header: str) -> str:
        return header.lower()  # as ASGI gives header names

    @field_validator("steps")
    @classmethod
    def _growing(cls, steps: list[float]) -> list[float]:
        if steps[0] <= 0:
            raise ValueError(f"serve.rollout.steps begins with {steps[0]:g}, where nothing is tested; begin above 0")
        for before, after in pairwise(steps):
            if after <= before:
                raise ValueError(f"serve.rollout.steps has {after:g} after {before:g}; write shares that grow")
        return steps

    @model_validator(mode="after")
    def _fits(self) -> "Rollout":
        if self.max_hold_s < self.hold_s:
            raise ValueError(
                f"serve.rollout.max_hold_s is {self.max_hold_s:g} and hold_s is {self.hold_s:g}; a step must be able to pass"
            )
        if self.strategy == "ab" and not 0 < self.share < 1:
            raise ValueError(f"serve.rollout.share is {self.share:g}; an A/B test needs both versions, write one in between")
        if self.strategy == "shadow" and self.shadow_share == 0:
            raise ValueError("serve.rollout.shadow_share is 0, so nothing is compared; write more than 0")
        return self
