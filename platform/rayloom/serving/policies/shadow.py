"""shadow: the candidate answers a share of the requests as well; its answers are compared, never returned.

It passes after `hold_s` seconds and `min_requests` comparisons of which at most `shadow_differing` are further apart than
`shadow_tolerance`; then it replaces the stable version, or with `then: hold` goes on comparing until a person decides. It is
rolled back as soon as it is shown that more differ or that it fails more often (each at half of alpha), and after `max_hold_s`
without having passed (`late`). Latencies are not tested: nobody waits for a shadow.
"""

from rayloom.config.rollout import Rollout
from rayloom.serving import sequential
from rayloom.serving.plan import Counts, Plan, finish, roll_back
from rayloom.serving.policies import regression

TESTS = 2


def first_share(settings: Rollout) -> float:
    return settings.shadow_share


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """The same plan, done, or rolled back."""
    (seen, stable), held = plan.gained(counts), now - plan.since
    worse = regression.of_errors(plan.stable, seen, stable, settings, TESTS)
    if worse := worse or _too_different(seen, settings):
        return roll_back(plan, now, f"version {plan.candidate} was rolled back as a shadow: {worse}")
    enough = seen.compared >= settings.min_requests
    if held >= settings.hold_s and enough and seen.differing <= settings.shadow_differing * seen.compared:
        return _passed(plan, seen, now, settings)
    if held >= settings.max_hold_s and settings.late == "rollback":
        return roll_back(
            plan,
            now,
            f"version {plan.candidate} was rolled back as a shadow: after {held:,.0f} s {_differ(seen, settings)}; "
            f"serve.rollout asks for {settings.min_requests:,} of which at most {settings.shadow_differing * 100:.4g} % do",
        )
    return plan


def _too_different(seen: Counts, settings: Rollout) -> str | None:
    evidence = sequential.excess_evidence(sequential.Sample(seen.compared, seen.differing), settings.shadow_differing)
    p = sequential.p_value(evidence, TESTS)
    if p > settings.alpha:
        return None
    return f"{_differ(seen, settings)}; {settings.shadow_differing * 100:.4g} % may (always-valid p-value {p:.1g})"


def _passed(plan: Plan, seen: Counts, now: float, settings: Rollout) -> Plan:
    if settings.then == "replace":
        return finish(
            plan, now, f"version {plan.candidate} replaced version {plan.stable} as its shadow: {_differ(seen, settings)}"
        )
    if plan.step > 1:  # said before
        return plan
    return plan.changed(step=2, reason=f"version {plan.candidate} passed as a shadow and is held: {_differ(seen, settings)}")


def _differ(seen: Counts, settings: Rollout) -> str:
    return (
        f"{seen.differing:,} of {seen.compared:,} answers differ by more than {settings.shadow_tolerance:g}, "
        f"the furthest by {seen.largest:.3g}"
    )
