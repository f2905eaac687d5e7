"""Classes of different sizes: weights, draws and rows kept have the right shares, repeat themselves, and ranks agree."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rayloom import balance
from rayloom.errors import DataError
from rayloom.feeding import Batch, Resident
from rayloom.worker import Worker

ALONE = Worker(0, 1, "cpu", Path())

COUNTS = [
    np.array([[90, 10]]),
    np.array([[45, 5], [45, 5]]),
    np.array([[50, 0], [40, 10]]),
    np.array([[33, 1], [33, 1], [32, 1]]),
    np.array([[7, 5, 3], [2, 9, 4]]),
]


def rows(negatives: int = 90, positives: int = 10) -> Resident:
    """Rows whose number is their place."""
    label = np.repeat(np.float32([0, 1]), [negatives, positives])
    return Resident({"label": label, "numbers": np.arange(len(label), dtype=np.float32)[:, None]}, "cpu")


def balanced(mode: str, data: Resident | None = None, seed: int = 17) -> balance.Balanced:
    data = data or rows()
    return balance.balance(mode, data, len(data.labels), 2, ALONE, seed)


def epoch(given: balance.Balanced, seed: int = 0, steps: int = 4) -> dict[str, np.ndarray]:
    """All rows of an epoch, in their order."""
    torch.manual_seed(seed)
    parts: list[Batch] = list(given.batches(given.order(), steps))
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def test_none_changes_nothing():
    data = rows()
    assert balanced("none", data) == balance.Balanced(data, [100])


def test_class_weights_are_scikit_learns():
    from sklearn.utils.class_weight import compute_class_weight

    label = rows().labels.numpy()
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=label)
    assert balanced("class_weights").weights.tolist() == pytest.approx(expected)


def test_class_weights_take_each_row_once():
    assert sorted(epoch(balanced("class_weights"))["numbers"][:, 0]) == list(range(100))


def test_with_class_weights_both_classes_weigh_the_same_in_the_loss():
    given = balanced("class_weights")
    losses = binary_cross_entropy_with_logits(
        torch.zeros(100), given.rows.labels, given.weights[given.rows.labels.long()], reduction="none"
    )
    assert losses[:90].sum().item() == pytest.approx(losses[90:].sum().item(), rel=1e-5)


def test_weighted_sampling_draws_as_many_of_each_class_and_as_many_rows_as_before():
    labels = epoch(balanced("weighted_sampling"))["label"]
    assert (len(labels), labels.sum()) == (100, 50)


def test_weighted_sampling_reaches_nearly_every_row_over_some_epochs():
    given = balanced("weighted_sampling")
    seen = {place for seed in range(10) for place in epoch(given, seed)["numbers"][:, 0].tolist()}
    assert len(seen) > 95


def test_a_rows_values_stay_together_when_drawn():
    found = epoch(balanced("weighted_sampling"))
    assert ((found["numbers"][:, 0] >= 90) == (found["label"] == 1)).all()


def test_weighted_sampling_repeats_itself_by_seed_and_differs_between_epochs():
    first, again, other = (epoch(balanced("weighted_sampling"), seed)["numbers"].tolist() for seed in (1, 1, 2))
    assert first == again and first != other


def test_down_sampling_keeps_as_many_of_each_class_each_once():
    found = epoch(balanced("down_sampling"))
    assert (len(found["label"]), found["label"].sum(), len(set(found["numbers"][:, 0]))) == (20, 10, 20)


def test_down_sampling_keeps_the_same_rows_in_every_epoch():
    given = balanced("down_sampling")
    assert sorted(epoch(given, 1)["numbers"][:, 0]) == sorted(epoch(given, 2)["numbers"][:, 0])


def test_down_sampling_keeps_rows_by_seed():
    kept = [balanced("down_sampling", seed=seed).kept.tolist() for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_all_ranks_together_keep_the_smallest_class_of_each(counts):
    kept = balance.kept_rows(counts)
    assert kept.sum(0).tolist() == [counts.sum(0).min()] * counts.shape[1]
    assert (kept <= counts).all() and (kept >= 0).all()


@pytest.mark.parametrize(
    ("mode", "figures"),
    [
        ("none", {}),
        ("class_weights", {"weight_0": pytest.approx(100 / 180), "weight_1": 5.0}),
        ("weighted_sampling", {"drawn_0": 50, "drawn_1": 50}),
        ("down_sampling", {"kept_0": 10, "kept_1": 10}),
    ],
)
def test_what_was_done_is_told_in_figures(mode, figures):
    rows_by_class = {"balance_rows_0": 90, "balance_rows_1": 10} if figures else {}
    assert balanced(mode).figures == {**rows_by_class, **{f"balance_{name}": value for name, value in figures.items()}}


@pytest.mark.parametrize("mode", ["class_weights", "weighted_sampling", "down_sampling"])
def test_a_class_without_rows_is_refused(mode):
    with pytest.raises(DataError, match="the training split has no row of the label's class 1"):
        balanced(mode, rows(10, 0))


def on_rank(mode: str, rank: int, counts: list[list[int]]) -> balance.Balanced:
    """One of two ranks whose rows have these classes."""
    return balance.arrange(mode, rows(*counts[rank]), np.array(counts), Worker(rank, 2, "cpu", Path()), 17)


def test_ranks_agree_on_weights_though_their_rows_differ():
    found = [on_rank("class_weights", rank, [[48, 2], [42, 8]]) for rank in range(2)]
    assert found[0].weights.tolist() == found[1].weights.tolist() == pytest.approx([100 / 180, 5.0])


def test_ranks_agree_on_the_rows_kept_though_their_rows_differ():
    found = [on_rank("down_sampling", rank, [[48, 2], [42, 8]]) for rank in range(2)]
    assert found[0].sizes == found[1].sizes == [len(one.kept) for one in found]
    assert sum(float(one.rows.labels[one.kept].sum()) for one in found) == 10 and sum(found[0].sizes) == 20


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_draw_a_class_is_refused_on_all_ranks(rank):
    with pytest.raises(
        DataError, match=r"rank 0 has no row of the label's class 1 to draw; set train.balance to class_weights"
    ):
        on_rank("weighted_sampling", rank, [[50, 0], [40, 10]])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_would_keep_nothing_is_refused_on_all_ranks(rank):
    with pytest.raises(DataError, match=r"down_sampling keeps 2 rows, none on rank 0; lower train.workers"):
        on_rank("down_sampling", rank, [[10, 0], [9, 1]])
