"""`rayloom rollout start|status|back|finish|history`: which version of a served model answers, and how another takes over.

All but history ask the Ray cluster that RAY_ADDRESS names.
"""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rayloom import config
from rayloom.cli import pipeline_of
from rayloom.commands.verbs import noun, verb
from rayloom.errors import ResourceError


def add(commands: Any) -> None:
    verbs = noun(commands, "rollout", "which version of a served model answers", "rayloom rollout start @challenger")
    example = "rayloom rollout start 7 --strategy canary"
    parser = verb(verbs, "start", start, "let another version take over, beside the one that answers", example)
    parser.add_argument("version", metavar="VERSION", help="its number, or an alias such as @champion")
    parser.add_argument(
        "--strategy",
        dest="set",
        action="append",
        type="serve.rollout.strategy={}".format,
        metavar="NAME",
        help="replace, canary, shadow, ab or bandit; short for --set serve.rollout.strategy=NAME",
    )
    verb(verbs, "status", status, "show the plan and the counts", "rayloom rollout status")
    verb(verbs, "back", back, "end a rollout: the version that answered before answers all", "rayloom rollout back")
    verb(verbs, "finish", finish, "end a rollout: the new version answers all", "rayloom rollout finish")
    verb(verbs, "history", history, "list what changed, and why", "rayloom rollout history")


@contextmanager
def _joined(pipeline: config.Pipeline) -> Iterator[None]:
    """On the cluster that serves.

    Raises:
        ResourceError: RAY_ADDRESS names none, or it does not answer.
    """
    if os.environ.get("RAY_ADDRESS", "local") == "local":
        raise ResourceError(
            "RAY_ADDRESS is not set: name the cluster that serves the model, such as RAY_ADDRESS=10.0.0.5:6379."
        )
    from rayloom import environment

    environment.prepare()
    from rayloom import cluster

    with cluster.connect(pipeline.storage.path()):
        yield


def start(parsed: argparse.Namespace) -> None:
    """Begins a rollout and follows it."""
    pipeline = pipeline_of(parsed)
    with _joined(pipeline):
        from rayloom import tracking
        from rayloom.stages import rollout

        _print(rollout.roll_out(pipeline, tracking.resolve(pipeline, parsed.version).version))


def status(parsed: argparse.Namespace) -> None:
    _ask(parsed, "status")


def back(parsed: argparse.Namespace) -> None:
    _ask(parsed, "roll_back")


def finish(parsed: argparse.Namespace) -> None:
    _ask(parsed, "finish")


def _ask(parsed: argparse.Namespace, function: str) -> None:
    """Prints what a function of `stages.rollout` says of the served model."""
    pipeline = pipeline_of(parsed)
    with _joined(pipeline):
        from rayloom.stages import rollout

        _print(getattr(rollout, function)(pipeline.name))


def history(parsed: argparse.Namespace) -> None:
    """Prints a line for each change of the plan, oldest first."""
    from rayloom.serving.coordinator import audit_path

    pipeline = pipeline_of(parsed)
    file = audit_path(pipeline.storage.path(), pipeline.name)
    entries = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if not entries:
        print(f"No version of {pipeline.name} has been rolled out.")
    for entry in entries:
        moment = datetime.fromtimestamp(entry["time"]).isoformat(" ", "seconds")
        print(f"{moment}  {entry['state']:<11}  version {entry['stable']} answers: {entry['reason']}")


def _print(found: dict[str, Any]) -> None:
    plan = found["plan"]
    print(f"version {plan['stable']} answers ({plan['state']}); {found['replicas']} replicas, switched: {found['switched']}")
    if plan["candidate"] is not None:
        print(f"version {plan['candidate']} takes over by {plan['strategy']}: step {plan['step']}, {plan['share']:.0%}")
    if found["pending"] is not None:
        print(f"version {found['pending']} is being loaded")
    if plan["reason"]:
        print(plan["reason"])
    for number, (requests, errors) in found["requests"].items():
        print(f"version {number}: {requests:,} requests, {errors:,} failed")
