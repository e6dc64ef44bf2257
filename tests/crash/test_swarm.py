"""Many clients on two gateways: what `make bench` does with ten thousand, in small."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import Connect, Publish, QoS
from loadtest.chaos.cluster import Cluster
from tests.conftest import QUICK
from tests.interop.programs import PahoClient
from tests.support.mqtt_slow_reader import RawClient
from tests.support.mqtt_swarm import Swarm

CLIENTS = 1_000
MANY = 10_000  # of one gateway
PATIENCE_S = 30
MANY_PATIENCE_S = 300
RANGE_BYTES = 1 << 20
MESSAGE_BYTES = 10_000
MESSAGES = 2_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    settings = {
        "store.flush": "async",
        "gateway.sys_interval_s": 0,
        "gateway.range_cache_bytes": RANGE_BYTES,
        "gateway.write_buffer_bytes": 100_000,
    }
    cluster = Cluster(tmp_path, settings=QUICK | settings, wires=False)
    yield cluster
    cluster.close()


def publish(port: int, topic: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as publisher:
        publisher.sendall(encode(Connect("publisher", 4), 4))
        publisher.recv(4, socket.MSG_WAITALL)
        publisher.sendall(encode(Publish(topic, b"x", QoS.AT_LEAST_ONCE, packet_id=1), 4))
        publisher.recv(4, socket.MSG_WAITALL)


@pytest.mark.catalogue("F22")
def test_each_gateway_reads_once_for_all_its_subscribers(cluster: Cluster) -> None:
    with Swarm("device-", ["to/all"] * CLIENTS) as swarm:
        swarm.connect(cluster.ports)
        swarm.poll(swarm.all_online, PATIENCE_S)
        before = cluster.store_reads
        publish(cluster.port, "to/all")
        swarm.poll(lambda: swarm.messages == CLIENTS, PATIENCE_S)
        assert cluster.store_reads - before == len(cluster.gateways)
        assert all(client.messages == 1 for client in swarm.clients)


@pytest.mark.catalogue("F22", "Q67")
def test_ten_thousand_clients_of_a_gateway_cost_it_one_read(cluster: Cluster) -> None:
    with Swarm("one-", ["to/all"] * MANY) as many, Swarm("other-", ["to/all"] * CLIENTS) as others:
        for swarm, port in ((many, cluster.ports[0]), (others, cluster.ports[1])):
            swarm.connect([port])
            swarm.poll(swarm.all_online, MANY_PATIENCE_S)
        before = cluster.store_reads
        publish(cluster.ports[1], "to/all")
        for swarm, number in ((many, MANY), (others, CLIENTS)):
            swarm.poll(partial(has_messages, swarm, number), PATIENCE_S)
        assert cluster.store_reads - before == len(cluster.gateways)
        assert all(client.messages == 1 for swarm in (many, others) for client in swarm.clients)


def has_messages(swarm: Swarm, number: int) -> bool:
    return swarm.messages == number


@pytest.mark.catalogue("G28")
def test_clients_of_a_dead_gateway_come_back_on_the_other(cluster: Cluster) -> None:
    with Swarm("device-", ["to/all"] * CLIENTS, keeps_sessions=True) as swarm:
        swarm.connect(cluster.ports)
        swarm.poll(swarm.all_online, PATIENCE_S)
        swarm.ports = cluster.ports[1:]
        cluster.gateways[0].kill()
        swarm.poll(lambda: swarm.lost == CLIENTS // 2, PATIENCE_S)
        swarm.poll(swarm.all_online, PATIENCE_S)
        publish(cluster.ports[1], "to/all")
        swarm.poll(lambda: swarm.messages == CLIENTS, PATIENCE_S)
        assert all(client.messages == 1 for client in swarm.clients)


def test_lagging_readers_read_ranges(cluster: Cluster) -> None:
    """Far more than the gateway keeps of what it read; one that reads at once has been served long since."""
    late, quick = (RawClient(cluster.ports[0], name) for name in ("late", "quick"))
    for reader in (late, quick):
        reader.subscribe("t", QoS.EXACTLY_ONCE)
    payloads = [b"%d " % i + bytes(MESSAGE_BYTES) for i in range(MESSAGES)]
    publisher = PahoClient(cluster.ports[1]).connect()
    publisher.publish("t", payloads, QoS.EXACTLY_ONCE)
    publisher.leave()
    assert quick.payloads(MESSAGES) == payloads
    before = cluster.store_reads
    assert late.payloads(MESSAGES) == payloads
    assert cluster.store_reads - before < 4 * MESSAGES * MESSAGE_BYTES / RANGE_BYTES
    for reader in (late, quick):
        reader.close()
