"""Which epochs of a trial are told of together."""

from collections.abc import Iterator

import pytest

from rayloom.training import Epoch
from rayloom.tuning import trial


def epochs(count: int) -> Iterator[Epoch]:
    return (Epoch({"epoch": number}, number == count - 1) for number in range(count))


def told(run: Iterator[Epoch], decisive: frozenset[int] | None) -> list[list[int]]:
    """The epochs of each telling, counted from 1, until the run is over."""
    found: list[list[int]] = []
    while not found or found[-1]:
        found.append([int(epoch.metrics["epoch"]) + 1 for epoch in trial.together(run, decisive)])
    return found[:-1]


@pytest.mark.parametrize(
    ("decisive", "expected"),
    [
        (frozenset({1, 3}), [[1], [2, 3], [4, 5, 6, 7, 8]]),
        (frozenset({8}), [[1, 2, 3, 4, 5, 6, 7, 8]]),
        (frozenset(), [[1, 2, 3, 4, 5, 6, 7, 8]]),
        (None, [[1], [2], [3], [4], [5], [6], [7], [8]]),
    ],
)
def test_no_epoch_is_told_of_after_one_that_decides(decisive, expected):
    assert told(epochs(8), decisive) == expected


def test_long_epochs_are_told_of_one_by_one(monkeypatch):
    monkeypatch.setattr(trial, "TOGETHER_S", 0.0)
    assert told(epochs(3), frozenset()) == [[1], [2], [3]]


def test_what_fails_comes_after_the_epochs_before_it():
    def run() -> Iterator[Epoch]:
        yield from epochs(2)
        raise ValueError("the third")

    heard = []
    with pytest.raises(ValueError, match="the third"):
        for epoch in trial.together((Epoch(one.metrics, is_last=False) for one in run()), frozenset()):
            heard.append(epoch)
    assert len(heard) == 2
