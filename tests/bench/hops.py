"""The cost of a batch in each turn on its way through gateway, store and gateway: `python -m tests.bench.hops`.

No sockets and no other process: both gateways, the store and the wire between them are here, in memory, and each turn
is timed by itself. So it says nothing of the kernel's part, and is steady within a few hundredths on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.broker import Broker
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS, Subscribe, SubscriptionRequest
from gateway.sessions.connection import Connection
from gateway.settings import GatewaySettings
from lightqueue.message_store import MessageStore
from notify.links.address import StoreAddress
from notify.local.hub import Hub
from notify.remote.store import RemoteStore
from notify.remote.store_link import StoreLink
from notify.server.server import StoreServer, WireConnection
from notify.settings import WireSettings
from store.settings import StoreSettings

TURNS = ("publishers' gateway: in", "store: in", "store: out", "subscribers' gateway", "publishers' gateway: answer")
WARM_UP = 20
READ_BYTES = 256_000  # at a time, as the loop does


class Loop:
    """Does what was scheduled when it is told to."""

    def __init__(self) -> None:
        self._scheduled: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._scheduled.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Nothing here is to happen later."""

    @staticmethod
    def time() -> float:
        return time.monotonic()

    def run(self) -> None:
        while self._scheduled:
            scheduled, self._scheduled = self._scheduled, []
            for callback in scheduled:
                callback()


class Pipe(asyncio.Transport):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._written.append(bytes(data))

    def take(self) -> bytes:
        data = b"".join(self._written)
        self._written.clear()
        return data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Gateway:
    """A gateway, and its connection to the store."""

    def __init__(self, name: str, server: StoreServer, loop: Loop) -> None:
        self._loop = loop

        def store_of(link: StoreLink) -> RemoteStore:
            return RemoteStore(5, 64 << 20, link, loop.time)

        self._link = link = StoreLink(StoreAddress.parse("unix:///x"), name, "", None, store_of)
        self._up, self._down = Pipe(), Pipe()
        self._server_end = WireConnection(server)
        store = link.store
        self._server_end.connection_made(self._down)
        link.connection_made(self._up)
        self.settle()
        self.broker = Broker(store, GatewaySettings(), loop)

    def client(self, name: str) -> tuple[Connection, Pipe]:
        connection, pipe = Connection(self.broker.connections), Pipe()
        connection.connection_made(pipe)
        receive(connection, encode(Connect(client_id=name, protocol_version=4), 4))
        self.settle()
        pipe.take()
        return connection, pipe

    def settle(self) -> None:
        for _ in range(10):
            self.to_store()
            self._loop.run()
            self.from_store()
            self._loop.run()

    def to_store(self) -> None:
        data = self._up.take()
        for at in range(0, len(data), READ_BYTES):
            self._server_end.data_received(data[at : at + READ_BYTES])

    def from_store(self) -> None:
        data = self._down.take()
        for at in range(0, len(data), READ_BYTES):
            self._link.data_received(data[at : at + READ_BYTES])

    def tick(self) -> None:
        self._link.tick()
        self.broker.tick()


def receive(connection: Connection, data: bytes) -> None:
    buffer = connection.get_buffer(-1)
    for at in range(0, len(data), len(buffer)):
        part = data[at : at + len(buffer)]
        buffer[: len(part)] = part
        connection.buffer_updated(len(part))


def measure(folder: Path, messages: int, qos: int, subscribers: int, repeats: int) -> dict[str, float]:
    """µs of each turn for a batch of so many messages of 100 bytes: the 5th percentile."""
    loop = Loop()
    asyncio.get_running_loop = lambda: loop  # type: ignore[assignment,return-value]
    store = MessageStore(StoreSettings(data=folder, flush="async", index_flush_ms=600_000))
    server = StoreServer(Hub(store, waits_for_peers=True), WireSettings(), {"gateway": None, "client": None})
    ours, theirs = Gateway("publishers", server, loop), Gateway("subscribers", server, loop)
    publisher, answers = ours.client("p")
    clients = [theirs.client(f"s{i}") for i in range(subscribers)]
    for connection, _ in clients:
        receive(connection, encode(Subscribe(1, (SubscriptionRequest("t"),)), 4))
        theirs.settle()
    packets = b"".join(
        encode(Publish("t", b"x" * 100, qos=QoS(qos), packet_id=i + 1 if qos else None), 4) for i in range(messages)
    )
    ours_in = partial(receive, publisher, packets)
    steps: tuple[tuple[Callable[[], object], ...], ...] = (
        (ours_in, loop.run),
        (ours.to_store,),
        (loop.run,),
        (theirs.from_store, loop.run),
        (ours.from_store, loop.run),
    )
    taken: dict[str, list[float]] = defaultdict(list)
    for at in range(WARM_UP + repeats):
        for name, step in zip(TURNS, steps, strict=True):
            start_ns = time.perf_counter_ns()
            for each in step:
                each()
            if at >= WARM_UP:
                taken[name].append((time.perf_counter_ns() - start_ns) / 1_000)
        for gateway in (ours, theirs):
            gateway.settle()
            gateway.tick()
        loop.run()
        server.peers.tick()
        received = sum(pipe.take().count(b"\x00\x01t") for _, pipe in clients)
        if at >= WARM_UP and received < messages * subscribers:
            raise RuntimeError(f"{received} of {messages * subscribers} messages arrived")
        answers.take()
    store.close()
    return {name: sorted(taken[name])[repeats // 20] for name in TURNS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    repeats = parser.parse_args().repeats
    gc.set_threshold(50_000, 20, 50)  # as a server does
    running_loop = asyncio.get_running_loop
    shared_memory = Path("/dev/shm")
    for messages, qos, subscribers in ((1, 1, 1), (200, 1, 1), (1_000, 0, 1), (1_000, 0, 10)):
        with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
            found = measure(Path(folder), messages, qos, subscribers, repeats)
        asyncio.get_running_loop = running_loop
        turns = ", ".join(f"{name} {taken_us:.1f}" for name, taken_us in found.items())
        print(f"{messages} messages, QoS {qos}, to {subscribers}: {sum(found.values()):.1f} µs ({turns})", flush=True)


if __name__ == "__main__":
    main()
