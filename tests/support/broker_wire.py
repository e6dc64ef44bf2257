"""A line to a broker that can be cut in the middle of what the broker says."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from loadtest.chaos.wire import Wire


class BrokerWire(Wire):
    """A Wire that can break off an answer."""

    def __init__(self, port: int) -> None:
        """`port`: the broker's."""
        self.was_cut = threading.Event()
        self._is_to_cut = False
        super().__init__(port)

    def cut_amid_answer(self) -> None:
        """Pass on half of what the broker says next, then end all connections and refuse new ones."""
        self.was_cut.clear()
        self._is_to_cut = True

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._held_up()
                if self._is_to_cut:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    self._is_to_cut = False
                    self._writers.discard(writer)  # it ends behind that half, and is not reset
                    self.cut()
                    self.was_cut.set()
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)
