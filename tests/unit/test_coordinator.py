"""The coordinator, with a clock of the test: when a rollout begins and ends, and what is written down of it."""

import json
from pathlib import Path

import pytest

from rayloom.config import Rollout
from rayloom.errors import ServingError
from rayloom.serving.coordinator import ALIVE_S, Coordinator, last_plan
from rayloom.serving.plan import Counts, Plan


class Stage:
    """A coordinator whose time the test makes, and what its replicas have last heard."""

    def __init__(self, audit: Path, plan: Plan, **rollout):
        self.now, self.audit = 1000.0, audit
        self.coordinator = Coordinator(plan, Rollout(**rollout), audit, lambda: self.now)
        self.epochs: dict[str, int] = {}

    def report(self, name: str, *held: int, failed: dict[int, str] | None = None, counts: dict[int, Counts] | None = None):
        """A replica comes; returns the plan and the versions that it is told."""
        counted = {number: one.as_dict() for number, one in (counts or {}).items()}
        text, wanted, _ = self.coordinator.sync(name, self.epochs.get(name, -1), list(held), failed or {}, counted)
        plan = Plan.model_validate_json(text)
        self.epochs[name] = plan.epoch
        return plan, wanted

    @property
    def plan(self) -> Plan:
        return self.coordinator.plan

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture
def audit(tmp_path) -> Path:
    return tmp_path / "serving" / "toy.jsonl"


@pytest.fixture
def stage(audit):
    """Makes a coordinator with two replicas that hold version 1."""

    def make(**rollout) -> Stage:
        made = Stage(audit, Plan(stable=1), **rollout)
        for name in "ab":
            made.report(name, 1)
        return made

    return make


def answered(requests: int, errors: int = 0) -> Counts:
    counts = Counts()
    for index in range(requests):
        counts.answered(0.01, failed=index < errors)
    return counts


def test_a_replica_is_told_the_plan_and_the_version_to_hold(stage):
    assert stage().report("c") == (Plan(stable=1), [1])


def test_a_new_version_is_to_be_held_beside_the_old_one(stage):
    made = stage()
    made.coordinator.roll_out(2)
    assert made.report("a", 1) == (Plan(stable=1), [1, 2])


def test_a_rollout_begins_once_all_replicas_hold_the_version(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    assert made.report("a", 1, 2)[0].candidate is None
    plan, wanted = made.report("b", 1, 2)
    assert (plan.candidate, plan.state, wanted) == (2, "rolling", [1, 2])


def test_a_replica_that_comes_late_is_waited_for(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    made.report("c", 1)
    made.report("a", 1, 2)
    assert made.report("b", 1, 2)[0].candidate is None
    assert made.report("c", 1, 2)[0].candidate == 2


def test_a_replica_that_is_gone_does_not_hold_a_rollout_up(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    made.now += ALIVE_S - 0.1
    assert made.report("a", 1, 2)[0].candidate is None
    made.now += 0.1
    assert made.report("a", 1, 2)[0].candidate == 2


def test_a_replace_is_done_and_switched_once_all_have_the_plan(stage):
    made = stage()
    made.coordinator.roll_out(2)
    for name in "ab":
        made.report(name, 1, 2)
    plan, wanted = made.report("a", 1, 2)
    assert (plan.stable, plan.candidate, plan.state, wanted) == (2, None, "done", [2])
    assert not made.coordinator.status()["switched"]  # b has the plan before
    made.report("b", 2)
    made.report("a", 2)
    assert not made.coordinator.status()["switched"]  # b said the epoch that it had when it came
    made.report("b", 2)
    assert made.coordinator.status()["switched"]


def test_a_version_that_cannot_be_loaded_is_refused_with_the_reason(stage):
    made = stage()
    made.coordinator.roll_out(2)
    plan, wanted = made.report("a", 1, failed={2: "Golden row 3 differs."})
    assert (plan.stable, plan.candidate, plan.state, plan.refused, wanted) == (1, None, "rolled back", 2, [1])
    assert plan.reason == "version 2 was refused: Golden row 3 differs."
    assert made.coordinator.status()["pending"] is None


def test_one_replica_that_cannot_load_it_is_enough(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    made.report("a", 1, 2)
    assert made.report("b", 1, failed={2: "no memory"})[0].refused == 2


def test_a_refused_version_can_be_tried_again_by_hand(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    made.report("a", 1, failed={2: "no disk"})
    made.coordinator.roll_out(2)
    assert made.report("b", 1, 2)[0].state == "rolled back"  # a has not come again; it may still hold the version
    assert made.report("a", 1, 2)[0].candidate == 2


def test_a_failure_of_another_version_refuses_nothing(stage):
    made = stage(strategy="canary")
    made.coordinator.roll_out(3)
    made.report("a", 1, 3, failed={2: "an old story"})
    assert made.report("b", 1, 3)[0].candidate == 3


@pytest.mark.parametrize("begun", [False, True], ids=["pending", "rolling"])
def test_a_second_rollout_has_to_wait(stage, begun):
    made = stage(strategy="canary")
    made.coordinator.roll_out(2)
    for name in "ab" if begun else "":
        made.report(name, 1, 2)
    with pytest.raises(ServingError, match="Version 2 is being rolled out"):
        made.coordinator.roll_out(3)


def test_the_version_that_answers_is_not_rolled_out(stage):
    with pytest.raises(ServingError, match="Version 1 answers already"):
        stage().coordinator.roll_out(1)


def test_a_rollout_may_have_settings_of_its_own(stage):
    made = stage()
    made.coordinator.roll_out(2, Rollout(strategy="canary", steps=[0.3, 1.0]))
    for name in "ab":
        made.report(name, 1, 2)
    assert (made.plan.strategy, made.plan.share) == ("canary", 0.3)


@pytest.fixture
def rolling(stage) -> Stage:
    """A canary's first step, after which two seconds have gone by."""
    made = stage(strategy="canary", steps=[0.1, 1.0], min_requests=100, hold_s=1)
    made.coordinator.roll_out(2)
    for name in "ab":
        made.report(name, 1, 2)
    made.now += 2
    return made


def test_the_counts_of_all_replicas_carry_a_rollout_on(rolling):
    rolling.report("a", 1, 2, counts={1: answered(500), 2: answered(60)})
    assert rolling.plan.share == 0.1
    rolling.report("b", 1, 2, counts={1: answered(500), 2: answered(60)})
    assert rolling.plan.share == 1.0


def test_a_version_that_fails_is_rolled_back(rolling):
    plan, wanted = rolling.report("a", 1, 2, counts={1: answered(900), 2: answered(100, errors=100)})
    assert (plan.stable, plan.state, plan.refused, wanted) == (1, "rolled back", 2, [1])
    assert "failed" in plan.reason or "errors" in plan.reason


def test_what_a_replica_counted_stays_when_it_is_gone(rolling):
    rolling.report("b", 1, 2, counts={1: answered(500), 2: answered(60)})
    rolling.now += ALIVE_S + 1
    rolling.report("a", 1, 2, counts={1: answered(500), 2: answered(60)})
    assert rolling.coordinator.status()["requests"] == {1: [1000, 0], 2: [120, 0]} and rolling.plan.share == 1.0


def test_a_rollout_is_rolled_back_by_hand(rolling):
    rolling.coordinator.roll_back("I say so")
    assert (rolling.plan.stable, rolling.plan.candidate, rolling.plan.refused) == (1, None, 2)
    assert (rolling.plan.state, rolling.plan.reason) == ("rolled back", "I say so")


def test_a_version_that_is_still_being_loaded_is_called_off_by_hand(stage):
    made = stage()
    made.coordinator.roll_out(2)
    made.coordinator.roll_back("I say so")
    assert (made.plan.stable, made.plan.refused, made.plan.reason) == (1, 2, "I say so")
    assert made.report("a", 1, 2)[1] == [1]


def test_a_rollout_is_finished_by_hand(rolling):
    rolling.coordinator.finish("I say so")
    assert (rolling.plan.stable, rolling.plan.candidate, rolling.plan.state) == (2, None, "done")


@pytest.mark.parametrize("command", ["roll_back", "finish"])
def test_without_a_rollout_there_is_nothing_to_end(stage, command):
    made = stage()
    getattr(made.coordinator, command)("I say so")
    assert made.plan == Plan(stable=1) and not made.audit.exists()


def test_each_change_of_the_plan_is_a_line(stage):
    made = stage()
    made.coordinator.roll_out(2)
    for name in ("a", "b", "a", "b"):
        made.report(name, 1, 2)
    assert [(line["epoch"], line["state"], line["stable"], line["candidate"]) for line in made.lines()] == [
        (1, "rolling", 1, 2),
        (2, "done", 2, None),
    ]
    assert all(line["time"] == 1000.0 and line["reason"] for line in made.lines())


def test_who_comes_after_takes_up_the_last_plan(stage, audit):
    made = stage()
    made.coordinator.roll_out(2)
    for name in "aba":
        made.report(name, 1, 2)
    assert last_plan(audit) == made.plan.model_copy(update={"salt": ""}) and made.plan.stable == 2


def test_a_crash_during_a_rollout_ends_it(rolling, audit):
    plan = last_plan(audit)
    assert (plan.stable, plan.candidate, plan.state, plan.refused) == (1, None, "rolled back", 2)
    assert plan.epoch > rolling.plan.epoch and plan.reason == "the coordinator was started anew during the rollout"


@pytest.mark.parametrize("cut", ['{"time": 1001.0, "strat', "", "[]", "{}", '{"time": 1, "stable": "x"}'])
def test_a_last_line_that_a_crash_cut_is_passed_over(rolling, audit, cut):
    whole = last_plan(audit)
    with audit.open("a") as file:
        file.write(cut)
    assert last_plan(audit) == whole


def test_a_line_after_one_that_was_cut_stands_by_itself(rolling, audit):
    with audit.open("a") as file:
        file.write('{"state": "ro')
    rolling.coordinator.roll_back("by hand")
    assert last_plan(audit) == rolling.plan.model_copy(update={"salt": ""})


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"hello\n", b"5\n"])
def test_without_a_plan_there_is_none_to_take_up(audit, content):
    audit.parent.mkdir()
    if content is not None:
        audit.write_bytes(content)
    assert last_plan(audit) is None


def test_a_rollout_does_not_wait_for_a_replica_that_has_left(stage):
    made = stage()
    made.coordinator.roll_out(2)
    made.report("a", 1, 2)
    made.coordinator.leave("b")
    assert made.report("a", 1, 2)[0].candidate == 2


def test_a_rollout_waits_for_a_replica_that_came_meanwhile(stage):
    made = stage()
    made.coordinator.roll_out(2)
    assert made.report("c", 1) == (Plan(stable=1), [1, 2])
    for name in "ab":
        made.report(name, 1, 2)
    assert made.plan.candidate is None
    assert made.report("c", 1, 2)[0].candidate == 2


def test_what_a_replica_counted_stays_when_it_leaves_and_its_late_report_counts_nothing(stage):
    made = stage()
    made.report("a", 1, counts={1: answered(5)})
    made.coordinator.leave("a")
    made.report("a", 1, counts={1: answered(6)})
    assert (made.coordinator.counts()[1].requests, made.coordinator.status()["replicas"]) == (5, 1)
