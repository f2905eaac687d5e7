"""Strategies of a rollout: from a plan and what was counted, the next plan. All pure.

    begin(plan, candidate, counts, now, settings)  -> the plan of the first step
    advance(plan, counts, now, settings)           -> the same plan, the next step, done, or rolled back with the reason

`counts` are totals by version, as old as the coordinator; a plan keeps what they were when its step began (`Plan.before`), so
that versions are compared over the same time and share. Call `advance` about once a second, as often as you like: its tests
are always valid. A plan that is not rolling stays as it is.
"""

from collections.abc import Callable
from typing import NamedTuple

from rayloom.config.rollout import Rollout
from rayloom.errors import ServingError
from rayloom.serving.plan import Counts, Plan, snapshot
from rayloom.serving.policies import ab, bandit, canary, replace, shadow


class Policy(NamedTuple):
    """A strategy: the candidate's share in its first step, and how a rolling plan goes on."""

    first_share: Callable[[Rollout], float]
    advance: Callable[[Plan, dict[int, Counts], float, Rollout], Plan]


POLICIES = {
    "replace": Policy(replace.first_share, replace.advance),
    "canary": Policy(canary.first_share, canary.advance),
    "shadow": Policy(shadow.first_share, shadow.advance),
    "ab": Policy(ab.first_share, ab.advance),
    "bandit": Policy(bandit.first_share, bandit.advance),
}


def begin(plan: Plan, candidate: int, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """The first step of a rollout of `candidate`, which every replica holds and which gave its golden answers in each.

    Args:
        plan: the newest one, not rolling.
        counts: totals by version so far.
        now: the coordinator's seconds.

    Raises:
        ServingError: a rollout is under way, or the candidate already is the version that answers.
    """
    if plan.candidate is not None:
        raise ServingError(f"Version {plan.candidate} is being rolled out; wait for its end, or roll it back first.")
    if candidate == plan.stable:
        raise ServingError(f"Version {candidate} already answers all requests; name another version.")
    share = POLICIES[settings.strategy].first_share(settings)
    epoch = plan.epoch + 1
    return plan.changed(
        strategy=settings.strategy,
        candidate=candidate,
        share=share,
        step=1,
        state="rolling",
        reason=f"version {candidate} is rolled out beside version {plan.stable} ({settings.strategy})",
        salt=f"{candidate}:{epoch}",
        since=now,
        before=snapshot(counts),
    )


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """The next plan by the strategy that the rollout began with; a newer one has a greater epoch."""
    if plan.candidate is None:
        return plan
    return POLICIES[plan.strategy].advance(plan, counts, now, settings)
