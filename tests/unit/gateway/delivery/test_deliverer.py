"""Delivery to subscribers: each message once, in order, at its QoS, as much as they can take, and not too late."""

import random

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubscriptionRequest,
)
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, SlowDisk, acknowledgement
from tests.unit.conftest import StartBench

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
def publisher(bench: Bench) -> Client:
    return bench.connect("publisher")


# --- who gets what


@pytest.mark.mqtt("MQTT-3.8.4-8", "MQTT-4.3.1-1", "MQTT-4.3.2-2", "MQTT-4.3.3-2")
@VERSIONS
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_the_lower_qos_wins(bench: Bench, publisher: Client, version: int, published: int, subscribed: int) -> None:
    client = bench.connect("a", version)
    client.subscribe("t", qos=subscribed)
    publisher.publish_whole("t", b"1", published)
    (message,) = client.messages()
    assert message.qos == min(published, subscribed)
    assert not message.dup
    assert (message.packet_id is not None) == (message.qos > 0)


@pytest.mark.mqtt("MQTT-3.3.2-3", "MQTT-4.5.0-1", "MQTT-4.7.3-4")
@pytest.mark.parametrize(
    ("topic_filter", "topic", "matches"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/B", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("+/+", "/x", True),
        ("/+", "/x", True),
        ("+", "/x", False),
        ("#", "/x", True),
        ("+/+/#", "a/b", True),
        ("é/+", "é/ü", True),
        ("a/+/c", "a/b/c", True),
        ("a/+/c", "a/b/c/d", False),
    ],
)
def test_filters(bench: Bench, publisher: Client, topic_filter: str, topic: str, matches: bool) -> None:
    """Whether the subscription was there before the topic or after it, and whether it is kept or not."""
    client, durable = bench.connect("a"), bench.durable("b")
    client.subscribe(topic_filter)
    durable.subscribe(topic_filter, qos=1)
    for _ in range(2):
        publisher.publish_whole(topic, b"1", 1)
        late = bench.connect("late")
        late.subscribe(topic_filter)
        publisher.publish_whole(topic, b"2", 1)
        for each in (client, durable):
            assert each.take() == ([b"1", b"2"] if matches else [])
        assert late.take() == ([b"2"] if matches else [])
        late.disconnect()


@pytest.mark.mqtt("MQTT-4.7.2-1")
def test_dollar_topics_are_not_matched_by_a_leading_wildcard(bench: Bench) -> None:
    clients = {name: bench.connect(f"c{name}") for name in ("#", "+/x", "+/#", "$own/#", "$own/x", "$own/+")}
    for topic_filter, client in clients.items():
        client.subscribe(topic_filter)
    bench.broker.journal.message("$own/x", b"1")
    bench.run()
    expected = {name: [b"1"] if name.startswith("$") else [] for name in clients}
    assert {name: client.payloads() for name, client in clients.items()} == expected


@pytest.mark.mqtt("3.1.1 MQTT-3.3.5-2")
def test_clients_cannot_publish_to_the_servers_topics(bench: Bench) -> None:
    witness = bench.connect("witness")
    witness.subscribe("$SYS/#", "$dead/#", "$delayed/#")
    witness.received()
    v5, v4 = bench.connect("a"), bench.connect("b", 4)
    for topic in ("$SYS/broker/uptime", "$dead/x"):
        for client in (v5, v4):
            client.publish(topic, b"0", retain=True)
            client.publish(topic, b"1", qos=1, retain=True)
            client.publish(topic, b"2", qos=2, retain=True)
    assert {packet.reason_code for packet in v5.received()} == {ReasonCode.NOT_AUTHORIZED}  # type: ignore[union-attr]
    assert [type(packet) for packet in v4.received()] == [PubAck, PubRec] * 2
    assert witness.received() == []
    assert bench.stored() == []
    for client in (v5, v4):
        client.send(PubRel(3))
        assert isinstance(client.received()[-1], PubComp)


@pytest.mark.mqtt("MQTT-3.8.3-3")
def test_no_local(bench: Bench, publisher: Client) -> None:
    for qos in (0, 1, 2):
        client = bench.connect("a")
        client.subscribe("t", qos=qos, no_local=True)
        client.publish("t", b"own")
        publisher.publish("t", b"other")
        assert client.payloads() == [b"other"]
        client.subscribe("#", qos=qos)
        client.publish("t", b"own")
        assert client.payloads() == [b"own"]


@pytest.mark.mqtt("MQTT-3.8.3-3")
def test_no_local_holds_across_connections(bench: Bench, publisher: Client) -> None:
    client = bench.durable("a")
    client.subscribe("t", qos=1, no_local=True)
    client.send(Publish("t", b"own", QoS.AT_LEAST_ONCE, packet_id=1))
    client.lose()
    publisher.publish_whole("t", b"other", 1)
    assert bench.durable("a").take() == [b"other"]


@pytest.mark.mqtt("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4")
def test_overlapping_subscriptions_bring_one_copy(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a")
    client.subscribe("t/x", qos=0, subscription_identifiers=(1,))
    client.subscribe("t/#", qos=2, subscription_identifiers=(2,))
    client.subscribe("+/x", qos=1, subscription_identifiers=(2,), retain_as_published=True)
    client.subscribe("+/y", qos=1, subscription_identifiers=(3,))
    client.subscribe("#", qos=0)
    for qos in (0, 1, 2):
        publisher.publish_whole("t/x", b"%d" % qos, qos, retain=True)
    messages = client.messages()
    assert sorted((m.payload, m.qos, m.retain) for m in messages) == [
        (b"0", 0, True),
        (b"1", 1, True),
        (b"2", 2, True),
    ]
    assert [sorted(m.properties.subscription_identifiers) for m in messages] == [[1, 2, 2]] * 3


@pytest.mark.mqtt("MQTT-3.3.4-2", "MQTT-3.3.4-4")
def test_overlapping_subscriptions_of_a_session_that_was_away(bench: Bench, publisher: Client) -> None:
    client = bench.durable("a")
    client.subscribe("t/x", qos=1, subscription_identifiers=(1,))
    client.subscribe("t/#", qos=2, subscription_identifiers=(2,))
    client.subscribe("#", qos=0, subscription_identifiers=(3,))
    client.lose()
    publisher.publish_whole("t/x", b"1", 2)
    publisher.publish_whole("t/y", b"2", 2)
    publisher.publish_whole("u", b"3", 2)
    bench.restart()
    client = bench.durable("a")
    found = [(m.payload, int(m.qos), sorted(m.properties.subscription_identifiers)) for m in client.messages()]
    assert found == [(b"1", 2, [1, 2]), (b"2", 2, [2])]


def test_many_queues_come_as_one_sequence(bench: Bench, publisher: Client) -> None:
    """A session with hundreds of filters, of which up to three match a message, and a window for few."""
    rng = random.Random(7)
    client = bench.durable("a", receive_maximum=5)
    for i in range(300):
        client.subscribe(f"t/{i}/x", f"+/{i}/#", qos=1, subscription_identifiers=(i + 1,))
    client.subscribe("+/+/y", qos=1, subscription_identifiers=(1_000,))
    sent = [(rng.randrange(300), rng.choice("xyz")) for _ in range(500)]
    for way in ("at once", "from a backlog"):
        if way == "from a backlog":
            client.lose()
        for number, (i, last) in enumerate(sent):
            publisher.publish(f"t/{i}/{last}", b"%d" % number, qos=1)
        if way == "from a backlog":
            client = bench.durable("a", receive_maximum=5)
        came = []
        while messages := client.messages():
            came += messages
            for message in messages:
                if answer := acknowledgement(message):
                    client.send(answer)
        assert [int(message.payload) for message in came] == list(range(len(sent)))
        for message, (i, last) in zip(came, sent, strict=True):
            expected = {"x": [i + 1, i + 1], "y": [i + 1, 1_000], "z": [i + 1]}[last]
            assert sorted(message.properties.subscription_identifiers) == expected


@pytest.mark.mqtt("MQTT-3.3.2-4", "MQTT-3.3.2-15", "MQTT-3.3.2-16", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-20")
def test_properties_pass_unchanged(bench: Bench, publisher: Client) -> None:
    v5, v4 = bench.connect("a"), bench.connect("b", 4)
    for client in (v5, v4):
        client.subscribe("t")
    for text in ("plain", "übung"):
        packet = publisher.publish_packet(
            "t",
            b"1",
            payload_format_indicator=1,
            content_type=text,
            response_topic=text,
            correlation_data=b"\0\xff",
            user_properties=(("b", text), ("a", "1"), ("b", "2")),
        )
        publisher.send(packet)
        assert v5.one(Publish) == packet
        assert v4.one(Publish) == Publish("t", b"1")


# --- order


@pytest.mark.mqtt("MQTT-4.6.0-5", "MQTT-4.6.0-6")
def test_order_is_kept_for_everyone(bench: Bench) -> None:
    """Two publishers, many subscribers of all kinds, chunks of any size."""
    rng = random.Random(1)
    publishers = [bench.connect("p0"), bench.connect("p1")]
    subscribers = [bench.connect(f"s{i}", 4 + i % 2, **({"receive_maximum": 7} if i % 2 else {})) for i in range(12)]
    for i, subscriber in enumerate(subscribers):
        subscriber.subscribe(*(["t/#"], ["t/+", "t/x"], ["#"])[i % 3], qos=i % 3)
    sent: dict[str, list[bytes]] = {"t/x": [], "t/y": []}
    for number in range(600):
        topic = rng.choice(["t/x", "t/y"])
        publisher = publishers[topic == "t/y"]
        payload = f"{topic} {number}".encode()
        sent[topic].append(payload)
        publisher.feed(encoded(publisher, topic, payload, rng.randrange(3)))
        if rng.random() < 0.1:
            bench.run()
    bench.run()
    for subscriber in subscribers:
        got = subscriber.take()
        for topic, payloads in sent.items():
            mine = [payload for payload in got if payload.startswith(topic.encode() + b" ")]
            assert mine == payloads


def encoded(client: Client, topic: str, payload: bytes, qos: int) -> bytes:
    return encode(client.publish_packet(topic, payload, qos), client.version)


@pytest.mark.mqtt("MQTT-4.6.0-5")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_of_one_qos_is_kept_by_a_session_that_catches_up_while_more_comes(bench: Bench, qos: int) -> None:
    publisher = bench.connect("p")
    client = bench.durable("a", receive_maximum=5)
    client.subscribe("t/+", qos=2)
    client.lose()
    payloads = [b"%d" % i for i in range(100)]
    for payload in payloads[:50]:
        publisher.publish_whole("t/x", payload, qos or 1)
    client = bench.durable("a", receive_maximum=5)
    seen: list[bytes] = []
    for payload in payloads[50:]:
        publisher.publish_whole("t/x", payload, qos or 1)
        for packet in client.received():
            if isinstance(packet, Publish):
                seen.append(packet.payload)
            if answer := acknowledgement(packet):
                client.send(answer)
    assert seen + client.take() == payloads


# --- how much


@pytest.mark.mqtt("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_of_a_client_is_respected(bench: Bench, publisher: Client, qos: int) -> None:
    client = bench.connect("a", receive_maximum=3)
    client.subscribe("t", qos=2)
    for i in range(8):
        publisher.publish_whole("t", b"%d" % i, qos)
    publisher.publish_whole("t", b"qos 0", 0)
    first = client.messages()
    assert [message.payload for message in first] == [b"0", b"1", b"2"]
    assert finish(client, first[1]) == [b"3"]
    assert finish(client, first[0], first[2]) == [b"4", b"5"]


def finish(client: Client, *messages: Publish) -> list[bytes]:
    """Acknowledge some messages wholly; what comes in their place."""
    arrived: list[bytes] = []
    for message in messages:
        packet_id = message.packet_id or 0
        steps: tuple[Packet, ...] = (
            (PubAck(packet_id),) if message.qos == 1 else (PubRec(packet_id), PubComp(packet_id))
        )
        for step in steps:
            client.send(step)
            packets = client.received()
            payloads = [packet.payload for packet in packets if isinstance(packet, Publish)]
            assert step is steps[-1] or payloads == []
            arrived += payloads
    return arrived


@pytest.mark.mqtt("MQTT-4.4.0-2")
def test_a_refusing_puback_or_pubrec_frees_its_place(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a", receive_maximum=1)
    client.subscribe("t", qos=2)
    for qos in (1, 2, 1):
        publisher.publish_whole("t", b"%d" % qos, qos)
    for qos, answer in ((1, PubAck), (2, PubRec)):
        (message,) = client.messages()
        assert message.qos == qos
        client.send(answer(message.packet_id or 0, ReasonCode.UNSPECIFIED_ERROR))
    assert client.one(Publish).payload == b"1"


@pytest.mark.mqtt("MQTT-3.6.2-1")
def test_answers_to_nothing_do_no_harm(bench: Bench, publisher: Client) -> None:
    for version in (4, 5):
        client = bench.connect("a", version)
        client.subscribe("t", qos=2)
        client.send(PubAck(9), PubComp(9), PubRec(9))
        not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else ReasonCode.SUCCESS
        assert client.one(PubRel) == PubRel(9, not_found)
        publisher.publish_whole("t", b"1", 1)
        message = client.one(Publish)
        client.send(PubRec(message.packet_id or 0), PubComp(message.packet_id or 0))
        client.received()
        client.send(PubAck(message.packet_id or 0), PubAck(message.packet_id or 0))
        assert len(client.connection.inflight) == 0
        assert not client.is_closed


def test_mqtt_3_1_1_clients_have_a_window_too(start_bench: StartBench) -> None:
    bench = start_bench(max_inflight=4)
    client, publisher = bench.connect("a", 4), bench.connect("b")
    client.subscribe("t", qos=1)
    for i in range(10):
        publisher.publish_whole("t", b"%d" % i, 1)
    assert len(client.messages()) == 4


@pytest.mark.mqtt("MQTT-3.1.2-24", "MQTT-3.1.2-25")
def test_a_message_too_large_for_a_client_is_passed_over(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a", maximum_packet_size=50)
    for qos in (0, 1, 2):
        client.subscribe("t", qos=qos)
        for size in (44 - 2 * (qos > 0), 45 - 2 * (qos > 0), 10):
            publisher.publish_whole("t", bytes(size), qos)
        assert [len(payload) for payload in client.take()] == [44 - 2 * (qos > 0), 10]
    assert bench.broker.turn.too_large == 3
    assert len(client.connection.inflight) == 0
    client.subscribe("t", subscription_identifiers=(1,))
    publisher.publish("t", bytes(43))
    publisher.publish("t", bytes(42))
    assert [len(payload) for payload in client.payloads()] == [42]


def test_a_slow_client_is_not_written_to(start_bench: StartBench) -> None:
    bench = start_bench(write_buffer_bytes=2_048)
    publisher, slow, other = bench.connect("p"), bench.connect("slow"), bench.connect("other")
    assert slow.transport.high_bytes == 2_048
    for client in (slow, other):
        client.subscribe("t", qos=1)
    slow.connection.pause_writing()
    for i in range(10):
        publisher.publish_whole("t", b"%d" % i, 1)
    assert slow.received() == []
    assert len(other.messages()) == 10
    slow.connection.resume_writing()
    bench.run()
    assert slow.take() == [b"%d" % i for i in range(10)]


def test_a_qos_0_subscriber_too_far_behind_loses_messages(start_bench: StartBench) -> None:
    bench = start_bench(qos0_lag_messages=100)
    publisher, slow = bench.connect("p"), bench.connect("slow")
    slow.subscribe("t", qos=0)
    slow.connection.pause_writing()
    for i in range(300):
        publisher.publish("t", b"%d" % i)
    slow.connection.resume_writing()
    bench.run()
    payloads = slow.payloads()
    assert payloads[-1] == b"299"
    assert len(payloads) + bench.broker.deliverer.dropped == 300


# --- in time


@pytest.mark.mqtt("MQTT-3.3.2-6")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_rest_of_its_time_goes_with_a_message(bench: Bench, publisher: Client, qos: int) -> None:
    client = bench.connect("a", receive_maximum=1)
    client.subscribe("t", qos=qos)
    client.connection.pause_writing()
    for text in ("plain", "not plain \N{GREEK SMALL LETTER BETA}"):
        publisher.publish_whole("t", b"1", qos, message_expiry_interval=100, content_type=text)
    bench.pass_time(30)
    client.connection.resume_writing()
    bench.run()
    for text in ("plain", "not plain \N{GREEK SMALL LETTER BETA}"):
        if qos or text == "plain":
            messages = client.messages()
        message = messages.pop(0)
        assert 69 <= (message.properties.message_expiry_interval or 0) <= 70
        assert message.properties.content_type == text
        if qos:
            finish_quietly(client, message)


def finish_quietly(client: Client, message: Publish) -> None:
    packet_id = message.packet_id or 0
    client.send(*([PubAck(packet_id)] if message.qos == 1 else [PubRec(packet_id), PubComp(packet_id)]))
    if message.qos == 2:
        client.first(PubRel)


@pytest.mark.mqtt("MQTT-3.3.2-5")
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("restart", [False, True])
def test_expired_messages_are_not_delivered(bench: Bench, publisher: Client, qos: int, restart: bool) -> None:
    client = bench.durable("a")
    client.subscribe("t", qos=qos)
    client.lose()
    for payload, interval in ((b"old", 10), (b"never", None), (b"young", 100), (b"at once", 0)):
        publisher.publish_whole("t", payload, qos, message_expiry_interval=interval)
    bench.pass_time(11)
    if restart:
        bench.restart()
    client = bench.durable("a")
    assert client.take() == [b"never", b"young"]
    assert len(client.connection.inflight) == 0


@pytest.mark.mqtt("MQTT-4.3.3-7")
@pytest.mark.parametrize(("qos", "again"), [(1, [b"2"]), (2, [b"1", b"2"])])
def test_expiry_of_messages_in_flight(bench: Bench, publisher: Client, qos: int, again: list[bytes]) -> None:
    """A QoS 2 message that was sent once expires no more [MQTT-4.3.3-7]: the client may have its identifier."""
    client = bench.durable("a")
    client.subscribe("t", qos=qos)
    publisher.publish_whole("t", b"1", qos, message_expiry_interval=10)
    publisher.publish_whole("t", b"2", qos)
    assert client.payloads() == [b"1", b"2"]
    client.lose()
    bench.pass_time(11)
    client = bench.durable("a")
    assert client.take() == again
    assert len(client.connection.inflight) == 0


# --- safety


def test_qos_2_is_handed_on_once_it_is_safe(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    client, publisher = bench.connect("a"), bench.connect("b")
    client.subscribe("t", qos=2)
    publisher.publish("t", b"2", qos=2)
    publisher.publish("t", b"1", qos=1)
    assert client.received() == []
    disk.finish()
    bench.wait_safe()
    assert client.payloads() == [b"2", b"1"]


def test_subscription_requests_of_one_packet_are_each_their_own(bench: Bench, publisher: Client) -> None:
    client = bench.connect("a")
    client.subscribe(
        SubscriptionRequest("own", QoS(1), no_local=True), SubscriptionRequest("kept", QoS(2), retain_as_published=True)
    )
    client.publish("own", b"own")
    publisher.publish_whole("kept", b"kept", 2, retain=True)
    (message,) = client.messages()
    assert (message.payload, message.qos, message.retain) == (b"kept", 2, True)


def test_messages_beyond_one_range_are_delivered_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to wait for the queue to grow once more."""
    monkeypatch.setattr("gateway.delivery.deliverer.RANGE_RECORDS", 3)
    readers = [bench.connect(f"reader-{qos}") for qos in range(3)]
    for qos, reader in enumerate(readers):
        reader.subscribe("a", qos=qos)
    bench.connect("writer").send(*(Publish("a", b"%d" % i, QoS.AT_MOST_ONCE) for i in range(20)))
    for reader in readers:
        assert reader.payloads() == [b"%d" % i for i in range(20)]
