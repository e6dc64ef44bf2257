"""Rules that public conformance suites ask of a server with its default settings, where no other test asks the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.mqtt.packets import Disconnect, PubAck, Publish
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_packet_client import Device
from tests.support.server_process import PenstockServer, ServeOptions


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("suites")
    server = PenstockServer(folder / "data", folder / "log", ServeOptions({"flush": "async"}))
    yield server.port
    server.kill()


def entered(port: int, client_id: str = "", version: int = 5, **fields: Any) -> Device:
    device = Device(port, client_id, version)
    assert device.connect(**fields).reason_code is ReasonCode.SUCCESS
    return device


@pytest.mark.mqtt("MQTT-3.3.4-7")
def test_message_above_receive_maximum_ends_the_connection(port: int) -> None:
    device = Device(port)
    most = device.connect().properties.receive_maximum
    assert most is not None
    for _ in range(most + 1):
        device.publish("t", b"x", 2)
    assert device.closed_with() is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@pytest.mark.parametrize("aliases", [0, 1])
def test_aliases_of_the_servers_making(port: int, aliases: int) -> None:
    topic = "suites/TopicA"
    device = entered(port, topic_alias_maximum=aliases)
    device.subscribe(topic, 2)
    for qos in (0, 1, 2):
        device.publish(topic, b"x", qos)
    came: list[tuple[str, int | None, int]] = []
    while len(came) < 3:
        packet = device.receive()
        assert packet is not None
        if isinstance(packet, Publish):
            came.append((packet.topic_name, packet.properties.topic_alias, packet.qos))
    assert came == ([(topic, 1, 0), ("", 1, 1), ("", 1, 2)] if aliases else [(topic, None, qos) for qos in (0, 1, 2)])


def test_aliases_of_the_clients_making_end_with_the_connection(port: int) -> None:
    device = entered(port, "alias", session_expiry_interval=100)
    for topic in ("suites/alias", ""):
        device.publish(topic, b"x", 1, topic_alias=1)
        assert device.next(PubAck).reason_code is ReasonCode.SUCCESS
    device = entered(port, "alias", clean_start=False, session_expiry_interval=100)
    device.publish("", b"x", 1, topic_alias=1)
    assert device.closed_with() is ReasonCode.PROTOCOL_ERROR


def test_a_message_larger_than_the_client_takes_is_acknowledged_to_its_publisher(port: int) -> None:
    device = entered(port, maximum_packet_size=64)
    device.subscribe("suites/size", 2)
    device.publish("suites/size", b"." * 32)
    assert device.next(Publish).payload == b"." * 32
    assert device.published("suites/size", b"." * 64) is ReasonCode.SUCCESS
    device.publish("suites/size", b"last")
    assert device.next(Publish).payload == b"last"


def test_an_assigned_client_identifier_can_be_used_again(port: int) -> None:
    first = Device(port)
    name = first.connect(session_expiry_interval=100).properties.assigned_client_identifier
    assert name
    first.send(Disconnect())
    assert first.receive() is None
    answer = Device(port, name).connect(clean_start=False)
    assert answer.session_present
    assert answer.properties.assigned_client_identifier is None


@pytest.mark.mqtt("MQTT-3.1.3-5", "MQTT-4.7.3-3")
@pytest.mark.parametrize("version", [4, 5])
def test_the_longest_and_oddest_names(port: int, version: int) -> None:
    for name in ("x" * 256, "".join(map(chr, range(0x20, 0x7F))), "é中😀", "a/b+#$"):
        entered(port, name, version)
    device = entered(port, version=version)
    topic = "long/" + "x" * 65_530
    assert device.subscribe(topic, 1) == 1
    device.publish(topic, b"1", retain=True)
    assert device.next(Publish).topic_name == topic
    again = entered(port, version=version)
    assert again.subscribe(topic) == 0
    assert again.next(Publish).retain
    again.publish(topic, b"", retain=True)
