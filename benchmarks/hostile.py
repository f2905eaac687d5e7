"""What a served model does about clients that mean it no good, or know no better: what it answers, and what it holds.

  python -m benchmarks.hostile --root FOLDER
  python -m benchmarks.hostile --root FOLDER --cases 500 --seconds 3        # quick

The flights model that the workspace has registered is served as `jobs.deploy` does, by one replica. Its answers are looked at:
to requests that schemathesis makes from its OpenAPI document, and to the bodies of tests/malformed.py, with a good one after
each. Then what happens beside: while something is done to the server, small good requests go on at a steady rate, and all must
be answered 200. The exit code is 1 where a line of the table does not hold. The last line is JSON, with

generated       cases: requests of schemathesis; statuses: their answers; violations: answers that are not as the document says
corpus          bodies of a pass; wrong: those with another status than the right one; unanswered: good requests after them that
                were not answered 200; kept_mb: what the replica held more after later passes
large_length, large_chunked, million_rows, million_empty
                bodies of 200 MB, with a length and in chunks; 1,000,000 records; as many empty ones, within the limit of bytes:
                all 413, one after the other
idle            500 connections that sent nothing, half a header, half a body or a part of a large body; closed: those of them
                that the server gave up, the last one after closed_s seconds
hang_ups        50 clients at a time that hang up after 50 ms, while their request of 400 records waits; after: the statuses of
                requests that need half of the queue
capacity, overload, overload_rows
                64 connections, each with one request at a time; 2,000; 64 with requests of 5,000 records, many times what may
                wait: some get 503, and come again after a second
beside          of the small good requests: how many were asked, and answered 200, and their latency
before_mb, peak_mb, after_mb    what the replica's process held
"""

import argparse
import asyncio
import json
import math
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.load import Connection, Load, Plan, Reply, request
from benchmarks.serve import Side, make_side, started
from rayloom import environment

MB = 2**20
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE, CHUNK = 200 * MB, 64 * 2**10
RATE, BESIDE = 100.0, 8
"""Small good requests a second beside an attack, and the connections that they come by."""

PASSES, KEPT_MB, SETTLE_S = 12, 16.0, 1.5
"""Passes over the corpus; what the replica may hold more at most after those of the second half than after those of the first;
and seconds after each until it is looked: a replica gives back within one what large bodies took."""

PEAK_MB = 1024.0
"""What an attack may make the replica hold at most besides what it held before."""

IDLE, IDLE_CLOSED_S = 500, 45.0
GONE, GONE_S, GONE_PAUSE_S, GONE_ROWS = 50, 0.05, 0.5, 400
CAPACITY, CROWD, BULK, BULK_ROWS, AGAIN_S = 64, 2000, 64, 5000, 1.0

BESIDE_MS, ADMITTED_MS = 1000.0, 5000.0
"""The 99th percentile of the latency of small requests beside an attack, and of those that are admitted under overload."""


@dataclass(frozen=True)
class Server:
    """The server under attack.

    Attributes:
        side: how it was started.
        replica: its one process that answers.
        record: a good one.
        limits: of its pipeline's serve section.
        scratch: a folder for the time being.
    """

    side: Side
    replica: psutil.Process
    record: dict[str, Any]
    limits: Any
    scratch: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.side.port}"

    def connect(self, data: bytes = b"") -> socket.socket:
        """A connection that has sent this."""
        made = socket.create_connection(("127.0.0.1", self.side.port), timeout=60)
        made.sendall(data)
        return made

    def body(self, rows: int = 1) -> bytes:
        return json.dumps([self.record] * rows).encode()

    def held_mb(self) -> float:
        return self.replica.memory_info().rss / MB


def find_replica() -> psutil.Process:
    """The process of the one replica among all that we have started."""
    found = [one for one in psutil.Process().children(recursive=True) if "PredictService" in " ".join(one.cmdline())]
    if len(found) != 1:
        raise SystemExit(f"expected one replica's process, found {[one.cmdline() for one in found]}")
    return found[0]


class Peak(threading.Thread):
    """Watches the most memory that a server's replica holds during a block."""

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.server, self.over = server, threading.Event()
        self.before = self.most = server.held_mb()

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, self.server.held_mb())

    def __enter__(self) -> "Peak":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.over.set()
        self.join()

    def figures(self) -> dict[str, float]:
        return {"before_mb": round(self.before), "peak_mb": round(self.most), "after_mb": round(self.server.held_mb())}


@contextmanager
def beside(server: Server, seconds: float) -> Iterator[dict[str, Any]]:
    """Small good requests for so many seconds; when the block is left, its value has what became of them."""
    bodies = server.scratch / "good.jsonl"
    bodies.write_bytes(server.body() + b"\n")
    command = [sys.executable, "-m", "benchmarks.load", str(server.side.port), "/predict", "--bodies", str(bodies)]
    command += ["--rate", str(RATE), "--connections", str(BESIDE), "--seconds", str(seconds), "--timeout", "60"]
    found: dict[str, Any] = {}
    with Peak(server) as peak, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        try:
            yield found
            told, _ = load.communicate(timeout=seconds + 120)
        except BaseException:
            load.kill()
            raise
    one = json.loads(told.splitlines()[-1])
    answered = one["statuses"].get("200", 0)
    asked = one["requests"] + one["failures"] - sum(one["failed_by"].get(kind, 0) for kind in ("lost", "timeout", "malformed"))
    figures = {name: one[name] for name in ("p50_ms", "p99_ms", "max_ms")}
    found["beside"] = {"asked": asked, "answered": answered, **figures, "statuses": one["statuses"]}
    found |= peak.figures()


def generated_cases(server: Server, cases: int) -> dict[str, Any]:
    """At least so many requests of schemathesis, by each of its phases; the last one goes on until there are enough."""
    import schemathesis

    from tests import generated

    generated.know_streams(server.record)
    report, seed = generated.NONE, 0
    while report.cases.total() < cases:
        phase = generated.PHASES[min(seed, 2)]
        examples = max(10, math.ceil((cases - report.cases.total()) / 8))
        settings = generated.settings(phase, examples, 17 + seed)
        report += generated.run(schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=settings))
        seed += 1
        print(f"  {phase}: {report.cases.total():,} requests, {len(report.violations)} violations", flush=True)
    for sentence, count in report.violations.most_common(20):
        print(f"  {count} x {sentence}", flush=True)
    statuses = {str(status): count for status, count in sorted(report.statuses.items())}
    return {"cases": report.cases.total(), "statuses": statuses, "violations": report.violations.total()}


def corpus_passes(server: Server) -> dict[str, Any]:
    """The hand-written bodies, pass after pass, a good request after each."""
    from tests.malformed import Fields, corpus

    good = {name: value if value is not None else 1.5 for name, value in server.record.items()}
    cases = corpus(Fields(good, "distance", "carrier", "date", server.limits.max_rows))
    wrong, unanswered, held = 0, 0, []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(PASSES):
            for case in cases:
                path, headers = case.path.replace("{m}", "flights"), {"content-type": case.content_type, **case.headers}
                encoded = {name: value.encode("utf-8") for name, value in headers.items()}
                said = client.post(path, content=case.body, headers=encoded)
                if said.status_code != case.status:
                    wrong += 1
                    print(f"  {case.name}: {said.status_code}, expected {case.status}: {said.text:.200}", flush=True)
                unanswered += client.post("/predict", content=server.body()).status_code != 200
            time.sleep(SETTLE_S)
            held.append(server.held_mb())
            print(f"  pass {len(held)}: the replica holds {held[-1]:.1f} MB", flush=True)
    figures = {"bodies": len(cases), "passes": PASSES, "wrong": wrong, "unanswered": unanswered}
    kept = max(held[PASSES // 2 :]) - max(held[: PASSES // 2])
    return {**figures, "held_mb": [round(one, 1) for one in held], "kept_mb": round(kept, 1)}


def post(server: Server, lines: str, parts: Iterator[bytes]) -> int:
    """Sends a request's parts while its answer is read; the answer's status, 0 where there is none."""
    with server.connect(HEAD + f"{lines}\r\n".encode()) as made:
        said = bytearray()

        def read() -> None:
            try:
                while b"\r\n" not in said and (data := made.recv(CHUNK)):
                    said.extend(data)
            except OSError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for part in parts:
                made.sendall(part)
        except OSError:
            pass  # the server need not take it all
        reader.join(60)
        return int(said[9:12] or 0)


def with_length(server: Server, size: int, parts: Iterator[bytes]) -> int:
    return post(server, f"Content-Length: {size}\r\n", parts)


def in_chunks(server: Server, parts: Iterator[bytes]) -> int:
    framed = (b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return post(server, "Transfer-Encoding: chunked\r\n", (one for many in (framed, iter([b"0\r\n\r\n"])) for one in many))


def spaces(size: int) -> Iterator[bytes]:
    return (b" " * CHUNK for _ in range(size // CHUNK))


def million(server: Server) -> Iterator[bytes]:
    """A million good records, in parts of a thousand."""
    thousand = server.body(1000)[1:-1]
    return (b"[" + thousand if not number else b"," + thousand + (b"]" if number == 999 else b"") for number in range(1000))


def million_rows(server: Server) -> int:
    size = sum(map(len, million(server)))
    return with_length(server, size, million(server))


def million_empty(server: Server) -> int:
    """A million records of nothing: 3 MB, that take twenty times as much when they are read."""
    body = b"[" + b",".join([b"{}"] * 1_000_000) + b"]"
    return with_length(server, len(body), iter([body]))


LARGE_BODIES: dict[str, Callable[[Server], int]] = {
    "large_length": lambda server: with_length(server, LARGE, spaces(LARGE)),
    "large_chunked": lambda server: in_chunks(server, spaces(LARGE)),
    "million_rows": million_rows,
    "million_empty": million_empty,
}


def large_bodies(server: Server, seconds: float, name: str) -> dict[str, Any]:
    statuses: Counter[str] = Counter()
    with beside(server, seconds) as found:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            statuses[str(LARGE_BODIES[name](server))] += 1
    return {**found, "sent": statuses.total(), "statuses": dict(statuses)}


def idle(server: Server, seconds: float) -> dict[str, Any]:
    """Connections that wait for nothing; how many the server gives up, and when the last of them."""
    half_large = HEAD + b"Content-Length: 1000000\r\n\r\n[" + b" " * 200_000
    begun = [b"", HEAD[:40], HEAD + b"Content-Length: 1000\r\n\r\n[{", half_large]
    with beside(server, seconds) as found:
        began = time.monotonic()
        held = [server.connect(begun[number % 4]) for number in range(IDLE)]
    closed, last = 0, 0.0
    while closed < IDLE and time.monotonic() < began + IDLE_CLOSED_S:
        time.sleep(0.2)
        now = sum(map(is_closed, held))
        closed, last = (now, time.monotonic() - began) if now > closed else (closed, last)
    for one in held:
        one.close()
    return {**found, "connections": IDLE, "closed": closed, "closed_s": round(last, 1)}


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has given this connection up; what it says before is read."""
    connection.setblocking(False)
    try:
        while connection.recv(CHUNK):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def hang_ups(server: Server, seconds: float) -> dict[str, Any]:
    """Clients that go while their requests wait, and whether the queue is whole after them."""
    data = request("/predict", server.body(GONE_ROWS))
    gone, answered = 0, 0
    with beside(server, seconds) as found:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            held = [server.connect(data) for _ in range(GONE)]
            time.sleep(GONE_S)
            answered += sum(map(has_answer, held))
            gone += len(held)
            for one in held:
                one.close()
            time.sleep(GONE_PAUSE_S)
    most = server.limits.max_rows
    with httpx.Client(base_url=server.url, timeout=60) as client:
        after = [client.post("/predict", content=server.body(most)).status_code for _ in range(3)]
    return {**found, "gone": gone, "answered_before": answered, "after": after}


def has_answer(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


class Crowd(Load):
    """A load that times what is refused as well, and comes again when it is told to.

    Args:
        port: on this machine.
    """

    def __init__(self, port: int, plan: Plan):
        super().__init__("127.0.0.1", port, plan)
        self.refused: list[float] = []
        self.told: set[Connection] = set()

    def count(self, connection: Connection, reply: Reply) -> None:
        super().count(connection, reply)
        if reply.status == 503:
            self.refused.append(time.perf_counter() - connection.sent)
            self.told.add(connection)

    def use(self, connection: Connection) -> None:
        if connection in self.told:
            self.told.discard(connection)
            asyncio.get_running_loop().call_later(AGAIN_S, self.use, connection)
        else:
            super().use(connection)


def crowd(server: Server, connections: int, rows: int, seconds: float) -> dict[str, Any]:
    """Each connection sends its next request when it is answered, or a second after it was refused."""
    import uvloop

    plan = Plan([request("/predict", server.body(rows))], connections, 2 * seconds, seconds, timeout=60)
    load = Crowd(server.side.port, plan)
    with Peak(server) as peak, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        one = runner.run(load.run())
    refused = sorted(load.refused)
    named = {name: one[name] for name in ("rps", "p50_ms", "p99_ms", "max_ms", "statuses", "failures")}
    p99 = round(1000 * refused[math.ceil(0.99 * len(refused)) - 1], 1) if refused else None
    return {"connections": connections, "rows": rows, **named, "refused_p99_ms": p99, **peak.figures()}


def retry_after(server: Server) -> str | None:
    """What a refusal says of when to come again; None where nothing was refused for a while."""
    data = server.body(server.limits.max_rows)
    said: list[str | None] = []

    def ask() -> None:
        answer = httpx.post(f"{server.url}/predict", content=data, timeout=60)
        if answer.status_code == 503:
            said.append(answer.headers.get("retry-after"))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said[0] if said else None


def overload(server: Server, seconds: float) -> dict[str, dict[str, Any]]:
    found = {
        "capacity": crowd(server, CAPACITY, 1, seconds),
        "overload": crowd(server, CROWD, 1, seconds),
        "overload_rows": crowd(server, BULK, BULK_ROWS, seconds),
    }
    found["overload_rows"]["retry_after"] = retry_after(server)
    return found


def attack(server: Server, cases: int, seconds: float) -> dict[str, Any]:
    """Everything, one after the other."""
    figures: dict[str, Any] = {}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "corpus": lambda: corpus_passes(server),
        **{name: lambda name=name: large_bodies(server, seconds, name) for name in LARGE_BODIES},  # type: ignore[misc]
        "idle": lambda: idle(server, seconds),
        "hang_ups": lambda: hang_ups(server, seconds),
        "generated": lambda: generated_cases(server, cases),
    }
    for name, part in parts.items():
        figures[name] = part()
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
    for name, one in overload(server, seconds).items():
        figures[name] = one
        print(f"{name}: {json.dumps(one)}", flush=True)
    return figures


Line = tuple[str, Any, str, Any]
"""What was measured, its value, how it must be to what is wanted, and that."""


def lines(figures: dict[str, Any]) -> list[Line]:
    """What issue 6 asks for in its lines 3 and 4, and of overload."""
    made, corpus = figures["generated"], figures["corpus"]
    crowds = {name: figures[name] for name in ("overload", "overload_rows")}
    return [
        ("requests made from the OpenAPI document", made["cases"], ">=", made["wanted"]),
        ("  answers 5xx", sum(count for status, count in made["statuses"].items() if status >= "5"), "==", 0),
        ("  answers that are not as it says", made["violations"], "==", 0),
        ("malformed bodies with another status than the right one", corpus["wrong"], "==", 0),
        ("  good requests after them that were not answered", corpus["unanswered"], "==", 0),
        ("  MB that the replica held more after later passes", corpus["kept_mb"], "<=", KEPT_MB),
        *(line for name in (*LARGE_BODIES, "idle", "hang_ups") for line in beside_lines(name, figures[name])),
        *((f"{name}: answers but 413", others(figures[name], "413"), "==", 0) for name in LARGE_BODIES),
        ("idle connections that the server closes", figures["idle"]["closed"], "==", IDLE),
        (
            "requests after the hang-ups that were not answered",
            sum(one != 200 for one in figures["hang_ups"]["after"]),
            "==",
            0,
        ),
        *((f"{name}: answers but 200 and 503", others(one, "200", "503"), "==", 0) for name, one in crowds.items()),
        *((f"{name}: p99 of those answered, ms", one["p99_ms"], "<=", ADMITTED_MS) for name, one in crowds.items()),
        ("overload_rows: p99 of those refused, ms", figures["overload_rows"]["refused_p99_ms"] or 0.0, "<=", ADMITTED_MS),
        ("overload_rows: Retry-After", figures["overload_rows"]["retry_after"], "==", "1"),
    ]


def others(figures: dict[str, Any], *expected: str) -> int:
    """Requests that got another answer, or none."""
    return sum(count for status, count in figures["statuses"].items() if status not in expected) + figures.get("failures", 0)


def beside_lines(name: str, figures: dict[str, Any]) -> list[Line]:
    one = figures["beside"]
    return [
        (f"beside {name}: small requests not answered", one["asked"] - one["answered"], "==", 0),
        (f"  p99 of their latency, ms (median {one['p50_ms']})", one["p99_ms"], "<=", BESIDE_MS),
        ("  MB that the replica held more at most", figures["peak_mb"] - figures["before_mb"], "<=", PEAK_MB),
    ]


def holds(line: Line) -> bool:
    _, found, sign, wanted = line
    return {">=": lambda: found >= wanted, "<=": lambda: found <= wanted, "==": lambda: found == wanted}[sign]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, metavar="FOLDER", help="workspace with a registered flights model")
    parser.add_argument("--cases", type=int, default=10_000, metavar="N", help="of schemathesis (10000)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each attack (10)")
    parsed = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    environment.prepare()
    from benchmarks.serve_workloads import WORKLOADS
    from rayloom import config
    from rayloom.cli import errors_as_exit_codes

    with errors_as_exit_codes(), tempfile.TemporaryDirectory(prefix="rayloom-hostile-") as folder:
        workload = WORKLOADS["tabular"](parsed.root.resolve())
        side = make_side("rayloom", "tabular", workload, Path(folder))
        with started(side, workload.records[0], Path(folder) / "deploy.log"):
            limits = config.load([workload.config], []).serve
            server = Server(side, find_replica(), workload.records[0], limits, Path(folder))
            figures = attack(server, parsed.cases, parsed.seconds)
    figures["generated"]["wanted"] = parsed.cases
    table = lines(figures)
    for line in table:
        what, found, sign, wanted = line
        print(f"  {what:<62} {found!s:>10} {sign} {wanted!s:<8} {'ok' if holds(line) else 'MISSED'}")
    print(json.dumps(figures), flush=True)
    sys.exit(not all(map(holds, table)))


if __name__ == "__main__":
    main()
