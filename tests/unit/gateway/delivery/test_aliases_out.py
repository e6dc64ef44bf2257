"""Topic aliases that the gateway sets towards clients that take some."""

import pytest

from gateway.mqtt.packets import Publish
from tests.support.mqtt_bench import Bench, Client, SlowDisk, connect_packet
from tests.unit.conftest import StartBench

LONG = "plant/7/line/12/motor/temperature"


def named(client: Client) -> list[tuple[str, int | None, bytes]]:
    return [(m.topic_name, m.properties.topic_alias, m.payload) for m in client.messages()]


@pytest.mark.mqtt("MQTT-3.1.2-26", "MQTT-3.3.2-11", "MQTT-3.3.2-8")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_is_named_once(bench: Bench, qos: int) -> None:
    client, publisher = bench.connect("a", topic_alias_maximum=2), bench.connect("b")
    client.subscribe("plant/#", qos=qos)
    for _ in range(2):
        for last in ("x", "y", "z"):
            publisher.publish_whole(f"{LONG}/{last}", last.encode(), qos)
    assert named(client) == [
        (f"{LONG}/x", 1, b"x"),
        (f"{LONG}/y", 2, b"y"),
        (f"{LONG}/z", None, b"z"),
        ("", 1, b"x"),
        ("", 2, b"y"),
        (f"{LONG}/z", None, b"z"),
    ]


@pytest.mark.parametrize("durable", [False, True])
def test_messages_of_each_qos_share_an_alias(bench: Bench, durable: bool) -> None:
    client = (bench.durable if durable else bench.connect)("a", topic_alias_maximum=1)
    publisher = bench.connect("b")
    client.subscribe(LONG, qos=2)
    for qos in (0, 1, 2):
        publisher.publish_whole(LONG, b"%d" % qos, qos)
    assert named(client) == [(LONG, 1, b"0"), ("", 1, b"1"), ("", 1, b"2")]


def test_messages_that_wait_for_the_disk_set_no_alias(start_bench: StartBench, disk: SlowDisk) -> None:
    """Something that is sent before it would be named by an alias that the client does not know."""
    bench = start_bench("sync")
    disk.finish()
    client = bench.client()
    client.send(connect_packet("a", clean_start=False, session_expiry_interval=99, topic_alias_maximum=9))
    bench.wait_safe()
    client.send(client.subscribe_packet(LONG, qos=2))
    bench.wait_safe()
    client.received()
    publisher = bench.connect("b")
    publisher.publish(LONG, b"2", 2)
    publisher.publish(LONG, b"0", 0)
    bench.wait_safe()
    bench.wait_safe()
    found = {payload: (topic, alias) for topic, alias, payload in named(client)}
    assert found[b"0"] == (LONG, 1)
    assert found[b"2"] in ((LONG, None), ("", 1))


@pytest.mark.mqtt("MQTT-3.1.2-27")
@pytest.mark.parametrize("version", [4, 5])
def test_topic_aliases_are_not_sent_to_clients_without_alias_maximum(start_bench: StartBench, version: int) -> None:
    bench = start_bench()
    client, publisher = bench.connect("a", version), bench.connect("b")
    client.subscribe("#")
    for _ in range(2):
        publisher.publish(LONG, b"1")
    assert named(client) == [(LONG, None, b"1")] * 2
    off = start_bench(max_topic_aliases_out=0)
    client, publisher = off.connect("a", topic_alias_maximum=9), off.connect("b")
    client.subscribe("#")
    publisher.publish(LONG, b"1")
    assert named(client) == [(LONG, None, b"1")]


@pytest.mark.mqtt("MQTT-3.3.2-7")
def test_an_alias_ends_with_its_connection_and_is_not_used_for_what_is_sent_again(bench: Bench) -> None:
    client, publisher = bench.durable("a", topic_alias_maximum=9), bench.connect("b")
    client.subscribe("#", qos=1)
    for _ in range(2):
        publisher.publish_whole(LONG, b"1", 1)
    assert named(client) == [(LONG, 1, b"1"), ("", 1, b"1")]
    client.lose()
    client = bench.durable("a", topic_alias_maximum=9)
    assert [(m.topic_name, m.dup) for m in client.messages()] == [(LONG, True)] * 2
    publisher.publish_whole(LONG, b"2", 1)
    assert named(client) == [(LONG, 1, b"2")]


@pytest.mark.mqtt("MQTT-3.1.2-24")
def test_an_alias_makes_no_packet_too_large(bench: Bench) -> None:
    size = 1 + 1 + 2 + len(LONG) + 1 + 10
    client, publisher = bench.connect("a", topic_alias_maximum=9, maximum_packet_size=size), bench.connect("b")
    client.subscribe("#")
    for length in (10, 1, 10):
        publisher.publish(LONG, bytes(length))
    packets = client.received()
    assert [(p.topic_name, p.properties.topic_alias) for p in packets if isinstance(p, Publish)] == [
        (LONG, None),
        (LONG, 1),
        ("", 1),
    ]


def test_a_short_topic_needs_no_alias(bench: Bench) -> None:
    client, publisher = bench.connect("a", topic_alias_maximum=9), bench.connect("b")
    client.subscribe("#", subscription_identifiers=(300,))
    publisher.publish("abc", b"1", content_type="x")
    publisher.publish("abcd", b"1", content_type="x")
    publisher.publish("abcd", b"1", content_type="x")
    first, second, third = client.messages()
    assert [m.properties.topic_alias for m in (first, second, third)] == [None, 1, 1]
    assert {m.properties.content_type for m in (first, second, third)} == {"x"}
    assert {m.properties.subscription_identifiers for m in (first, second, third)} == {(300,)}
