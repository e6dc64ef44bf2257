"""Rules for packets beyond their syntax. Decoding and encoding both call `check_packet`.

Rules for one direction only (a client may not send a subscription identifier, a server may not send a session expiry
interval on DISCONNECT) belong to the protocol state: a codec does not know its side.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.packets import (
    Acknowledgement,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Publish,
    QoS,
    RetainHandling,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import split_shared, validate_topic_filter, validate_topic_name

MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

_QOS_VALUES: Final[frozenset[int]] = frozenset(QoS)
_RETAIN_HANDLING_VALUES: Final[frozenset[int]] = frozenset(RetainHandling)


def _codes(*values: int) -> frozenset[ReasonCode]:
    return frozenset(map(ReasonCode, values))


_RECEIPT: Final = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE: Final = _codes(0x00, 0x92)

ALLOWED_REASON_CODES: Final = MappingProxyType(
    {
        PacketType.CONNACK: _codes(0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F),
        PacketType.PUBACK: _RECEIPT,
        PacketType.PUBREC: _RECEIPT,
        PacketType.PUBREL: _RELEASE,
        PacketType.PUBCOMP: _RELEASE,
        PacketType.SUBACK: _codes(*range(0x03), 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2),
        PacketType.UNSUBACK: _codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),
        PacketType.DISCONNECT: _codes(
            0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)
        ),
        PacketType.AUTH: _codes(0x00, 0x18, 0x19),
    }
)
"""MQTT 5.0, table 2-6; it allows 0x8C on DISCONNECT, which 3.14.2.1 does not list."""


def check_packet(packet: Packet, version: int) -> None:
    for rule in _RULES.get(packet.packet_type, ()):
        rule(packet, version)


def to_reason_code(value: int, packet_type: PacketType) -> ReasonCode:
    """`value` as a reason code that `packet_type` may carry, else PROTOCOL_ERROR."""
    if value not in ALLOWED_REASON_CODES[packet_type]:
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR,
            f"{packet_type.name} reason_code: 0x{value:02x} is not allowed in this packet",
        )
    return ReasonCode(value)


def _protocol_error(packet: Packet | Acknowledgement, fault: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{packet.packet_type.name} {fault}")


_Identified = Publish | Acknowledgement | Subscribe | SubAck | Unsubscribe | UnsubAck


def _packet_id(packet: _Identified, _version: int) -> None:
    """[MQTT-2.2.1-3]; encoding checks that the identifier fits in two bytes."""
    if not packet.packet_id:
        raise _protocol_error(packet, "packet_id: must be present and not 0 [MQTT-2.2.1-3]")


def _one_reason_code(packet: ConnAck | Acknowledgement | Disconnect | Auth, _version: int) -> None:
    to_reason_code(packet.reason_code, packet.packet_type)


def _each_reason_code(packet: SubAck | UnsubAck, _version: int) -> None:
    for reason_code in packet.reason_codes:
        to_reason_code(reason_code, packet.packet_type)


def _some_reason_codes(packet: SubAck | UnsubAck, version: int) -> None:
    in_payload = version == MQTT_5 or packet.packet_type is PacketType.SUBACK
    if in_payload and not packet.reason_codes:
        raise _protocol_error(packet, "reason_codes: must not be empty")


def _connect_credentials(packet: Connect, _version: int) -> None:
    if packet.protocol_version == MQTT_3_1_1:
        if packet.password is not None and packet.username is None:
            raise MalformedPacket("CONNECT password: without a user name [3.1.1 MQTT-3.1.2-22]")
    elif packet.properties.authentication_data is not None and packet.properties.authentication_method is None:
        raise _protocol_error(packet, "authentication_data: without authentication_method")


def _connect_client_id(packet: Connect, _version: int) -> None:
    if packet.protocol_version == MQTT_3_1_1 and not packet.client_id and not packet.clean_start:
        raise ProtocolError(
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "CONNECT client_id: empty, but clean_start is not set [3.1.1 MQTT-3.1.3-8]",
        )


def _connect_will(packet: Connect, _version: int) -> None:
    if packet.will is not None:
        validate_topic_name(packet.will.topic_name, "CONNECT will topic_name")
        _check_qos(packet.will, "CONNECT will")


def _connack_session(packet: ConnAck, _version: int) -> None:
    if packet.session_present and packet.reason_code.is_failure:
        raise _protocol_error(packet, "session_present: set on a refusal [MQTT-3.2.2-6]")


def _publish_delivery(packet: Publish, version: int) -> None:
    _check_qos(packet, "PUBLISH")
    if packet.qos != QoS.AT_MOST_ONCE:
        _packet_id(packet, version)
    elif packet.dup:
        raise MalformedPacket("PUBLISH dup: set with QoS 0 [MQTT-3.3.1-2]")
    elif packet.packet_id is not None:
        raise MalformedPacket("PUBLISH packet_id: present with QoS 0 [MQTT-2.2.1-2]")


def _publish_topic(packet: Publish, version: int) -> None:
    """An empty topic name stands for the topic alias (3.3.2.1), which only MQTT 5.0 has."""
    if packet.topic_name:
        validate_topic_name(packet.topic_name, "PUBLISH topic_name")
    elif version != MQTT_5 or packet.properties.topic_alias is None:
        raise _protocol_error(packet, "topic_name: empty, and there is no topic_alias")


def _subscriptions(packet: Subscribe, version: int) -> None:
    if not packet.subscriptions:
        raise _protocol_error(packet, "subscriptions: none [MQTT-3.8.3-2]")
    for request in packet.subscriptions:
        if request.qos not in _QOS_VALUES or request.retain_handling not in _RETAIN_HANDLING_VALUES:
            raise _options_fault(request)
        is_shared = _check_filter(request.topic_filter, "SUBSCRIBE topic_filter", version)
        if is_shared and request.no_local:
            raise _protocol_error(packet, "no_local: set for a shared subscription [MQTT-3.8.3-4]")


def _unsubscribed_filters(packet: Unsubscribe, version: int) -> None:
    if not packet.topic_filters:
        raise _protocol_error(packet, "topic_filters: none [MQTT-3.10.3-2]")
    for topic_filter in packet.topic_filters:
        _check_filter(topic_filter, "UNSUBSCRIBE topic_filter", version)


def _auth_method(packet: Auth, version: int) -> None:
    """3.15.2.2.2 requires a method, but 3.15.2.1 allows a bare success without any field."""
    if version != MQTT_5:
        raise MalformedPacket("AUTH: reserved in MQTT 3.1.1")
    is_bare_success = packet == Auth()
    if not is_bare_success and packet.properties.authentication_method is None:
        raise _protocol_error(packet, "authentication_method: missing")


def _check_filter(topic_filter: str, field: str, version: int) -> bool:
    """Validate a topic filter. Returns whether it is a shared subscription; MQTT 3.1.1 has none."""
    if version != MQTT_5:
        validate_topic_filter(topic_filter, field)
        return False
    share_name, _ = split_shared(topic_filter, field)
    return share_name is not None


def _check_qos(message: Publish | Will, field: str) -> None:
    if message.qos not in _QOS_VALUES:
        raise MalformedPacket(f"{field} qos: {message.qos} is not 0, 1 or 2")


def _options_fault(request: SubscriptionRequest) -> ProtocolError:
    is_qos = request.qos not in _QOS_VALUES
    name, value = ("qos", request.qos) if is_qos else ("retain_handling", request.retain_handling)
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, f"SUBSCRIBE {name}: {value} is not 0, 1 or 2")


_Rule = Callable[[Any, int], None]

_ACKNOWLEDGEMENT: Final[tuple[_Rule, ...]] = (_packet_id, _one_reason_code)

_RULES: Final[MappingProxyType[PacketType, tuple[_Rule, ...]]] = MappingProxyType(
    {
        PacketType.CONNECT: (_connect_credentials, _connect_client_id, _connect_will),
        PacketType.CONNACK: (_one_reason_code, _connack_session),
        PacketType.PUBLISH: (_publish_delivery, _publish_topic),
        PacketType.PUBACK: _ACKNOWLEDGEMENT,
        PacketType.PUBREC: _ACKNOWLEDGEMENT,
        PacketType.PUBREL: _ACKNOWLEDGEMENT,
        PacketType.PUBCOMP: _ACKNOWLEDGEMENT,
        PacketType.SUBSCRIBE: (_packet_id, _subscriptions),
        PacketType.SUBACK: (_packet_id, _each_reason_code, _some_reason_codes),
        PacketType.UNSUBSCRIBE: (_packet_id, _unsubscribed_filters),
        PacketType.UNSUBACK: (_packet_id, _each_reason_code, _some_reason_codes),
        PacketType.DISCONNECT: (_one_reason_code,),
        PacketType.AUTH: (_auth_method, _one_reason_code),
    }
)
