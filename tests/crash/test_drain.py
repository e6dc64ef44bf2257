"""SIGTERM on one of two gateways under load: its clients go on at the other, told at a bounded rate, losing nothing."""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.clients import ChaosClient
from loadtest.chaos.cluster import Cluster
from loadtest.chaos.ledger import until
from loadtest.chaos.load import ChaosLoad

PUBLISHERS, SUBSCRIBERS = 160, 60
TOPICS = 16
CLIENTS_PER_S = 50
DRAIN_TIMEOUT_S = 19
LEASE_MS = 10_000  # no gateway is to lose its own, however busy the machine: its clients would not be told
"""Drains in a test, each of another gateway."""


@pytest.fixture
def cluster(tmp_path: Path, small: dict[str, object]) -> Iterator[Cluster]:
    drain = {"gateway.drain_clients_per_s": CLIENTS_PER_S, "gateway.drain_timeout_s": DRAIN_TIMEOUT_S}
    cluster = Cluster(tmp_path, settings=small | drain | {"wire.lease_ms": LEASE_MS})
    yield cluster
    cluster.close()


def load_on(cluster: Cluster, seed: int) -> ChaosLoad:
    """Persistent sessions of both versions at QoS 1 and 2, on either gateway."""
    load = ChaosLoad(cluster, seed)
    for i in range(PUBLISHERS):
        load.publisher(f"p{i}", (f"drain/{i % TOPICS}", 1 + i % 2), version=5 - i % 3 // 2)
    for i in range(SUBSCRIBERS):
        load.subscriber(f"s{i}", {f"drain/{i % TOPICS}": 1 + i // TOPICS % 2}, version=5 - i % 3 // 2)
    return load


def clients_of(load: ChaosLoad, port: int) -> list[ChaosClient]:
    return [client for client in load.clients if client.port == port and client.connection is not None]


async def drain(cluster: Cluster, load: ChaosLoad, number: int) -> float:
    """SIGTERM under load; how long it took until the process was gone."""
    part = cluster.gateways[number]
    async with asyncio.TaskGroup() as together:
        load.allow(10)
        started_s = time.monotonic()
        ended = together.create_task(asyncio.to_thread(part.terminate))
        while not ended.done():
            load.allow(1)
            await asyncio.sleep(0.2)  # not to wait: so that the load goes on for as long as it takes
    return time.monotonic() - started_s


@pytest.mark.asyncio
@pytest.mark.parametrize("lives", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.catalogue("G28")
async def test_clients_go_on_at_the_other_gateway(cluster: Cluster, seed: int, lives: int) -> None:
    load = load_on(cluster, seed)
    async with load.running():
        for number in range(lives):
            load.allow(10)
            await load.ledger.progress(500)
            await until(lambda: all(client.connection is not None for client in load.clients), "all CONNACKs")
            leaving = clients_of(load, cluster.ports[number])
            staying = clients_of(load, cluster.ports[1 - number])
            assert len(leaving) > 50, "the clients of the test are all at one gateway"
            took_s = await drain(cluster, load, number)
            await until(
                lambda number=number: len(clients_of(load, cluster.ports[1 - number])) == len(load.clients),  # type: ignore[misc]
                "all clients at the other gateway",
            )
            for client in leaving:
                if client._connect.protocol_version == 5:
                    assert client.farewells == [ReasonCode.USE_ANOTHER_SERVER], client.client_id
            assert not any(client.farewells for client in staying)
            ((told, cut_off),) = re.findall(
                r"drained: (\d+) clients told, (\d+) connections cut off", cluster.gateways[number].log_text()
            )
            assert (int(told), int(cut_off)) == (len(leaving), 0)
            assert took_s >= (len(leaving) - 1) / CLIENTS_PER_S
            for client in load.clients:
                client.farewells.clear()
            cluster.gateways[number].start()
            for client in load.rng.sample(load.clients, len(load.clients) // 2):
                client.cut()  # so that some are at the new one
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)


@pytest.mark.asyncio
async def test_killed_while_it_drains(cluster: Cluster, seed: int) -> None:
    """Its operator has no patience: SIGKILL follows the SIGTERM."""
    load = load_on(cluster, seed)
    async with load.running():
        load.allow(5)
        await load.ledger.progress(300)
        gateway = cluster.gateways[0]
        gateway.process.terminate()
        await until(lambda: "draining: " in gateway.log_text(), "the begin of draining")
        load.allow(2)
        await load.ledger.progress(load.rng.randrange(1, 300))
        await asyncio.to_thread(gateway.kill)
        await load.settle()
    assert not (complaints := load.ledger.complaints()), "\n".join(complaints)
