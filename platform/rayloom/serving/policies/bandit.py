"""bandit: the candidate's share follows the rewards that /feedback reports (Thompson sampling).

Each version's mean reward has a Beta posterior from a uniform prior; a reward between 0 and 1 counts as that part of a success.
A request goes to the candidate with the probability that its mean is the higher one (Thompson, "On the likelihood that one
unknown probability exceeds another", Biometrika 1933), kept `bandit_floor` away from 0 and 1 so that both go on being tried.
Once each version has `min_requests` rewards, a probability over `bandit_threshold` ends it: done, or rolled back. That
threshold is Bayesian: it bounds what a wrong choice costs, not how often equal versions are told apart. Undecided, it goes on.
Rewards may come late, but must come for both versions alike. A candidate shown to fail more often is rolled back.
"""

import numpy as np

from rayloom.config.rollout import Rollout
from rayloom.serving.plan import Counts, Plan, finish, roll_back
from rayloom.serving.policies import regression

SMALLEST_CHANGE = 0.01
"""Of the share, for which replicas get a new plan."""


def first_share(settings: Rollout) -> float:
    return 0.5


def advance(plan: Plan, counts: dict[int, Counts], now: float, settings: Rollout) -> Plan:
    """Another share, done, or rolled back."""
    candidate, stable = plan.gained(counts)
    if worse := regression.of_errors(plan.stable, candidate, stable, settings):
        return roll_back(plan, now, f"version {plan.candidate} was rolled back by the bandit: {worse}")
    better = probability_better(candidate, stable)
    why = (
        f"its {candidate.rewards:,} rewards have mean {_mean(candidate):.4g}, the {stable.rewards:,} of version {plan.stable} "
        f"{_mean(stable):.4g} (probability of being better {better:.4f})"
    )
    if min(candidate.rewards, stable.rewards) >= settings.min_requests:
        if better >= settings.bandit_threshold:
            return finish(plan, now, f"version {plan.candidate} replaced version {plan.stable}: {why}")
        if better <= 1 - settings.bandit_threshold:
            return roll_back(plan, now, f"version {plan.candidate} was rolled back by the bandit: {why}")
    share = min(max(better, settings.bandit_floor), 1 - settings.bandit_floor)
    if abs(share - plan.share) < SMALLEST_CHANGE:
        return plan
    return plan.changed(share=share, reason=f"version {plan.candidate} gets {share * 100:.3g} % of the requests: {why}")


def probability_better(candidate: Counts, stable: Counts, points: int = 1000) -> float:
    """That the candidate's mean reward is above the stable version's: the stable one's posterior distribution function,
    averaged over quantiles of the candidate's."""
    from scipy.special import betainc, betaincinv

    quantiles = (np.arange(points) + 0.5) / points
    means = betaincinv(*_posterior(candidate), quantiles)
    return float(betainc(*_posterior(stable), means).mean())


def _posterior(counts: Counts) -> tuple[float, float]:
    return 1 + counts.reward_sum, 1 + max(counts.rewards - counts.reward_sum, 0.0)


def _mean(counts: Counts) -> float:
    return counts.reward_sum / max(counts.rewards, 1)
