"""Strategies: what becomes of a good, a failing, a slow and a different candidate, step by step and in words."""

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from rayloom.config.rollout import Rollout
from rayloom.errors import ServingError
from rayloom.serving.plan import Counts, Plan
from rayloom.serving.policies import POLICIES, ab, advance, begin
from rayloom.serving.policies.bandit import probability_better

STEADY = Plan(stable=3)
QUICK = {"min_requests": 200, "hold_s": 5.0, "max_hold_s": 600.0}


def counted(
    requests: int,
    errors: int = 0,
    seconds: float = 0.002,
    slow: int = 0,
    score: float = 0.3,
    rewards: float = 0,
    differing: int = 0,
) -> Counts:
    """Counts of so many answers, `slow` of which took ten times `seconds`; scores lie 0.1 around `score`."""
    counts = Counts()
    for number in range(requests):
        counts.answered(seconds * (10 if number < slow else 1), failed=number < errors)
        counts.scored(score + (0.1 if number % 2 else -0.1))
        counts.differed(0.5 if number < differing else 0.001, 0.01)
        if rewards:
            counts.rewarded(float(number < rewards * requests))
    return counts


def rolling(settings: Rollout, before: dict[int, Counts] = {}) -> Plan:
    return begin(STEADY, 4, before, 100.0, settings)


def at_step(plan: Plan, step: int, settings: Rollout) -> Plan:
    return plan.changed(step=step, share=settings.steps[step - 1])


def test_the_settings_know_every_strategy():
    assert set(POLICIES) == {*Rollout.model_fields["strategy"].annotation.__args__}


@pytest.mark.parametrize("strategy, share", [("replace", 0.0), ("canary", 0.05), ("shadow", 1.0), ("ab", 0.5), ("bandit", 0.5)])
def test_a_rollout_begins_with_its_first_share(strategy, share):
    plan = rolling(Rollout(strategy=strategy), {3: counted(5)})
    assert (plan.strategy, plan.stable, plan.candidate, plan.share, plan.step) == (strategy, 3, 4, share, 1)
    assert (plan.state, plan.epoch, plan.since, plan.before) == ("rolling", 1, 100.0, {3: counted(5)})


@pytest.mark.parametrize(
    "plan, candidate, says", [(rolling(Rollout()), 5, "Version 4 is being"), (STEADY, 3, "already answers")]
)
def test_a_rollout_that_cannot_begin(plan, candidate, says):
    with pytest.raises(ServingError, match=says):
        begin(plan, candidate, {}, 0.0, Rollout())


@pytest.mark.parametrize("strategy", POLICIES)
def test_a_steady_plan_stays(strategy):
    assert advance(STEADY, {3: counted(9)}, 1e9, Rollout(strategy=strategy)) is STEADY


@pytest.mark.parametrize("strategy", ["canary", "shadow", "ab", "bandit"])
def test_without_requests_a_plan_stays_for_a_while(strategy):
    settings = Rollout(strategy=strategy, **QUICK)
    plan = rolling(settings)
    assert advance(plan, {}, 699.0, settings) is plan


def test_replace_is_done_at_once():
    plan = advance(rolling(Rollout()), {}, 100.0, Rollout())
    assert (plan.stable, plan.state, plan.reason) == (4, "done", "version 4 replaced version 3 after its golden rows")


def test_a_canary_grows_step_by_step():
    settings, counts, now = Rollout(strategy="canary", **QUICK), {3: Counts(), 4: Counts()}, 100.0
    plan, shares = rolling(settings), []
    while plan.state == "rolling":
        shares.append(plan.share)
        now += 10
        counts = {3: counts[3] + counted(1000, 2), 4: counts[4] + counted(200)}
        plan = advance(plan, counts, now, settings)
    assert (shares, plan.stable, plan.state) == ([0.05, 0.25, 0.5, 1.0], 4, "done")
    assert plan.reason == (
        "version 4 replaced version 3: nothing worse in 200 answers of version 4 at step 4 (100 %); 0 failed"
    )


@pytest.mark.parametrize("requests, now", [(199, 200.0), (200, 104.9)])
def test_a_canary_waits_for_requests_and_for_time(requests, now):
    settings = Rollout(strategy="canary", **QUICK)
    plan = rolling(settings)
    assert advance(plan, {3: counted(1000), 4: counted(requests)}, now, settings) is plan


def test_a_failing_canary_is_rolled_back_with_the_figures():
    settings = Rollout(strategy="canary", **QUICK)
    plan = at_step(rolling(settings), 2, settings)
    plan = advance(plan, {3: counted(1240, 2), 4: counted(412, 31)}, 101.0, settings)
    assert (plan.stable, plan.candidate, plan.state, plan.refused) == (3, None, "rolled back", 4)
    assert plan.reason == (
        "version 4 was rolled back at step 2 (25 %): 31 of 412 answers failed, version 3's 2 of 1,240 "
        "(always-valid p-value 6e-10)"
    )


def test_a_slow_canary_is_rolled_back_with_the_limits():
    settings = Rollout(strategy="canary", **QUICK)
    plan = advance(rolling(settings), {3: counted(1000, slow=20), 4: counted(60, seconds=0.004)}, 101.0, settings)
    assert plan.reason.startswith(
        "version 4 was rolled back at step 1 (5 %): 60 of 60 answers took over 2.76 ms, version 3's 20 of 1,000 over 2.13 ms"
    )


def test_what_is_slow_is_what_is_slow_now():
    """The stable version was quicker before the step; against that, all answers would be slow."""
    settings = Rollout(strategy="canary", **QUICK)
    before = {3: counted(300, seconds=0.001)}
    plan = advance(rolling(settings, before), {3: before[3] + counted(400), 4: counted(60, seconds=0.1)}, 101.0, settings)
    assert "60 of 60 answers took over 2.76 ms, version 3's 0 of 400 over 2.13 ms" in plan.reason


@pytest.mark.parametrize("score, says", [(0.6, "200 scores is 0.6, of version 3's 1,000 0.3"), (0.12, "200 scores is 0.12,")])
def test_other_scores_roll_a_canary_back(score, says):
    settings = Rollout(strategy="canary", score_margin=0.05, **QUICK)
    plan = advance(rolling(settings), {3: counted(1000), 4: counted(200, score=score)}, 101.0, settings)
    assert plan.state == "rolled back" and says in plan.reason


@pytest.mark.parametrize(
    "margins, candidate",
    [
        ({"errors_margin": 0.1}, {"errors": 31}),
        ({"latency_factor": 4.0}, {"seconds": 0.004}),
        ({"latency_margin": 1.0}, {"seconds": 0.004}),
        ({"score_margin": 0.4}, {"score": 0.6}),
        ({"score_margin": 1.0}, {"score": 0.9}),
    ],
)
def test_within_its_margin_nothing_is_worse(margins, candidate):
    settings = Rollout(strategy="canary", **QUICK, **margins)
    assert advance(rolling(settings), {3: counted(1240), 4: counted(412, **candidate)}, 110.0, settings).step == 2


def test_only_the_step_s_own_counts_are_compared():
    """Before the step the stable version was quick; now both are slow, as when the machine is busy."""
    settings, before = Rollout(strategy="canary", **QUICK), {3: counted(5000), 4: counted(200)}
    plan = rolling(settings, before)
    now = {3: before[3] + counted(1000, seconds=0.05), 4: before[4] + counted(200, seconds=0.05)}
    assert advance(plan, now, 110.0, settings).step == 2


def test_at_all_requests_failures_are_compared_with_those_before():
    settings = Rollout(strategy="canary", **QUICK)
    plan = at_step(rolling(settings, {3: counted(5000, 5)}), 4, settings)
    plan = advance(plan, {3: counted(5000, 5), 4: counted(100, 20)}, 101.0, settings)
    assert plan.reason.startswith(
        "version 4 was rolled back at step 4 (100 %): 20 of 100 answers failed, version 3's 5 of 5,000"
    )


@pytest.mark.parametrize("late, state", [("rollback", "rolled back"), ("hold", "rolling")])
@pytest.mark.parametrize("strategy", ["canary", "shadow"])
def test_a_step_without_enough_requests(strategy, late, state):
    settings = Rollout(strategy=strategy, late=late, **QUICK)
    plan = advance(rolling(settings), {3: counted(50), 4: counted(7)}, 700.0, settings)
    assert plan.state == state
    assert (" 7 " in plan.reason and "asks for 200" in plan.reason) is (state == "rolled back")


def simulate(settings: Rollout, worse: float, seed: int, busy: float = 1.0) -> Plan:
    """A canary under 100 requests a second, a look a second; from the 20th second on all is `busy` times slower."""
    draw, now, counts = np.random.default_rng(seed), 100.0, {3: Counts(), 4: Counts()}
    plan = rolling(settings)
    while plan.state == "rolling" and now < 700:
        now += 1
        factor = busy if now > 120 else 1.0
        chosen, times = draw.random(100) < plan.share, draw.lognormal(-6, 0.5, 100) * factor
        failed, scores = draw.random(100) < 0.01, draw.beta(2, 6, 100)
        for which, seconds, fails, score in zip(chosen, times, failed, scores, strict=True):
            counts[4 if which else 3].answered(seconds * (worse if which else 1), bool(fails))
            counts[4 if which else 3].scored(score)
        plan = advance(plan, counts, now, settings)
    return plan


@pytest.mark.parametrize("busy", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_an_equal_version_gets_through(seed, busy):
    assert simulate(Rollout(strategy="canary", **QUICK), 1.0, seed, busy).state == "done"


@pytest.mark.parametrize("seed", range(3))
def test_a_version_of_twice_the_latency_is_found_within_4000_requests(seed):
    """Of which it answers 200: latencies that spread by a factor of five, from a twentieth to the other."""
    plan = simulate(Rollout(strategy="canary", **QUICK), 2.0, seed)
    assert plan.state == "rolled back" and " ms" in plan.reason and plan.since <= 140


def test_a_shadow_that_agrees_replaces():
    settings = Rollout(strategy="shadow", **QUICK)
    plan = advance(rolling(settings), {3: counted(200), 4: counted(200, differing=2)}, 110.0, settings)
    assert (plan.stable, plan.state) == (4, "done")
    assert plan.reason.endswith("2 of 200 answers differ by more than 0.01, the furthest by 0.5")


def test_a_shadow_may_be_held():
    settings, counts = Rollout(strategy="shadow", then="hold", **QUICK), {3: counted(200), 4: counted(200)}
    plan = advance(rolling(settings), counts, 110.0, settings)
    assert plan.state == "rolling" and plan.reason.startswith("version 4 passed as a shadow and is held")
    assert advance(plan, counts, 500.0, settings) is plan


def test_a_held_shadow_that_passed_is_not_late():
    settings, counts = Rollout(strategy="shadow", then="hold", **QUICK), {3: counted(200), 4: counted(200)}
    plan = advance(rolling(settings), counts, 110.0, settings)
    assert advance(plan, counts, 5000.0, settings).state == "rolling"


@pytest.mark.parametrize(
    "candidate, says",
    [({"differing": 15}, "15 of 60 answers differ by more than 0.01"), ({"errors": 20}, "20 of 60 answers failed")],
)
def test_a_shadow_that_differs_or_fails_is_rolled_back(candidate, says):
    settings = Rollout(strategy="shadow", **QUICK)
    plan = advance(rolling(settings), {3: counted(60), 4: counted(60, **candidate)}, 101.0, settings)
    assert plan.state == "rolled back" and says in plan.reason


def test_a_shadow_that_differs_a_little_more_than_it_may_waits():
    settings = Rollout(strategy="shadow", **QUICK)
    plan = rolling(settings)
    assert advance(plan, {3: counted(200), 4: counted(200, differing=4)}, 110.0, settings) is plan


def test_an_ab_test_has_no_end_of_its_own():
    settings = Rollout(strategy="ab", share=0.3, **QUICK)
    plan = rolling(settings)
    assert advance(plan, {3: counted(2000, rewards=0.1), 4: counted(2000, rewards=0.9)}, 1e6, settings) is plan


@pytest.mark.parametrize("strategy", ["ab", "bandit"])
def test_a_failing_version_is_rolled_back(strategy):
    settings = Rollout(strategy=strategy, **QUICK)
    plan = advance(rolling(settings), {3: counted(100), 4: counted(100, 20)}, 101.0, settings)
    assert plan.state == "rolled back" and "20 of 100 answers failed" in plan.reason


def test_an_ab_test_reports_effects_and_intervals():
    plan = rolling(Rollout(strategy="ab"))
    found = ab.effects(plan, {3: counted(2000, 20, rewards=0.2), 4: counted(1000, 10, rewards=0.3)}, 0.05)
    assert set(found) == {"errors", "score", "reward"}
    reward = found["reward"]
    assert (reward["stable"], reward["candidate"], reward["difference"]) == pytest.approx((0.2, 0.3, 0.1))
    assert 0 < reward["low"] < 0.1 < reward["high"] < 0.2
    assert found["errors"]["low"] < 0 < found["errors"]["high"]


def test_effects_without_values_are_left_out():
    assert set(ab.effects(rolling(Rollout(strategy="ab")), {3: counted(9), 4: counted(9)}, 0.05)) == {"errors", "score"}


def test_the_probability_of_being_better_is_the_posterior_s():
    """Against draws from both posteriors."""
    new, old = counted(100, rewards=0.35), counted(200, rewards=0.3)
    draw = np.random.default_rng(3)
    expected = (draw.beta(36, 66, 400_000) > draw.beta(61, 141, 400_000)).mean()
    assert probability_better(new, old) == pytest.approx(expected, abs=0.003)


def test_without_rewards_both_are_as_likely_to_be_better():
    assert probability_better(Counts(), Counts()) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("rewards, share", [(0.34, (0.7, 0.95)), (0.2, (0.05, 0.05))])
def test_a_bandit_s_share_follows_rewards_and_keeps_its_floor(rewards, share):
    settings = Rollout(strategy="bandit")  # 500 rewards to decide
    plan = advance(rolling(settings), {3: counted(300, rewards=0.3), 4: counted(300, rewards=rewards)}, 101.0, settings)
    assert plan.state == "rolling" and share[0] <= plan.share <= share[1]


def test_a_bandit_makes_no_new_plan_for_nearly_the_same_share():
    settings = Rollout(strategy="bandit")
    plan = rolling(settings)
    assert advance(plan, {3: counted(50, rewards=0.5), 4: counted(50, rewards=0.5)}, 101.0, settings) is plan


@pytest.mark.parametrize("rewards, stable, state", [(0.5, 4, "done"), (0.1, 3, "rolled back")])
def test_a_bandit_ends_when_it_is_sure(rewards, stable, state):
    settings = Rollout(strategy="bandit", **QUICK)
    plan = advance(rolling(settings), {3: counted(200, rewards=0.3), 4: counted(200, rewards=rewards)}, 101.0, settings)
    assert (plan.stable, plan.state) == (stable, state)
    assert f"its 200 rewards have mean {rewards}, the 200 of version 3 0.3" in plan.reason


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"steps": [0.5, 0.25]}, "has 0.25 after 0.5"),
        ({"steps": [0.0, 1.0]}, "begins with 0"),
        ({"steps": []}, "at least 1"),
        ({"hold_s": 60.0, "max_hold_s": 10.0}, "a step must be able to pass"),
        ({"strategy": "ab", "share": 1.0}, "needs both versions"),
        ({"strategy": "shadow", "shadow_share": 0.0}, "nothing is compared"),
        ({"header": "x session"}, "pattern"),
        ({"strategy": "blue-green"}, "'replace', 'canary'"),
    ],
)
def test_wrong_settings_are_refused(wrong, says):
    with pytest.raises(ValidationError, match=says):
        Rollout(**wrong)


def test_settings_come_from_yaml():
    given = Rollout(**yaml.safe_load("{strategy: canary, steps: [5%, 0.5, 1], header: X-User, hold_s: 30}"))
    assert (given.steps, given.header, given.hold_s) == ([0.05, 0.5, 1.0], "x-user", 30.0)
