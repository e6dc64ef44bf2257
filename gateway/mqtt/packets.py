"""The control packets of MQTT 3.1.1 and 5.0 as values.

Fields of MQTT 5.0 only (properties, reason codes of acknowledgements, subscription options) keep their defaults in a
packet of 3.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from gateway.mqtt.properties import Properties
from gateway.mqtt.reason_codes import ReasonCode


class PacketType(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class QoS(IntEnum):
    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class RetainHandling(IntEnum):
    """Which retained messages a new subscription asks for (MQTT 5.0, 3.8.3.1)."""

    SEND_AT_SUBSCRIBE = 0
    SEND_IF_NEW_SUBSCRIPTION = 1
    DO_NOT_SEND = 2


@dataclass(slots=True)
class Will:
    topic_name: str
    payload: bytes = b""
    qos: QoS = QoS.AT_MOST_ONCE
    retain: bool = False
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Connect:
    packet_type: ClassVar[PacketType] = PacketType.CONNECT
    client_id: str = ""
    protocol_version: int = 5
    clean_start: bool = True
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=Properties)
    is_bridge: bool = False  # of another broker; MQTT 3.1.1 only


@dataclass(slots=True)
class ConnAck:
    packet_type: ClassVar[PacketType] = PacketType.CONNACK
    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Publish:
    packet_type: ClassVar[PacketType] = PacketType.PUBLISH
    topic_name: str
    payload: bytes = b""
    qos: QoS = QoS.AT_MOST_ONCE
    retain: bool = False
    dup: bool = False
    packet_id: int | None = None
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Acknowledgement:
    """The common fields of PUBACK, PUBREC, PUBREL and PUBCOMP."""

    packet_type: ClassVar[PacketType]
    packet_id: int
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class PubAck(Acknowledgement):
    packet_type: ClassVar[PacketType] = PacketType.PUBACK


@dataclass(slots=True)
class PubRec(Acknowledgement):
    packet_type: ClassVar[PacketType] = PacketType.PUBREC


@dataclass(slots=True)
class PubRel(Acknowledgement):
    packet_type: ClassVar[PacketType] = PacketType.PUBREL


@dataclass(slots=True)
class PubComp(Acknowledgement):
    packet_type: ClassVar[PacketType] = PacketType.PUBCOMP


@dataclass(slots=True)
class SubscriptionRequest:
    topic_filter: str
    qos: QoS = QoS.AT_MOST_ONCE
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = RetainHandling.SEND_AT_SUBSCRIBE


@dataclass(slots=True)
class Subscribe:
    packet_type: ClassVar[PacketType] = PacketType.SUBSCRIBE
    packet_id: int
    subscriptions: tuple[SubscriptionRequest, ...]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class SubAck:
    packet_type: ClassVar[PacketType] = PacketType.SUBACK
    packet_id: int
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Unsubscribe:
    packet_type: ClassVar[PacketType] = PacketType.UNSUBSCRIBE
    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class UnsubAck:
    """In MQTT 3.1.1 it only confirms the packet: `reason_codes` is then empty."""

    packet_type: ClassVar[PacketType] = PacketType.UNSUBACK
    packet_id: int
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class PingReq:
    packet_type: ClassVar[PacketType] = PacketType.PINGREQ


@dataclass(slots=True)
class PingResp:
    packet_type: ClassVar[PacketType] = PacketType.PINGRESP


@dataclass(slots=True)
class Disconnect:
    packet_type: ClassVar[PacketType] = PacketType.DISCONNECT
    reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION
    properties: Properties = field(default_factory=Properties)


@dataclass(slots=True)
class Auth:
    packet_type: ClassVar[PacketType] = PacketType.AUTH
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)


Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)
