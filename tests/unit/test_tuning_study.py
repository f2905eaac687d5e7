"""A sweep's memory: settings are given out once, results are kept in the database, and whoever opens it goes on from there."""

import time
from collections.abc import Callable

import pytest
from optuna.storages.journal import JournalFileBackend

from rayloom import config
from rayloom.errors import ConfigError, ResourceError
from rayloom.tuning import study
from rayloom.tuning.study import Study

CHOICES = {"train.lr": {"choice": [0.1, 0.01, 0.001]}}
WIDE = {"train.lr": {"loguniform": [1e-5, 1.0]}, "model.dropout": {"uniform": [0.0, 0.9]}}


@pytest.fixture
def opened(toy_pipeline, tmp_path):
    """Opens the study in tmp_path, as a sweep that begins or goes on does."""
    studies = []

    def make(searched: dict = WIDE, owner: str = "first", about: str = "rows", sign: int = 1, **tune) -> Study:
        pipeline: config.Pipeline = toy_pipeline({"train": {"epochs": 9}, "tune": {"space": searched, **tune}})
        studies.append(study.open_study(pipeline, tmp_path, owner, {"dataset": about}, "auc", sign))
        return studies[-1]

    yield make
    for one in studies:
        one.close()


def trained(memory: Study, number: int, values: list[float]) -> str:
    """Reports a trial's epochs until it is stopped; returns how it ended."""
    for epoch, value in enumerate(values, 1):
        if memory.report(number, epoch, value, {"epoch": epoch - 1}):
            break
    return memory.end(number, 1.0).state


def test_settings_are_trained_once_and_repeats_get_the_result(opened):
    memory = opened(CHOICES, trials=10, sampler="random")
    given = []
    while one := memory.take():
        given.append(one.params["train.lr"])
        trained(memory, one.number, [one.params["train.lr"]])
    trials = memory.trials()
    assert sorted(given) == [0.001, 0.01, 0.1]
    assert len(trials) == 10 and sum(trial.state == "repeat" for trial in trials) == 7
    assert all(trials[trial.repeats].params == trial.params for trial in trials if trial.state == "repeat")


def test_a_repeat_of_a_running_trial_is_settled_when_that_ends(opened):
    memory = opened({"train.lr": {"choice": [0.1]}}, trials=3)
    only = memory.take()
    assert memory.take() is None
    trained(memory, only.number, [0.5])
    assert [trial.state for trial in memory.trials()] == ["complete", "repeat", "repeat"]


def test_asha_stops_what_is_not_among_the_best_third_at_a_rung(opened):
    memory = opened(trials=9, scheduler="asha", grace=1, reduction=3)
    ends = [trained(memory, memory.take().number, [value] * 9) for value in (0.9, 0.1, 0.2, 0.3, 0.95)]
    assert ends == ["complete", "stopped", "stopped", "stopped", "complete"]
    assert [len(trial.values) for trial in memory.trials()] == [9, 1, 1, 1, 9]


def test_a_lower_value_is_better_where_the_metric_is_a_loss(opened):
    memory = opened(trials=9, sign=-1)
    ends = [trained(memory, memory.take().number, [value] * 9) for value in (0.1, 0.9, 0.8, 0.05)]
    assert ends == ["complete", "stopped", "stopped", "complete"]


def test_a_sweep_that_goes_on_gives_out_what_an_undisturbed_one_would_have(opened, tmp_path, toy_pipeline):
    def go(memory: Study, most: int) -> list[dict]:
        given = []
        while len(given) < most and (one := memory.take()):
            given.append(one.params)
            trained(memory, one.number, [one.params["model.dropout"]] * 9)
        return given

    interrupted = opened(owner="a", trials=20, startup=4)
    before = go(interrupted, 9)
    interrupted.close()
    resumed = opened(owner="a", trials=20, startup=4)
    resumed.adopt()
    assert before + go(resumed, 99) == go(opened(owner="b", trials=20, startup=4), 99)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture
def killed_at(monkeypatch) -> Callable[[int], None]:
    """Has the process end in place of so many writes to the journal from now on, in place of all those after it as well."""
    write = JournalFileBackend.append_logs

    def kill(at: int) -> None:
        left = iter(range(at))

        def append(backend: JournalFileBackend, logs: list) -> None:
            if next(left, None) is None:
                raise Killed
            write(backend, logs)

        monkeypatch.setattr(JournalFileBackend, "append_logs", append)

    return kill


def go_to_the_end(memory: Study) -> list[tuple]:
    """Trains what is given out; returns each trial as it is in the end."""
    memory.adopt()
    while one := memory.take():
        trained(memory, one.number, [one.params["model.dropout"] + one.params["train.lr"]] * 4)
    return [(one.number, one.state, one.params, one.values, one.repeats, one.metrics) for one in memory.trials()]


KILLED = {
    "searched": {"train.lr": {"choice": [0.1, 0.2]}, "model.dropout": {"uniform": [0.0, 0.5], "step": 0.125}},
    "trials": 9,
    "startup": 4,
    "grace": 1,
    "reduction": 2,
    "first": [{"model.dropout": 0.25}, {"train.lr": 0.2}],
}


def test_a_sweep_killed_at_any_write_goes_on_as_an_undisturbed_one(opened, killed_at):
    expected = go_to_the_end(opened(owner="undisturbed", **KILLED))
    assert {state for _, state, *_ in expected} == {"complete", "stopped", "repeat"}
    writes = 0
    while True:
        killed_at(writes)
        try:
            go_to_the_end(opened(owner=f"killed {writes}", **KILLED))
        except Killed:
            killed_at(1_000_000)
            assert go_to_the_end(opened(owner=f"killed {writes}", **KILLED)) == expected, f"killed at write {writes}"
            writes += 1
        else:
            break
    assert writes > 50


def test_running_trials_go_on_with_their_settings_and_rungs(opened):
    memory = opened(trials=5)
    first, second = memory.take(), memory.take()
    memory.report(first.number, 1, 0.9, {})
    memory.close()
    again = opened(trials=5)
    assert again.adopt() == 2
    taken = [again.take(), again.take()]
    assert [(one.number, one.params, one.reported) for one in taken] == [
        (first.number, first.params, 1),
        (second.number, second.params, 0),
    ]
    assert again.report(first.number, 1, 0.9, {}) is False  # heard before
    assert trained(again, second.number, [0.1]) == "stopped"  # the rung knows of 0.9


def test_a_trial_that_was_told_to_stop_is_not_trained_again(opened):
    memory = opened(trials=5)
    trained(memory, memory.take().number, [0.9] * 9)
    second = memory.take()
    assert memory.report(second.number, 1, 0.1, {})
    memory.close()
    again = opened(trials=5)
    assert again.adopt() == 0
    assert again.trials()[second.number].state == "stopped"


def test_machines_that_share_a_study_share_its_number_of_trials(opened, tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path}/shared.db", "study": "both", "trials": 7}
    machines = [opened(owner="one", **shared), opened(owner="two", **shared)]
    numbers = []
    for turn in range(20):
        if one := machines[turn % 2].take():
            numbers.append(one.number)
            trained(machines[turn % 2], one.number, [0.5])
    assert sorted(numbers) == list(range(7))
    assert [len(one.trials()) for one in machines] == [7, 7]


def test_another_machine_leaves_running_trials_alone(opened, tmp_path):
    shared = {"storage": f"sqlite:///{tmp_path}/shared.db", "study": "both", "trials": 7}
    opened(owner="one", **shared).take()
    assert opened(owner="two", **shared).adopt() == 0


def test_points_to_try_come_first_and_once(opened):
    tried = [{"train.lr": 0.5, "model.dropout": 0.25}, {"train.lr": 0.125}]
    memory = opened(trials=3, first=tried)
    given = [memory.take().params for _ in range(3)]
    assert (given[0], given[1]["train.lr"]) == (tried[0], 0.125)
    assert len(opened(trials=3, first=tried).trials()) == 3


@pytest.mark.parametrize("more", [{"time_budget_s": 1e-9}, {"cost_budget": 0.5, "prices": {"CPU": 1.0}}])
def test_no_trial_begins_beyond_the_budget(opened, more):
    memory = opened(trials=5, **more)
    first = memory.take() if "cost_budget" in more else None
    if first:
        memory.report(first.number, 1, 0.5, {})
        memory.end(first.number, 3600.0, cost=1.0)
    else:
        memory.deadline = time.time() - 1
    assert memory.take() is None
    assert opened(trials=5, **more).is_spent() or "time_budget_s" in more


def test_a_failed_trial_has_its_reason_and_is_never_the_best(opened):
    memory = opened(trials=2)
    one = memory.take()
    memory.report(one.number, 1, 0.99, {})
    ended = memory.end(one.number, 2.0, "diverged: the loss became nan")
    assert (ended.state, ended.reason, ended.seconds) == ("failed", "diverged: the loss became nan", 2.0)
    assert memory.end(one.number, 3.0) is None  # the first to say so is right


def test_a_study_of_other_rows_or_settings_is_refused(opened):
    opened(trials=5)
    with pytest.raises(ConfigError, match="another dataset"):
        opened(trials=5, about="other rows")
    with pytest.raises(ConfigError, match="another space"):
        opened(CHOICES, trials=5)


def test_a_database_that_cannot_be_opened_is_named(opened, tmp_path):
    with pytest.raises(ResourceError, match=r"tune\.storage"):
        opened(trials=5, storage=f"sqlite:///{tmp_path}/no/such/folder/study.db")


def test_a_trials_best_epoch_counts(opened):
    memory = opened(trials=1, scheduler="none")
    one = memory.take()
    trained(memory, one.number, [0.5, 0.8, 0.7])
    [trial] = memory.trials()
    assert (trial.value, trial.best_epoch, trial.metrics, trial.values) == (0.8, 2, {"epoch": 1}, {1: 0.5, 2: 0.8, 3: 0.7})
