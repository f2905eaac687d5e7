"""What Ray's processes are like on a cluster that Rayloom starts."""

import gc

import ray


def test_each_process_starts_without_looking_for_garbage_among_its_imports(joined):
    found = ray.remote(lambda: gc.get_threshold()).remote()  # a function of its own, which imports nothing of ours
    assert ray.get(found) == gc.get_threshold() == (10_000, 10, 10)
