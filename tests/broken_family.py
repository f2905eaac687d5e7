"""A model family that fails while a worker builds it, for tests/system/test_jobs.py."""


def build(model, state):
    raise ValueError("the network cannot be built")
