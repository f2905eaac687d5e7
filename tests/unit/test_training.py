"""The training loop in this process: repeats itself bit for bit, resumes, learns, and cuts rows fairly."""

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from rayloom import feeding, models, training
from rayloom.balance import Balanced
from rayloom.errors import ConfigError, DataError, DivergedError
from rayloom.worker import Shard, Worker, bounds, shard_sizes
from tests.unit import breaking


@pytest.fixture(scope="module")
def whole(train):
    """An undisturbed run of three epochs."""
    return train()


@pytest.fixture(scope="module")
def long(train):
    """An undisturbed run of twenty epochs."""
    return train({"train.epochs": 20})


def test_the_same_seed_gives_the_same_weights_bit_for_bit(train, whole):
    assert train().weights() == whole.weights()


def test_the_same_seed_gives_the_same_metrics(train, whole):
    assert train().history() == whole.history()


def test_what_was_drawn_before_does_not_count(train, whole):
    torch.rand(7), np.random.default_rng().random()
    assert train().weights() == whole.weights()


def test_another_seed_gives_other_weights(train, whole):
    assert train({"seed": 18}).weights() != whole.weights()


def test_the_loss_falls_on_what_can_be_learned(long):
    assert long.reported[-1]["loss"] < 0.5 * long.reported[0]["loss"]


def test_what_can_be_learned_is_learned(long):
    assert long.reported[-1]["validation_auc"] > 0.97


def test_every_epoch_reports_loss_metrics_and_costs(whole):
    names = {"epoch", "loss", "validation_auc", "validation_n", "samples_per_s", "seconds", "peak_mb", "wire_bytes"}
    assert [metrics["epoch"] for metrics in whole.reported if names <= metrics.keys()] == [0, 1, 2]


def test_validation_covers_every_row(whole):
    assert whole.reported[0]["validation_n"] == 61


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_golden_answers_are_those_of_the_checkpoints_weights_in_fp32(
    train, training_pipeline, training_state, make_shards, precision
):
    found = train({"evaluate": {"calibrate": "none"}, "train.precision": precision})
    model = models.build(training_pipeline().model, training_state)
    model.load_state_dict(load_file(found.last.folder / "model.safetensors"))
    logits = training.predict(model, feeding.Resident(make_shards()["validation"].arrays, "cpu"))
    expected = torch.sigmoid(logits)[: training.GOLDEN_ROWS].tolist()
    assert found.last.progress()["golden"] == pytest.approx(expected, abs=1e-6)


def test_the_rows_scored_at_once_do_not_change_an_answer(training_pipeline, training_state, make_arrays):
    model = models.build(training_pipeline().model, training_state)
    rows = feeding.Resident(make_arrays(101, 1), "cpu")
    assert torch.allclose(training.predict(model, rows, 7), training.predict(model, rows), atol=1e-7, rtol=0)


def test_a_validation_split_of_one_class_is_refused(train, make_shards):
    shards = make_shards()
    shards["validation"].arrays["label"] = np.ones_like(shards["validation"].arrays["label"])
    with pytest.raises(DataError, match="rows of the validation split have the label 1"):
        train(shards=shards)


def test_a_batch_larger_than_the_split_is_the_split(train):
    assert len(train({"train.batch_size": 10_000}).reported) == 3


def test_one_row_is_enough_to_train(train, make_arrays, make_shards):
    assert len(train(shards={**make_shards(), "train": Shard(make_arrays(1, 1), 1)}).reported) == 3


@pytest.mark.parametrize("mode", ["class_weights", "weighted_sampling", "down_sampling"])
def test_a_balanced_run_repeats_itself_and_differs_from_one_that_is_not(train, make_shards, make_unequal, mode):
    shards = {**make_shards(), "train": make_unequal()}
    weights = [train({"train.balance": balance}, shards=shards).weights() for balance in (mode, mode, "none")]
    assert weights[0] == weights[1] != weights[2]


def test_class_weights_raise_the_probability_of_the_rare_class(train, make_shards, make_unequal):
    shards = {**make_shards(), "train": make_unequal()}
    plain, weighted = (
        train({"train.balance": mode, "evaluate": {"calibrate": "none"}}, shards=shards) for mode in ("none", "class_weights")
    )
    assert np.mean(weighted.last.progress()["golden"]) > np.mean(plain.last.progress()["golden"]) + 0.1


def test_what_balancing_did_stands_in_the_checkpoint(train, make_shards, make_unequal):
    history = train({"train.balance": "down_sampling"}, shards={**make_shards(), "train": make_unequal()}).history()
    assert [metrics["balance_kept_0"] for metrics in history] == [10, 10, 10]


def test_25_rows_on_2_ranks_in_batches_of_32_are_a_step_each():
    assert batches(25, 32, 2) == [[12], [13]]


def test_input_that_is_nan_ends_the_training(train, make_shards):
    shards = make_shards()
    shards["train"].arrays["numbers"][3, 0] = np.nan
    with pytest.raises(DivergedError, match=r"The training loss became nan in epoch 0: the run diverged; lower train\.lr"):
        train(shards=shards)


@pytest.mark.parametrize("fault", ["diverge", "explode"])
@pytest.mark.parametrize("at", [5, 7, 8])
def test_a_run_that_diverges_leaves_the_last_good_checkpoint(train, tmp_path, fault, at):
    with pytest.raises(DivergedError):
        train({"model": breaking.section(fault, at), "train.checkpoint": {"every_steps": 1}}, tmp_path)
    weights = load_file(training.checkpoints.last(tmp_path).folder / "model.safetensors").values()
    assert training.checkpoints.last(tmp_path).place == divmod(at - 1, 4) and all(one.isfinite().all() for one in weights)


@pytest.mark.parametrize(
    ("steps", "seconds", "found"), [(10, 2.0, 5), (1, 30.0, 1), (100, 0.1, training.MOST_STEPS), (1, 0.0, 200)]
)
def test_ranks_look_about_once_a_second(steps, seconds, found):
    assert training.between_looks(steps, seconds) == found


def test_divergence_is_found_before_the_epochs_end(train, make_arrays, make_shards):
    rows = 3 * training.MOST_STEPS
    shards = {**make_shards(), "train": Shard(make_arrays(rows, 1), rows)}
    with pytest.raises(DivergedError):
        train({"train.batch_size": 1, "model": breaking.section("diverge", 2, last=training.MOST_STEPS + 2)}, shards=shards)


@pytest.mark.parametrize("name", ["train", "validation"])
def test_a_split_with_fewer_rows_than_ranks_is_refused(
    name, make_arrays, make_shards, training_pipeline, training_state, tmp_path
):
    shards = {**make_shards(0, 4), name: Shard(make_arrays(1, 1), 3)}
    with pytest.raises(DataError, match=f"The {name} split has 3 rows for 4 workers"):
        training.train(training_pipeline(), training_state, Worker(0, 4, "cpu", tmp_path), shards)


CUTS = [
    (total, batch_size, world_size)
    for total in (4, 5, 7, 16, 100, 101, 1024, 1025)
    for batch_size in (1, 2, 4, 10, 32, 101, 5000)
    for world_size in (1, 2, 3, 4)
]


def numbered(rows: int) -> feeding.Resident:
    """Rows whose label is their place, and whose number is twice that."""
    places = np.arange(rows, dtype=np.float32)
    return feeding.Resident({"label": places, "numbers": places[:, None] * 2}, "cpu")


def batches(total: int, batch_size: int, world_size: int) -> list[list[int]]:
    """Sizes of the batches that the ranks really take, by rank."""
    sizes = shard_sizes(total, world_size)
    steps = training.count_steps(sizes, batch_size)
    ranks = [Balanced(numbered(rows), sizes) for rows in sizes]
    return [[len(batch["label"]) for batch in rank.batches(rank.order(), steps)] for rank in ranks]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("total", [7, 8, 100, 101])
def test_shards_cover_all_rows_and_differ_by_one_at_most(total, world_size):
    sizes = shard_sizes(total, world_size)
    assert sum(sizes) == total and max(sizes) - min(sizes) <= 1


def test_bounds_begin_and_end_with_the_split():
    assert (bounds(101, 4)[0], bounds(101, 4)[-1]) == (0, 101)


def test_101_rows_on_4_ranks_are_shared_out():
    assert batches(101, 32, 4) == [[7, 6, 6, 6], [7, 6, 6, 6], [7, 6, 6, 6], [7, 7, 6, 6]]


def test_every_rank_takes_the_same_number_of_steps():
    assert [cut for cut in CUTS if len({len(sizes) for sizes in batches(*cut)}) != 1] == []


def test_no_rank_has_an_empty_batch():
    assert [cut for cut in CUTS if min(map(min, batches(*cut))) == 0] == []


def test_batches_cover_every_row():
    assert [cut for cut in CUTS if sum(map(sum, batches(*cut))) != cut[0]] == []


def test_a_step_has_at_most_the_batch_size_and_a_row_more_for_each_other_rank():
    def allowed(batch_size: int, world_size: int) -> int:
        # A batch cannot be under a row a rank: below that size, the number of ranks stands for it.
        return max(batch_size, world_size) + world_size - 1

    assert [cut for cut in CUTS if max(map(sum, zip(*batches(*cut), strict=True))) > allowed(*cut[1:])] == []


def test_batch_rows_says_what_the_ranks_really_have():
    def said(total: int, batch_size: int, world_size: int) -> list[int]:
        sizes = shard_sizes(total, world_size)
        steps = training.count_steps(sizes, batch_size)
        return [training.batch_rows(sizes, steps, step) for step in range(steps)]

    assert [cut for cut in CUTS if said(*cut) != [sum(sizes) for sizes in zip(*batches(*cut), strict=True)]] == []


def test_no_row_of_an_epoch_is_taken_twice():
    given = Balanced(numbered(101), [101])
    seen = torch.cat([batch["label"] for batch in given.batches(given.order(), 4)])
    assert seen.sort().values.tolist() == list(range(101))


def test_a_rows_values_stay_together_when_shuffled():
    given = Balanced(numbered(101), [101])
    found = list(given.batches(given.order(), 4))
    assert all(torch.equal(batch["numbers"][:, 0], batch["label"] * 2) for batch in found)


def test_an_epoch_that_goes_on_inside_has_the_batches_that_were_left():
    given = Balanced(numbered(101), [101])
    order = given.order()
    whole, rest = list(given.batches(order, 4)), list(given.batches(order, 4, 3))
    assert [one["label"].tolist() for one in rest] == [whole[3]["label"].tolist()]


@pytest.mark.parametrize(("left", "right"), [((1, 0, 0), (2, 0, 0)), ((1, 0, 0), (1, 1, 0)), ((1, 0, 0), (1, 0, 1))])
def test_seed_epoch_and_rank_each_give_another_order(left, right):
    orders = []
    for numbers in (left, right):
        training.seed_rank(*numbers)
        orders.append(torch.randperm(101).tolist())
    assert orders[0] != orders[1]


def summed_and_its_gradient(logits: torch.Tensor, loss) -> tuple[torch.Tensor, torch.Tensor]:
    """A sum over rows, and what each row's logits do to it."""
    given = logits.clone().requires_grad_()
    total = loss(given)
    total.backward()
    return total.detach(), given.grad


def assert_alike(logits, ours, torchs) -> None:
    for found, expected in zip(summed_and_its_gradient(logits, ours), summed_and_its_gradient(logits, torchs), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 3.0])])
def test_losses_of_one_logit_are_torchs_of_two(smoothing, weights):
    torch.manual_seed(1)
    logits, labels = torch.randn(50), torch.randint(2, (50,))

    def torchs(given):
        both = torch.stack([torch.zeros(50), given], 1)
        losses = cross_entropy(both, labels, label_smoothing=smoothing, reduction="none")
        return (losses * (1 if weights is None else weights[labels])).sum()

    assert_alike(logits, lambda given: training.summed_loss(given, labels.float(), weights, smoothing), torchs)


def test_losses_of_more_classes_are_torchs():
    torch.manual_seed(1)
    logits, labels, weights = torch.randn(50, 5), torch.randint(5, (50,)), torch.rand(5)
    ours = partial(training.summed_loss, labels=labels, weights=weights, smoothing=0.0)
    assert_alike(logits, ours, lambda given: cross_entropy(given, labels, weights, reduction="sum"))


def test_smoothed_losses_of_more_classes_are_torchs():
    torch.manual_seed(1)
    logits, labels = torch.randn(50, 5), torch.randint(5, (50,))
    ours = partial(training.summed_loss, labels=labels, weights=None, smoothing=0.1)
    assert_alike(logits, ours, lambda given: cross_entropy(given, labels, label_smoothing=0.1, reduction="sum"))


def test_five_classes_train_with_a_logit_each(train, training_state, make_arrays):
    def shard(rows: int) -> Shard:
        arrays = make_arrays(rows, rows)
        return Shard({**arrays, "label": np.digitize(arrays["numbers"][:, 0], [-1, -0.3, 0.3, 1])}, rows)

    state = training_state.model_copy(update={"classes": ["a", "b", "c", "d", "e"]})
    found = train({"train.epochs": 20}, shards={"train": shard(200), "validation": shard(100)}, state=state)
    assert found.reported[-1]["validation_accuracy"] > 0.6 and np.shape(found.last.progress()["golden"]) == (64, 5)


def test_accumulated_parts_give_the_same_step(train):
    changes = {"model.dropout": 0.0, "train.optimizer": "sgd"}
    left, right = (
        load_file(train({**changes, "train.accumulate": parts}).last.folder / "model.safetensors") for parts in (1, 4)
    )
    assert all(torch.allclose(left[name], right[name], atol=1e-6, rtol=0) for name in left)


def test_clipping_bounds_a_step(train, training_pipeline, training_state):
    changes = {
        "train.optimizer": "sgd", "train.momentum": 0.0, "train.weight_decay": 0.0, "train.lr": 1.0, "train.warmup": 0.0,
        "train.schedule": "constant", "train.epochs": 1, "train.batch_size": 101, "train.clip_norm": 0.01,
    }  # fmt: skip
    found = load_file(train(changes).last.folder / "model.safetensors")
    torch.manual_seed(training_pipeline().seed)
    fresh = models.build(training_pipeline().model, training_state).state_dict()
    moved = torch.cat([(found[name] - fresh[name]).flatten() for name in fresh]).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_bf16_trains_to_other_weights_of_fp32(train, whole):
    found = train({"train.precision": "bf16"})
    assert found.weights() != whole.weights() and {one.dtype for one in found.last.weights().values()} == {torch.float32}


def test_early_stopping_ends_after_so_many_epochs_without_a_better_one(train):
    changes = {"train.epochs": 30, "train.patience": 3, "train.lr": 0.1, "evaluate": {"metric": "log_loss"}}
    losses = [metrics["validation_log_loss"] for metrics in train(changes).reported]
    assert len(losses) < 30 and losses.index(min(losses)) == len(losses) - 4


def test_a_family_without_gradient_checkpointing_is_refused(train):
    with pytest.raises(ConfigError, match=r"train\.gradient_checkpointing: \w+ has no method checkpoint_activations"):
        train({"train.gradient_checkpointing": True, "model": breaking.section()})


def test_torch_computes_with_as_many_threads_as_the_worker_has_cpus(train):
    before = torch.get_num_threads()
    train({"train.cpus": 2, "train.epochs": 1})
    found = torch.get_num_threads()
    torch.set_num_threads(before)
    assert found == 2


@pytest.mark.parametrize("changes", [{}, {"train.ema": 0.9}, {"train.balance": "weighted_sampling"}], ids=str)
def test_rows_that_are_streamed_give_the_same_weights(train, monkeypatch, changes):
    resident = train(changes)
    monkeypatch.setattr(training.config, "count_bytes", lambda memory: 0)
    assert train(changes).weights() == resident.weights()
