"""Fixed bytes for every packet, written by hand from the standards: both ways, both versions."""

import pytest

from gateway.mqtt.codec import decode, decode_varint, encode
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
    PubRec,
    PubRel,
    QoS,
    RetainHandling,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode

Vector = tuple[Packet, str]

USER_PROPERTY = "26 0001 6b 0001 76"
WITH_USER_PROPERTY = Properties(user_properties=(("k", "v"),))

FULL_CONNECT_3_1_1 = Connect(
    client_id="c",
    protocol_version=4,
    clean_start=False,
    keep_alive_s=258,
    username="u",
    password=b"\x00\xff",
    will=Will("w/t", b"bye", QoS.EXACTLY_ONCE, retain=True),
)

FULL_CONNECT_5 = Connect(
    client_id="c",
    clean_start=True,
    keep_alive_s=0,
    password=b"p",
    will=Will(
        "w",
        b"",
        QoS.AT_LEAST_ONCE,
        properties=Properties(will_delay_interval=5, payload_format_indicator=1),
    ),
    properties=Properties(
        session_expiry_interval=0xFFFFFFFF,
        receive_maximum=10,
        request_problem_information=False,
        authentication_method="m",
        authentication_data=b"d",
    ),
)

FULL_CONNACK_5 = ConnAck(
    session_present=True,
    properties=Properties(
        assigned_client_identifier="id",
        server_keep_alive=30,
        maximum_qos=1,
        retain_available=True,
        maximum_packet_size=65536,
        wildcard_subscription_available=False,
        subscription_identifier_available=True,
        shared_subscription_available=False,
        topic_alias_maximum=7,
    ),
)

FULL_PUBLISH_5 = Publish(
    "",
    b"hi",
    QoS.AT_LEAST_ONCE,
    packet_id=1,
    properties=Properties(
        message_expiry_interval=60,
        content_type="t",
        response_topic="r",
        correlation_data=b"\x01",
        subscription_identifiers=(1, 268_435_455),
        topic_alias=3,
        user_properties=(("k", "v"), ("k", "v")),
    ),
)

SUBSCRIBE_5 = Subscribe(
    10,
    (
        SubscriptionRequest("a/+", QoS.EXACTLY_ONCE, no_local=True),
        SubscriptionRequest(
            "$share/g/#",
            QoS.AT_LEAST_ONCE,
            retain_as_published=True,
            retain_handling=RetainHandling.DO_NOT_SEND,
        ),
    ),
    Properties(subscription_identifiers=(128,)),
)

IN_3_1_1: tuple[Vector, ...] = (
    (
        Connect("ab", protocol_version=4, keep_alive_s=10),
        "10 0e 0004 4d515454 04 02 000a 0002 6162",
    ),
    (
        FULL_CONNECT_3_1_1,
        "10 1e 0004 4d515454 04 f4 0102 0001 63 0003 772f74 0003 627965 0001 75 0002 00ff",
    ),
    (ConnAck(session_present=True), "20 02 01 00"),
    (ConnAck(reason_code=ReasonCode.NOT_AUTHORIZED), "20 02 00 05"),
    (Publish("a/b", b"x"), "30 06 0003 612f62 78"),
    (Publish("a", retain=True), "31 03 0001 61"),
    (Publish("a", b"\x00", QoS.AT_LEAST_ONCE, packet_id=7), "32 06 0001 61 0007 00"),
    (
        Publish("é", b"p", QoS.EXACTLY_ONCE, retain=True, dup=True, packet_id=65535),
        "3d 07 0002 c3a9 ffff 70",
    ),
    (PubAck(1), "40 02 0001"),
    (PubRec(2), "50 02 0002"),
    (PubRel(3), "62 02 0003"),
    (PubComp(4), "70 02 0004"),
    (
        Subscribe(10, (SubscriptionRequest("a", QoS.AT_LEAST_ONCE), SubscriptionRequest("$share/x"))),
        "82 11 000a 0001 61 01 0008 2473686172652f78 00",
    ),
    (
        SubAck(10, (ReasonCode.GRANTED_QOS_2, ReasonCode.UNSPECIFIED_ERROR)),
        "90 04 000a 02 80",
    ),
    (Unsubscribe(11, ("a", "#")), "a2 08 000b 0001 61 0001 23"),
    (UnsubAck(11), "b0 02 000b"),
    (PingReq(), "c0 00"),
    (PingResp(), "d0 00"),
    (Disconnect(), "e0 00"),
)

IN_5: tuple[Vector, ...] = (
    (Connect(keep_alive_s=10), "10 0d 0004 4d515454 05 02 000a 00 0000"),
    (
        FULL_CONNECT_5,
        "10 30 0004 4d515454 05 4e 0000"
        "12 11 ffffffff 15 0001 6d 16 0001 64 17 00 21 000a"
        "0001 63"
        "07 01 01 18 00000005 0001 77 0000"
        "0001 70",
    ),
    (ConnAck(reason_code=ReasonCode.BANNED), "20 03 00 8a 00"),
    (
        FULL_CONNACK_5,
        "20 1d 01 00 1a12 0002 6964 13 001e 22 0007 24 01 25 01 27 00010000 28 00 29 01 2a 00",
    ),
    (Publish("a/b", b"x"), "30 07 0003 612f62 00 78"),
    (
        FULL_PUBLISH_5,
        "32 30 0000 0001 29"
        "02 0000003c 03 0001 74 08 0001 72 09 0001 01 0b 01 0b ffffff7f 23 0003"
        f"{USER_PROPERTY} {USER_PROPERTY} 6869",
    ),
    (PubAck(1), "40 02 0001"),
    (PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS), "40 03 0001 10"),
    (
        PubAck(1, ReasonCode.QUOTA_EXCEEDED, Properties(reason_string="no")),
        "40 09 0001 97 05 1f 0002 6e6f",
    ),
    (PubRec(2, ReasonCode.PACKET_IDENTIFIER_IN_USE), "50 03 0002 91"),
    (PubRel(3, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), "62 03 0003 92"),
    (
        PubComp(4, properties=WITH_USER_PROPERTY),
        f"70 0b 0004 00 07 {USER_PROPERTY}",
    ),
    (
        SUBSCRIBE_5,
        "82 19 000a 03 0b 8001 0003 612f2b 06 000a 2473686172652f672f23 29",
    ),
    (
        SubAck(10, (ReasonCode.GRANTED_QOS_1, ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)),
        "90 05 000a 00 01 a2",
    ),
    (Unsubscribe(11, ("a",), WITH_USER_PROPERTY), f"a2 0d 000b 07 {USER_PROPERTY} 0001 61"),
    (
        UnsubAck(11, (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)),
        "b0 05 000b 00 00 11",
    ),
    (PingReq(), "c0 00"),
    (PingResp(), "d0 00"),
    (Disconnect(), "e0 00"),
    (Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE), "e0 01 04"),
    (
        Disconnect(ReasonCode.USE_ANOTHER_SERVER, Properties(server_reference="s")),
        "e0 06 9c 04 1c 0001 73",
    ),
    (Disconnect(properties=Properties(session_expiry_interval=0)), "e0 07 00 05 11 00000000"),
    (Auth(), "f0 00"),
    (
        Auth(
            ReasonCode.CONTINUE_AUTHENTICATION,
            Properties(authentication_method="m", authentication_data=b""),
        ),
        "f0 09 18 07 15 0001 6d 16 0000",
    ),
)

VECTORS = [
    pytest.param(version, packet, bytes.fromhex(text), id=f"{version}-{text[:40]}")
    for version, vectors in ((4, IN_3_1_1), (5, IN_5))
    for packet, text in vectors
]


def body_of(data: bytes) -> bytes:
    length, pos = decode_varint(data, 1)
    assert length == len(data) - pos, "the vector itself is wrong"
    return data[pos:]


@pytest.mark.parametrize(("version", "packet", "data"), VECTORS)
def test_encodes_to_these_bytes(version: int, packet: Packet, data: bytes) -> None:
    assert encode(packet, version).hex(" ") == data.hex(" ")


@pytest.mark.parametrize(("version", "packet", "data"), VECTORS)
def test_decodes_from_these_bytes(version: int, packet: Packet, data: bytes) -> None:
    assert decode(data[0], body_of(data), version) == packet
    assert decode(data[0], memoryview(body_of(data)), version) == packet


@pytest.mark.parametrize(("version", "packet", "data"), VECTORS)
def test_decoded_packets_keep_no_view_of_the_buffer(version: int, packet: Packet, data: bytes) -> None:
    buffer = bytearray(body_of(data))
    decoded = decode(data[0], memoryview(buffer), version)
    buffer[:] = bytes(len(buffer))
    assert decoded == packet


LONG_FORMS: tuple[tuple[str, Packet], ...] = (
    ("40 04 0001 00 00", PubAck(1)),
    ("40 03 0001 00", PubAck(1)),
    ("62 04 0003 92 00", PubRel(3, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)),
    ("e0 01 00", Disconnect()),
    ("e0 02 8e 00", Disconnect(ReasonCode.SESSION_TAKEN_OVER)),
    ("f0 02 00 00", Auth()),
)


@pytest.mark.parametrize(("text", "packet"), LONG_FORMS)
def test_defaults_may_also_be_spelled_out(text: str, packet: Packet) -> None:
    data = bytes.fromhex(text)
    assert decode(data[0], body_of(data), 5) == packet


def test_a_remaining_length_of_several_bytes() -> None:
    data = encode(Publish("a", bytes(20_000)), 4)
    assert data[:4] == bytes.fromhex("30 a3 9c 01")
    assert decode(data[0], body_of(data), 4) == Publish("a", bytes(20_000))
