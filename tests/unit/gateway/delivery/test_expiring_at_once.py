"""A message expiry interval of 0: the message is for those who are there, and not for those who come later."""

from __future__ import annotations

import pytest

from gateway.mqtt.packets import Will
from gateway.mqtt.properties import Properties
from tests.support.mqtt_bench import Bench, Client


@pytest.fixture
def publisher(bench: Bench) -> Client:
    return bench.connect("publisher")


@pytest.mark.mqtt("MQTT-3.3.2-5", "MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", ["t", "#", "$share/g/t"])
def test_message_expiring_at_once_reaches_connected_clients(
    bench: Bench, publisher: Client, qos: int, topic_filter: str
) -> None:
    client, old = bench.durable("a"), bench.connect("b", 4)
    client.subscribe(topic_filter, qos=qos)
    old.subscribe("t", qos=qos)
    publisher.publish_whole("t", b"1", qos, message_expiry_interval=0)
    bench.run()
    (message,) = client.messages()
    assert (message.payload, message.properties.message_expiry_interval) == (b"1", 0)
    assert old.payloads() == [b"1"]


@pytest.mark.mqtt("MQTT-3.3.2-5")
@pytest.mark.parametrize("qos", [1, 2])
def test_message_expiring_at_once_does_not_reach_absent_sessions(bench: Bench, publisher: Client, qos: int) -> None:
    client = bench.durable("a")
    client.subscribe("t", qos=qos)
    client.lose()
    publisher.publish_whole("t", b"1", qos, message_expiry_interval=0)
    publisher.publish_whole("t", b"2", qos)
    bench.pass_time(1)
    assert bench.durable("a").take() == [b"2"]


@pytest.mark.mqtt("MQTT-3.3.2-5")
def test_message_expiring_at_once_is_dropped_for_clients_with_a_full_window(bench: Bench, publisher: Client) -> None:
    client = bench.durable("a", receive_maximum=1)
    client.subscribe("t", qos=1)
    for payload in (b"1", b"2", b"3"):
        publisher.publish_whole("t", payload, 1, message_expiry_interval=0 if payload == b"2" else None)
    bench.pass_time(1)
    assert client.take() == [b"1", b"3"]


@pytest.mark.mqtt("MQTT-3.3.2-5")
@pytest.mark.parametrize("expiry_s", [0, 3_600])
def test_message_expiring_at_once_is_not_retained(bench: Bench, publisher: Client, expiry_s: int) -> None:
    there = bench.connect("there", session_expiry_interval=expiry_s)
    there.subscribe("t")
    late = bench.connect("late", session_expiry_interval=expiry_s)
    publisher.publish_whole("t", b"1", 1, retain=True, message_expiry_interval=0)
    assert there.payloads() == [b"1"]
    late.subscribe("t", qos=2)
    assert late.payloads() == []


def test_a_will_is_sent_so_as_well(bench: Bench) -> None:
    heir = bench.connect("heir")
    heir.subscribe("gone")
    bench.connect("a", will=Will("gone", b"1", properties=Properties(message_expiry_interval=0))).lose()
    assert heir.payloads() == [b"1"]


def test_delayed_message_expiring_at_once_reaches_clients_connected_when_due(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a")
    client.subscribe("t")
    publisher.publish_whole("$delayed/5/t", b"1", 1, message_expiry_interval=0)
    for _ in range(6):
        bench.pass_time(1)
        bench.store.tick()
        bench.run()
    assert client.payloads() == [b"1"]
