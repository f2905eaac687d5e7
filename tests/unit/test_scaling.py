"""serve.replicas: a number, or between which numbers; serve.gpus: a part of one."""

import pytest

from rayloom import config
from rayloom.errors import ConfigError


@pytest.fixture
def read(toy_data, toy_csv):
    """Reads the toy pipeline with these keys of `serve`."""
    return lambda serve: config.check(config.Document({**toy_data(), "serve": serve})).serve


@pytest.mark.parametrize(
    ("replicas", "fewest"), [(3, 3), ({"max": 4}, 1), ({"min": 0, "max": 4}, 1), ({"min": 2, "max": 4}, 2)]
)
def test_replicas_are_a_number_or_a_range(read, replicas, fewest):
    assert read({"replicas": replicas}).fewest == fewest


REFUSED = {
    "none at all": ({"replicas": 0}, "'serve.replicas': Input should be greater than or equal to 1, found 0"),
    "a word": ({"replicas": "two"}, "'serve.replicas': Input should be a valid integer, found 'two'"),
    "no most": ({"replicas": {"min": 1}}, "the key 'serve.replicas.max' is missing"),
    "an unknown key": ({"replicas": {"max": 2, "maxx": 3}}, "unknown key 'serve.replicas.maxx'; did you mean 'max'"),
    "the wrong way round": ({"replicas": {"min": 5, "max": 4}}, "serve.replicas.min is 5 and max is 4"),
    "two GPUs": ({"gpus": 2.0}, "'serve.gpus': Input should be less than or equal to 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(read, case):
    serve, sentence = REFUSED[case]
    with pytest.raises(ConfigError, match=sentence):
        read(serve)


@pytest.mark.parametrize(("cpus", "threads"), [(0.25, 1), (1, 1), (4, 4)])
def test_a_part_of_a_cpu_is_a_thread(read, cpus, threads):
    assert read({"cpus": cpus}).threads == threads
