"""A PUBLISH that one client sends right behind another's SUBSCRIBE, before its SUBACK, over real sockets."""

from __future__ import annotations

import pytest

from gateway.mqtt.packets import Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from tests.conftest import SharedServers
from tests.support.mqtt_packet_client import Device

pytestmark = pytest.mark.topologies("one process", "unix socket")

RUNS = 200


@pytest.mark.parametrize(("flush", "expiry_s", "qos"), [("async", 0, 0), ("async", 3_600, 1), ("sync", 3_600, 1)])
def test_publish_right_after_a_subscribe_is_not_missed(
    shared_server: SharedServers, flush: str, expiry_s: int, qos: int
) -> None:
    server = shared_server(flush=flush)
    reader, publisher = Device(server.port, f"r-{flush}-{qos}"), Device(server.port, f"p-{flush}-{qos}")
    reader.connect(session_expiry_interval=expiry_s)
    publisher.connect()
    missed: list[int] = []
    for number in range(RUNS + 1):
        topic = f"first/{flush}/{qos}/{number}"
        reader.send(Subscribe(number + 1, (SubscriptionRequest(topic, QoS(qos)),)))
        publisher.send(Publish(topic, b"first"))
        got: list[bytes] = []
        while b"" not in got:  # the SUBACK; it may come behind the message
            got.append(received(reader))
        publisher.send(Publish(topic, b"second"))
        while b"second" not in got:
            got.append(received(reader))
        if b"first" not in got and number:  # the first time it is still on its way in
            missed.append(number)
    assert not missed


def received(reader: Device) -> bytes:
    """The payload of what comes next; of a SUBACK none."""
    packet = reader.receive()
    assert isinstance(packet, SubAck | Publish), packet
    return packet.payload if isinstance(packet, Publish) else b""
