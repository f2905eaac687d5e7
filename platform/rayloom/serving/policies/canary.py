"""canary: a share that grows step by step, each step held until enough answers show nothing worse.

A regression rolls back at once, however few the answers. A step passes after `hold_s` seconds and `min_requests` answers of the
candidate. One that has not passed after `max_hold_s`, since too few requests came, is rolled back, or with `late: hold` stays
and may still pass: a version that nobody tested does not take over by the passing of time.
In a step of 1.0 the stable version answers nothing, so that there is nothing of the same time to compare latencies and scores
with: there the failures alone are tested, against all that the stable version answered before.
"""

from rayloom.config.rollout import Rollout
from rayloom.serving.plan import NONE, Counts, Plan, finish, roll_back, snapshot
from rayloom.serving.policies import regression


def first_share(settings: Rollout) -> float:
    return settings.steps[0]


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """The next share, done after the last, or rolled back."""
    if worse := _regression(plan, counts, settings):
        return roll_back(plan, now, f"version {plan.candidate} was rolled back at {plan.where()}: {worse}")
    answers, held = plan.gained(counts)[0].requests, now - plan.since
    if held >= settings.hold_s and answers >= settings.min_requests:
        return _next(plan, counts, now, settings)
    if held >= settings.max_hold_s and settings.late == "rollback":
        return roll_back(
            plan,
            now,
            f"version {plan.candidate} was rolled back at {plan.where()}: it gave {answers:,} answers in {held:,.0f} s, and "
            f"serve.rollout.min_requests asks for {settings.min_requests:,}",
        )
    return plan


def _regression(plan: Plan, counts: dict[int, Counts], settings: Rollout) -> str | None:
    tests = regression.tests_of(settings) * len(settings.steps)
    candidate, stable = plan.gained(counts)
    if plan.share >= 1:
        return regression.of_errors(plan.stable, candidate, counts.get(plan.stable, NONE), settings, tests)
    return regression.of_any(plan.stable, candidate, stable, settings, tests)


def _next(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    passed, _ = plan.gained(counts)
    seen = (
        f"nothing worse in {passed.requests:,} answers of version {plan.candidate} at {plan.where()}; {passed.errors:,} failed"
    )
    if plan.step >= len(settings.steps):
        return finish(plan, now, f"version {plan.candidate} replaced version {plan.stable}: {seen}")
    return plan.changed(share=settings.steps[plan.step], step=plan.step + 1, reason=seen, since=now, before=snapshot(counts))
