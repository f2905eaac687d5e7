"""Requests that schemathesis makes from a served OpenAPI document, good ones and bad ones, and what is wrong with the answers.

Arrow streams are made here, since JSON Schema says nothing of them. Not held against the server, since its document cannot say
it (see `rayloom.serving.openapi`): that a frame or a tensor that fits the document is refused as 400 or 422.
"""

import tempfile
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import schemathesis
from hypothesis import configuration
from hypothesis import strategies as st
from schemathesis import Config
from schemathesis.engine import events, from_schema
from schemathesis.schemas import BaseSchema

from tests.malformed import STREAM, stream

LOOSE = ("/invocations", "/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer")
"""Paths whose document says less than the server demands."""

PHASES = ("examples", "coverage", "fuzzing")
"""The document's examples, each bound and type once, and what chance makes."""


class Report(NamedTuple):
    """What became of some requests.

    Attributes:
        cases: how many, by operation.
        statuses: of their answers.
        violations: sentences, each once, with how often it was true.
    """

    cases: Counter[str]
    statuses: Counter[int]
    violations: Counter[str]

    def __add__(self, other: Any) -> "Report":
        return Report(*(mine + others for mine, others in zip(self, other, strict=True)))


NONE = Report(Counter(), Counter(), Counter())


def settings(phase: str, examples: int, seed: int) -> Config:
    """Of one phase: requests that fit the document and that do not, all checks, nothing kept between two runs.

    Args:
        examples: of each operation, where chance makes them.
    """
    configuration.set_hypothesis_home_dir(tempfile.gettempdir())
    refused = {"negative_data_rejection": {"expected-statuses": [400, 404, 405, 413, 415, 422]}}
    loose = {"positive_data_acceptance": {"expected-statuses": ["2xx", 400, 404, 422]}}
    return Config.from_dict(
        {
            "seed": seed,
            "continue-on-failure": True,
            "generation": {"max-examples": examples, "no-shrink": True, "database": "none", "deterministic": False},
            "phases": {name: {"enabled": name == phase} for name in (*PHASES, "stateful")},
            "checks": refused,
            "operations": [{"include-path": path, "checks": {**refused, **loose}} for path in LOOSE],
        }
    )


def run(schema: BaseSchema, most: int | None = None) -> Report:
    """Sends a schema's requests, and no more than about `most`."""
    report = NONE
    running = from_schema(schema).execute()
    for event in running:
        if isinstance(event, events.NonFatalError | events.FatalError):
            raise AssertionError(f"schemathesis failed: {event}")
        if isinstance(event, events.ScenarioFinished):
            report += _of(event)
        if most is not None and report.cases.total() >= most:
            running.stop()
    return report


def _of(event: events.ScenarioFinished) -> Report:
    recorder = event.recorder
    answered = [one.response for one in recorder.interactions.values()]
    statuses = Counter(answer.status_code if answer else 0 for answer in answered)
    violations: Counter[str] = Counter()
    for case_id, checks in recorder.checks.items():
        case = recorder.cases[case_id].value
        for check in checks:
            if check.failure_info and not (check.name == "positive_data_acceptance" and case.media_type == STREAM):
                failure, code = check.failure_info.failure, check.failure_info.code_sample
                violations[f"{event.label}: {failure.title}: {failure.message:.300}\n{code:.1000}"] += 1
    return Report(Counter({event.label: len(recorder.cases)}), statuses, violations)


def know_streams(record: dict[str, Any]) -> None:
    """Has schemathesis send Arrow streams of rows like a record, and spoilt ones."""
    configuration.set_hypothesis_home_dir(tempfile.gettempdir())
    schemathesis.openapi.media_type(STREAM, _streams(record))


OTHERS = {
    "null": lambda rows: [None] * rows,
    "text": lambda rows: ["x"] * rows,
    "large": lambda rows: [2**62] * rows,
    "infinite": lambda rows: [float("inf")] * rows,
    "true": lambda rows: [True] * rows,
    "list": lambda rows: [[1]] * rows,
    "bytes": lambda rows: [b"\xff"] * rows,
    "time": lambda rows: pa.array([0] * rows, pa.timestamp("ns", "UTC")),
    "dictionary": lambda rows: pa.array(["x"] * rows).dictionary_encode(),
}


@st.composite
def _streams(draw: st.DrawFn, record: dict[str, Any]) -> bytes:
    rows = draw(st.integers(0, 3))
    columns = {name: [value] * rows for name, value in record.items()}
    for name in draw(st.lists(st.sampled_from(list(record)), max_size=2, unique=True)):
        columns[name] = OTHERS[draw(st.sampled_from(list(OTHERS)))](rows)
    for name in draw(st.lists(st.sampled_from(list(record)), max_size=1)):
        del columns[name]
    body = stream(pa.table(columns))
    place = draw(st.integers(0, len(body) - 1))
    spoilt = {"whole": body, "cut": body[:place], "turned": body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]}
    return spoilt[draw(st.sampled_from(list(spoilt)))]
