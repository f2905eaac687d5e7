"""A plan's choices, and counts that add up."""

import json
import math
import timeit

import numpy as np
import pytest
from pydantic import ValidationError

from rayloom.serving.plan import (
    BINS,
    Choice,
    Counts,
    Plan,
    choose,
    finish,
    latency_bin,
    latency_edge,
    place,
    roll_back,
    snapshot,
)

STEADY = Plan(stable=3)
KEYS = [b"session-%d" % n for n in range(5000)]


def rolling(strategy: str, share: float, **changes) -> Plan:
    return STEADY.changed(strategy=strategy, candidate=4, share=share, step=1, state="rolling", salt="4:1", **changes)


def some(seed: int, requests: int = 50) -> Counts:
    """Counts of everything that can be counted; values are multiples of 1/64, so that sums are exact."""
    draw, counts = np.random.default_rng(seed), Counts()
    for value in (draw.integers(0, 65, requests) / 64).tolist():
        counts.answered(value, failed=value > 0.9)
        counts.scored(value)
        counts.rewarded(value)
        counts.differed(value, 0.5)
    return counts


def test_a_steady_plan_gives_the_stable_version():
    assert choose(STEADY, 0.0) == Choice(3, None)


def test_a_steady_choice_takes_under_2_microseconds():
    assert min(timeit.repeat(lambda: choose(STEADY, 0.5), number=2000, repeat=20)) / 2000 < 2e-6


@pytest.mark.parametrize("strategy", ["canary", "bandit", "ab"])
@pytest.mark.parametrize("draw, version", [(0.0, 4), (0.249, 4), (0.25, 3), (0.999, 3)])
def test_the_candidate_gets_its_share(strategy, draw, version):
    assert choose(rolling(strategy, 0.25), draw) == Choice(version, None)


@pytest.mark.parametrize("draw, shadow", [(0.1, 4), (0.7, None)])
def test_a_shadow_is_never_returned(draw, shadow):
    assert choose(rolling("shadow", 0.5), draw) == Choice(3, shadow)


@pytest.mark.parametrize("share, version", [(0.0, 3), (1.0, 4)])
def test_nothing_and_all_are_exact(share, version):
    assert {choose(rolling("ab", share), 0.5, key).version for key in KEYS} == {version}


def test_a_session_keeps_its_version_whatever_chance_says():
    draws = np.random.default_rng(1).random(20).tolist()
    assert all(len({choose(rolling("ab", 0.5), draw, key) for draw in draws}) == 1 for key in KEYS[:100])


def test_sessions_split_as_the_share_says():
    part = np.mean([choose(rolling("ab", 0.3), 0.0, key).version == 4 for key in KEYS])
    assert abs(part - 0.3) < 4 * math.sqrt(0.3 * 0.7 / len(KEYS))


def test_a_growing_share_moves_nobody_back():
    chosen = [{key for key in KEYS if choose(rolling("ab", share), 0.0, key).version == 4} for share in (0.1, 0.3, 0.8)]
    assert chosen[0] < chosen[1] < chosen[2]


def test_another_salt_splits_anew():
    both = np.mean([place("a", key) < 0.5 and place("b", key) < 0.5 for key in KEYS])
    assert abs(both - 0.25) < 0.03


def test_places_do_not_change_between_releases():
    """A session would change its version in the middle of a test."""
    assert place("4:1", b"session-0") == pytest.approx(0.5378253601227769, abs=1e-12)


def test_only_ab_looks_at_the_session():
    assert {choose(rolling("canary", 0.5), 0.9, key).version for key in KEYS[:50]} == {3}


def test_a_plan_survives_json():
    plan = rolling("canary", 0.25, before={3: some(1), 4: some(2)}, refused=2, since=17.5, reason="because")
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"state": "lost"}, {"shares": 0.5}, {"step": -1}])
def test_a_wrong_plan_is_refused(wrong):
    with pytest.raises(ValidationError):
        STEADY.changed(**wrong)


def test_a_rollback_and_a_finish_end_a_rollout():
    plan = rolling("canary", 0.25, before={3: some(1)})
    back, done = roll_back(plan, 9.0, "worse"), finish(plan, 9.0, "better")
    assert (back.stable, back.candidate, back.share, back.state, back.refused, back.epoch) == (
        3,
        None,
        0.0,
        "rolled back",
        4,
        2,
    )
    assert (done.stable, done.candidate, done.share, done.state, done.refused, done.epoch) == (4, None, 0.0, "done", None, 2)
    assert back.before == done.before == {}


def test_only_a_rollout_ends():
    assert roll_back(STEADY, 1.0, "no") is STEADY is finish(STEADY, 1.0, "no")


def test_counts_add_up_in_any_order():
    parts = [some(seed) for seed in range(4)]
    assert (parts[0] + parts[1]) + (parts[2] + parts[3]) == parts[3] + (parts[1] + (parts[0] + parts[2]))
    assert (parts[0] + parts[1]).requests == 100


def test_counts_survive_json():
    assert Counts.read(json.loads(json.dumps(some(1).as_dict()))) == some(1)


def test_since_is_what_came_after():
    both = some(1) + some(2)
    assert both.since(some(1)).as_dict() | {"largest": 0} == some(2).as_dict() | {"largest": 0}


def test_counts_that_began_anew_came_after_all():
    assert some(1, 10).since(some(2, 50)) == some(1, 10)


def test_a_snapshot_does_not_follow():
    counts = {3: some(1)}
    before = snapshot(counts)
    counts[3].answered(0.1)
    assert before == {3: some(1)}


@pytest.mark.parametrize("seconds", [1e-4, 0.003, 0.0123, 1.0, 59.0])
def test_a_latency_lies_in_its_bin(seconds):
    index = latency_bin(seconds)
    assert latency_edge(index - 1) < seconds <= latency_edge(index) < 1.1 * seconds


@pytest.mark.parametrize("seconds, index", [(0.0, 0), (-1.0, 0), (math.nan, 0), (1e9, BINS - 1), (math.inf, BINS - 1)])
def test_every_latency_has_a_bin(seconds, index):
    assert latency_bin(seconds) == index


@pytest.mark.parametrize("score", [math.nan, -0.1, 1.1, math.inf])
def test_what_is_no_probability_is_no_score(score):
    counts = Counts()
    counts.scored(score)
    assert counts == Counts()


def test_scores_at_both_ends_have_a_bin():
    counts = Counts()
    counts.scored(0.0)
    counts.scored(1.0)
    assert (counts.score_bins[0], counts.score_bins[-1], counts.score_sum, counts.score_squares) == (1, 1, 1.0, 1.0)


@pytest.mark.parametrize("reward", [math.nan, -0.1, 1.1])
def test_a_reward_is_from_0_to_1(reward):
    with pytest.raises(ValueError, match="from 0 to 1"):
        Counts().rewarded(reward)


@pytest.mark.parametrize("difference, differing, largest", [(0.01, 0, 0.01), (-0.3, 1, 0.3), (math.nan, 1, 1.0)])
def test_a_difference_counts_over_its_tolerance(difference, differing, largest):
    counts = Counts()
    counts.differed(difference, 0.01)
    assert (counts.compared, counts.differing, counts.largest) == (1, differing, largest)
