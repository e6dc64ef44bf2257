"""A relay between two processes that can be cut and mended, fall silent, and delay data."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

FEW_TURNS = 5
"""Turns of the loop until an accepted connection has its task in _serve(), or the socket of an aborted one is shut."""


class Wire:
    """A relay in a thread of its own, between a gateway and the store."""

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._loop = asyncio.new_event_loop()
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._delay_s = 0.0
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.CancelledError):  # the latter from close(), which waits for nothing else
            await self._flows.wait()
            if not self._is_cut:
                store_reader, store_writer = await asyncio.open_connection("127.0.0.1", self._store_port)
                self._writers.add(store_writer)
                await asyncio.gather(self._copy(reader, store_writer), self._copy_back(store_reader, writer))
        writer.close()  # it stays noted until _abort(): what it has left to send may never go

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._held_up()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)

    async def _held_up(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._flows.wait()

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._copy(reader, writer)

    def cut(self) -> None:
        """Abort all connections, and refuse new ones."""
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _end(self) -> None:
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        await _few_turns()  # asyncio forgets the socket of a connection that a closed server is just accepting
        self._server.close()
        self._abort()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        self._abort()  # of connections to the store that came about meanwhile
        await _few_turns()

    def silence(self) -> None:
        """Stop forwarding without closing any connection."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def delay(self, seconds: float) -> None:
        """Delay each piece of data by so much, in either direction; data that come meanwhile go with the next piece."""
        self._delay_s = seconds

    def mend(self) -> None:
        self._is_cut = False
        self._delay_s = 0.0
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self._is_cut = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _few_turns() -> None:
    for _ in range(FEW_TURNS):
        await asyncio.sleep(0)
