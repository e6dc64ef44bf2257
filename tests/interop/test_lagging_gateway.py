"""A gateway that stands still while thousands of its queues grow: once it goes on, all messages come."""

from __future__ import annotations

from collections import defaultdict

import psutil
import pytest

from gateway.mqtt.packets import PubAck, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from gateway.mqtt.reason_codes import ReasonCode
from penstock.sync import Client
from tests.conftest import ServerFactory
from tests.support.apart_server import ApartServer
from tests.support.mqtt_packet_client import Device

SUBSCRIBERS, QUEUES_OF_EACH = 25, 200  # so 5,000 queues: more than a gateway is told of by their names
PATIENT = {"wire.lease_ms": 60_000}


def listening_at(server: ApartServer, port: int) -> psutil.Process:
    """The gateway that has this port."""
    (found,) = (
        process
        for process in server.gateways()
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in process.net_connections())
    )
    return found


def subscriber(port: int, number: int) -> Device:
    """A session with queues of its own."""
    device = Device(port, f"subscriber-{number}")
    assert device.connect(session_expiry_interval=3_600).reason_code is ReasonCode.SUCCESS
    wanted = [SubscriptionRequest(topic, QoS.AT_LEAST_ONCE) for topic in topics_of(number)]
    device.send(Subscribe(device.next_id(), tuple(wanted)))
    assert set(device.next(SubAck).reason_codes) == {1}
    return device


def topics_of(number: int) -> list[str]:
    return [f"lag/{number}/{each}" for each in range(QUEUES_OF_EACH)]


def take(device: Device, number: int) -> dict[str, list[bytes]]:
    """The payloads of so many messages, by topic; one that comes again counts once."""
    found: dict[str, list[bytes]] = defaultdict(list)
    while number:
        publish = device.next(Publish)
        device.send(PubAck(publish.packet_id or 0))
        if publish.payload not in found[publish.topic_name]:
            found[publish.topic_name].append(publish.payload)
            number -= 1
    return found


@pytest.mark.topologies("two gateways")
@pytest.mark.parametrize("events", ["lookup", "broadcast"])
def test_all_messages_come_once_a_gateway_that_stood_still_goes_on(penstock_server: ServerFactory, events: str) -> None:
    server = penstock_server(settings={**PATIENT, "notify.events": events})
    assert isinstance(server, ApartServer)
    port = server.port
    gateway = listening_at(server, port)
    devices = [subscriber(port, number) for number in range(SUBSCRIBERS)]
    topics = [topic for number in range(SUBSCRIBERS) for topic in topics_of(number)]
    with Client(server.store_url.replace("tcp://", "penstock://")) as client:
        gateway.suspend()
        try:
            for payload in (b"1", b"2"):
                client.publish_many([(topic, payload) for topic in topics])
        finally:
            gateway.resume()
        client.publish_many([(topic, b"3") for topic in topics])
    for number, device in enumerate(devices):
        expected = {topic: [b"1", b"2", b"3"] for topic in topics_of(number)}
        assert take(device, 3 * QUEUES_OF_EACH) == expected
