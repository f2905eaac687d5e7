"""A replica's counts in Prometheus's text format."""

import re

import pytest

from rayloom.serving.metrics import exposition
from rayloom.serving.plan import Counts

SAMPLE = re.compile(r'(rayloom_[a-z_]+)\{model="toy",version="(\d+)"(?:,le="([^"]+)")?\} (\d+)')
COMMENT = re.compile(r"# (HELP|TYPE) (rayloom_[a-z_]+) \S.*")


def counted(*seconds: float, failed: int = 0) -> Counts:
    counts = Counts()
    for index, one in enumerate(seconds):
        counts.answered(one, failed=index < failed)
    return counts


def samples(counts: dict[int, Counts]) -> dict[tuple, float]:
    """By (name, version, bucket)."""
    found = [SAMPLE.fullmatch(line) for line in exposition("toy", counts).splitlines() if not line.startswith("#")]
    assert all(found)
    return {match.groups()[:3]: int(match[4]) for match in found if match}


def buckets(*seconds: float) -> dict[float, int]:
    """Counts by upper edge."""
    found = samples({1: counted(*seconds)})
    return {float(edge): count for (_, _, edge), count in found.items() if edge}


def test_requests_and_failures_are_told_by_version():
    found = samples({3: counted(0.1, 0.2, failed=1), 4: counted(0.1)})
    assert found["rayloom_requests_total", "3", None] == 2 and found["rayloom_failures_total", "3", None] == 1
    assert found["rayloom_requests_total", "4", None] == 1 and found["rayloom_failures_total", "4", None] == 0


def test_buckets_grow_and_the_last_has_all():
    found = buckets(1e-9, 1e-4, 0.003, 0.003, 0.5, 7.0, 1e6)
    assert list(found.values()) == sorted(found.values()) and [*found] == sorted(found)
    assert found[float("inf")] == samples({1: counted(*[1.0] * 7)})["rayloom_latency_seconds_count", "1", None] == 7


@pytest.mark.parametrize("seconds", [1e-9, 0.0001, 0.002, 0.06, 0.9, 29.0, 100.0])
def test_a_latency_is_in_the_buckets_from_its_own_on(seconds):
    found = buckets(seconds)
    assert found == {edge: int(seconds <= edge) for edge in found}


def test_each_name_is_described_before_its_samples():
    lines = exposition("toy", {1: counted(0.1)}).splitlines()
    said: dict[str, set[str]] = {}
    for line in lines:
        if line.startswith("#"):
            comment = COMMENT.fullmatch(line)
            said.setdefault(comment[2], set()).add(comment[1])
        else:
            name = re.sub(r"_(bucket|count)$", "", SAMPLE.fullmatch(line)[1])
            assert said[name] == {"HELP", "TYPE"}


def test_the_text_ends_with_a_newline_even_where_nothing_was_counted():
    assert exposition("toy", {}).endswith("\n")
