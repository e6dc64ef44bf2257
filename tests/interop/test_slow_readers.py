"""Subscribers that read late, or little at a time, over real sockets: everything comes, whole and in order."""

import random

import pytest

from gateway.mqtt.packets import QoS
from tests.conftest import IN_ALL_TOPOLOGIES, SharedServers
from tests.interop.programs import PahoClient
from tests.support.mqtt_slow_reader import RawClient
from tests.support.server_process import PenstockServer

pytestmark = IN_ALL_TOPOLOGIES


@pytest.fixture
def server(shared_server: SharedServers) -> PenstockServer:
    return shared_server(flush="async", settings={"gateway.write_buffer_bytes": 100_000})


@pytest.mark.parametrize("qos", QoS)
def test_late_reader_gets_everything(server: PenstockServer, qos: QoS) -> None:
    readers = [RawClient(server.port, f"reader-{number}") for number in range(3)]
    for reader in readers:
        reader.subscribe("t", qos)
    rng = random.Random(qos)
    payloads = [b"%d " % i + bytes(rng.choice((10, 1_000, 100_000))) for i in range(300)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", payloads, max(qos, 1))
    publisher.leave()
    for reader in readers:
        assert reader.payloads(len(payloads)) == payloads
        reader.close()


@pytest.mark.parametrize("qos", QoS)
def test_large_messages_that_readers_share_come_whole_and_in_order(server: PenstockServer, qos: QoS) -> None:
    readers = [RawClient(server.port, f"reader-{number}") for number in range(3)]
    for reader, topic_filter in zip(readers, ("large", "+", "#"), strict=True):
        reader.subscribe(topic_filter, qos)
    sizes = (10, 300_000, 10, 400_000, 300_000, 200_000)
    payloads = [b"%d " % i + bytes((i,)) * sizes[i % len(sizes)] for i in range(24)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("large", payloads, max(qos, 1))
    publisher.leave()
    for reader in readers:
        assert reader.payloads(len(payloads), most_bytes=50_001) == payloads
        reader.close()


def test_reader_of_small_pieces_gets_everything(server: PenstockServer) -> None:
    reader = RawClient(server.port, "reader")
    reader.subscribe("t", QoS.AT_MOST_ONCE)
    payloads = [b"%d " % i + bytes(i % 5_000) for i in range(400)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", payloads, 0)
    publisher.leave()
    assert reader.payloads(len(payloads), most_bytes=997) == payloads
    reader.close()


def test_retained_messages_wait_for_a_slow_reader(server: PenstockServer) -> None:
    publisher = PahoClient(server.port).connect()
    kept = {b"%03d" % i + bytes(50_000) for i in range(100)}
    for payload in sorted(kept):
        publisher.client.publish(f"kept/{payload[:3].decode()}", payload, 1, retain=True)
    publisher.publish("end", [b""], 1)
    readers = [RawClient(server.port, f"reader-{number}") for number in range(5)]
    for reader, qos in zip(readers, (*QoS, *QoS), strict=False):
        reader.subscribe("kept/#", qos)
    publisher.publish("kept/000", [b"live"], 1)
    publisher.leave()
    for reader in readers:
        found = reader.payloads(101)
        assert set(found) == {*kept, b"live"}
        assert found[-1] == b"live"
        reader.close()
