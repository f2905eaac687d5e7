"""What was measured of each launcher and of each peer, and how they compare."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, geometric_mean, harmonic_mean, median, stdev
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What one way to train costs; None where a figure does not apply.

    Attributes:
        name: a launcher's, or 'bare', 'mllib' or 'parameter_server'.
        about: a few words on what ran.
        first_step_s: seconds from the launch to the end of the first optimizer step.
        samples_per_s: rows a second over all workers, without validation, in all epochs but the first, which warms up; of
            several turns, the geometric mean.
        epoch_s: seconds of an epoch with validation; the mean of the same epochs.
        peak_mb: the most memory that a worker has held, MB of 2**20 bytes.
        wire_bytes: bytes that a worker sends in a step; for a parameter server, all that goes in and out of the server.
        validation: the best epoch's validation metric.
        auc: ROC-AUC on the test split.
        seconds: of the whole training, where it has no steps.
        losses: training loss by epoch.
        weights: SHA-256 of the best epoch's weights.
        of_bare: samples/s as a part of the bare loop's, turn by turn of those that both took.
        timeline: seconds from the launch, by what a worker had reached.
    """

    name: str
    about: str = ""
    first_step_s: float | None = None
    samples_per_s: float | None = None
    epoch_s: float | None = None
    peak_mb: float | None = None
    wire_bytes: float | None = None
    validation: float | None = None
    auc: float | None = None
    seconds: float | None = None
    losses: list[float] = field(default_factory=list)
    weights: str | None = None
    of_bare: list[float] = field(default_factory=list)
    timeline: dict[str, float] = field(default_factory=dict)

    def spans(self) -> dict[str, float]:
        """Seconds between what the timeline says was reached, by what they lead to; what was there at the launch took none.

        >>> Cost("ray", timeline={"worker started": 2.0, "first step": 3.5}).spans()
        {'worker started': 2.0, 'first step': 1.5}
        """
        reached = sorted(self.timeline.items(), key=lambda item: item[1])
        times = pairwise([0.0, *(max(0.0, seconds) for _, seconds in reached)])
        return {name: end - start for (name, _), (start, end) in zip(reached, times, strict=True)}


def of_launcher(
    name: str, history: Sequence[dict[str, float]], timeline: dict[str, float], validation: float, auc: float, weights: str
) -> Cost:
    """A launcher's row from each epoch's metrics."""
    return Cost(
        name,
        "launcher",
        first_step_s=timeline.get("first step"),
        samples_per_s=overall([metrics["samples_per_s"] for metrics in history]),
        epoch_s=fmean(warm([metrics["seconds"] for metrics in history])),
        peak_mb=max(metrics["peak_mb"] for metrics in history),
        wire_bytes=history[-1]["wire_bytes"],
        validation=validation,
        auc=auc,
        losses=[metrics["loss"] for metrics in history],
        weights=weights,
        timeline=timeline,
    )


def warm(by_epoch: Sequence[float]) -> Sequence[float]:
    """Without the first epoch, which warms up, unless it is alone."""
    return by_epoch[1:] or by_epoch


def overall(speeds: Sequence[float]) -> float:
    """Rows over seconds of all warm epochs, from each epoch's rows a second.

    >>> overall([1.0, 10.0, 15.0])
    12.0
    """
    return harmonic_mean(warm(speeds))


def over_rounds(rounds: Sequence[dict[str, Cost]]) -> dict[str, Cost]:
    """The rows of ways to train that ran in several rounds, 'bare' among them: figures that vary by their median."""
    rows = {name: _median([one[name] for one in rounds]) for name in rounds[0]}
    speeds = {name: [one[name].samples_per_s or math.nan for one in rounds] for name in rows}
    return beside_bare(rows, speeds)


def _median(costs: Sequence[Cost]) -> Cost:
    names = ("first_step_s", "epoch_s", "peak_mb")
    found = {name: [value for cost in costs if (value := getattr(cost, name)) is not None] for name in names}
    changes: dict[str, Any] = {name: median(values) for name, values in found.items() if values}
    return replace(costs[0], **changes)


def beside_bare(rows: dict[str, Cost], speeds: dict[str, list[float]]) -> dict[str, Cost]:
    """The rows with the speeds, samples/s by turn, of those that took turns with 'bare'.

    By their geometric mean, so that two rows' ratio is the mean of the turns' ratios: what the machine's own speed did from
    turn to turn is not in it.
    """
    taken = {
        name: replace(
            rows[name],
            samples_per_s=geometric_mean(own),
            of_bare=[one / bare for one, bare in zip(own, speeds["bare"], strict=True)],
        )
        for name, own in speeds.items()
    }
    return {**rows, **taken}


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, at least two, and its 95 % interval by Student's t over their logarithms."""
    from scipy.special import stdtrit  # a fifth of a second that the launchers' workers need not pay

    logs = [math.log(one) for one in ratios]
    middle, half = fmean(logs), stdtrit(len(logs) - 1, 0.975) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


@dataclass(frozen=True)
class Costs:
    """All rows of a comparison.

    Attributes:
        title: the pipeline's name.
        setting: name -> value of what all rows have in common, such as the dataset version and the number of workers.
        metric: name of the validation metric.
        launchers: a row each, in the order in which they ran.
        peers: 'bare', and 'mllib' and 'parameter_server' where they ran.
    """

    title: str
    setting: dict[str, Any]
    metric: str
    launchers: dict[str, Cost]
    peers: dict[str, Cost]

    @property
    def equal_weights(self) -> bool | None:
        """Whether all launchers gave the same weights, bit for bit; None where there is nothing to compare."""
        return _all_equal([cost.weights for cost in self.launchers.values()])

    @property
    def equal_losses(self) -> bool | None:
        """Whether all launchers gave the same loss in every epoch, to the last digit."""
        return _all_equal([cost.losses for cost in self.launchers.values()])

    def rows(self) -> list[Cost]:
        return [*self.launchers.values(), *self.peers.values()]

    def part_of_bare(self, cost: Cost) -> float | None:
        """The row's samples/s as a part of the bare loop's."""
        if cost.of_bare:
            return geometric_mean(cost.of_bare)
        bare = self.peers.get("bare", Cost("bare"))
        return cost.samples_per_s / bare.samples_per_s if bare.samples_per_s and cost.samples_per_s else None

    def interval(self, cost: Cost) -> tuple[float, float] | None:
        """The 95 % interval of `part_of_bare`, by `mean_ratio`; None for one turn."""
        return mean_ratio(cost.of_bare)[1:] if len(cost.of_bare) > 1 else None

    def line(self) -> dict[str, Any]:
        """The figures as JSON has them: null where a figure does not apply or is not a number."""
        peer = {"bare": ["samples_per_s"], "mllib": ["auc", "seconds"], "parameter_server": ["samples_per_s", "wire_bytes"]}
        return {
            "launchers": {name: self._of_launcher(cost) for name, cost in self.launchers.items()},
            **{name: {key: _finite(getattr(self.peers.get(name), key, None)) for key in keys} for name, keys in peer.items()},
            "equal_losses": self.equal_losses,
            "equal_weights": self.equal_weights,
        }

    def _of_launcher(self, cost: Cost) -> dict[str, Any]:
        own = ("first_step_s", "samples_per_s", "peak_mb", "auc")
        interval = self.interval(cost)
        beside = {
            "of_bare": _finite(self.part_of_bare(cost)),
            "of_bare_interval": interval and [_finite(end) for end in interval],
        }
        return {key: _finite(getattr(cost, key)) for key in own} | beside


def _all_equal(values: list) -> bool | None:
    return all(one == values[0] for one in values) if len(values) > 1 else None


def _finite(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None
