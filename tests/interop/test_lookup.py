"""Three gateways, a store and a real Redis: who is told that a queue grew, whatever becomes of Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.mqtt.packets import Connect, Publish, QoS
from loadtest.chaos.cluster import Cluster, ClusterOptions
from loadtest.chaos.ledger import until
from loadtest.chaos.mqtt_client import MqttConnection, persistent
from notify.events.mirrors import EVERY_S
from notify.events.redis_lookup import CHANNEL
from store.wire.messages import Grew, GrewNamed, Pushed
from tests.support.store_protocol_relay import FrameWire

StartCluster = Callable[..., Cluster]
LEASE_MS = 900
TOPIC = "line/7"
EVERYBODY, ONE = [0, 1, 2], [0]
BACK_TO_NORMAL_S = 1.0  # after a gateway that hung goes on
AWAY = "every gateway is told of every queue until it is back"


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    started: list[Cluster] = []

    def start(with_redis: bool = False, **settings: Any) -> Cluster:
        own = {name.replace("__", "."): value for name, value in settings.items()}
        own = {"store.flush": "async", "gateway.sys_interval_s": 0, "notify.redis_lease_ms": LEASE_MS} | own
        started.append(Cluster(tmp_path, 3, own, options=ClusterOptions(with_redis, FrameWire)))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


class Traffic:
    """A publisher on the last gateway, and a subscriber on the first, the only one that watches the topic."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.wires = [wire for wire in cluster.wires if isinstance(wire, FrameWire)]
        self._published = 0
        self._publisher: MqttConnection
        self._subscriber: MqttConnection

    async def __aenter__(self) -> Traffic:
        self._publisher, _ = await MqttConnection.open(self.cluster.ports[-1], persistent("publisher"))
        self._subscriber, _ = await MqttConnection.open(self.cluster.ports[0], persistent("subscriber"))
        await self._subscriber.subscribe(1, TOPIC, QoS.AT_LEAST_ONCE)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._publisher.cut()
        self._subscriber.cut()

    async def publish(self) -> bytes:
        self._published += 1
        payload = b"%d" % self._published
        packet_id = self._published % 65_535 + 1
        await self._publisher.publish(Publish(TOPIC, payload, QoS.AT_LEAST_ONCE, packet_id=packet_id))
        return payload

    async def deliver(self) -> float:
        """Publish, and wait for the delivery; how long it took."""
        started_s = time.monotonic()
        payload = await self.publish()
        while (await self._subscriber.take()).payload != payload:
            pass
        return time.monotonic() - started_s

    async def told(self) -> list[int]:
        """Which gateways are told of a message."""
        before = self._events()
        await self.deliver()
        for _ in range(2):  # what a gateway is told comes before the second answer after it
            for port in self.cluster.ports:
                connection, _ = await MqttConnection.open(port, Connect("asks"))
                connection.cut()
        return [i for i, events in enumerate(self._events()) if events > before[i]]

    def _events(self) -> list[int]:
        return [wire.said[Grew] + wire.said[GrewNamed] + wire.said[Pushed] for wire in self.wires]

    async def until_told(self, expected: list[int]) -> None:
        deadline_s = time.monotonic() + 20
        while (told := await self.told()) != expected:
            assert time.monotonic() < deadline_s, f"gateways {told} are told"


def entries(cluster: Cluster) -> list[bytes]:
    """What gateways wrote into Redis."""
    with redis.Redis(port=cluster.redis.port) as client:
        return sorted(client.scan_iter(f"{CHANNEL}:*"))


@pytest.mark.asyncio
@pytest.mark.parametrize("with_redis", [False, True], ids=["in memory", "in Redis"])
@pytest.mark.catalogue("F21")
async def test_exactly_one_of_three_gateways_is_told(with_redis: bool, start_cluster: StartCluster) -> None:
    async with Traffic(start_cluster(with_redis)) as traffic:
        await traffic.until_told(ONE)
        for _ in range(20):
            assert await traffic.told() == ONE
        if with_redis:
            assert len(entries(traffic.cluster)) == 3
            assert AWAY not in traffic.cluster.store.log_text()


@pytest.mark.asyncio
@pytest.mark.catalogue("F21")
async def test_broadcast_tells_all(start_cluster: StartCluster) -> None:
    async with Traffic(start_cluster(notify__events="broadcast")) as traffic:
        for _ in range(5):
            assert await traffic.told() == EVERYBODY


Fault = Callable[[Cluster], None]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (lambda c: c.redis.kill(), lambda c: c.redis.start()),
        (lambda c: c.redis.pause(), lambda c: c.redis.resume()),
        (lambda c: c.redis_wire.cut(), lambda c: c.redis_wire.mend()),
    ],
    ids=["killed", "stopped", "cut off"],
)
@pytest.mark.catalogue("F21")
async def test_without_redis_all_are_told_until_it_is_back(
    begin: Fault, end: Fault, start_cluster: StartCluster
) -> None:
    async with Traffic(start_cluster(with_redis=True)) as traffic:
        cluster = traffic.cluster
        await traffic.until_told(ONE)
        for times in (1, 2):
            await asyncio.to_thread(begin, cluster)
            began_s = time.monotonic()
            await traffic.until_told(EVERYBODY)
            print(f"away after {time.monotonic() - began_s:.2f} s")
            await until(lambda: cluster.store.log_text().count(AWAY) == times, "one warning")  # noqa: B023
            await asyncio.to_thread(end, cluster)
            ended_s = time.monotonic()
            await traffic.until_told(ONE)
            print(f"precise after {time.monotonic() - ended_s:.2f} s")
            assert cluster.store.log_text().count(": connected") == times + 1
        await until(lambda: len(entries(cluster)) == 3, "all entries; one that comes late is written anew")


@pytest.mark.asyncio
@pytest.mark.catalogue("F21")
async def test_the_entry_of_a_dead_gateway_expires(start_cluster: StartCluster) -> None:
    async with Traffic(start_cluster(with_redis=True)) as traffic:
        cluster = traffic.cluster
        await traffic.until_told(ONE)
        cluster.gateways[1].kill()
        await until(lambda: len(entries(cluster)) == 2, "the lease to end")
        cluster.gateways[1].start()
        await until(lambda: len(entries(cluster)) == 3, "its successor")
        cluster.gateways[1].terminate()
        assert len(entries(cluster)) == 2, "one that stops takes it out"


@pytest.mark.asyncio
async def test_entries_that_redis_lost_are_written_again(start_cluster: StartCluster) -> None:
    async with Traffic(start_cluster(with_redis=True)) as traffic:
        await traffic.until_told(ONE)
        with redis.Redis(port=traffic.cluster.redis.port) as client:
            client.flushall()
            client.publish(CHANNEL, b"nonsense")
        await until(lambda: len(entries(traffic.cluster)) == 3, "the entries")
        await traffic.until_told(ONE)
        assert "something else is said" in traffic.cluster.store.log_text()


@pytest.mark.asyncio
async def test_a_lost_event_costs_latency_only(start_cluster: StartCluster) -> None:
    async with Traffic(start_cluster()) as traffic:
        await traffic.deliver()
        traffic.wires[0].loses = (Grew, GrewNamed, Pushed)
        for _ in range(2):
            print(f"delivered after {await traffic.deliver():.2f} s")
        traffic.wires[0].loses = ()
        await traffic.until_told(ONE)


@pytest.mark.asyncio
@pytest.mark.parametrize("events", ["lookup", "broadcast"])
@pytest.mark.catalogue("F19")
async def test_a_hung_gateway_delays_nobody(events: str, start_cluster: StartCluster) -> None:
    """Delays are compared with those before, so that a busy machine is not taken for the hung gateway."""
    async with Traffic(start_cluster(notify__events=events, wire__lease_ms=60_000)) as traffic:
        cluster = traffic.cluster
        before_s = sorted([await traffic.deliver() for _ in range(300)])
        hung, _ = await MqttConnection.open(cluster.ports[1], persistent("on the hung one"))
        await hung.subscribe(1, "#", QoS.AT_LEAST_ONCE)
        cluster.gateways[1].pause()
        took_s = sorted([await traffic.deliver() for _ in range(300)])
        print(f"others meanwhile: median {took_s[150] * 1000:.1f} ms, slowest {took_s[-1] * 1000:.1f} ms")
        assert took_s[150] < 3 * before_s[150] + 0.010
        assert took_s[-1] < EVERY_S / 2, "nothing waited for a pass over all queues, nor for the lease"
        cluster.gateways[1].resume()
        resumed_s = time.monotonic()
        newest = await traffic.publish()
        while (await hung.take()).payload != newest:
            pass
        print(f"caught up after {time.monotonic() - resumed_s:.3f} s")
        assert time.monotonic() - resumed_s < BACK_TO_NORMAL_S + 10 * before_s[-1]
        started_s = time.monotonic()
        newest = await traffic.publish()
        while (await hung.take()).payload != newest:
            pass
        print(f"then {(time.monotonic() - started_s) * 1000:.1f} ms")
        assert time.monotonic() - started_s < BACK_TO_NORMAL_S
        hung.cut()
