"""The packets that a connection may send in each phase, and the end of one that sends another."""

import logging

import pytest

from gateway.mqtt.codec import encode
from gateway.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_bench import Bench, Client, SlowDisk, connect_packet
from tests.unit.conftest import StartBench

SUBSCRIBE = Subscribe(1, (SubscriptionRequest("a"),))


def refused_with(client: Client, reason_code: ReasonCode) -> None:
    """An MQTT 5 client is told why; an MQTT 3.1.1 client cannot be."""
    assert client.is_closed
    if client.version == 5:
        assert client.one(Disconnect).reason_code is reason_code
    else:
        assert client.received() == []


@pytest.fixture
def witness(bench: Bench) -> Client:
    """Somebody else, who must not notice."""
    return bench.connect("witness")


# --- the first packet


@pytest.mark.mqtt("MQTT-3.14.0-1", "3.1.1 MQTT-4.8.0-1")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "packet", [PingReq(), Publish("a"), SUBSCRIBE, Disconnect(), PubAck(1), ConnAck()], ids=lambda p: type(p).__name__
)
def test_a_first_packet_other_than_connect_ends_the_connection(bench: Bench, version: int, packet: Packet) -> None:
    client = bench.client(version)
    client.send(packet)
    assert client.is_closed
    assert client.received() == []
    assert bench.stored() == []


@pytest.mark.mqtt("MQTT-3.1.4-1")
@pytest.mark.parametrize("data", [b"\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\x01", b"\xf0\0", b"\x11\0"])
def test_something_that_is_not_mqtt_ends_the_connection(bench: Bench, data: bytes) -> None:
    client = bench.client()
    client.send_bytes(data)
    assert client.is_closed
    assert client.received_bytes() == b""


@pytest.mark.mqtt("MQTT-3.1.2-1", "MQTT-3.1.2-2", "3.1.1 MQTT-3.1.2-2", "3.1.1 MQTT-3.2.2-4", "3.1.1 MQTT-3.2.2-5")
@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"\0\4MQTT", 3, b"\x20\2\0\1"),
        (b"\0\6MQIsdp", 3, b"\x20\2\0\1"),
        (b"\0\4MQTT", 6, b"\x20\3\0\x84\0"),
        (b"\0\4mqtt", 5, b"\x20\3\0\x84\0"),
        (b"\0\4MQTT", 0, b"\x20\2\0\1"),
        (b"\0\6MQIsdp", 0x83, b"\x20\2\0\1"),
        (b"\0\4MQTT", 0x85, b"\x20\3\0\x84\0"),
    ],
)
def test_unsupported_protocol_is_answered_in_its_version(bench: Bench, name: bytes, level: int, answer: bytes) -> None:
    client = bench.client()
    body = name + bytes((level, 2, 0, 0, 0, 0))
    client.send_bytes(b"\x10" + bytes((len(body),)) + body)
    assert client.is_closed
    assert client.received_bytes() == answer


@pytest.mark.mqtt("MQTT-3.1.2-3", "MQTT-3.1.4-1", "3.1.1 MQTT-3.2.2-6")
def test_a_malformed_connect_is_answered_in_mqtt_5_only(bench: Bench) -> None:
    for version, answer in ((4, b""), (5, b"\x20\3\0\x81\0")):
        client = bench.client()
        client.send_bytes(b"\x10\x0c\0\4MQTT" + bytes((version, 3, 0, 0, 0, 0)))
        assert client.is_closed
        assert client.received_bytes() == answer


@pytest.mark.mqtt("3.1.1 MQTT-3.1.3-8")
def test_mqtt_3_1_1_wants_a_client_id_or_a_clean_session(bench: Bench) -> None:
    client = bench.client(4)
    client.send(Connect("", 4, clean_start=True))
    assert client.one(ConnAck).reason_code == ReasonCode.SUCCESS
    client = bench.client(4)
    client.send_bytes(b"\x10\x0c\0\4MQTT\4\0\0\0\0\0")
    assert client.received_bytes() == b"\x20\2\0\2"
    assert client.is_closed


@pytest.mark.mqtt("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16")
def test_mqtt_5_clients_without_an_id_are_given_one_each(bench: Bench) -> None:
    names = {bench.client().connect().properties.assigned_client_identifier for _ in range(3)}
    assert len(names) == 3
    assert None not in names
    assert bench.client().connect("mine").properties.assigned_client_identifier is None


@pytest.mark.mqtt("MQTT-4.12.0-1", "MQTT-3.1.4-2", "MQTT-3.2.2-6", "MQTT-3.2.2-8")
def test_an_authentication_method_is_refused(bench: Bench) -> None:
    connack = bench.client().connect("a", authentication_method="SCRAM-SHA-1")
    assert connack.reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD


def test_a_will_with_a_wildcard_is_refused(bench: Bench) -> None:
    body = b"\0\4MQTT\4\6\0\0\0\1c\0\3a/#\0\0"
    client = bench.client(4)
    client.send_bytes(b"\x10" + bytes((len(body),)) + body)
    assert client.is_closed


def test_connack_says_what_the_server_is_like(start_bench: StartBench) -> None:
    bench = start_bench(
        receive_maximum=10, maximum_packet_size_bytes=5_000, topic_alias_maximum=3, max_session_expiry_s=100
    )
    properties = bench.client().connect("a", session_expiry_interval=1_000, clean_start=False).properties
    assert properties == Properties(
        receive_maximum=10,
        maximum_packet_size=5_000,
        topic_alias_maximum=3,
        session_expiry_interval=100,
    )


# --- CONNECT, then anything at once


@pytest.mark.mqtt("MQTT-3.2.0-1", "MQTT-3.1.4-5", "MQTT-3.12.4-1")
@pytest.mark.parametrize("version", [4, 5])
def test_packets_do_not_overtake_the_connack(start_bench: StartBench, disk: SlowDisk, version: int) -> None:
    """A client need not wait for CONNACK, whose session may wait for the disk [MQTT-3.2.0-1]."""
    bench = start_bench("sync")
    client = bench.client(version)
    will = Will("will")
    client.send(
        connect_packet("a", version, will=will), PingReq(), SUBSCRIBE, Publish("a", b"1"), Publish("a", b"2"), PingReq()
    )
    assert client.received() == []
    client.send(Publish("a", b"3"))
    disk.finish()
    bench.wait_safe()
    received = client.received()
    assert [type(packet) for packet in received[:3]] == [ConnAck, PingResp, SubAck]
    assert received.count(PingResp()) == 2
    assert [packet.payload for packet in received if isinstance(packet, Publish)] == [b"1", b"2", b"3"]


def test_input_before_the_connack_is_bounded(start_bench: StartBench, disk: SlowDisk) -> None:
    bench = start_bench("sync")
    client = bench.client()
    client.send(connect_packet("a", will=Will("will")))
    assert not client.transport.is_reading()
    disk.finish()
    bench.wait_safe()
    assert client.transport.is_reading()


@pytest.mark.mqtt("MQTT-3.1.0-2", "MQTT-3.2.0-2", "MQTT-4.13.1-1")
@pytest.mark.parametrize("version", [4, 5])
def test_a_second_connect_is_a_protocol_error(bench: Bench, witness: Client, version: int) -> None:
    client = bench.connect("a", version)
    client.send(Connect("a", version))
    refused_with(client, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("body", [b"\0\4MQTT\x09\2\0\0\0\0", b"\0\4MQTT\4\0\0\0\0\0", b"\0\4MQTT\5\3\0\0\0\0\0"])
def test_a_second_connect_that_is_wrong_in_itself_ends_the_connection(bench: Bench, body: bytes) -> None:
    """Not every reason code of CONNACK may stand in DISCONNECT."""
    client = bench.connect("a")
    client.send_bytes(b"\x10" + bytes((len(body),)) + body)
    assert client.is_closed
    assert client.one(Disconnect).reason_code in (ReasonCode.PROTOCOL_ERROR, ReasonCode.MALFORMED_PACKET)


# --- whatever else is wrong


@pytest.mark.mqtt(
    "MQTT-1.5.4-1",
    "MQTT-1.5.4-2",
    "MQTT-1.5.5-1",
    "MQTT-3.3.1-2",
    "MQTT-3.3.1-4",
    "MQTT-4.13.1-1",
    "MQTT-4.13.2-1",
    "3.1.1 MQTT-4.8.0-1",
)
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        (b"\x30\x80\x80\x80\x80", ReasonCode.MALFORMED_PACKET),  # remaining length of more than four bytes
        (b"\x30\x80\0", ReasonCode.MALFORMED_PACKET),  # remaining length not minimal
        (b"\0\0", ReasonCode.MALFORMED_PACKET),
        (b"\x36\5\0\1a\0\1", ReasonCode.MALFORMED_PACKET),  # QoS 3
        (b"\x38\4\0\1a\0", ReasonCode.MALFORMED_PACKET),  # DUP at QoS 0
        (b"\x30\4\0\3ab", ReasonCode.MALFORMED_PACKET),  # topic longer than the packet
        (b"\x30\0", ReasonCode.MALFORMED_PACKET),
        (b"\x30\5\0\2\xc3\x28\0", ReasonCode.MALFORMED_PACKET),  # not UTF-8
        (b"\x30\6\0\3\xed\xa0\x80\0", ReasonCode.MALFORMED_PACKET),  # a surrogate
        (b"\x30\4\0\1\0\0", ReasonCode.MALFORMED_PACKET),  # U+0000
        (b"\x30\4\0\1+\0", ReasonCode.TOPIC_NAME_INVALID),
        (b"\x30\6\0\3a/#\0", ReasonCode.TOPIC_NAME_INVALID),
        (b"\x30\3\0\0\0", ReasonCode.PROTOCOL_ERROR),  # no topic
        (b"\x32\6\0\1a\0\0\0", ReasonCode.PROTOCOL_ERROR),  # packet_id 0
        (b"\x34\6\0\1a\0\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x40\2\0\0", ReasonCode.PROTOCOL_ERROR),
        (b"\x41\2\0\1", ReasonCode.MALFORMED_PACKET),  # reserved flags
        (b"\x60\2\0\1", ReasonCode.MALFORMED_PACKET),
        (b"\x82\2\0\1", None),  # SUBSCRIBE with nothing in it
        (b"\xa2\2\0\1", None),
        (b"\x82\7\0\0\0\0\1a\0", ReasonCode.PROTOCOL_ERROR),
        (b"\xd0\0", ReasonCode.PROTOCOL_ERROR),  # PINGRESP is the server's
        (b"\x90\4\0\1\0\0", ReasonCode.PROTOCOL_ERROR),  # SUBACK as well
        (b"\xc0\1\0", ReasonCode.MALFORMED_PACKET),
    ],
)
def test_wrong_bytes_end_the_connection_and_no_other(
    bench: Bench, witness: Client, version: int, data: bytes, reason_code: ReasonCode | None
) -> None:
    client = bench.connect("a", version)
    if version == 4 and data == b"\x30\3\0\0\0":
        reason_code = None  # the same bytes say something else, that is wrong too
    client.send_bytes(data)
    if reason_code is not None:
        refused_with(client, reason_code)
    assert client.is_closed
    assert sum(bench.broker.connections.bad_input.values()) == 1
    assert bench.stored() == []
    witness.subscribe("w")
    witness.publish("w", b"still here")
    assert witness.payloads() == [b"still here"]


@pytest.mark.mqtt("MQTT-3.3.2-8", "MQTT-3.3.2-14", "MQTT-4.13.1-1")
@pytest.mark.parametrize(
    ("properties", "reason_code"),
    [
        (b"\x01\2", ReasonCode.PROTOCOL_ERROR),  # payload format indicator 2
        (b"\x02\0\0\0", ReasonCode.MALFORMED_PACKET),  # cut off
        (b"\x02\0\0\0\1\x02\0\0\0\1", ReasonCode.PROTOCOL_ERROR),  # twice
        (b"\x08\0\1#", ReasonCode.TOPIC_NAME_INVALID),  # response topic
        (b"\x0b\1", ReasonCode.PROTOCOL_ERROR),  # only a server may say a subscription identifier [MQTT-3.3.4-6]
        (b"\x11\0\0\0\1", ReasonCode.MALFORMED_PACKET),  # of another packet
        (b"\x23\0\0", ReasonCode.TOPIC_ALIAS_INVALID),
        (b"\x23\0\x11", ReasonCode.TOPIC_ALIAS_INVALID),  # above topic_alias_maximum
        (b"\x26\0\1k", ReasonCode.MALFORMED_PACKET),
        (b"\x7f\0", ReasonCode.MALFORMED_PACKET),
    ],
)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_wrong_publish_properties(bench: Bench, properties: bytes, reason_code: ReasonCode, qos: int) -> None:
    client = bench.connect("a")
    body = b"\0\1a" + (b"\0\1" if qos else b"") + bytes((len(properties),)) + properties + b"payload"
    client.send_bytes(bytes((0x30 | qos << 1, len(body))) + body)
    refused_with(client, reason_code)
    assert bench.stored() == []


def test_levels_of_a_topic_are_bounded(bench: Bench) -> None:
    deep = "/".join("a" * 201)
    for packet, reason_code in (
        (Publish("x"), None),
        (Publish("x", qos=QoS.EXACTLY_ONCE, packet_id=1), None),
        (Subscribe(1, (SubscriptionRequest("x"),)), None),
        (Unsubscribe(1, ("x",)), None),
    ):
        assert reason_code is None
        client = bench.connect("a")
        data = encode(packet, 5)
        client.send_bytes(lengthened(data, b"\0\1x", len(deep).to_bytes(2, "big") + deep.encode()))
        assert client.is_closed
        assert client.one(Disconnect).reason_code in (ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_FILTER_INVALID)
    assert bench.stored() == []
    client = bench.connect("a")
    most = "/".join("a" * 200)
    client.subscribe(most, "/".join("+" * 200))
    client.publish(most, b"1")
    assert client.payloads() == [b"1"]


def lengthened(packet: bytes, old: bytes, new: bytes) -> bytes:
    """A short packet with something long in place of something in it."""
    body = packet[2:].replace(old, new, 1)
    assert 128 <= len(body) < 16_384
    return packet[:1] + bytes((len(body) & 127 | 128, len(body) >> 7)) + body


def test_a_packet_that_is_too_large_is_refused_before_it_arrived(start_bench: StartBench) -> None:
    bench = start_bench(maximum_packet_size_bytes=1_024)
    for version in (4, 5):
        client = bench.connect("a", version)
        client.publish("a", bytes(1_024 - 3 - 3 - (version == 5)))
        assert not client.is_closed
        client.send_bytes(b"\x30\xfe\x07")  # 1,025 bytes with the fixed header
        refused_with(client, ReasonCode.PACKET_TOO_LARGE)
    client = bench.client()
    client.send_bytes(b"\x10\xff\xff\xff\x7f")
    assert client.is_closed
    assert len(bench.stored()) == 2


@pytest.mark.mqtt("MQTT-4.12.0-6")
def test_auth_without_a_method_is_a_protocol_error(bench: Bench) -> None:
    client = bench.connect("a")
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="x")))
    refused_with(client, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.mqtt("MQTT-3.14.2-3", "MQTT-3.1.2-24")
def test_a_reason_string_never_exceeds_what_the_client_takes(bench: Bench) -> None:
    client = bench.connect("a", maximum_packet_size=20)
    client.send_bytes(b"\x30\4\0\3ab")
    assert len(client.received_bytes()) <= 20
    assert client.is_closed


def test_messages_before_a_malformed_packet_are_stored(bench: Bench) -> None:
    client = bench.connect("a")
    client.send_bytes(encode(Publish("a", b"good"), 5) * 3 + b"\0\0" + encode(Publish("a", b"never"), 5))
    assert [record.payload for record in bench.stored()] == [b"good"] * 3


def test_a_lost_connection_takes_its_answers_with_it(start_bench: StartBench, disk: SlowDisk) -> None:
    """Acknowledgements that wait for the disk find nobody."""
    bench = start_bench("sync")
    clients = [bench.connect(name) for name in "ab"]
    for client in clients:
        client.publish("t", b"", qos=1)
        client.publish("t", b"", qos=2)
    clients[0].send_bytes(b"\0\0")
    clients[1].lose()
    disk.finish()
    bench.wait_safe()
    assert clients[0].one(Disconnect).reason_code is ReasonCode.MALFORMED_PACKET
    assert clients[1].received() == []
    assert len(bench.stored()) == 4


def test_an_unexpected_error_ends_its_connection_only(
    bench: Bench, witness: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bench.broker.subscriptions, "subscribe", lambda *_: 1 // 0)
    client = bench.connect("a")
    with caplog.at_level(logging.ERROR, "penstock.gateway"):
        client.send(SUBSCRIBE)
    assert client.one(Disconnect).reason_code is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert "ZeroDivisionError" in caplog.text
    witness.send(PingReq())
    witness.one(PingResp)


def test_bad_input_is_counted_and_logged_at_a_bounded_rate(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock.gateway"):
        for _ in range(200):
            bench.connect("a").send_bytes(b"\0\0")
    assert bench.broker.connections.bad_input == {"malformed_packet": 200}
    assert len(caplog.records) <= 33
    assert "192.0.2.1:40000: " in caplog.text


# --- silence


@pytest.mark.mqtt("MQTT-3.1.2-22", "MQTT-3.12.4-1", "MQTT-3.2.2-22", "3.1.1 MQTT-3.1.2-24")
@pytest.mark.parametrize("version", [4, 5])
def test_a_client_may_be_silent_for_one_and_a_half_keep_alives(bench: Bench, version: int) -> None:
    client = bench.connect("a", version, keep_alive_s=10)
    for _ in range(3):
        bench.pass_time(14)
        assert not client.is_closed
        client.send(PingReq())
        client.one(PingResp)
    bench.pass_time(15)
    assert not client.is_closed
    bench.pass_time(1)
    refused_with(client, ReasonCode.KEEP_ALIVE_TIMEOUT)


def test_any_packet_keeps_alive_and_half_of_one_does_too(bench: Bench) -> None:
    client = bench.connect("a", keep_alive_s=10)
    for byte in encode(Publish("a", b"slowly"), 5):
        bench.pass_time(14)
        client.send_bytes(bytes((byte,)))
    assert not client.is_closed
    assert [record.payload for record in bench.stored()] == [b"slowly"]


@pytest.mark.mqtt("MQTT-3.1.2-22", "MQTT-3.2.2-22")
def test_keep_alive_0_is_for_ever_unless_the_server_says_otherwise(bench: Bench, start_bench: StartBench) -> None:
    client = bench.connect("a", keep_alive_s=0)
    bench.pass_time(1_000_000)
    assert not client.is_closed
    strict = start_bench(max_keep_alive_s=20)
    client = strict.client()
    assert client.connect("a", keep_alive_s=0).properties.server_keep_alive == 20
    strict.pass_time(31)
    refused_with(client, ReasonCode.KEEP_ALIVE_TIMEOUT)
    assert strict.client().connect("a", keep_alive_s=19).properties.server_keep_alive is None
    older = strict.connect("b", 4, keep_alive_s=60)  # nobody can tell it
    strict.pass_time(80)
    assert not older.is_closed


@pytest.mark.parametrize("start", [b"", b"\x10", b"\x10\x20\0\4MQTT"])
def test_a_connection_without_connect_is_closed_in_time(start_bench: StartBench, start: bytes) -> None:
    bench = start_bench(connect_timeout_s=5)
    client, in_time = bench.client(), bench.connect("in time", keep_alive_s=0)
    client.send_bytes(start)
    bench.pass_time(4)
    assert not client.is_closed
    bench.pass_time(1)
    assert client.transport.is_closing()
    assert not in_time.is_closed
    assert bench.broker.connections.bad_input == {"maximum_connect_time": 1}


# --- the end


def test_connections_beyond_the_limit_are_refused(start_bench: StartBench) -> None:
    bench = start_bench(max_connections=2)
    first, _ = bench.connect("a"), bench.connect("b")
    assert bench.client().is_closed
    first.disconnect()
    assert not bench.client().is_closed


def test_a_peer_that_takes_nothing_cannot_hold_a_closed_connection_open(bench: Bench) -> None:
    """transport.close() waits until everything is written, which may be never."""
    client = bench.connect("a", keep_alive_s=10)
    client.transport.unsent_bytes = 100
    bench.pass_time(16)
    assert client.is_closed
    bench.pass_time(60)
    assert client.transport.aborted


def test_answers_that_nobody_reads_stop_the_reading(start_bench: StartBench) -> None:
    """A full write buffer alone does not, or a client that acknowledges what it was sent would not be heard."""
    bench = start_bench(write_buffer_bytes=1_024)
    client = bench.connect("a")
    client.connection.pause_writing()
    client.send(*[PingReq()] * 512)
    assert client.transport.is_reading()
    client.send(PingReq())
    assert not client.transport.is_reading()
    client.connection.resume_writing()
    assert client.transport.is_reading()
    client.connection.pause_writing()
    client.send(*[PingReq()] * 512)
    assert client.transport.is_reading()


@pytest.mark.mqtt("MQTT-3.14.4-2")
def test_a_leaving_client_gets_the_answers_it_waits_for(bench: Bench) -> None:
    client = bench.connect("a")
    client.send(Publish("a", qos=QoS.AT_LEAST_ONCE, packet_id=7), Disconnect())
    assert client.received() == [PubAck(7)]
    assert client.is_closed


def test_session_expiry_cannot_be_added_when_leaving(bench: Bench) -> None:
    client = bench.connect("a")
    client.send(Disconnect(properties=Properties(session_expiry_interval=10)))
    refused_with(client, ReasonCode.PROTOCOL_ERROR)


@pytest.mark.mqtt("MQTT-3.7.2-1", "MQTT-4.3.3-11")
def test_pubrel_of_nothing(bench: Bench) -> None:
    v5, v4 = bench.connect("a"), bench.connect("b", 4)
    for client, reason_code in ((v5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), (v4, ReasonCode.SUCCESS)):
        client.send_bytes(b"\x62\2\0\x09")
        assert client.one(PubComp) == PubComp(9, reason_code)
