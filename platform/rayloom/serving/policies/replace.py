"""replace: the candidate answers everything at once. Its golden rows were the test."""

from rayloom.config.rollout import Rollout
from rayloom.serving.plan import Counts, Plan, finish


def first_share(settings: Rollout) -> float:
    return 0.0


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """Done."""
    return finish(plan, now, f"version {plan.candidate} replaced version {plan.stable} after its golden rows")
