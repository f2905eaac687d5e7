"""What clients notice while versions take over and a replica dies: nothing.

  python -m benchmarks.takeover --root FOLDER
  python -m benchmarks.takeover --root FOLDER --seconds 15 --connections 8        # quick

Two replicas serve the flights model that the workspace has registered. Under a steady load, at even distances: a good version
is rolled out, one whose scaler is corrupt, a good one again, and a replica is ended by SIGKILL. Every request is valid; each
reply is counted, and its version held against what had been rolled out when the request was sent. The versions are registered
in a registry of its own, which is gone at the end. The exit code is 1 where a line of the table does not hold. The last line
is JSON: {requests, statuses, failed_by, stale, refused, rps, p50_ms, p99_ms, max_ms, events}.

stale       replies of a version that had been replaced when the request was sent, or of the corrupt one
failed_by   requests and connections without a reply, by kind
refused     what the coordinator said to the corrupt version
events      seconds from the first request at which each of these was done
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.load import Connection, Load, Plan, Reply, request
from rayloom import environment, tcp

if TYPE_CHECKING:
    from benchmarks.serve_workloads import Workload


class Told(Load):
    """A load that keeps, of each answer, when its request was sent and which version it is of."""

    def __init__(self, port: int, plan: Plan):
        super().__init__("127.0.0.1", port, plan)
        self.told: list[tuple[float, int]] = []

    def count(self, connection: Connection, reply: Reply) -> None:
        super().count(connection, reply)
        if reply.status == 200:
            self.told.append((connection.sent, orjson.loads(reply.body)["model"]["version"]))


@dataclass
class Events:
    """What is done to the application meanwhile.

    Attributes:
        at: when each event was done, on the clock of `time.perf_counter`.
        refused: what was said to the corrupt version.
    """

    pipeline: Any
    good: int
    corrupt: int
    last: int
    at: dict[str, float] = field(default_factory=dict)
    refused: str = ""

    def run(self, pause: float) -> None:
        """Does all of them, `pause` seconds apart."""
        from rayloom.stages.rollout import roll_out

        steps: dict[str, Callable[[], Any]] = {
            "good": lambda: roll_out(self.pipeline, self.good),
            "corrupt": self.try_corrupt,
            "last": lambda: roll_out(self.pipeline, self.last),
            "killed": lambda: kill_a_replica(self.pipeline.name),
        }
        for name, step in steps.items():
            time.sleep(pause)
            step()
            self.at[name] = time.perf_counter()

    def try_corrupt(self) -> None:
        from rayloom.errors import ServingError
        from rayloom.stages.rollout import roll_out

        try:
            roll_out(self.pipeline, self.corrupt)
        except ServingError as error:
            self.refused = str(error)

    def stale(self, told: list[tuple[float, int]]) -> int:
        """How many answers are of a version that was not to answer any more, or never."""
        since = {"good": {self.good, self.last}, "last": {self.last}}
        wrong = {
            (sent, version)
            for name, allowed in since.items()
            for sent, version in told
            if sent > self.at[name] and version not in allowed
        }
        return len(wrong | {one for one in told if one[1] == self.corrupt})


def kill_a_replica(model: str) -> None:
    """Ends the process of one of a model's replicas by SIGKILL, in the cluster that this process has joined."""
    import ray

    actors = ray._private.state.actors().values()
    alive = [one["Pid"] for one in actors if f"{model}:PredictService" in one["ActorClassName"] and one["State"] == "ALIVE"]
    os.kill(alive[0], signal.SIGKILL)


def register(pipeline: Any, made: Any, folder: Path, is_corrupt: bool = False) -> int:
    """Registers a copy of a bundle; corrupt, the first number's scaler is another than the one it was trained with."""
    from rayloom import bundle, tracking
    from rayloom.features import NumberState

    state = made.state
    if is_corrupt:
        name, column = next(item for item in state.columns.items() if isinstance(item[1], NumberState))
        state = state.model_copy(update={"columns": {**state.columns, name: shifted(column)}})
    copy = bundle.write(folder, made.config, state, made.weights, made.metrics, list(made.golden))
    return tracking.record_training(pipeline, folder.name, "none", [], copy).version


def shifted(column: Any) -> Any:
    return column.model_copy(update={"center": column.center + column.spread})


@contextmanager
def served(workload: "Workload") -> Iterator[Events]:
    """The workload's model on two replicas, and what is to be done to them."""
    from ray import serve

    from rayloom import bundle, cluster, config
    from rayloom.serving import app, rollouts

    port, made = tcp.free_ports(1)[0], bundle.load(workload.folder)
    with TemporaryDirectory(prefix="rayloom-takeover-") as folder, cluster.connect(Path(folder), [port]):
        settings = [f"storage.root={folder}", f"serve.port={port}", "serve.replicas=2", "serve.cpus=0.5"]
        pipeline = config.load([workload.config], settings)
        first, good, corrupt, last = (
            register(pipeline, made, Path(folder) / name, name == "corrupt") for name in ("first", "good", "corrupt", "last")
        )
        serve.start(http_options={"host": pipeline.serve.host, "port": port})
        try:
            serve.run(app.build(pipeline, first), name=pipeline.name, route_prefix="/")
            yield Events(pipeline, good, corrupt, last)
        finally:
            serve.shutdown()
            rollouts.end(pipeline.name)


def measured(root: Path, seconds: float, connections: int) -> dict[str, Any]:
    """The figures that the module names."""
    from benchmarks.serve_workloads import tabular

    workload = tabular(root)
    with served(workload) as events:
        bodies = [request("/predict", orjson.dumps([record])) for record in workload.records]
        load = Told(events.pipeline.serve.port, Plan(bodies, connections, seconds))
        began = time.perf_counter()
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(events.run, seconds / 5)
            figures = asyncio.run(load.run())
            done.result()
    kept = ("requests", "statuses", "failed_by", "rps", "p50_ms", "p99_ms", "max_ms")
    at = {name: round(when - began, 1) for name, when in events.at.items()}
    return {**{name: figures[name] for name in kept}, "stale": events.stale(load.told), "refused": events.refused, "events": at}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", type=Path, required=True, metavar="FOLDER", help="a workspace with a registered flights model"
    )
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of load (default: 60)")
    parser.add_argument("--connections", type=int, default=16, metavar="N", help="default: 16")
    parsed = parser.parse_args()
    environment.prepare()
    found = measured(parsed.root.resolve(), parsed.seconds, parsed.connections)
    lines = {
        f"{found['requests']:,} valid requests, all answered 200": found["statuses"] == {"200": found["requests"]},
        "none without a reply": not found["failed_by"],
        "none answered by a version that was replaced, or is corrupt": not found["stale"],
        f"the corrupt version refused: {found['refused']}": "Golden row" in found["refused"],
        "everything was done under load": max(found["events"].values()) < parsed.seconds,
    }
    for text, holds in lines.items():
        print(f"  {'ok    ' if holds else 'missed'}  {text}")
    print(json.dumps(found))
    sys.exit(0 if all(lines.values()) else 1)


if __name__ == "__main__":
    main()
