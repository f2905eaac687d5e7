"""The load generator against small servers on real sockets: what it counts, times and holds against expected answers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.load import Expected, Load, Plan, Reply, difference, read_reply, request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
BODIES = [b'{"answer": 0.25}', b'{"answer": 0.5}']


def replied(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def echo(number: int, body: bytes) -> bytes:
    """A server that answers as BODIES say."""
    return replied(b'{"predictions": %b}' % json.dumps([json.loads(body)]).encode())


def drive(answer: Callable[[int, bytes], bytes], seconds: float = 0.3, delay: float = 0.0, **plan: Any) -> dict:
    """The figures of a load against a server that gives `answer(number of the request, its body)`; nothing closes it."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while head := await reader.readline():
            while (line := await reader.readline()) != b"\r\n":
                head += line
            length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"Content-Length"))
            body, count = await reader.readexactly(length), count + 1
            given = answer(count, body)
            await asyncio.sleep(delay)
            if not given:
                break
            writer.write(given)
        writer.close()

    async def run() -> dict:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            requests = [request("/predict", body) for body in BODIES]
            return await Load(
                "127.0.0.1", port, Plan(**{"requests": requests, "connections": 4, "seconds": seconds, **plan})
            ).run()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (OK, Reply(200, b"{}", False)),
        (CHUNKED, Reply(200, b"abcde", False)),
        (b"HTTP/1.1 503 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", Reply(503, b"", True)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Reply(204, b"", False)),
    ],
)
def test_a_reply_is_read_whole_and_not_before(data, reply):
    assert [read_reply(data[:size]) for size in range(len(data))] == [None] * len(data)
    assert read_reply(data) == reply


@pytest.mark.parametrize(
    "data", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", OK + b"x"], ids=["other", "no length", "longer"]
)
def test_what_is_no_reply_is_refused(data):
    with pytest.raises(ValueError):
        read_reply(data)


def test_every_request_is_answered_counted_and_right():
    figures = drive(echo, check=Expected([[json.loads(body)] for body in BODIES]))
    assert figures["requests"] > 20 and figures["statuses"] == {"200": figures["requests"]}
    assert (figures["failures"], figures["wrong"], figures["unsent"]) == (0, 0, 0)


def test_latencies_are_the_servers():
    figures = drive(echo, delay=0.01)
    assert 10 <= figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"] <= figures["max_ms"]


def test_rps_counts_good_replies_of_the_measured_time_alone():
    figures = drive(lambda number, body: replied(b"{}", 200 if number % 2 else 503), seconds=4.0, warmup=2.0, delay=0.02)
    good, bad = figures["statuses"]["200"], figures["statuses"]["503"]
    assert abs(good - bad) <= 4
    assert 0 < figures["rps"] * 2.0 < good * 0.8


def test_a_wrong_answer_is_counted_and_named():
    figures = drive(echo, check=Expected([[{"answer": 0.25}], [{"answer": 0.501}]]))
    assert 0 < figures["wrong"] < figures["requests"]
    assert figures["first_wrong"] == "request 1: predictions[0].answer is 0.5, expected 0.501"


def test_a_lost_connection_is_a_failure_and_is_made_anew():
    figures = drive(lambda number, body: b"" if number == 5 else OK)
    assert figures["failed_by"] == {"lost": 1}
    assert figures["statuses"]["200"] == figures["requests"] - 1 > 10


def test_a_server_may_close_after_a_reply():
    figures = drive(lambda number, body: OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    assert figures["failures"] == 0 and figures["requests"] > 4


def test_a_reply_that_does_not_come_is_a_timeout():
    figures = drive(echo, delay=10, timeout=0.05, connections=2)
    assert set(figures["failed_by"]) == {"timeout"} and figures["p50_ms"] is None


def test_what_cannot_be_read_is_malformed():
    figures = drive(lambda number, body: b"SSH-2.0\r\n\r\n" if number == 3 else OK)
    assert figures["failed_by"] == {"malformed": 1}


def test_a_server_that_is_not_there_is_a_failure():
    figures = asyncio.run(Load("127.0.0.1", 1, Plan([request("/", b"")], connections=1, seconds=0.05)).run())
    assert figures["failed_by"]["connect"] >= 1 and figures["requests"] == 0


def test_at_a_rate_so_many_are_sent():
    figures = drive(echo, seconds=3, rate=50)
    assert figures["requests"] + figures["unsent"] == 150
    assert figures["unsent"] < 50  # those that were due while this process had no CPU, at the very end


def test_at_a_rate_latency_counts_from_when_a_request_was_due():
    figures = drive(echo, seconds=0.15, rate=400, connections=1, delay=0.005)  # the server manages at most half of that
    assert figures["max_ms"] > 50
    assert figures["unsent"] >= 20 and figures["requests"] + figures["unsent"] == 60


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        ([{"p": 0.5, "label": 1}], [{"p": 0.5000001, "label": 1, "more": 2}], ""),
        ([{"p": 0.5}], [{"p": 0.6}], "[0].p is 0.6, expected 0.5"),
        ([{"label": "a"}], [{"label": "b"}], "[0].label is 'b', expected 'a'"),
        ([{"p": 0.5}], [{}], "[0].p is None, expected 0.5"),
        ([1], [1, 2], " is [1, 2], expected [1]"),
        ([0.5], [float("nan")], "[0] is nan, expected 0.5"),
    ],
)
def test_a_difference_is_named(expected, found, said):
    assert difference(expected, found, 1e-6) == said


def test_a_reply_that_is_not_json_is_wrong():
    assert Expected([1])(0, b"<html>") == "request 0: no JSON object with predictions: b'<html>'"
