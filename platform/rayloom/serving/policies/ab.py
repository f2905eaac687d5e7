"""ab: a fixed share of the sessions gets the candidate, for as long as a person wants; `effects` says what came of it.

Nothing makes the candidate win by itself. It is rolled back where it is shown to fail more often, by more than `errors_margin`.
"""

from rayloom.config.rollout import Rollout
from rayloom.serving import sequential
from rayloom.serving.plan import Counts, Plan, roll_back
from rayloom.serving.policies import regression
from rayloom.serving.sequential import Sample


def first_share(settings: Rollout) -> float:
    return settings.share


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """The same plan, or rolled back."""
    candidate, stable = plan.gained(counts)
    if worse := regression.of_errors(plan.stable, candidate, stable, settings):
        return roll_back(plan, now, f"version {plan.candidate} was rolled back in its A/B test: {worse}")
    return plan


def effects(plan: Plan, counts: dict[int, Counts], alpha: float) -> dict[str, dict[str, float]]:
    """What the candidate changes: by measure ('errors', 'score', 'reward') its mean, the stable one's, their difference, and
    an interval that contains the true difference at every look with probability 1 - alpha (for each measure by itself).
    Measures without values of both versions are left out."""
    candidate, stable = plan.gained(counts)
    measures = {
        "errors": (sequential.share_evidence, [Sample(each.requests, each.errors) for each in (candidate, stable)]),
        "score": (sequential.mean_evidence, [regression.scores(each) for each in (candidate, stable)]),
        "reward": (sequential.share_evidence, [Sample(each.rewards, each.reward_sum) for each in (candidate, stable)]),
    }
    found = {}
    for name, (test, (new, old)) in measures.items():
        if effect := sequential.interval(test, new, old, alpha):
            means = {"candidate": new.total / new.count, "stable": old.total / old.count}
            found[name] = {**means, "difference": effect.estimate, "low": effect.low, "high": effect.high}
    return found
