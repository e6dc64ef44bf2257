"""A relay before an object store, which is away, refuses, holds bytes back, answers wrongly, or cuts bodies off.

It knows requests and answers of HTTP/1.1 with a Content-Length, one of each on a connection.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import time
from collections import Counter
from contextlib import suppress
from enum import Enum

from loadtest.chaos.wire import Wire

SLOW_PIECE_BYTES, SLOW_PIECE_S = 4096, 0.1
PAGE = b"<html><body>Please log in to this network.</body></html>"

END = b"\r\n\r\n"


class Mood(Enum):
    """What the storage is like."""

    WELL = "well"
    AWAY = "away"  # refuses connections
    REFUSING = "refusing"  # 503 or 403
    SLOW = "slow"  # 40 KB/s, or the last byte does not come
    WRONG = "wrong"  # 200, and it is not what was asked for; what was to be written may have been
    CUT = "cut"  # in the middle of the request's body, or of the answer's


class StorageWire(Wire):
    """A Wire that knows requests; close() ends it."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.answered: Counter[Mood] = Counter()
        self.first_answer_s: float | None = None
        """When the first answer was given since the mood is as it is."""
        self._mood = Mood.WELL
        self._changed = asyncio.Event()
        self._chance = random.Random(seed)
        self._reserved = socket.socket()  # bound and not listening: keeps the port while nobody listens there
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        super().__init__(int(endpoint.rpartition(":")[2]))
        self.endpoint = f"http://127.0.0.1:{self.port}"

    async def _listen(self) -> int:
        address, port = self._reserved.getsockname()
        self._server = await asyncio.start_server(self._serve, address, port)
        return int(port)

    def close(self) -> None:
        super().close()
        self._reserved.close()

    def become(self, mood: Mood) -> None:
        """What is on its way keeps the mood that it began with; what was held back goes out."""
        asyncio.run_coroutine_threadsafe(self._become(mood), self._loop).result()

    async def _become(self, mood: Mood) -> None:
        before, self._mood = self._mood, mood
        self.first_answer_s = None
        self._changed.set()
        self._changed = asyncio.Event()
        if mood is Mood.AWAY:
            self._server.close()
            self._abort()
        elif before is Mood.AWAY:
            await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        mood, changed = self._mood, self._changed
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(END)
            body = await reader.readexactly(_length_of(head))
            data = await self._answer(mood, head, body)
            self.answered[mood] += 1
            if mood is self._mood and self.first_answer_s is None:
                self.first_answer_s = time.monotonic()
            if mood is Mood.SLOW:
                data = await self._trickle(data, writer, changed)
            writer.write(data)
            await writer.drain()
            if mood is Mood.CUT:
                writer.transport.abort()
        writer.close()
        self._writers.discard(writer)

    async def _trickle(self, data: bytes, writer: asyncio.StreamWriter, changed: asyncio.Event) -> bytes:
        """Send all but the last piece, or all but the last byte until the mood is another. Returns what is left."""
        while len(data) > SLOW_PIECE_BYTES:
            writer.write(data[:SLOW_PIECE_BYTES])
            data = data[SLOW_PIECE_BYTES:]
            await asyncio.sleep(SLOW_PIECE_S)
        if self._chance.random() < 0.5:
            writer.write(data[:-1])
            data = data[-1:]
            await changed.wait()
        return data

    async def _answer(self, mood: Mood, head: bytes, body: bytes) -> bytes:
        """What the client gets to hear, as far as it gets it."""
        if mood is Mood.REFUSING:
            return self._chance.choice((SLOW_DOWN, FORBIDDEN))
        if mood is Mood.SLOW:
            await asyncio.sleep(len(body) / SLOW_PIECE_BYTES * SLOW_PIECE_S)
        if mood in (Mood.WELL, Mood.SLOW):
            return await self._asked(head, body)
        data = await self._asked(head, body) if self._chance.random() < 0.5 else b""
        return wrong(data, self._chance.random() < 0.5) if mood is Mood.WRONG else cut(data)

    async def _asked(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._store_port)
        try:
            writer.write(head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n" + body)
            return await reader.read()
        finally:
            writer.close()


def _length_of(head: bytes) -> int:
    """Of the body that follows."""
    found = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


def answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def wrong(data: bytes, is_page: bool) -> bytes:
    """In place of an answer: a page, or the first half of what was asked for as if that were all."""
    _, _, body = data.partition(END)
    return answer("200 OK", body[: len(body) // 2] if len(body) > 1 and not is_page else PAGE)


def cut(data: bytes) -> bytes:
    """An answer as far as the middle of its body; without a body, of its head."""
    head, end, body = data.partition(END)
    return head + end + body[: len(body) // 2] if body else data[: len(data) // 2]


SLOW_DOWN = answer("503 Slow Down", b"<Error><Code>SlowDown</Code></Error>")
FORBIDDEN = answer("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>")
