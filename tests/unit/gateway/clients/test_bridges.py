"""Bridges of other brokers: what Mosquitto's bridge bit of MQTT 3.1.1 means, and the will that a bridge comes with."""

from __future__ import annotations

import pytest

from gateway.auth.access import AccessParts
from gateway.auth.permissions import parse_permissions
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import ConnAck, Connect, PubAck, QoS, Will
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, connect_packet
from tests.support.mqtt_packet_client import access_of
from tests.unit.conftest import StartBench

RULE = {"allow": ["publish"], "topics": ["a/#"]}
STATE = "$SYS/broker/connection/host.bridge/state"


def bridge(bench: Bench, client_id: str = "bridge", clean_start: bool = True, **fields: object) -> Client:
    client = bench.client(4)
    answer = client.connect(client_id, is_bridge=True, clean_start=clean_start, **fields)
    assert answer.reason_code is ReasonCode.SUCCESS
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_bridge_does_not_get_its_own_messages_back(bench: Bench, qos: int) -> None:
    one, other, device = bridge(bench, "one"), bridge(bench, "other"), bench.connect("device")
    one.subscribe("#", qos=qos)
    other.subscribe("#", qos=qos)
    one.publish_whole("t", b"from one", qos)
    device.publish_whole("t", b"from a device", qos)
    assert one.take() == [b"from a device"]
    assert other.take() == [b"from one", b"from a device"]


def test_nor_does_a_retained_message(bench: Bench) -> None:
    client = bridge(bench)
    client.publish("t", b"own", retain=True)
    client.subscribe("#")
    assert client.received() == []


def test_a_bridge_is_told_which_messages_were_retained(bench: Bench) -> None:
    client, device = bridge(bench), bench.connect("device")
    client.subscribe("#", qos=1)
    for retain in (True, False):
        device.publish("t", b"1", retain=retain)
    assert [message.retain for message in client.messages()] == [True, False]


def test_a_bridge_stays_one_while_it_is_away_and_the_server_starts_again(bench: Bench) -> None:
    bridge(bench, clean_start=False).subscribe("#", qos=1)
    bench.restart()
    client = bridge(bench, clean_start=False)
    client.publish_whole("t", b"own", 1)
    bench.connect("device").publish_whole("t", b"other", 1, retain=True)
    (message,) = client.messages()
    assert (message.payload, message.retain) == (b"other", True)


def test_ordinary_mqtt_3_1_1_client_gets_its_own_messages(bench: Bench) -> None:
    client = bench.connect("device", 4)
    client.subscribe("#")
    client.publish("t", b"own", retain=True)
    (message,) = client.messages()
    assert not message.retain


def test_a_shared_subscription_of_a_bridge_is_one_like_others(bench: Bench) -> None:
    client = bridge(bench)
    client.subscribe("$share/g/t", qos=1)
    client.publish("t", b"1", 1)
    client.first(PubAck)
    assert client.take() == [b"1"]


@pytest.mark.parametrize("version", [4, 5])
def test_the_will_of_a_bridge_about_itself_is_taken_and_dropped(bench: Bench, version: int) -> None:
    client = bench.client(version)
    fields = {"is_bridge": True} if version == 4 else {}
    client.connect("bridge", will=Will(STATE, b"0", QoS(1), retain=True), **fields)
    client.publish(STATE, b"1", 1, retain=True)
    witness = bench.connect("witness")
    witness.subscribe("$SYS/broker/connection/#")
    client.lose()
    assert witness.received() == []
    assert bench.stored() == []


def test_bridge_state_will_needs_no_permission(start_bench: StartBench) -> None:
    """Nothing comes of it, so there is nothing to be allowed."""
    bench = start_bench(
        access=access_of(AccessParts((), permissions=parse_permissions({"rule": [RULE]}), allow_anonymous=True))
    )
    bridge(bench, will=Will(STATE, b"0"))
    client = bench.client(4)
    client.send(connect_packet("other", 4, is_bridge=True, will=Will("b", b"0")))
    assert client.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$SYS/broker/connection/x", "$SYS/x/state", "$dead/g/a"])
def test_will_on_another_sys_topic_is_refused(bench: Bench, topic: str) -> None:
    client = bench.client(4)
    client.send(Connect("bridge", 4, is_bridge=True, will=Will(topic, b"0")))
    assert client.one(ConnAck).reason_code is ReasonCode.NOT_AUTHORIZED
    assert client.is_closed


def test_a_connect_of_a_bridge_that_is_too_large_is_answered_in_its_version(bench: Bench) -> None:
    client = bench.client(4)
    data = encode(connect_packet("c" * 40_000, 4, is_bridge=True, username="u" * 40_000), 4)
    client.send_bytes(data)
    assert client.one(ConnAck).reason_code is ReasonCode.SERVER_UNAVAILABLE  # MQTT 3.1.1 has no word for it
