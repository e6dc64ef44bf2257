"""A link that is told of several stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from store.errors import HandshakeRefused
from store.wire.client.address import StorePort, WireAddress
from store.wire.client.asyncio_link import AsyncioLink, LinkTimes
from store.wire.frames import Frame
from store.wire.handshake import ServerHandshake
from store.wire.messages import Hello, Role, Welcome

TIMES = LinkTimes(longest_pause_s=0.1, connect_s=0.5, silent_heartbeats=4, first_pause_s=0.01)


class LinkOfTest(AsyncioLink):
    """Notes what it is told."""

    def __init__(self, *ports: int) -> None:
        first, *others = (StorePort("127.0.0.1", port) for port in ports)
        address = WireAddress("tcp://stores", *first, others=tuple(others))
        super().__init__(address, TIMES, logging.getLogger(__name__))
        self.epochs: list[int] = []
        self.refused_one = asyncio.Event()

    def _hello(self) -> Hello:
        return Hello([1], Role.CLIENT, "c-1")

    def _tls(self) -> None:
        return None

    def _connected(self, welcome: Welcome) -> None:
        self.epochs.append(welcome.epoch)

    def _received(self, frame: Frame) -> None: ...

    def _outgoing(self) -> list[bytes]:
        return []

    def _away(self, why: str) -> None:
        if "it led the cluster before" in why:
            self.refused_one.set()

    def _closed_without_a_word(self) -> str:
        return "closed"

    def _tls_fault(self, error: Exception) -> str:
        return str(error)

    def _refused(self, error: HandshakeRefused) -> str:
        return str(error)


def leading(epoch: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A store that lets a peer in as the leader of an epoch, and closes the connection."""
    welcome = Welcome(1, f"store-{epoch}", epoch, 1 << 20, 256 << 10, 1000, [], 64)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handshake = ServerHandshake(lambda _: welcome, dict.fromkeys(Role))
        while not handshake.is_done:
            writer.write(handshake.feed(await reader.read(65_536)))
        await writer.drain()
        writer.close()

    return serve


def test_a_store_that_led_before_is_refused() -> None:
    async def connect() -> LinkOfTest:
        async with (
            await asyncio.start_server(leading(3), "127.0.0.1", 0) as newer,
            await asyncio.start_server(leading(2), "127.0.0.1", 0) as older,
        ):
            link = LinkOfTest(*(server.sockets[0].getsockname()[1] for server in (newer, older)))
            running = asyncio.create_task(link.run())
            async with asyncio.timeout(10):
                await link.welcomed.wait()
                newer.close()
                await link.refused_one.wait()
            running.cancel()
            return link

    link = asyncio.run(connect())
    assert set(link.epochs) == {3}


def test_a_store_that_says_nothing_is_left_for_the_next_one() -> None:
    """As one that stands still: the system takes connections for it."""
    tried: list[str] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tried.append("silent")
        await reader.read()
        writer.close()

    async def connect() -> LinkOfTest:
        async with (
            await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent,
            await asyncio.start_server(leading(3), "127.0.0.1", 0) as leader,
        ):
            link = LinkOfTest(*(server.sockets[0].getsockname()[1] for server in (silent, leader)))
            running = asyncio.create_task(link.run())
            async with asyncio.timeout(20):
                await link.welcomed.wait()
            running.cancel()
            return link

    link = asyncio.run(connect())
    assert link.epochs == [3]
    assert tried == ["silent"]
