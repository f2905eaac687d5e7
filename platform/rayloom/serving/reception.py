"""How a replica receives a request: its body is bounded in bytes and in seconds, and who hangs up leaves his place.

What a request costs that is whole and answered within a moment is one timer. Only after it is looked whether a client that
sends slowly comes to an end, and whether one that waits is still there. Large bodies go one after the other.
"""

import asyncio
import ctypes
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

from rayloom.errors import InvalidRecords, Overloaded
from rayloom.serving.protocols import Headers

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MOMENT_S = 0.05
"""After so long a request's client is watched."""

SMALL = 64 * 2**10
"""A body of so many bytes is not counted among the large ones: how many requests are here at once is bounded before us."""

LARGEST = 16
"""The large bodies that are here at once have no more bytes than so many of the largest that are taken."""

TRIM_S = 1.0
"""Seconds after a large body at which the memory that it took is given back."""


class ClientGone(Exception):
    """Nobody is there any more to be answered."""


class Reception:
    """What one replica receives.

    Args:
        limit: bytes of a body.
        seconds: in which a body must come.

    Attributes:
        held: bytes of the large bodies that are here.
    """

    def __init__(self, limit: int, seconds: float):
        self.limit, self.seconds = limit, seconds
        self.small, self.room = min(SMALL, limit), LARGEST * limit
        self.held = 0
        self.turn = asyncio.Lock()
        self.trims: asyncio.TimerHandle | None = None

    def leave(self, size: int) -> None:
        """A large body of so many bytes is here no more."""
        self.held -= size
        if self.trims is None:
            self.trims = asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        """glibc keeps what is free below something that is not: tens of megabytes after a large request. It takes 1 ms."""
        self.trims = None
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


class Visit:
    """One request, from its first byte to its answer, as a context.

    Args:
        reception: the replica's.
        receive: ASGI's.

    Raises:
        ClientGone: at the end of the context, the client hung up while the answer was made.
        InvalidRecords: 408 there, the body did not come in time.
    """

    __slots__ = ("is_ended", "is_late", "is_read", "receive", "reception", "size", "task", "timer", "watch")

    def __init__(self, reception: Reception, receive: Receive):
        self.reception, self.receive = reception, receive
        self.size = 0
        self.is_read = self.is_late = self.is_ended = False
        self.watch: asyncio.Task | None = None

    def __enter__(self) -> "Visit":
        self.task = asyncio.current_task()
        self.timer = asyncio.get_running_loop().call_later(MOMENT_S, self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.timer.cancel()
        if self.watch is not None:
            self.watch.cancel()
        if self.size:
            self.reception.leave(self.size)
        if self.is_ended and kind is asyncio.CancelledError and self.task is not None:
            self.task.uncancel()
            if self.is_read:
                raise ClientGone from None
            raise InvalidRecords(408, f"the body did not come within {self.reception.seconds:g} s; send it again") from None

    async def read(self, headers: Headers) -> bytes:
        """The body, read no further than its limit.

        Raises:
            InvalidRecords: 413.
            Overloaded: the large bodies of others leave it no room.
            ClientGone: the client hung up.
        """
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:18]) > self.reception.limit:
            self._refuse_size()
        body: bytes | bytearray = b""
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            part, more = message.get("body", b""), message.get("more_body", False)
            if more or body or len(part) > self.reception.small:
                self._hold(len(part))
                body = bytearray(body) if isinstance(body, bytes) else body
                body += part
            else:
                body = part
            if not more:
                self._end_of_body()
                break
        if self.size:
            async with self.reception.turn:  # a large body is decoded in milliseconds: what is small is answered in between
                await asyncio.sleep(0)
        return bytes(body)

    def _hold(self, size: int) -> None:
        self.size += size
        self.reception.held += size
        if self.size > self.reception.limit:
            self._refuse_size()
        if self.reception.held > self.reception.room:
            raise Overloaded(f"the bodies of requests that are answered now have {self.reception.held:,} bytes; try again")

    def _refuse_size(self) -> None:
        # Not kept in a name: with its traceback it would hold itself, and the body, until the garbage collection.
        raise InvalidRecords(413, f"the body is over the limit of {self.reception.limit:,} bytes; send the records in parts")

    def _end_of_body(self) -> None:
        self.is_read = True
        if self.is_late:
            self.timer.cancel()
            self._look()

    def _look(self) -> None:
        loop, self.is_late = asyncio.get_running_loop(), True
        if self.is_read:
            self.watch = loop.create_task(self._wait_until_gone())
        else:
            self.timer = loop.call_later(self.reception.seconds, self._end)

    async def _wait_until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._end()

    def _end(self) -> None:
        if self.task is not None:
            self.is_ended = True
            self.task.cancel()
