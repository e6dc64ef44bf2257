"""Contents of one packet: bounded, decoded in linear time, refused with a reason; and those of many at once."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.codec_primitives import Limits
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import _has_good_wildcards, _wildcard_fault
from tests.support.mqtt_bench import Bench, Client
from tests.unit.conftest import StartBench

QUOTA_EXCEEDED = ReasonCode.QUOTA_EXCEEDED
LIMITS = Limits(3, 3)


def pairs(count: int) -> Properties:
    return Properties(user_properties=(("k", "v"),) * count)


def again(packet: Packet, limits: Limits, version: int = 5) -> Packet:
    data = encode(packet, version)
    return decode(data[0], data[decode_varint(data, 1)[1] :], version, limits)


def test_decoding_takes_linear_time() -> None:
    """A tuple for each property took 19 s for these."""
    packet = Publish("a", properties=pairs(40_000))
    data = encode(packet, 5)
    began_s = time.process_time()
    assert decode(data[0], data[decode_varint(data, 1)[1] :], 5) == packet
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: Connect("c", properties=pairs(n)),
        lambda n: Connect("c", will=Will("a", properties=pairs(n))),
        lambda n: ConnAck(properties=pairs(n)),
        lambda n: Publish("a", properties=pairs(n)),
        lambda n: Publish("a", properties=Properties(subscription_identifiers=(1,) * n)),
        lambda n: PubAck(1, properties=pairs(n)),
        lambda n: PubRel(1, properties=pairs(n)),
        lambda n: Subscribe(1, (SubscriptionRequest("a"),), pairs(n)),
        lambda n: Subscribe(1, (SubscriptionRequest("a"),) * n),
        lambda n: SubAck(1, (ReasonCode.GRANTED_QOS_0,) * n),
        lambda n: Unsubscribe(1, ("a",) * n),
        lambda n: Unsubscribe(1, ("a",), pairs(n)),
        lambda n: UnsubAck(1, (ReasonCode.SUCCESS,) * n),
        lambda n: Disconnect(properties=pairs(n)),
        lambda n: Auth(ReasonCode.RE_AUTHENTICATE, replace(pairs(n), authentication_method="m")),
    ],
)
def test_each_packet_is_bounded(make: object, count: int) -> None:
    assert callable(make)
    packet = make(count)
    if count == 3:
        assert again(packet, LIMITS) == packet
        return
    with pytest.raises(ProtocolError, match=r"more than gateway\.max_") as caught:
        again(packet, LIMITS)
    assert caught.value.reason_code is QUOTA_EXCEEDED
    assert caught.value.connack_version == (5 if isinstance(packet, Connect) else None)


@given(st.text("ab+#/", min_size=1, max_size=8))
def test_wildcards_are_judged_as_they_were_level_by_level(topic_filter: str) -> None:
    assert _has_good_wildcards(topic_filter) == (_wildcard_fault(topic_filter) is None)


# --- a broker


@pytest.mark.parametrize("qos", [0, 1])
def test_too_many_user_properties(bench: Bench, qos: int) -> None:
    client = bench.connect("c")
    client.publish("a", b"x", qos, user_properties=(("k", "v"),) * 256)
    assert [type(packet) for packet in client.received()] == [PubAck] * qos
    client.publish("a", b"x", qos, user_properties=(("k", "v"),) * 257)
    assert client.one(Disconnect).reason_code is QUOTA_EXCEEDED
    assert client.is_closed
    assert bench.broker.connections.bad_input["quota_exceeded"] == 1
    assert len([record for record in bench.stored() if record.topic == b"a"]) == 1


def test_too_many_before_anybody_is_let_in(bench: Bench) -> None:
    for packet in (Connect("c", properties=pairs(257)), Connect("c", will=Will("a", properties=pairs(257)))):
        client = bench.client()
        client.send(packet)
        assert client.one(ConnAck).reason_code is QUOTA_EXCEEDED
        assert client.is_closed


@pytest.mark.parametrize("version", [4, 5])
def test_too_many_filters(start_bench: StartBench, version: int) -> None:
    bench = start_bench(max_filters_per_packet=4)
    filters = [f"a/{i}" for i in range(5)]
    for packet in (
        Subscribe(2, tuple(map(SubscriptionRequest, filters))),
        Unsubscribe(2, tuple(filters)),
    ):
        client = bench.connect("c", version)
        assert len(client.subscribe(*filters[:4]).reason_codes) == 4
        client.send(packet)
        assert [getattr(each, "reason_code", None) for each in client.received()] == [QUOTA_EXCEEDED] * (version == 5)
        assert client.is_closed


@pytest.mark.parametrize(("version", "code"), [(4, 2), (5, 0x85)])
def test_a_client_identifier_that_is_too_long(bench: Bench, version: int, code: int) -> None:
    client = bench.client(version)
    client.send(Connect("é" * 129, version))
    assert client.transport.written[3] == code
    assert client.is_closed
    assert bench.connect("é" * 128, version).connection.client_id == "é" * 128


@pytest.mark.parametrize(("version", "code"), [(4, 4), (5, 0x86)])
def test_a_user_name_that_is_too_long(bench: Bench, version: int, code: int) -> None:
    client = bench.client(version)
    client.send(Connect("c", version, username="u" * 1_025))
    assert client.transport.written[3] == code
    assert client.is_closed
    bench.connect("c", version, username="u" * 1_024)


def test_many_packets_at_once_leave_others_their_turn(bench: Bench) -> None:
    """Each takes some 10 µs of Python: all in one piece would take the loop for half a second."""
    storm, other = bench.connect("storm"), bench.connect("other")
    count = 20_000
    storm.feed(b"".join(b"\x62\2" + (1 + i % 60_000).to_bytes(2, "big") for i in range(count)))
    assert storm.connection.resting
    assert not storm.transport.is_reading()
    other.feed(b"\xc0\0")
    bench.broker.end_turn()
    assert other.received_bytes() == b"\xd0\0"
    bench.run()
    assert sum(isinstance(packet, PubComp) for packet in storm.received()) == count
    assert storm.transport.is_reading()


def test_packets_sent_after_a_large_input_keep_their_order(bench: Bench) -> None:
    """Also what arrives while the rest waits, and a DISCONNECT at the end."""
    bench_reader = bench.connect("reader")
    bench_reader.subscribe("a", qos=1)
    client = bench.connect("c", topic_alias_maximum=0)
    publishes = [encode(client.publish_packet("a", b"%d" % i, user_properties=(("é", "é"),)), 5) for i in range(2_000)]
    client.feed(b"".join(publishes))
    client.feed(encode(Disconnect(), 5))
    bench.run()
    assert bench_reader.payloads() == [b"%d" % i for i in range(2_000)]
    assert client.is_closed


def test_pings_by_the_hundred_thousand(bench: Bench) -> None:
    client: Client = bench.connect("c")
    client.feed(b"\xc0\0" * 100_000)
    bench.run()
    assert client.received_bytes() == b"\xd0\0" * 100_000


def test_a_long_topic_is_not_remembered_but_taken(bench: Bench) -> None:
    reader, client = bench.connect("reader", topic_alias_maximum=10), bench.connect("c")
    topic = "a/" + "x" * 1_000
    reader.subscribe("a/#")
    for _ in range(3):
        client.publish(topic, b"1")
        assert reader.messages() == [Publish(topic, b"1", QoS.AT_MOST_ONCE)]
