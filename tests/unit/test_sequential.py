"""Always-valid tests: looking 2,000 times raises no more false alarms than alpha, and what is worse is found."""

import math

import numpy as np
import pytest

from rayloom.serving import sequential
from rayloom.serving.sequential import Sample, excess_evidence, interval, mean_evidence, p_value, share_evidence

LOOKS, EACH, ALPHA = 2000, 20, 0.05
"""Looks, requests between two of them, and the level of all tests here."""


def coins(stable: float, candidate: float, share: float, runs: int = 200) -> tuple[Sample, Sample]:
    """Failures of two versions as they are seen at each look: (runs * looks,) of each."""
    draw = np.random.default_rng(11)
    count = draw.binomial(EACH, share, (runs, LOOKS))
    failed, base = draw.binomial(count, candidate), draw.binomial(EACH - count, stable)
    seen = [part.cumsum(axis=1).ravel() for part in (count, failed, EACH - count, base)]
    return Sample(*seen[:2]), Sample(*seen[2:])


def scores(shift: float, runs: int, looks: int) -> tuple[Sample, Sample]:
    """Probabilities of two versions, the candidate's higher by `shift`: (runs * looks,) of each."""
    draw = np.random.default_rng(12)
    both = []
    for higher in (shift, 0.0):
        values = draw.beta(2, 6, (runs, looks, EACH // 2)) * 0.9 + higher
        parts = (np.full((runs, looks), EACH // 2), values.sum(axis=2), (values**2).sum(axis=2))
        both.append(Sample(*(part.cumsum(axis=1).ravel() for part in parts)))
    return both[0], both[1]


def alarms(evidence: np.ndarray, runs: int) -> np.ndarray:
    """The look at which each run's evidence first reaches 1 / alpha; infinity where it never does."""
    reached = evidence.reshape(runs, -1) >= -math.log(ALPHA)
    return np.where(reached.any(axis=1), reached.argmax(axis=1), math.inf)


def false_alarms(evidence: np.ndarray, runs: int) -> float:
    return float(np.isfinite(alarms(evidence, runs)).mean())


@pytest.mark.parametrize(
    "stable, candidate, share, margin",
    [(0.01, 0.01, 0.05, 0.0), (0.2, 0.2, 0.5, 0.0), (0.001, 0.001, 0.5, 0.0), (0.01, 0.015, 0.25, 0.005)],
)
def test_no_more_false_alarms_than_alpha_over_all_looks(stable, candidate, share, margin):
    """The last case lies on the null hypothesis' edge: exactly `margin` worse."""
    assert false_alarms(share_evidence(*coins(stable, candidate, share), margin), 200) <= ALPHA


def test_a_test_for_one_look_would_raise_many():
    """The same coins, judged at each look by the usual test of two shares: else the simulation could show nothing."""
    new, old = coins(0.2, 0.2, 0.5)
    pooled = (new.total + old.total) / (new.count + old.count)
    deviation = np.sqrt(pooled * (1 - pooled) * (1 / np.maximum(new.count, 1) + 1 / np.maximum(old.count, 1)))
    z = (new.total / np.maximum(new.count, 1) - old.total / np.maximum(old.count, 1)) / np.maximum(deviation, 1e-9)
    assert false_alarms(np.where(z > 1.645, 99.0, 0.0), 200) > 0.3


@pytest.mark.parametrize("shift, margin", [(0.0, 0.0), (0.05, 0.05)])
def test_scores_raise_no_more_false_alarms_than_alpha(shift, margin):
    assert false_alarms(mean_evidence(*scores(shift, 20, LOOKS), margin), 20) <= ALPHA


@pytest.mark.parametrize(
    "stable, candidate, share, within",
    [(0.05, 0.10, 0.25, 6000), (0.01, 0.02, 0.5, 30_000), (0.001, 0.05, 0.05, 8000), (0.0, 1.0, 0.05, 300)],
)
def test_more_failures_are_found_within_so_many_requests(stable, candidate, share, within):
    found = alarms(share_evidence(*coins(stable, candidate, share, 50), 0.0), 50)
    assert np.quantile(found, 0.9) * EACH <= within


def test_a_shift_of_scores_is_found_within_2000_requests():
    found = alarms(mean_evidence(*scores(0.1, 50, 150), 0.05), 50)
    assert np.quantile(found, 0.9) * EACH <= 2000


def test_scores_that_vary_little_need_fewer_values_than_coins():
    sample, base = Sample(1000, 300.0, 100.0), Sample(1000, 250.0, 72.5)  # deviations 0.1
    assert mean_evidence(sample, base, 0.0)[0] > 5 > share_evidence(sample, base, 0.0)[0]


@pytest.mark.parametrize("test", [share_evidence, mean_evidence])
@pytest.mark.parametrize("new, old", [((0, 0.0, 0.0), (9, 9.0, 9.0)), ((9, 9.0, 9.0), (0, 0.0, 0.0))])
def test_nothing_is_shown_of_a_version_without_values(test, new, old):
    assert test(Sample(*new), Sample(*old), 0.0).tolist() == [0.0]


@pytest.mark.parametrize("test", [share_evidence, mean_evidence])
def test_evidence_falls_with_the_margin(test):
    found = [float(test(Sample(500, 100.0, 60.0), Sample(500, 20.0, 5.0), margin)[0]) for margin in (-0.1, 0.0, 0.1, 0.2)]
    assert found == sorted(found, reverse=True) and found[0] > found[1] > found[-1] == 0.0


def test_evidence_of_shares_is_the_formula_s():
    """Three of three against none of two, margin 0: the null hypothesis' likeliest common share is 3/5."""
    mixture = math.gamma(3.5) / math.gamma(4) / math.sqrt(math.pi) * (math.gamma(2.5) / math.gamma(3) / math.sqrt(math.pi))
    expected = math.log(mixture / (0.6**3 * 0.4**2))
    assert share_evidence(Sample(3, 3), Sample(2, 0), 0.0)[0] == pytest.approx(expected, abs=1e-9)


def test_no_mean_of_the_null_hypothesis_gives_less_evidence():
    """The least favourable mean against a grid of means, with the bound written out."""
    new, old, margin = Sample(200, 90.0, 50.0), Sample(300, 80.0, 30.0), 0.05

    def bound(sample: Sample, mean: float, sign: int) -> float:
        terms = [
            math.exp(
                sign * rate * (sample.total - sample.count * mean)
                + (math.log(1 - rate) + rate) * (sample.squares - 2 * c * sample.total + c * c * sample.count)
            )
            for rate in sequential.RATES
            for c in sequential.CENTRES
        ]
        return sum(terms) / len(terms)

    grid = [bound(new, mean + margin, 1) * bound(old, mean, -1) for mean in np.linspace(0, 0.95, 2001)]
    assert mean_evidence(new, old, margin)[0] == pytest.approx(math.log(min(grid)), abs=1e-3)


@pytest.mark.parametrize("failed, shown", [(10, False), (14, False), (60, True)])
def test_an_excess_over_a_bound(failed, shown):
    assert (p_value(excess_evidence(Sample(1000, failed), 0.01)) < ALPHA) is shown


def test_an_excess_over_nothing_is_shown_by_one():
    assert p_value(excess_evidence(Sample(1000, 1), 0.0)) == 0.0


def test_p_values_are_corrected_for_the_number_of_tests():
    assert (p_value(math.log(1000), 4), p_value(0.0, 4)) == (pytest.approx(0.004), 1.0)


@pytest.mark.parametrize("test", [share_evidence, mean_evidence])
def test_an_interval_ends_where_evidence_does(test):
    new, old = Sample(400, 100.0, 60.0), Sample(900, 90.0, 30.0)
    found = interval(test, new, old, ALPHA)
    assert found.low < found.estimate < found.high and found.estimate == pytest.approx(0.15)
    at_the_ends = [float(test(new, old, found.low)[0]), float(test(old, new, -found.high)[0])]
    assert at_the_ends == pytest.approx([math.log(2 / ALPHA)] * 2, abs=0.01)


def test_there_is_no_interval_without_values():
    assert interval(share_evidence, Sample(0, 0), Sample(5, 1), ALPHA) is None
