"""Byte streams of clients that are broken in some way: valid packets, mutated, and what a server must think of them."""

from __future__ import annotations

import random
from collections.abc import Callable

from gateway.clients.packet_rules import HANDLERS
from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingReq,
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
    Unsubscribe,
    Will,
)
from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Phase

MAXIMUM_PACKET_BYTES = 1 << 20
TOPIC_ALIAS_MAXIMUM = 16

PLAIN = Properties()
FULL = Properties(
    payload_format_indicator=1,
    message_expiry_interval=30,
    content_type="text/plain",
    response_topic="answer/é",
    correlation_data=b"\0\1\2",
    user_properties=(("key", "value"), ("é", "")),
)
WILL = Will("m/will", b"gone", QoS.AT_LEAST_ONCE, properties=Properties(will_delay_interval=1, content_type="x"))


def connects(version: int) -> list[Connect]:
    session = Properties(session_expiry_interval=1, receive_maximum=3, maximum_packet_size=300, topic_alias_maximum=3)
    plain = [
        Connect(name, version, clean_start=True, keep_alive_s=5, will=will, username=user, password=password)
        for name, will, user, password in (("m1", None, None, None), ("", WILL, "u", b"p"), ("m3", WILL, "user", None))
    ]
    return [*plain, Connect("m4", version, clean_start=True, properties=session)] if version == 5 else plain


PACKETS: list[Packet] = [
    Publish("m/a", b"payload"),
    Publish("m/é/b", b"x" * 300, QoS.AT_LEAST_ONCE, packet_id=1, properties=FULL),
    Publish("m/c", b"", QoS.EXACTLY_ONCE, packet_id=2, retain=True),
    Publish("m/c", b"again", QoS.EXACTLY_ONCE, packet_id=2, dup=True),
    Publish("m/alias", b"1", properties=Properties(topic_alias=1)),
    PubRel(2),
    PubRel(700, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND),
    PubAck(1),
    PubAck(1, ReasonCode.QUOTA_EXCEEDED, Properties(reason_string="no")),
    PubRec(1),
    PubRec(2, ReasonCode.UNSPECIFIED_ERROR),
    PubComp(1),
    Subscribe(3, (SubscriptionRequest("m/#", QoS.EXACTLY_ONCE),), Properties(subscription_identifiers=(7,))),
    Subscribe(
        4,
        (
            SubscriptionRequest("m/+/b", QoS.AT_LEAST_ONCE, True, True, RetainHandling.DO_NOT_SEND),
            SubscriptionRequest("$SYS/#"),
        ),
        Properties(user_properties=(("penstock-from", "earliest"),)),
    ),
    Subscribe(5, (SubscriptionRequest("m/a", QoS.AT_MOST_ONCE), SubscriptionRequest("#"))),
    Unsubscribe(6, ("m/#", "never")),
    PingReq(),
    Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="x")),
    Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE, Properties(session_expiry_interval=1)),
    SubAck(1, (ReasonCode.SUCCESS,)),
]


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(
        (rng.randbytes(rng.randrange(1, 9)), b"\0", b"\xff", b"\x80\x80\x80\x80", b"$SYS/", b"+/#")
    )


def remove(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 2, 5))]


def truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def duplicate(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    part = data[start : start + rng.randrange(1, 20)]
    at = rng.randrange(len(data) + 1)
    data[at:at] = part


def extreme(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [flip, insert, remove, truncate, duplicate, extreme]


def mutated(rng: random.Random, packet: bytes) -> bytes:
    data = bytearray(packet)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if data:
            rng.choice(MUTATIONS)(rng, data)
    return bytes(data)


def stream(rng: random.Random) -> bytes:
    """What one client sends: mostly a proper CONNECT, then packets of which some are broken; or garbage."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(1, 200))
    version = rng.choice((4, 5))
    connect = encode(rng.choice(connects(version)), version)
    parts = [mutated(rng, connect) if rng.random() < 0.2 else connect]
    for _ in range(rng.randrange(1, 16)):
        packet = rng.choice(PACKETS)
        if version == 4 and isinstance(packet, Auth):
            continue
        whole = encode(packet, version)
        parts.append(mutated(rng, whole) if rng.random() < 0.4 else whole)
    return b"".join(parts)


# --- what a server must think of it


def must_be_closed(data: bytes) -> bool:
    """Whether a byte stream says something that ends a connection; if not, it may just be unfinished."""
    version, aliases = 0, set[int]()
    while len(data) >= 2:
        if not version and data[0] != 0x10:
            return True
        try:
            size, start = decode_varint(data, 1)
        except ProtocolError:
            return len(data) >= 5 or not all(byte & 0x80 for byte in data[1:])
        if start + size > MAXIMUM_PACKET_BYTES:
            return True
        if start + size > len(data):
            return False
        try:
            packet = decode(data[0], data[start : start + size], version)
        except ProtocolError:
            return True
        if is_final(packet, version, aliases):
            return True
        version = packet.protocol_version if isinstance(packet, Connect) else version
        data = data[start + size :]
    return False


def is_final(packet: Packet, version: int, aliases: set[int]) -> bool:
    """Whether a packet that decodes ends the connection."""
    if isinstance(packet, Publish):
        return publish_is_wrong(packet, aliases)
    if isinstance(packet, Connect):
        will_is_ours = packet.will is not None and packet.will.topic_name.startswith("$")
        return bool(version) or will_is_ours or packet.properties.authentication_method is not None
    allowed = type(packet) in HANDLERS[Phase.OPEN]
    return not version or not allowed or isinstance(packet, Disconnect | Auth)


def publish_is_wrong(publish: Publish, aliases: set[int]) -> bool:
    alias = publish.properties.topic_alias
    if publish.properties.subscription_identifiers:
        return True
    if alias is None:
        return False
    if alias > TOPIC_ALIAS_MAXIMUM or not (publish.topic_name or alias in aliases):
        return True
    aliases.add(alias)
    return False
