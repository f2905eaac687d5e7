"""What ended a worker is told once, by the rank that is at fault."""

import pytest

from rayloom.errors import ConfigError, DataError, DivergedError, TrainingError
from rayloom.launchers import failures

LOST = RuntimeError("Connection closed by peer [127.0.0.1]:2411")


def fail(folder, rank: int, error: Exception) -> None:
    with failures.noted(folder, rank):
        raise error


def failed(folder, errors: dict[int, Exception]) -> None:
    """Ranks that ended with these errors, which went on to the launcher."""
    for rank, error in errors.items():
        with pytest.raises(type(error)):
            fail(folder, rank, error)


@pytest.mark.parametrize("kind", [ConfigError, DataError, DivergedError])
def test_a_final_error_ends_the_worker_quietly_and_is_raised_by_the_launcher(tmp_path, kind):
    fail(tmp_path, 1, kind("The loss is nan; lower train.lr."))
    with pytest.raises(kind, match=r"^The loss is nan; lower train\.lr\.$"):
        failures.raise_final(tmp_path)


def test_an_error_that_is_not_final_goes_on_to_the_launcher(tmp_path):
    failed(tmp_path, {1: ValueError("odd")})
    failures.raise_final(tmp_path)


def test_rank_and_text_of_an_exception_are_told(tmp_path):
    failed(tmp_path, {1: ValueError("the third row of the batch is odd")})
    with pytest.raises(TrainingError, match="Training failed: rank 1: ValueError: the third row of the batch is odd"):
        failures.raise_first(tmp_path, "exit code 1")


def test_ranks_that_only_lost_their_connection_are_not_told(tmp_path):
    failed(tmp_path, {0: LOST, 1: ValueError("the third row of the batch is odd"), 2: LOST})
    with pytest.raises(TrainingError, match=r"^Training failed: rank 1: ValueError"):
        failures.raise_first(tmp_path, "exit code 1")


def test_a_rank_that_noted_nothing_is_told_as_the_launcher_knows_it(tmp_path):
    failed(tmp_path, {0: LOST})
    with pytest.raises(TrainingError, match=r"^Training failed: rank 1 was killed by SIGKILL\. The"):
        failures.raise_first(tmp_path, "rank 1 was killed by SIGKILL")


def test_a_hung_rank_is_told_though_it_is_a_time_out(tmp_path):
    failed(tmp_path, {0: TrainingError("Not rank 1 came to a collective within train.timeout_s (2 s)")})
    with pytest.raises(TrainingError, match="Not rank 1 came"):
        failures.raise_first(tmp_path, "exit code 1")


def test_a_final_error_is_told_before_others(tmp_path):
    failed(tmp_path, {0: ValueError("odd")})
    fail(tmp_path, 1, DataError("The split has 3 rows."))
    with pytest.raises(DataError, match="3 rows"):
        failures.raise_first(tmp_path, "exit code 1")


def test_a_worker_that_ends_well_takes_back_what_it_noted(tmp_path):
    failed(tmp_path, {1: ValueError("odd")})
    with failures.noted(tmp_path, 1):
        pass
    assert failures.found(tmp_path) == []


def test_failures_are_in_the_order_of_their_ranks(tmp_path):
    failed(tmp_path, {rank: ValueError("odd") for rank in (10, 2, 0)})
    assert [one.rank for one in failures.found(tmp_path)] == [0, 2, 10]


def test_a_long_text_is_cut(tmp_path):
    failed(tmp_path, {0: ValueError("x" * 5000)})
    assert len(failures.found(tmp_path)[0].text) == failures.LONGEST
