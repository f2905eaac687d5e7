"""A replica's counts as Prometheus reads them (text exposition format 0.0.4)."""

from collections.abc import Iterator
from itertools import accumulate

from rayloom.serving.plan import BINS, PER_OCTAVE, Counts, latency_edge

EDGES = range(PER_OCTAVE, BINS - 1, PER_OCTAVE)
"""One bin in each doubling: what is counted is finer than what a dashboard needs. The last bin has what lies beyond, too."""


def exposition(model: str, counts: dict[int, Counts]) -> str:
    """All metrics of a replica, by version."""
    lines = [
        "# HELP rayloom_requests_total Requests that a version answered or failed on.",
        "# TYPE rayloom_requests_total counter",
        *_samples("rayloom_requests_total", model, {number: one.requests for number, one in counts.items()}),
        "# HELP rayloom_failures_total Requests that a version failed on.",
        "# TYPE rayloom_failures_total counter",
        *_samples("rayloom_failures_total", model, {number: one.errors for number, one in counts.items()}),
        "# HELP rayloom_latency_seconds Time from the last byte of a request to its answer.",
        "# TYPE rayloom_latency_seconds histogram",
        *(line for number, one in counts.items() for line in _buckets(model, number, one)),
    ]
    return "\n".join(lines) + "\n"


def _samples(name: str, model: str, values: dict[int, int]) -> Iterator[str]:
    return (f'{name}{{model="{model}",version="{number}"}} {value}' for number, value in values.items())


def _buckets(model: str, number: int, counts: Counts) -> Iterator[str]:
    labels = f'model="{model}",version="{number}"'
    below = list(accumulate(counts.latency))
    for edge in EDGES:
        yield f'rayloom_latency_seconds_bucket{{{labels},le="{latency_edge(edge):.6g}"}} {below[edge]}'
    yield f'rayloom_latency_seconds_bucket{{{labels},le="+Inf"}} {counts.requests}'
    yield f"rayloom_latency_seconds_count{{{labels}}} {counts.requests}"
