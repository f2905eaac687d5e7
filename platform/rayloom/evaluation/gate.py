"""The gate: whether a model may become @champion, and if not, every reason why."""

from dataclasses import dataclass, field

from rayloom import config
from rayloom.config.evaluation import sign
from rayloom.errors import GateError
from rayloom.evaluation.bootstrap import Comparison
from rayloom.evaluation.slices import Slice
from rayloom.evaluation.validation import place


@dataclass(frozen=True)
class Rival:
    """The champion, for a model that wants to take its place.

    Attributes:
        name: its name and version; None where there is none, or it is the model itself.
        comparisons: by metric; empty where it could not answer the test rows.
        reason: why it could not.
    """

    name: str | None = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """A condition of the gate: its key in the pipeline file, whether it holds, and what was found."""

    key: str
    passed: bool
    found: str


def judge_gate(
    conditions: list[config.Gate], test: dict[str, float], slices: dict[str, list[Slice]], rival: Rival
) -> list[Outcome]:
    """Holds what was measured against each condition.

    Args:
        test: metrics of the test split. NaN reaches no limit.
        slices: by metric, for each metric that a condition on slices names; those that are not `gated` count for nothing.
        rival: compared by each metric that a condition with `not_worse_than` names.
    """
    outcomes = []
    for index, condition in enumerate(conditions):
        key = f"{place(conditions, index)}.{condition.limit}"
        if condition.not_worse_than:
            outcomes.append(_against(condition, rival, key))
        elif condition.slices:
            outcomes.append(_each(condition, slices[condition.metric], key))
        else:
            outcomes.append(_limit(condition, test[condition.metric], key))
    return outcomes


def _reaches(condition: config.Gate, reached: float) -> bool:
    return reached >= condition.at_least if condition.at_least is not None else reached <= (condition.at_most or 0.0)


def _bound(condition: config.Gate, key: str) -> str:
    if condition.at_least is not None:
        return f"below {key} = {condition.at_least}"
    return f"above {key} = {condition.at_most}"


def _limit(condition: config.Gate, reached: float, key: str) -> Outcome:
    text = f"test {condition.metric} is {reached:.4f}"
    if _reaches(condition, reached):
        return Outcome(key, True, text)
    return Outcome(key, False, f"{text}, {_bound(condition, key)}")


def _each(condition: config.Gate, slices: list[Slice], key: str) -> Outcome:
    gated = [one for one in slices if one.gated]
    low = [one for one in gated if not _reaches(condition, one.reached)]
    if low:
        listed = ", ".join(f"{one}: {one.reached:.4f} (n {one.n:,})" for one in low)
        return Outcome(key, False, f"test {condition.metric} is {_bound(condition, key)} in {_slices(len(low))}: {listed}")
    worst = f"; the worst is {gated[0]}: {gated[0].reached:.4f}" if gated else ""
    return Outcome(key, True, f"test {condition.metric} of {_slices(len(gated))}{worst}")


def _slices(count: int) -> str:
    return "1 slice" if count == 1 else f"{count} slices"


def _against(condition: config.Gate, rival: Rival, key: str) -> Outcome:
    """Fails where the champion is shown to be better by more than `by`: the whole 95 % interval of the gain lies below -by.

    Chance alone rarely stops a model then, be the test split ever so small; but small losses may add up over many champions, so
    an `at_least` belongs beside it.
    """
    if rival.name is None:
        return Outcome(key, True, "there is no other champion")
    if rival.reason:
        return Outcome(key, False, f"{key}: {rival.name} cannot be compared, for {rival.reason}")
    compared = rival.comparisons[condition.metric]
    worse = sign(condition.metric) < 0
    best = -compared.low if worse else compared.high  # the most that the gain may be
    text = (
        f"test {condition.metric} is {compared.model:.4f}, that of {rival.name} {compared.champion:.4f} (difference "
        f"{compared.difference:+.4f}, 95 % from {compared.low:+.4f} to {compared.high:+.4f})"
    )
    if best >= -condition.by:
        return Outcome(key, True, text)
    return Outcome(key, False, f"{text}, worse by more than {key.removesuffix('not_worse_than')}by = {condition.by:g}")


def require(outcomes: list[Outcome]) -> None:
    """Raises GateError naming every condition that does not hold."""
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        said = "; ".join(outcome.found for outcome in failed)
        raise GateError(f"The model's {said}; @champion stays where it was. Improve the model, or lower the gate.")
