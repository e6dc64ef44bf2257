"""A relay between a gateway and the store that knows the frames."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from loadtest.chaos.wire import Wire
from store.wire.frames import HEAD
from store.wire.messages import KINDS, WireMessage

MESSAGES = {kind.number: kind.message for kind in KINDS}


class FrameWire(Wire):
    """A Wire that looks at what the store says, and may lose some of it."""

    def __init__(self, store_port: int) -> None:
        self.said: Counter[type[WireMessage]] = Counter()
        self.said_bytes = 0
        self.loses: tuple[type[WireMessage], ...] = ()
        super().__init__(store_port)

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(HEAD.size)
                length, number, *_ = HEAD.unpack(head)
                message = MESSAGES[number]
                frame = head + await reader.readexactly(length - HEAD.size)
                self.said[message] += 1
                self.said_bytes += len(frame)
                if message not in self.loses:
                    writer.write(frame)
                    await writer.drain()
        writer.close()
        self._writers.discard(writer)
