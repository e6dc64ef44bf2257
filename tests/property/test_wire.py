"""The compiled packet paths: however bytes are cut, and whichever path a PUBLISH takes, the same comes of it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.mqtt.codec import decode, encode, encode_varint
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from gateway.mqtt.properties import PacketContext, Properties, decode_properties
from gateway.mqtt.reason_codes import ReasonCode
from store.namespaces import is_servers_own
from store.records.records import Record
from tests.support.mqtt_bench import Bench, Client, WallClock, acknowledgement, connect_packet

versions = st.sampled_from((4, 5))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = texts.filter(lambda text: text and not set(text) & set("+#") and text[0] != "$")
topics = st.sampled_from(("a", "a/b", "b", "é", "c/d/e")) | names
message_properties = st.builds(
    Properties,
    payload_format_indicator=st.none() | st.integers(0, 1),
    message_expiry_interval=st.none() | st.integers(10, 2**32 - 1),
    content_type=st.none() | texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | st.binary(max_size=12),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for all examples: each has clients of its own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        bench = Bench(tmp_path_factory.mktemp("wire"), WallClock(monkeypatch))
        yield bench
        bench.close()


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    qos = draw(st.sampled_from(QoS))
    return Publish(
        draw(topics),
        draw(st.binary(max_size=200)),
        qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if qos else False,
        packet_id=draw(st.integers(1, 65_535)) if qos else None,
        properties=draw(message_properties),
    )


ids = st.integers(1, 65_535)
packets = st.one_of(
    publishes(),
    st.builds(PubAck, ids),
    st.builds(PubRec, ids),
    st.builds(PubRel, ids),
    st.builds(PubComp, ids),
    st.just(PingReq()),
    st.builds(lambda i, f, q: Subscribe(i, (SubscriptionRequest(f, q),)), ids, topics, st.sampled_from(QoS)),
    st.builds(lambda i, f: Unsubscribe(i, (f,)), ids, topics),
)


def contents(records: list[Record]) -> list[tuple[Any, ...]]:
    """What of records does not depend on when they were stored, or by whom."""
    return [(r.topic, r.flags, r.attributes, r.properties, r.payload) for r in records]


def by_kind(packets: list[Packet]) -> dict[type, list[Packet]]:
    """Answers of different kinds may change places, depending on when a turn ended."""
    kinds: dict[type, list[Packet]] = defaultdict(list)
    for packet in packets:
        if isinstance(packet, Publish):
            packet.properties.message_expiry_interval = None
        kinds[type(packet)].append(packet)
    return kinds


def play(
    bench: Bench, version: int, chunks: list[bytes], every: int
) -> tuple[list[tuple[Any, ...]], dict[type, list[Packet]], bool]:
    """What comes of a byte stream: records, answers, and whether the connection lives."""
    start = bench.store.end
    client = bench.client(version)
    for number, chunk in enumerate(chunks):
        client.feed(chunk)
        if number % every == 0:
            bench.run()
    bench.run()
    records = bench.stored(start)
    result = contents(records), by_kind(client.received()), client.is_closed
    client.lose()
    cleaner = bench.connect("cleaner")
    for topic in {record.topic for record in records if record.retain}:
        cleaner.publish(topic.decode(), b"", retain=True)
    return result


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions, st.lists(packets, max_size=25), st.binary(max_size=6), st.data())
def test_any_chunking_gives_the_same(
    bench: Bench, version: int, sent: list[Packet], garbage: bytes, data: st.DataObject
) -> None:
    connect = connect_packet("chunked", version, keep_alive_s=0)
    stream = b"".join(encode(packet, version) for packet in [connect, *sent]) + garbage
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(stream) - 1, 1)), max_size=30)))
    chunks = [stream[i:j] for i, j in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    records, answers, closed = play(bench, version, [stream], 1)
    cut_records, cut_answers, cut_closed = play(bench, version, chunks, data.draw(st.integers(1, 5)))
    assert (cut_records, cut_closed) == (records, closed)
    if closed:  # what waits for the end of the turn is not sent any more
        for kind, packets in cut_answers.items():
            assert packets[: len(answers[kind])] == answers[kind]
    else:
        assert cut_answers == answers


def test_every_byte_by_itself_gives_the_same(bench: Bench) -> None:
    big = Publish("big", bytes(5_000), QoS.AT_LEAST_ONCE, packet_id=9)
    sent: list[Packet] = [
        connect_packet("slow", 5, keep_alive_s=0),
        Publish("a", b"1"),
        big,
        PingReq(),
        Publish("a", b"2"),
    ]
    stream = b"".join(encode(packet, 5) for packet in sent)
    assert play(bench, 5, [bytes((byte,)) for byte in stream], 3) == play(bench, 5, [stream], 1)


# --- the compiled PUBLISH against the codec


strings = texts.map(lambda text: len(text.encode()).to_bytes(2, "big") + text.encode())
property_bytes = st.one_of(
    st.builds(lambda v: b"\1" + bytes((v,)), st.integers(0, 3)),
    st.builds(lambda v: b"\2" + v.to_bytes(4, "big"), st.integers(0, 2**32 - 1)),
    st.builds(
        lambda i, v: bytes((i,)) + len(v).to_bytes(2, "big") + v,
        st.sampled_from((0x03, 0x08, 0x09)),
        st.binary(max_size=6) | st.sampled_from((b"plain", b"a/b", b"a/#", b"+", b"\xc3\xa9", b"\x7f", b"/" * 200)),
    ),
    st.builds(lambda a, b: b"\x26" + a + b, strings, strings),
    st.builds(lambda v: b"\x0b" + encode_varint(v), st.integers(0, 300)),
    st.builds(lambda v: b"\x23" + v.to_bytes(2, "big"), st.integers(0, 20)),
    st.binary(max_size=5),
)
topic_bytes = st.one_of(
    topics.map(str.encode),
    st.binary(max_size=8),
    st.sampled_from(
        (b"$x", b"a/+", b"#", b"\xed\xa0\x80", b"a\0", b"\1", b"/" * 199, b"/" * 200, b"\xc3\xa9" * 150, b"x" * 300)
    ),
)


@st.composite
def raw_publishes(draw: st.DrawFn) -> tuple[int, int, bytes]:
    """(version, first byte, body), often right, and wrong in all sorts of ways."""
    version = draw(versions)
    first_byte = 0x30 | draw(st.sampled_from((0, 1, 2, 3, 4, 8, 10, 13)) | st.integers(0, 15))
    topic = draw(topic_bytes)
    body = len(topic).to_bytes(2, "big") + topic
    if first_byte & 6:
        body += draw(st.integers(0, 65_535)).to_bytes(2, "big")
    if version == 5:
        properties = b"".join(draw(st.lists(property_bytes, max_size=4)))
        body += encode_varint(max(0, len(properties) + draw(st.sampled_from((0, 0, 0, 0, -1, 1))))) + properties
    body += draw(st.binary(max_size=30))
    return version, first_byte, body[: len(body) - draw(st.sampled_from((0, 0, 0, 0, 0, 1, 2, 9)))]


def expected_of(version: int, first_byte: int, body: bytes) -> Publish | ReasonCode:
    """What the codec and the rules of a client's PUBLISH say, on a connection without topic aliases so far."""
    try:
        publish = decode(first_byte, body, version)
    except ProtocolError as error:
        return error.reason_code
    assert isinstance(publish, Publish)
    if publish.properties.subscription_identifiers:
        return ReasonCode.PROTOCOL_ERROR
    alias, publish.properties.topic_alias = publish.properties.topic_alias, None
    if alias is not None and alias > 16:
        return ReasonCode.TOPIC_ALIAS_INVALID
    return publish if publish.topic_name else ReasonCode.PROTOCOL_ERROR


@settings(max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw_publishes())
def test_a_publish_is_stored_or_refused_as_the_codec_says(bench: Bench, raw: tuple[int, int, bytes]) -> None:
    version, first_byte, body = raw
    start = bench.store.end
    client = bench.connect("raw", version)
    client.send_bytes(bytes((first_byte,)) + encode_varint(len(body)) + body)
    expected = expected_of(version, first_byte, body)
    if isinstance(expected, ReasonCode):
        assert client.is_closed
        assert bench.stored(start) == []
        assert version == 4 or client.one(Disconnect).reason_code is expected
    elif is_servers_own(expected.topic_name):
        assert not client.is_closed
        assert bench.stored(start) == []
    else:
        (record,) = bench.stored(start)
        assert message_of(record, version) == (expected.topic_name, expected.payload, expected.qos, expected.retain)
        assert properties_of(record) == expected.properties
        assert bool(record.flags & 8) == (expected.properties.message_expiry_interval is not None)
    client.lose()


def message_of(record: Record, version: int) -> tuple[str, bytes, int, bool]:
    assert version == 5 or record.properties == b""
    return record.topic.decode(), record.payload, record.qos, record.retain


def properties_of(record: Record) -> Properties:
    block = encode_varint(len(record.properties)) + record.properties
    return decode_properties(block, 0, PacketContext.PUBLISH)[0]


# --- what is written against the codec


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    versions,
    versions,
    publishes(),
    st.lists(st.none() | st.integers(1, 268_435_455), min_size=1, max_size=4),
    st.sampled_from(QoS),
    st.booleans(),
)
def test_a_delivery_is_written_as_the_codec_would(
    bench: Bench, sender: int, version: int, publish: Publish, ids: list[int | None], qos: QoS, retain: bool
) -> None:
    """Fields in another order (subscription identifiers come last) are the same packet."""
    publisher, client = bench.connect("sender", sender), bench.connect("receiver", version)
    subscribe(client, publish.topic_name, ids, qos, retain)
    publish.dup = False
    publisher.send(publish)
    data = client.received_bytes()
    message = decode(data[0], data[len(data) - body_size(data) :], version)
    assert isinstance(message, Publish)
    expected = expected_delivery(publish, sender, version, ids, qos, retain)
    expected.packet_id = message.packet_id
    wire = encode(expected, version)
    message.properties.subscription_identifiers = tuple(sorted(message.properties.subscription_identifiers))
    assert (message, len(data)) == (expected, len(wire))
    if len(expected.properties.subscription_identifiers) < 2 and not expected.properties.user_properties:
        assert data == wire
    if answer := acknowledgement(message):
        client.send(answer)
    publisher.send(Publish(publish.topic_name, retain=True))
    for each in (publisher, client):
        each.lose()


def subscribe(client: Client, topic: str, ids: list[int | None], qos: QoS, retain: bool) -> None:
    """As many overlapping subscriptions as there are identifiers."""
    levels = topic.split("/")
    filters = [topic, f"{topic}/#", "/".join(["+", *levels[1:]]), "#"]
    for topic_filter, subscription_id in zip(filters, ids, strict=False):
        identifiers = (subscription_id,) if subscription_id and client.version == 5 else ()
        request = SubscriptionRequest(topic_filter, qos, retain_as_published=retain)
        client.subscribe(request, subscription_identifiers=identifiers)
    client.received()


def expected_delivery(
    publish: Publish, sender: int, version: int, ids: list[int | None], qos: QoS, retain: bool
) -> Publish:
    properties = Properties() if sender == 4 or version == 4 else publish.properties
    if version == 5:
        properties.subscription_identifiers = tuple(sorted(i for i in ids if i))
    return Publish(
        publish.topic_name,
        publish.payload,
        min(publish.qos, qos),
        retain=publish.retain and retain and version == 5,
        properties=properties,
    )


def body_size(data: bytes) -> int:
    size = at = 0
    while True:
        size |= (data[1 + at] & 127) << 7 * at
        at += 1
        if data[at] < 128:
            return size
