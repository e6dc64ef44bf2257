"""Shared subscriptions under SIGKILL: every message gets to some member; at QoS 2 to one session, once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.packets import Connect, Publish, QoS
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.clients import FAREWELLS
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.ledger import SHOWN, Ledger, SentMessage
from loadtest.chaos.load import ChaosLoad
from loadtest.chaos.mqtt_client import MqttConnection
from loadtest.chaos.part import Part
from store.settings import StoreSettings
from tests.conftest import QUICK, SHARED_PORT, ServerFactory
from tests.crash.replayed import assert_index_equals_replay

KILLS = 4
TOPICS = (("load/a", 1), ("load/b", 2), ("load/c", 2), ("load/d", 1))


class GroupLedger(Ledger):
    """All subscribers are members of one group."""

    def qos_of(self, subscriber: str, message: SentMessage) -> int:
        return min(*self.filters[subscriber].values(), message.qos)

    @property
    def all_delivered(self) -> bool:
        return not self._lost()

    def _lost(self) -> set[SentMessage]:
        return self.acked.difference(*self.delivered.values())

    def complaints(self) -> list[str]:
        found = self.faults[:SHOWN]
        found += [f"acknowledged, but delivered to nobody: {each}" for each in sorted(self._lost())[:SHOWN]]
        exact = [
            message
            for subscriber, messages in self.delivered.items()
            for message in messages
            if self.qos_of(subscriber, message) == 2
        ]
        twice = [f"QoS 2, but not once: {message}" for message, times in Counter(exact).items() if times > 1]
        return found + twice[:SHOWN]


def load_on(server: object, seed: int, qos: int) -> ChaosLoad:
    load = ChaosLoad(server, seed)  # type: ignore[arg-type]
    load.ledger = GroupLedger()
    load.publisher("p1", *TOPICS)
    load.publisher("p2", *TOPICS, version=4)
    for number in range(4):
        load.subscriber(f"m{number}", {"$share/g/load/#": qos}, version=4 if number == 3 else 5)
    return load


@pytest.mark.asyncio
@SHARED_PORT
@pytest.mark.parametrize("qos", [2, pytest.param(1, marks=pytest.mark.nightly)])
async def test_kills_under_load(
    qos: int, penstock_server: ServerFactory, small: dict[str, object], seed: int, tmp_path: Path
) -> None:
    server = penstock_server(flush="async", settings=small)
    load = load_on(server, seed, qos)
    async with load.running():
        await load.upset(KILLS)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
    server.kill()
    assert_index_equals_replay(server.data, StoreSettings(segment_bytes=262_144), tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, settings=QUICK | {"store.flush": "async", "gateway.sys_interval_s": 0})
    yield cluster
    cluster.close()


@pytest.mark.asyncio
async def test_parts_are_killed_one_at_a_time(cluster: Cluster, seed: int) -> None:
    """A gateway, the store, or what lies between them; or a gateway stands still until it has lost its lease.

    A store that was killed may have handed messages out that it knows nothing of: one gateway takes them, as it was
    handed them before, and another is handed them. One of the two is refused, and its clients connect again.
    """
    load = load_on(cluster, seed, 2)
    for client in (*load.subscribers, *load.publishers):
        client.accepted_farewells = FAREWELLS | {ReasonCode.UNSPECIFIED_ERROR}
    rng = random.Random(seed)
    async with load.running():
        for _ in range(KILLS):
            load.allow(1_000)
            await load.ledger.progress(rng.randrange(1, 400))
            part = rng.choice([*cluster.gateways, cluster.store, cluster.store, None])
            if part is not None and part is not cluster.store and rng.random() < 0.5:
                await asyncio.to_thread(lose_lease, cluster, part)
            elif part is not None:
                await asyncio.to_thread(part.restart)
            else:
                cluster.cut_store_off()
                cluster.mend()
            await load.ledger.progress(rng.randrange(1, 400))
        for subscriber in load.subscribers:
            subscriber.settle()
        for publisher in load.publishers:
            publisher.budget = 0
        await load.all_acknowledged()
        await load.ledger.wait(lambda: load.ledger.all_delivered, "all deliveries")
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


def lose_lease(cluster: Cluster, gateway: Part) -> None:
    ended = cluster.store.metric("penstock_wire_leases_ended_total")
    gateway.pause()
    while cluster.store.metric("penstock_wire_leases_ended_total") == ended:
        time.sleep(0.05)
    gateway.resume()


@pytest.mark.asyncio
@pytest.mark.parametrize("happens", ["killed", "stopped", "cut off"])
async def test_a_member_at_a_gateway_that_is_gone_loses_what_it_has_to_the_others(
    cluster: Cluster, happens: str
) -> None:
    here, there = cluster.ports
    async with await connect(here, "here") as first, await connect(there, "there") as second:
        for member in (first, second):
            await member.subscribe(1, "$share/g/t", QoS.AT_LEAST_ONCE)
        for number in range(1, 11):
            await second.publish(Publish("t", b"%d" % number, QoS.AT_LEAST_ONCE, packet_id=number))
        await received(first, 1)  # how many more it has depends on when its gateway asked
        {"killed": cluster.gateways[0].kill, "stopped": cluster.gateways[0].pause, "cut off": cluster.wires[0].cut}[
            happens
        ]()
        found = await received(second, 10)
        assert sorted(map(int, found)) == list(range(1, 11))


async def connect(port: int, client_id: str) -> MqttConnection:
    connection, _ = await MqttConnection.open(port, Connect(client_id, 5))
    return connection


async def received(member: MqttConnection, count: int) -> list[bytes]:
    """Payloads of so many messages, which are not acknowledged."""
    return [(await member.receive(Publish)).payload for _ in range(count)]
