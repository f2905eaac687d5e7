"""A load generator: keep-alive connections from one process, every reply counted, timed, and held against its expected answer.

  python -m benchmarks.load 8000 /predict --connections 64 --seconds 10 --bodies bodies.jsonl
  python -m benchmarks.load 8000 /predict --bodies bodies.jsonl --expected answers.jsonl       # wrong answers are counted
  python -m benchmarks.load 8000 /predict --bodies bodies.jsonl --rate 5000 --connections 500  # open loop: so many a second

Each connection sends its next request when it has the last one's reply (closed loop); with --rate, requests are due at fixed
times whatever the server does, wait for a free connection, and their latency counts from when they were due: a server that
falls behind cannot hide it. The last line is JSON:
{rps, p50_ms, p90_ms, p99_ms, max_ms, requests, statuses, failures, failed_by, wrong, first_wrong, unsent, cpu}.

rps         replies of status 2xx a second, of the time after the warm-up
*_ms        latency of requests that were answered 2xx, nearest rank; those of the warm-up are left out
statuses    replies by status, failures: requests and connections without a reply, failed_by: the same by kind: connect, lost,
            timeout, malformed; both of the whole run, like `requests` and `wrong`
wrong       2xx replies that are not what was expected
unsent      with --rate: requests that were due and found no free connection before the end
cpu         CPUs that this process used; near 1, it measured itself
"""

import argparse
import asyncio
import gc
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

RETRY_SECONDS = 0.02
"""How long a refused connection waits before it is tried again."""

TICK_SECONDS = 0.001
"""What an event loop's timers can tell apart: requests that are due within it are sent together."""

LOOK_SECONDS = 0.05
"""How often overdue replies are looked for."""

Check = Callable[[int, bytes], str]
"""Of the number of a request and the body of its 2xx reply: what is wrong with it, '' where nothing is."""


class Reply(NamedTuple):
    """A whole HTTP/1.1 reply. `is_last`: the server closes the connection after it."""

    status: int
    body: bytes
    is_last: bool


def read_reply(data: bytes) -> Reply | None:
    """The reply that these bytes are; None where they are only its beginning.

    Raises:
        ValueError: they are no reply, say neither how long they are nor that they are chunked, or go on after its end.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end].lower()
    if not head.startswith(b"http/1."):
        raise ValueError(f"no HTTP/1 reply: {head[:40]!r}")
    status, place = int(head[9:12]), head.find(b"\r\ncontent-length:")
    if place >= 0:
        stop = end + 4 + int(head[place + 17 :].split(b"\r\n", 1)[0])
        body = data[end + 4 : stop] if len(data) >= stop else None
    elif b"\r\ntransfer-encoding: chunked" in head:
        body, stop = _read_chunks(data, end + 4)
    elif status == 204:
        body, stop = b"", end + 4
    else:
        raise ValueError("the reply has no length and is not chunked")
    if body is None:
        return None
    if len(data) > stop:
        raise ValueError(f"{len(data) - stop} bytes after the reply's end")
    return Reply(status, body, b"\r\nconnection: close" in head)


def _read_chunks(data: bytes, start: int) -> tuple[bytes | None, int]:
    """The chunks from `start` on, joined, and where they end; None where the last one is still to come."""
    parts = []
    while (line := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line].split(b";", 1)[0], 16)
        start = line + 2 + size + 2
        if len(data) < start:
            break
        if not size:
            return b"".join(parts), start
        parts.append(data[line + 2 : start - 2])
    return None, 0


def request(path: str, body: bytes, headers: dict[str, str] = {}) -> bytes:
    """A whole POST request of JSON; `headers` are added, or take the place of these."""
    lines = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode() + b"\r\n" + body


@dataclass(frozen=True)
class Plan:
    """What is sent and how.

    Attributes:
        requests: whole requests, sent in turn and over again.
        connections: held open.
        seconds: from the first request to the last, the warm-up included.
        warmup: seconds at the beginning that are not measured.
        rate: requests a second that are due; None: each connection sends when it has its reply.
        timeout: seconds after which a reply counts as failed.
        check: of each 2xx reply.
    """

    requests: Sequence[bytes]
    connections: int = 64
    seconds: float = 10.0
    warmup: float = 0.0
    rate: float | None = None
    timeout: float = 30.0
    check: Check | None = None


class Connection(asyncio.Protocol):
    """One connection; at most one request is on its way."""

    __slots__ = ("buffer", "closed", "due", "index", "load", "pending", "sent", "transport")

    def __init__(self, load: "Load"):
        self.load, self.buffer, self.pending = load, b"", False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.load.live.add(self)
        self.load.use(self)

    def send(self, index: int, due: float, now: float) -> None:
        self.index, self.due, self.sent, self.pending = index, due, now, True
        self.transport.write(self.load.plan.requests[index])

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        try:
            reply = read_reply(self.buffer)
        except ValueError:
            self.fail("malformed")
            return
        if reply is None:
            return
        self.buffer = b""
        if not self.pending:  # the server says on its own that it gives up an idle connection
            self.transport.close()
            return
        self.pending = False
        self.load.count(self, reply)
        if reply.is_last:
            self.transport.close()
        else:
            self.load.use(self)

    def fail(self, kind: str) -> None:
        """Counts the request that is on its way as failed, and gives the connection up."""
        if self.pending:
            self.load.failed_by[kind] += 1
        self.pending = False
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.load.live.discard(self)
        if self in self.load.free:
            self.load.free.remove(self)
        self.fail("lost")
        if not self.closed.done():
            self.closed.set_result(None)


class Load:
    """A plan at work against one server.

    Args:
        host, port: where the server listens.
    """

    def __init__(self, host: str, port: int, plan: Plan):
        self.host, self.port, self.plan = host, port, plan
        self.live: set[Connection] = set()
        self.free: list[Connection] = []
        self.due: deque[float] = deque()
        self.requests = self.in_time = self.wrong = 0
        self.first_wrong = ""
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.failed_by: Counter[str] = Counter()
        self.measured_from = self.end = self.stop = 0.0

    async def run(self) -> dict[str, Any]:
        """Sends until the plan's seconds are over and the last replies are there; the figures that the module names."""
        cpu, began = time.process_time(), time.perf_counter()
        self.measured_from, self.end = began + self.plan.warmup, began + self.plan.seconds
        # What is due shortly before the end is still sent, and not put down as held up by the server.
        self.stop = self.end + (10 * TICK_SECONDS if self.plan.rate else 0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            for _ in range(self.plan.connections):
                tasks.create_task(self._keep())
            if self.plan.rate:
                tasks.create_task(self._pace(began, self.plan.rate))
        return self._figures((time.process_time() - cpu) / (time.perf_counter() - began))

    async def _keep(self) -> None:
        """One connection, made anew where it is lost."""
        loop = asyncio.get_running_loop()
        while time.perf_counter() < self.stop:
            try:
                _, connection = await loop.create_connection(lambda: Connection(self), self.host, self.port)
            except OSError:
                self.failed_by["connect"] += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await connection.closed

    async def _watch(self) -> None:
        """Gives up replies that are overdue and, at the end, connections that wait for nothing."""
        while (now := time.perf_counter()) < self.stop or self.live:
            for connection in list(self.live):
                if connection.pending and now - connection.sent > self.plan.timeout:
                    connection.fail("timeout")
                elif not connection.pending and now >= self.stop:
                    connection.transport.close()
            await asyncio.sleep(LOOK_SECONDS)

    async def _pace(self, began: float, rate: float) -> None:
        """Makes requests due at their times; all that are, at once, where the event loop comes late."""
        made, count = 0, int(rate * self.plan.seconds)
        while made < count:
            due_by_now = min(count, int((time.perf_counter() - began) * rate) + 1)
            self.due.extend(began + number / rate for number in range(made, due_by_now))
            made = due_by_now
            while self.due and self.free:
                self.use(self.free.pop())
            await asyncio.sleep(max(TICK_SECONDS, began + made / rate - time.perf_counter()))

    def use(self, connection: Connection) -> None:
        """Sends the next request on a connection that has none on its way, where there is one to send."""
        now = time.perf_counter()
        if now >= self.stop or connection.transport.is_closing():
            connection.transport.close()
        elif self.plan.rate and not self.due:
            self.free.append(connection)
        else:
            due = self.due.popleft() if self.plan.rate else now
            self.requests += 1
            connection.send((self.requests - 1) % len(self.plan.requests), due, now)

    def count(self, connection: Connection, reply: Reply) -> None:
        now = time.perf_counter()
        self.statuses[reply.status] += 1
        if not 200 <= reply.status < 300:
            return
        self.in_time += self.measured_from <= now <= self.end
        if connection.due >= self.measured_from:
            self.latencies.append(now - connection.due)
        if self.plan.check and (said := self.plan.check(connection.index, reply.body)):
            self.wrong += 1
            self.first_wrong = self.first_wrong or said

    def _figures(self, cpu: float) -> dict[str, Any]:
        self.latencies.sort()
        shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
        return {
            "rps": round(self.in_time / (self.plan.seconds - self.plan.warmup), 1),
            **{name: _rank(self.latencies, share) for name, share in shares.items()},
            "requests": self.requests,
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "failures": self.failed_by.total(),
            "failed_by": dict(self.failed_by),
            "wrong": self.wrong,
            "first_wrong": self.first_wrong,
            "unsent": len(self.due),
            "cpu": round(cpu, 2),
        }


def _rank(ordered: list[float], share: float) -> float | None:
    """Milliseconds of the value below or at which `share` of the values lie."""
    return round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3) if ordered else None


class Expected:
    """A `Check` against expected answers: what a reply's JSON has at `key` must hold what is expected of its request.

    Args:
        answers: JSON values, one a request.
        tolerance: how far a number may be from the expected one.
        key: of the reply's object.
    """

    def __init__(self, answers: Sequence[Any], tolerance: float = 1e-6, key: str = "predictions"):
        self.answers, self.tolerance, self.key = answers, tolerance, key
        self.right: list[bytes] = [b""] * len(answers)  # equal bytes need no second look

    def __call__(self, index: int, body: bytes) -> str:
        if body == self.right[index]:
            return ""
        try:
            found = orjson.loads(body)[self.key]
        except (ValueError, KeyError, TypeError):
            return f"request {index}: no JSON object with {self.key}: {body[:200]!r}"
        said = difference(self.answers[index], found, self.tolerance)
        if said:
            return f"request {index}: {self.key}{said}"
        self.right[index] = body
        return ""


def difference(expected: Any, found: Any, tolerance: float) -> str:
    """Where and how a JSON value is not the expected one; '' where it is. Objects may have more keys than expected."""
    if isinstance(expected, dict) and isinstance(found, dict):
        parts = [(f".{key}", value, found.get(key)) for key, value in expected.items()]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [(f"[{place}]", *pair) for place, pair in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, float) and isinstance(found, int | float):
        return "" if abs(expected - found) <= tolerance else f" is {found}, expected {expected}"
    else:
        return "" if expected == found else f" is {found!r:.100}, expected {expected!r:.100}"
    return next((place + said for place, *pair in parts if (said := difference(*pair, tolerance))), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--bodies", type=Path, required=True, metavar="FILE", help="a request's JSON body in each line")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="in each line, what its reply has as `predictions`")
    parser.add_argument("--tolerance", type=float, default=1e-6, metavar="X", help="of expected numbers (default: 1e-6)")
    parser.add_argument("--connections", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="measured (default: 10)")
    parser.add_argument("--warmup", type=float, default=0.0, metavar="S", help="before that (default: 0)")
    parser.add_argument("--rate", type=float, metavar="N", help="requests a second, whatever the server does")
    parser.add_argument("--timeout", type=float, default=30.0, metavar="S", help="until a reply counts as failed (default: 30)")
    parsed = parser.parse_args()
    import uvloop

    lines = parsed.bodies.read_bytes().splitlines()
    answers = [orjson.loads(line) for line in parsed.expected.read_bytes().splitlines()] if parsed.expected else None
    plan = Plan(
        requests=[request(parsed.path, line) for line in lines],
        connections=parsed.connections,
        seconds=parsed.warmup + parsed.seconds,
        warmup=parsed.warmup,
        rate=parsed.rate,
        timeout=parsed.timeout,
        check=Expected(answers, parsed.tolerance) if answers else None,
    )
    gc.freeze()
    gc.disable()  # a pause of this process would count as one of the server
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(Load(parsed.host, parsed.port, plan).run())), flush=True)


if __name__ == "__main__":
    main()
