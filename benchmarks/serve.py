"""Requests a second and latency of a served model, beside FastAPI, Ray Serve's defaults and `mlflow models serve`.

  python -m benchmarks.serve --root FOLDER
  python -m benchmarks.serve --root FOLDER --seconds 3 --rounds 1 --only tabular --peers fastapi      # quick

`tabular` is the flights model that the workspace has registered, one flight a request; `minilm` the news model, one article a
request, or the pretrained MiniLM with a fresh head, where the workspace has none. All servers have the same bundle and the same
predictor, but FastAPI's model is as PyTorch and transformers give it, without Rayloom's engine. They must give the same
answers, to 1e-6, before they are timed and while they are. They take turns; a round visits each of them once. One whose
processes rest when nothing is asked stays up meanwhile, the others are started for each round. The load comes from one process
(`benchmarks.load`), which shares the CPUs with the server. The last line is JSON:
{tabular: {rayloom: {rps_1, rps_64, p50_ms_1, p99_ms_64}, fastapi: {…}, serve_default: {…}, serve_raised: {…}, mlflow: {…},
vs_fastapi_64, vs_serve_default_64, vs_serve_raised_64}, minilm: {…}}.

serve_default   as Ray Serve comes: a replica takes 5 requests at once (max_ongoing_requests), and a router that finds it full
                waits for up to 0.5 s before it looks again, so that 64 connections get a few answers a second
serve_raised    the same with max_ongoing_requests=1000 and nothing else changed: what its users come to first
rps_1, rps_64   requests a second at 1 and at 64 connections; median over the rounds, as are the others
p50_ms_1, p99_ms_64    latency in milliseconds
failed          only there where requests failed, or answers under load were wrong: how many
vs_…            Rayloom's rps_64 as a multiple of the peer's
"""

import argparse
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from benchmarks.load import Expected
from rayloom import environment, tcp

if TYPE_CHECKING:
    from benchmarks.serve_workloads import Workload

PEERS = ("fastapi", "serve_default", "serve_raised", "mlflow")
CONNECTIONS = (64, 1)
WARMUP_SECONDS, START_SECONDS, END_SECONDS = 1.5, 180.0, 60.0
EQUAL = 1e-6
REST_CPUS = 0.25
"""CPUs that a server's processes may use when it has come to rest: a Ray cluster always does a little."""

FASTAPI: dict[str, tuple[str, int]] = {"tabular": ("async", 1), "minilm": ("async", 2)}
"""The endpoint and the threads of torch with which FastAPI answers the most requests a second on two CPUs."""

Limit = tuple[str, Callable[[dict], float], Callable[[dict], float], str]
LIMITS: dict[str, list[Limit]] = {
    "tabular": [
        ("requests/s at 64, as a multiple of fastapi's", lambda of: of["vs_fastapi_64"], lambda of: 1.0, "≥"),
        ("requests/s at 64, as a multiple of serve_default's", lambda of: of["vs_serve_default_64"], lambda of: 8.0, "≥"),
        ("p50 at 1 connection, ms", lambda of: of["rayloom"]["p50_ms_1"], lambda of: 2.0, "≤"),
        ("p99 at 64, ms; fastapi's", lambda of: of["rayloom"]["p99_ms_64"], lambda of: of["fastapi"]["p99_ms_64"], "≤"),
    ],
    "minilm": [("requests/s at 64, as a multiple of fastapi's", lambda of: of["vs_fastapi_64"], lambda of: 1.5, "≥")],
}
"""Issue 6's done-line 1: what is measured, what it must be held to, and how; for figures as in the JSON."""


def as_list(record: dict) -> list[dict]:
    return [record]


def as_dataframe(record: dict) -> dict[str, list[dict]]:
    """As MLflow takes raw records."""
    return {"dataframe_records": [record]}


@dataclass(frozen=True)
class Side:
    """A server that can be started.

    Attributes:
        command: starts it in the foreground; SIGTERM ends it.
        port: where it listens on 127.0.0.1.
        path: of its predictions.
        body: the JSON of a record's request.
        rests: its processes use no CPU when nothing is asked.
    """

    name: str
    command: list[str]
    port: int
    path: str = "/predict"
    body: Callable[[dict], Any] = as_list
    rests: bool = False


def make_side(name: str, kind: str, workload: "Workload", scratch: Path) -> Side:
    """A side by its name, for a workload of this kind, on a free port."""
    port, bundle, python = tcp.free_ports(1)[0], str(workload.folder), [sys.executable, "-m"]
    handler, threads = FASTAPI[kind]
    if name == "fastapi":
        return Side(
            name, [*python, "benchmarks.serve_peers.fastapi_app", bundle, str(port), handler, str(threads)], port, rests=True
        )
    if name in ("serve_default", "serve_raised"):
        ongoing = ["1000"] if name == "serve_raised" else []
        return Side(name, [*python, "benchmarks.serve_peers.serve_default", bundle, str(port), *ongoing], port)
    if name == "mlflow":
        model = save_pyfunc(scratch / f"{kind}-mlflow", workload.folder, threads)
        command = [*python, "mlflow", "models", "serve", "-m", str(model), "-p", str(port), "--env-manager", "local"]
        return Side(name, [*command, "--workers", "1"], port, "/invocations", as_dataframe, rests=True)
    settings = [f"storage.root={workload.root}", f"serve.port={port}", f"serve.cpus={threads}", f"serve.tolerance={EQUAL}"]
    settings += ["serve.check_rows=32"]
    command = [*python, "jobs.deploy", "--config", workload.config, "--model", str(workload.version.version)]
    return Side(name, command + [text for setting in settings for text in ("--set", setting)], port)


def save_pyfunc(folder: Path, bundle: Path, threads: int) -> Path:
    """A bundle as an MLflow model in a folder."""
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    import mlflow.pyfunc

    logging.getLogger("mlflow").setLevel(logging.ERROR)  # it misses a signature, which raw records do without
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(Path(__file__).with_name("serve_peers") / "mlflow_model.py"),
        artifacts={"bundle": str(bundle)},
        model_config={"threads": threads},
        pip_requirements=["rayloom"],
    )
    return folder


@contextmanager
def started(side: Side, first: dict, log: Path) -> Iterator[None]:
    """The side up, having answered `first` and come to rest; ended after the block, whatever happens in it."""
    # Peers get Ray's defaults, and nobody joins a cluster that is there; `jobs.deploy` prepares its own environment.
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_") or name == "RAY_AUTH_TOKEN_PATH"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"  # MLflow starts uvicorn by its name
    with log.open("w") as out:
        # In a session of its own, so that Ctrl-C comes to this process alone, which then ends them in order.
        process = subprocess.Popen(side.command, stdout=out, stderr=out, env=env, start_new_session=True)
        below: list[psutil.Process] = []
        try:
            wait_until_ready(side, process, first, log)
            below = settle(process)
            yield
        finally:
            end(process, below)


def wait_until_ready(side: Side, process: subprocess.Popen, first: dict, log: Path) -> None:
    """Raises SystemExit, with what the side said last, where it ends or does not come to answer."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            answer = httpx.post(f"http://127.0.0.1:{side.port}{side.path}", json=side.body(first), timeout=30)
            if answer.status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    state = f"ended with {process.poll()}" if process.poll() is not None else f"did not answer in {START_SECONDS:g} s"
    raise SystemExit(f"{side.name} {state}:\n{log.read_text()[-3000:]}")


def settle(process: subprocess.Popen, seconds: float = 60.0) -> list[psutil.Process]:
    """Waits until what a server does when it starts is over: it would count against it. All its processes."""
    deadline, before = time.monotonic() + seconds, float("-inf")
    while True:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        used = sum(cpu_seconds(one) for one in tree)
        if used - before < REST_CPUS or time.monotonic() > deadline:
            return tree
        before = used
        time.sleep(1)


def cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return times.user + times.system
    except psutil.Error:
        return 0.0


def end(process: subprocess.Popen, below: list[psutil.Process]) -> None:
    """Ends a server and, by their ids, whatever it started that does not end with it."""
    try:
        below = [*below, *psutil.Process(process.pid).children(recursive=True)]
    except psutil.Error:
        pass
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, stubborn = psutil.wait_procs([*{*below}], timeout=3)
    for one in stubborn:
        one.kill()
    psutil.wait_procs(stubborn, timeout=5)


def require_equal(side: Side, workload: "Workload") -> None:
    """Raises SystemExit where the side does not answer each record, in a request of its own, as the predictor does."""
    check = Expected([[answer] for answer in workload.answers], EQUAL)
    with httpx.Client(base_url=f"http://127.0.0.1:{side.port}", timeout=60) as client:
        for index, record in enumerate(workload.records):
            answer = client.post(side.path, json=side.body(record))
            if answer.status_code != 200 or (said := check(index, answer.content)):
                raise SystemExit(
                    f"{side.name} answers otherwise than the model: {answer.status_code}, {said or answer.text:.500}"
                )


def load(side: Side, workload: "Workload", scratch: Path, connections: int, seconds: float) -> dict[str, Any]:
    """The figures of `benchmarks.load` in a process of its own; answers are held to the model's."""
    bodies, expected = scratch / f"{side.name}-bodies.jsonl", scratch / "expected.jsonl"
    bodies.write_text("".join(json.dumps(side.body(record)) + "\n" for record in workload.records))
    expected.write_text("".join(json.dumps([answer]) + "\n" for answer in workload.answers))
    command = [sys.executable, "-m", "benchmarks.load", str(side.port), side.path, "--bodies", str(bodies)]
    command += ["--expected", str(expected), "--tolerance", str(EQUAL)]
    command += ["--connections", str(connections), "--seconds", str(seconds), "--warmup", str(WARMUP_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"The load on {side.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    if not figures["rps"]:
        raise SystemExit(f"{side.name} answered nothing at {connections} connections: {figures}")
    return figures


def measure(side: Side, workload: "Workload", scratch: Path, seconds: float) -> dict[str, float]:
    """One visit: the answers held to the model's, then the load at 64 connections and at 1."""
    require_equal(side, workload)
    found = {connections: load(side, workload, scratch, connections, seconds) for connections in CONNECTIONS}
    for connections, one in found.items():
        print(f"  {side.name:<14} {connections:>3}  {json.dumps(one)}", flush=True)
    return {
        "rps_1": found[1]["rps"],
        "rps_64": found[64]["rps"],
        "p50_ms_1": found[1]["p50_ms"],
        "p99_ms_64": found[64]["p99_ms"],
        "failed": sum(failed(one) for one in found.values()),
    }


def failed(figures: dict[str, Any]) -> int:
    """Requests that were not answered 2xx and right."""
    good = sum(count for status, count in figures["statuses"].items() if status.startswith("2"))
    return figures["requests"] - good + figures["wrong"]


def compare(kind: str, workload: "Workload", names: list[str], seconds: float, rounds: int, scratch: Path) -> dict[str, Any]:
    """All sides' figures on one workload, and the ratios."""
    print(f"{kind}: {workload.version}, {len(workload.records)} requests", flush=True)
    sides = [make_side(name, kind, workload, scratch) for name in names]
    visits: dict[str, list[dict]] = {name: [] for name in names}
    with ExitStack() as up:
        for number in range(rounds):
            for side in sides:
                log = scratch / f"{kind}-{side.name}-{number}.log"
                running = started(side, workload.records[0], log)
                with ExitStack() as turn:
                    if not side.rests or not number:
                        (up if side.rests else turn).enter_context(running)
                    visits[side.name].append(measure(side, workload, scratch, seconds / rounds))
    return with_ratios({name: over_rounds(found) for name, found in visits.items()})


def over_rounds(visits: list[dict[str, float]]) -> dict[str, float]:
    """Medians; failed requests are added up, and left out where there are none."""
    figures = {name: round(statistics.median(one[name] for one in visits), 2) for name in visits[0] if name != "failed"}
    lost = sum(one["failed"] for one in visits)
    return figures | ({"failed": lost} if lost else {})


def with_ratios(figures: dict[str, Any]) -> dict[str, Any]:
    peers = [name for name in ("fastapi", "serve_default", "serve_raised") if name in figures]
    ratios = {f"vs_{name}_64": round(figures["rayloom"]["rps_64"] / figures[name]["rps_64"], 3) for name in peers}
    return {**figures, **ratios}


def table(kind: str, figures: dict[str, Any]) -> list[str]:
    """The figures for a reader, and the done-line's limits with what became of them."""
    lines = ["", f"{kind:<16}{'requests/s at 1':>16}{'at 64':>10}{'p50 ms at 1':>14}{'p99 ms at 64':>14}"]
    for name, one in figures.items():
        if isinstance(one, dict):
            cells = f"{one['rps_1']:>16,.0f}{one['rps_64']:>10,.0f}{one['p50_ms_1']:>14.2f}{one['p99_ms_64']:>14.1f}"
            lines.append(f"  {name:<14}{cells}" + (f"   {one['failed']:,} failed or wrong" if "failed" in one else ""))
    return lines + [line for limit in LIMITS[kind] if (line := verdict(limit, figures))]


def verdict(limit: Limit, figures: dict[str, Any]) -> str:
    """A limit and whether it was met; '' where a peer that it needs was not measured."""
    what, measured, wanted, sign = limit
    try:
        found, most = measured(figures), wanted(figures)
    except KeyError:
        return ""
    met = (found >= most if sign == "≥" else found <= most) and "failed" not in figures["rayloom"]
    return f"  {what:<52} {found:>8.2f} {sign} {most:<8.2f} {'ok' if met else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, metavar="FOLDER", help="workspace with a registered flights model")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each measurement, over all rounds (10)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="how often the servers take turns (2)")
    parser.add_argument("--only", choices=list(LIMITS), help="one workload")
    parser.add_argument("--peers", default=",".join(PEERS), metavar="NAMES", help=f"of {', '.join(PEERS)} (all)")
    parsed = parser.parse_args()
    peers = [name for name in parsed.peers.split(",") if name]
    if unknown := sorted({*peers} - {*PEERS}):
        parser.error(f"--peers: {', '.join(unknown)} is none of {', '.join(PEERS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    environment.prepare()
    from benchmarks.serve_workloads import WORKLOADS
    from rayloom.cli import errors_as_exit_codes

    figures = {}
    with errors_as_exit_codes(), tempfile.TemporaryDirectory(prefix="rayloom-serve-") as folder:
        for kind in [parsed.only] if parsed.only else list(LIMITS):
            workload = WORKLOADS[kind](parsed.root.resolve())
            figures[kind] = compare(kind, workload, ["rayloom", *peers], parsed.seconds, parsed.rounds, Path(folder))
    print(*[line for kind, one in figures.items() for line in table(kind, one)], sep="\n")
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
