"""The load of a recorded deployment, and when its clients were told what."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.ledger import Ledger, SentMessage
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.run import FAREWELLS
from loadtest.errors import LoadTestError
from loadtest.power.recording import Recorder

TICK_S = 0.05
RATE = 400  # messages/s of all publishers
FILTERS = {"s-levels": {"power/+": 2}, "s-one": {"power/b": 1}, "s-other": {"work/#": 1}}
VERSIONS = {"p3": 4}
"""The version of MQTT of clients that do not speak 5."""
GROUP_FILTER = "work/#"
GROUP = "g"
SETTINGS: dict[str, object] = {
    # Make everything happen often: segments fill and are dropped, the index is written, flushed and copied.
    "store.segment_bytes": 65_536,
    "store.retention_bytes": 400_000,
    "store.retention_check_s": 1,
    "store.index_flush_ms": 20,
    "store.index_write_buffer_bytes": 65_536,
    "store.flush_interval_ms": 100,
    "store.reserve_bytes": 0,
    "gateway.maximum_packet_size_bytes": 32_768,
    "gateway.sys_interval_s": 0,
}

Consumers = Callable[[str, Callable[[int], None]], AbstractAsyncContextManager[None]]
"""Consumes as group GROUP from a store's address; calls back with the log_offset of each granted acknowledgement."""


class Acked(NamedTuple):
    """An acknowledgement; `at`: size of the recording in bytes when the client got it."""

    key: str
    at: int


class FlightStep(IntEnum):
    """A step of a QoS 2 message as its publisher knows it."""

    SENT = 0
    RECEIVED = 1  # it has the PUBREC
    OVER = 2


class Flight(NamedTuple):
    """A step, and the packet identifier of the message; `at`: as in Acked."""

    key: str
    packet_id: int
    step: FlightStep
    at: int


class Account(msgspec.Struct):
    """All acknowledgements that clients got, and all messages that they sent."""

    flush: str
    settings: dict[str, object]
    subscribed_at: int = 0
    acked: list[Acked] = []  # of messages
    settled: list[tuple[int, int]] = []  # log_offset of a message acknowledged by its group, and when
    sent: list[str] = []
    connected: list[tuple[str, int]] = []  # client_id, and when the client got its first CONNACK
    flights: list[Flight] = []  # of QoS 2
    kills: list[int] = []


class _Noting(Ledger):
    """A ledger that notes the recording's position at each acknowledgement."""

    def __init__(self, recorder: Recorder, account: Account) -> None:
        super().__init__()
        self._recorder = recorder
        self._account = account
        self._known: set[str] = set()
        self._flying: dict[SentMessage, int] = {}  # packet identifiers of QoS 2 messages

    def on_sent(self, message: SentMessage) -> None:
        super().on_sent(message)
        self._account.sent.append(key_of(message.payload()))

    def on_connected(self, client_id: str) -> None:
        if client_id not in self._known:
            self._known.add(client_id)
            self._account.connected.append((client_id, self._recorder.position))

    def on_flight(self, message: SentMessage, packet_id: int) -> None:
        if message.qos == 2:
            self._flying[message] = packet_id
            self._note(message, FlightStep.SENT)

    def on_refused(self, message: SentMessage) -> None:
        self._note(message, FlightStep.OVER)
        super().on_refused(message)

    def _note(self, message: SentMessage, step: FlightStep) -> None:
        if message in self._flying:
            flight = Flight(key_of(message.payload()), self._flying[message], step, self._recorder.position)
            self._account.flights.append(flight)

    def on_acked(self, message: SentMessage) -> None:
        self._note(message, FlightStep.OVER if message in self.acked else FlightStep.RECEIVED)
        if message not in self.acked:
            self._account.acked.append(Acked(key_of(message.payload()), self._recorder.position))
        super().on_acked(message)


def key_of(payload: bytes) -> str:
    """The identity of a message, without its padding."""
    return b" ".join(payload.split(b" ", 4)[:4]).decode(errors="replace")


async def record(
    folder: Path, recorder: Recorder, data: Path, flush: str, seed: int, lasts_s: float, consumers: Consumers
) -> Account:
    """Run a store and a gateway with clients for so long; kill the store once or twice, and at the end."""
    account = Account(flush, SETTINGS | {"store.flush": flush})
    cluster = await asyncio.to_thread(
        lambda: Cluster(
            folder,
            1,
            account.settings,
            wires=False,
            options=ClusterOptions(
                data=data, environment_of=lambda name: recorder.environment if name == "store" else {}
            ),
        )
    )
    try:
        load = _load(cluster, recorder, account, seed)
        rng = random.Random(seed)
        async with load.running():
            account.subscribed_at = recorder.position

            def settled(log_offset: int) -> None:
                account.settled.append((log_offset, recorder.position))

            async with consumers(cluster.store_url.replace("tcp://", "penstock://"), settled):
                for _ in range(rng.choice((1, 2))):
                    await _publish(load, lasts_s * rng.uniform(0.3, 0.5))
                    account.kills.append(recorder.position)
                    await asyncio.to_thread(_kill, recorder, cluster)
                    await asyncio.to_thread(cluster.store.start)
                await _publish(load, lasts_s * 0.3)
                await asyncio.to_thread(_kill, recorder, cluster)
    finally:
        cluster.close()
    if load.ledger.faults:
        raise LoadTestError(f"while the store was recorded: {load.ledger.faults[0][:300]}")
    return account


def _kill(recorder: Recorder, cluster: Cluster) -> None:
    with recorder.between_calls():
        cluster.store.kill()


def _load(cluster: Cluster, recorder: Recorder, account: Account, seed: int) -> ChaosLoad:
    load = ChaosLoad(cluster, seed)
    load.ledger = _Noting(recorder, account)
    load.publisher("p5", ("power/a", 1), ("power/b", 2)).may_be_refused = True
    load.publisher("p3", ("power/b", 2), ("power/c", 1), version=VERSIONS["p3"])
    load.publisher("p-work", ("work/1", 1), ("work/2", 1), ("work/3", 2)).may_be_refused = True
    retained = load.publisher("p-kept", *((f"kept/{i}", 1) for i in range(7)))
    retained.may_be_refused = retained.retain = True
    delayed = load.publisher("p-later", ("$delayed/1/later/a", 1), ("$delayed/3600/later/b", 2))
    delayed.may_be_refused = True
    for client_id, filters in FILTERS.items():
        load.subscriber(client_id, filters).subscribes_again = False
    for client in load.clients:
        client.patience_s, client.pause_s = 2.0, 0.05
        client.accepted_farewells = client.accepted_refusals = FAREWELLS
    return load


async def _publish(load: ChaosLoad, lasts_s: float) -> None:
    loop = asyncio.get_running_loop()
    until = loop.time() + lasts_s
    each = RATE * TICK_S / len(load.publishers)
    owed = 0.0
    while loop.time() < until:
        await asyncio.sleep(TICK_S)
        owed += each
        for publisher in load.publishers:
            if publisher.budget < 10 * each:
                publisher.allow(int(owed))
        owed -= int(owed)


@asynccontextmanager
async def no_consumers(url: str, settled: Callable[[int], None]) -> AsyncIterator[None]:
    """Without consumers, where the SDK is not available."""
    yield
