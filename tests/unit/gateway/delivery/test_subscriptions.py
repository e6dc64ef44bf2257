"""SUBSCRIBE and UNSUBSCRIBE: what is granted, retained messages, and replay."""

from typing import Any

import pytest

from gateway.mqtt.packets import (
    Connect,
    Disconnect,
    PubAck,
    Publish,
    QoS,
    RetainHandling,
    SubAck,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, SlowDisk, acknowledgement, connect_packet
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


# --- what is granted


@pytest.mark.mqtt(
    "MQTT-2.2.1-6",
    "MQTT-3.8.4-1",
    "MQTT-3.8.4-2",
    "MQTT-3.8.4-5",
    "MQTT-3.8.4-6",
    "MQTT-3.8.4-7",
    "MQTT-3.9.3-1",
    "MQTT-3.9.3-2",
    "MQTT-3.10.4-4",
    "MQTT-3.10.4-5",
    "MQTT-3.10.4-6",
    "MQTT-3.11.3-1",
    "MQTT-3.11.3-2",
)
@VERSIONS
def test_each_filter_is_answered(bench: Bench, version: int) -> None:
    client = bench.connect("a", version)
    suback = client.subscribe(
        SubscriptionRequest("a", QoS(0)), SubscriptionRequest("b/#", QoS(1)), SubscriptionRequest("+", QoS(2))
    )
    assert suback.reason_codes == (0, 1, 2)
    client.send(Unsubscribe(9, ("a", "never", "b/#")))
    codes = (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED, ReasonCode.SUCCESS) if version == 5 else ()
    assert client.one(UnsubAck) == UnsubAck(9, codes)


def test_the_number_of_subscriptions_is_bounded(start_bench: StartBench) -> None:
    bench = start_bench(max_subscriptions_per_session=3)
    client = bench.connect("a")
    full = ReasonCode.QUOTA_EXCEEDED
    assert client.subscribe("a", "a", "b", "c", "d", "c").reason_codes == (0, 0, 0, 0, full, 0)
    assert client.subscribe("e", "a", qos=1).reason_codes == (full, 1)
    client.send(Unsubscribe(9, ("b",)))
    client.received()
    assert client.subscribe("e", "f").reason_codes == (0, full)


@pytest.mark.mqtt("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1", "MQTT-4.7.3-2", "MQTT-4.8.2-1", "MQTT-4.8.2-2")
@pytest.mark.parametrize("topic_filter", ["a/#/b", "a+", "#a", "", "a/\0", "$share//t", "$share/g", "$share/g+/t"])
def test_an_invalid_filter_ends_the_connection(bench: Bench, topic_filter: str) -> None:
    client = bench.connect("a")
    name = topic_filter.encode()
    body = b"\0\1\0" + len(name).to_bytes(2, "big") + name + b"\0"
    client.send_bytes(b"\x82" + bytes((len(body),)) + body)
    assert client.is_closed
    reasons = (ReasonCode.TOPIC_FILTER_INVALID, ReasonCode.MALFORMED_PACKET)
    assert client.one(Disconnect).reason_code in reasons


@pytest.mark.mqtt("MQTT-3.10.4-1", "MQTT-3.10.4-2")
@VERSIONS
def test_unsubscribe_stops_deliveries(bench: Bench, version: int) -> None:
    client, publisher = bench.connect("a", version), bench.connect("b")
    client.subscribe("t/+", "t/x")
    publisher.publish("t/x", b"1")
    assert client.payloads() == [b"1"]
    client.send(Unsubscribe(9, ("t/x",)))
    client.one(UnsubAck)
    publisher.publish("t/x", b"2")
    assert client.payloads() == [b"2"]
    client.send(Unsubscribe(10, ("t/+",)))
    client.one(UnsubAck)
    publisher.publish("t/x", b"3")
    assert client.received() == []


@pytest.mark.mqtt("MQTT-3.8.4-3")
def test_subscribing_again_replaces(bench: Bench) -> None:
    client, publisher = bench.connect("a"), bench.connect("b")
    client.subscribe("t", qos=0, subscription_identifiers=(1,))
    client.subscribe("t", qos=2, subscription_identifiers=(2,))
    publisher.publish_whole("t", b"1", 2)
    (message,) = client.messages()
    assert (message.qos, message.properties.subscription_identifiers) == (2, (2,))
    client.subscribe("t", qos=0)
    publisher.publish_whole("t", b"2", 2)
    (message,) = client.messages()
    assert (message.qos, message.properties.subscription_identifiers) == (0, ())


def test_a_subscription_takes_effect_before_its_suback(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    disk.finish()
    client = bench.client()
    client.send(connect_durable("a"))
    bench.wait_safe()
    client.received()
    disk.stall()
    client.send(client.subscribe_packet("t", qos=1))
    bench.connect("b").publish("t", b"1", qos=1)
    assert [type(packet) for packet in client.received()] == [Publish]
    disk.finish()
    bench.wait_safe()
    assert client.received() == [SubAck(1, (ReasonCode.GRANTED_QOS_1,))]


def connect_durable(client_id: str) -> Connect:
    return connect_packet(client_id, clean_start=False, session_expiry_interval=100)


# --- retained messages


@pytest.mark.mqtt("MQTT-3.3.1-5", "MQTT-3.3.1-6", "MQTT-3.3.1-7", "3.1.1 MQTT-3.3.1-6", "3.1.1 MQTT-3.3.1-8")
@VERSIONS
def test_retained_messages_are_set_replaced_and_cleared(bench: Bench, version: int) -> None:
    publisher = bench.connect("b", version)
    for payload, expected in ((b"1", [b"1"]), (b"2", [b"2"]), (b"", []), (b"3", [b"3"])):
        publisher.publish_whole("t", payload, 1, retain=True)
        for restart in (False, True):
            client = bench.connect("a", version)
            client.subscribe("t")
            assert [(m.payload, m.retain) for m in client.messages()] == [(p, True) for p in expected]
            if restart:
                bench.restart()
                publisher = bench.connect("b", version)


@pytest.mark.mqtt("MQTT-3.3.1-12", "3.1.1 MQTT-3.3.1-9")
@VERSIONS
def test_the_retain_flag_says_whether_a_message_is_old(bench: Bench, version: int) -> None:
    publisher, client = bench.connect("b"), bench.connect("a", version)
    client.subscribe("t")
    publisher.publish("t", b"live", retain=True)
    publisher.publish("t", b"", retain=True)
    assert client.received() == [Publish("t", b"live"), Publish("t", b"")]


@pytest.mark.mqtt("MQTT-3.3.1-13")
def test_retain_as_published(bench: Bench) -> None:
    publisher, client = bench.connect("b"), bench.connect("a")
    client.subscribe("t", retain_as_published=True, qos=2)
    for qos in (0, 1, 2):
        publisher.publish_whole("t", b"%d" % qos, qos, retain=True)
        publisher.publish_whole("t", b"%d" % qos, qos, retain=False)
    assert [(m.qos, m.retain) for m in client.messages()] == [(q, r) for q in (0, 1, 2) for r in (True, False)]


@pytest.mark.mqtt("MQTT-3.3.1-9")
@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("a", ["a"]),
        ("a/#", ["a", "a/b", "a/b/c", "a/d"]),
        ("a/+", ["a/b", "a/d"]),
        ("+", ["a", "e"]),
        ("#", ["a", "a/b", "a/b/c", "a/d", "e", "e/b", "é/x"]),
        ("+/b", ["a/b", "e/b"]),
        ("+/b/#", ["a/b", "a/b/c", "e/b"]),
        ("a/b/c/#", ["a/b/c"]),
        ("é/+", ["é/x"]),
        ("nothing/#", []),
    ],
)
def test_retained_messages_of_a_filter(bench: Bench, topic_filter: str, expected: list[str]) -> None:
    publisher = bench.connect("b")
    for topic in ("a", "a/b", "a/b/c", "a/d", "e", "e/b", "é/x"):
        publisher.publish(topic, topic.encode(), retain=True)
    client = bench.connect("a")
    client.subscribe(topic_filter)
    assert sorted(message.topic_name for message in client.messages()) == expected


@pytest.mark.mqtt("MQTT-3.8.4-8")
def test_retained_messages_go_out_at_the_lower_qos(bench: Bench) -> None:
    bench.connect("b").publish_whole("t", b"1", 2, retain=True)
    for qos in (0, 1, 2):
        client = bench.connect(f"a{qos}")
        client.subscribe("t", qos=qos)
        (message,) = client.messages()
        assert (message.qos, message.retain) == (qos, True)
        if answer := acknowledgement(message):
            client.send(answer)
            client.take()
        assert len(client.connection.inflight) == 0


@pytest.mark.mqtt("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4")
def test_retain_handling(bench: Bench) -> None:
    bench.connect("b").publish("t", b"1", retain=True)
    always, if_new, never = (bench.connect(name) for name in "xyz")
    for first in (True, False):
        always.subscribe("t", retain_handling=RetainHandling.SEND_AT_SUBSCRIBE)
        if_new.subscribe("t", retain_handling=RetainHandling.SEND_IF_NEW_SUBSCRIPTION)
        never.subscribe("t", retain_handling=RetainHandling.DO_NOT_SEND)
        assert always.payloads() == [b"1"]
        assert if_new.payloads() == ([b"1"] if first else [])
        assert never.payloads() == []


@pytest.mark.mqtt("MQTT-3.3.1-10")
def test_a_subscription_of_an_old_session_is_not_new(bench: Bench) -> None:
    bench.connect("b").publish("t", b"1", retain=True)
    bench.durable("a").subscribe("t", qos=1)
    client = bench.durable("a")
    client.subscribe("t", qos=1, retain_handling=RetainHandling.SEND_IF_NEW_SUBSCRIPTION)
    assert client.messages() == []


@pytest.mark.mqtt("MQTT-3.3.2-6", "MQTT-3.3.4-3")
def test_retained_messages_carry_the_subscription_identifier_and_the_rest_of_their_time(bench: Bench) -> None:
    properties: dict[str, Any] = {
        "content_type": "text",
        "message_expiry_interval": 100,
        "user_properties": (("a", "b"),),
    }
    bench.connect("b").publish("t", b"1", retain=True, **properties)
    bench.pass_time(40)
    client = bench.connect("a")
    client.subscribe("t", subscription_identifiers=(300,))
    (message,) = client.messages()
    assert message.properties.subscription_identifiers == (300,)
    assert message.properties.content_type == "text"
    assert message.properties.user_properties == (("a", "b"),)
    assert 59 <= (message.properties.message_expiry_interval or 0) <= 60
    bench.pass_time(61)
    client.subscribe("t")
    assert client.messages() == []


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-4.9.0-2")
@pytest.mark.parametrize("durable", [False, True])
def test_retained_messages_respect_the_receive_maximum(bench: Bench, durable: bool) -> None:
    """Live messages come after them, or old values would follow new ones."""
    publisher = bench.connect("b")
    for i in range(20):
        publisher.publish(f"t/{i:02}", b"old", qos=1, retain=True)
    client = (bench.durable if durable else bench.connect)("a", receive_maximum=3)
    client.subscribe("t/#", qos=1)
    publisher.publish("t/19", b"new", qos=1, retain=True)
    seen: list[tuple[str, bytes]] = []
    while messages := client.messages():
        assert len(messages) <= 3
        seen += [(message.topic_name, message.payload) for message in messages]
        client.send(*[answer for message in messages if (answer := acknowledgement(message))])
    expected = [(f"t/{i:02}", b"old") for i in range(19)]
    assert sorted(seen)[:19] == expected
    assert seen[-1] == ("t/19", b"new")


@pytest.mark.mqtt("MQTT-2.2.1-4")
@pytest.mark.parametrize(("durable", "ids"), [(False, 65_534), (True, 65_535)], ids=["clean", "durable"])
@pytest.mark.slow
def test_more_retained_messages_than_there_are_packet_ids(start_bench: StartBench, durable: bool, ids: int) -> None:
    """What ends with its connection is kept in the ring, which has one place less."""
    bench = start_bench(max_inflight=65_535, receive_maximum=65_535)
    publisher = bench.connect("b")
    count = 70_000
    for start in range(0, count, 10_000):
        packets = [Publish(f"t/{i}", b"1", QoS(1), retain=True, packet_id=1) for i in range(start, start + 10_000)]
        publisher.send(*packets)
    client = (bench.durable if durable else bench.connect)("a")
    client.subscribe("t/+", qos=1)
    messages = client.messages()
    assert sorted(message.packet_id or 0 for message in messages) == list(range(1, ids + 1))
    client.send(*[PubAck(message.packet_id or 0) for message in messages])
    rest = client.messages()
    assert len({message.topic_name for message in [*messages, *rest]}) == count
    client.send(*[PubAck(message.packet_id or 0) for message in rest])
    assert len(client.connection.inflight) == 0
    assert not client.is_closed


def test_retained_messages_in_flight_come_again(bench: Bench) -> None:
    bench.connect("b").publish("t", b"1", qos=1, retain=True)
    client = bench.durable("a")
    client.subscribe("t", qos=1)
    (first,) = client.messages()
    for restart in (False, True):
        client.lose()
        if restart:
            bench.restart()
        client = bench.durable("a")
        (again,) = client.messages()
        assert (again.packet_id, again.payload, again.retain, again.dup) == (first.packet_id, b"1", True, True)
    assert client.take() == []
    client.send(*[answer for answer in [acknowledgement(first)] if answer])
    client.lose()
    assert bench.durable("a").messages() == []
