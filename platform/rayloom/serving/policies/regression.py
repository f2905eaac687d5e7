"""Whether a candidate is shown to be worse than the stable version, beyond a margin, and the sentence that says so.

Each test is always valid at alpha / `tests`, where `tests` is how many are made in the whole rollout (Bonferroni): the p-values
in the sentences are already multiplied by it. None means: not shown.
"""

import math

from rayloom.config.rollout import Rollout
from rayloom.serving import sequential
from rayloom.serving.plan import PER_OCTAVE, Counts, latency_edge
from rayloom.serving.sequential import Sample


def tests_of(settings: Rollout) -> int:
    """Tests that `of_any` makes: errors, each quantile of latency, and scores in both directions."""
    return 3 + len(settings.latency_quantiles)


def of_any(name: int, candidate: Counts, stable: Counts, settings: Rollout, tests: int) -> str | None:
    """The first regression of errors, latency and scores, of the counts of one step. `name`: the stable version's."""
    slower = (of_latency(name, candidate, stable, quantile, settings, tests) for quantile in settings.latency_quantiles)
    return (
        of_errors(name, candidate, stable, settings, tests)
        or next(filter(None, slower), None)
        or of_scores(name, candidate, stable, settings, tests)
    )


def of_errors(name: int, candidate: Counts, stable: Counts, settings: Rollout, tests: int = 1) -> str | None:
    """Whether a larger share of the candidate's answers failed, by more than errors_margin."""
    samples = Sample(candidate.requests, candidate.errors), Sample(stable.requests, stable.errors)
    p = sequential.p_value(float(sequential.share_evidence(*samples, settings.errors_margin)[0]), tests)
    if p > settings.alpha:
        return None
    return (
        f"{candidate.errors:,} of {candidate.requests:,} answers failed, version {name}'s {stable.errors:,} of "
        f"{stable.requests:,} ({_worded(p)})"
    )


def of_latency(name: int, candidate: Counts, stable: Counts, quantile: float, settings: Rollout, tests: int = 1) -> str | None:
    """Whether a larger share of the candidate's answers took over latency_factor times a quantile of the stable version's than
    of the stable version's took over the quantile itself, by more than latency_margin.

    The quantile is that of the same answers: one of earlier times would show nothing once all are slower, or none. It moves a
    little as they come, which the tests' guarantee does not cover; margin and factor do.
    """
    limit = _quantile_bin(stable.latency, quantile)
    # rounded up to whole bins: at most 9 % more patience than asked for
    patient = limit + math.ceil(math.log2(settings.latency_factor) * PER_OCTAVE - 1e-9)
    slow, base = sum(candidate.latency[patient + 1 :]), sum(stable.latency[limit + 1 :])
    samples = Sample(candidate.requests, slow), Sample(stable.requests, base)
    p = sequential.p_value(float(sequential.share_evidence(*samples, settings.latency_margin)[0]), tests)
    if p > settings.alpha:
        return None
    return (
        f"{slow:,} of {candidate.requests:,} answers took over {latency_edge(patient) * 1000:.3g} ms, version {name}'s "
        f"{base:,} of {stable.requests:,} over {latency_edge(limit) * 1000:.3g} ms ({_worded(p)})"
    )


def of_scores(name: int, candidate: Counts, stable: Counts, settings: Rollout, tests: int = 2) -> str | None:
    """Whether the mean scores are further apart than score_margin, in either direction: both are tested."""
    new, old = scores(candidate), scores(stable)
    if settings.score_margin >= 1:
        return None
    evidence = max(
        float(sequential.mean_evidence(new, old, settings.score_margin)[0]),
        float(sequential.mean_evidence(old, new, settings.score_margin)[0]),
    )
    p = sequential.p_value(evidence, tests)
    if p > settings.alpha:
        return None
    return (
        f"the mean of {new.count:,} scores is {new.total / new.count:.4g}, of version {name}'s {old.count:,} "
        f"{old.total / old.count:.4g}, and serve.rollout.score_margin is {settings.score_margin:g} ({_worded(p)})"
    )


def scores(counts: Counts) -> Sample:
    return Sample(counts.scores, counts.score_sum, counts.score_squares)


def _quantile_bin(bins: list[int], quantile: float) -> int:
    """The first bin up to which at least that share of the counts lies."""
    wanted, so_far = quantile * sum(bins), 0
    for index, count in enumerate(bins):
        so_far += count
        if so_far >= wanted:
            return index
    return len(bins) - 1


def _worded(p: float) -> str:
    return f"always-valid p-value {p:.1g}"
