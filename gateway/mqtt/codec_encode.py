"""Encoding: from a packet's value to all its bytes, fixed header included.

Fields that MQTT 3.1.1 does not have (properties, the reason of an acknowledgement, subscription options other than QoS)
are left out for it: so one value serves subscribers of both versions.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from gateway.mqtt.codec_connect import connect_body
from gateway.mqtt.codec_primitives import (
    MAX_VARINT,
    encode_string,
    encode_uint8,
    encode_uint16,
    encode_varint,
)
from gateway.mqtt.codec_rules import MQTT_5, check_packet
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    Acknowledgement,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from gateway.mqtt.properties import (
    PacketContext,
    Properties,
    encode_property_block,
)
from gateway.mqtt.reason_codes import ReasonCode, connack_return_code

_FIXED_FLAGS: Final = MappingProxyType(
    {PacketType.PUBREL: 0b0010, PacketType.SUBSCRIBE: 0b0010, PacketType.UNSUBSCRIBE: 0b0010}
)


def encode(packet: Packet, version: int) -> bytes:
    """Encode a packet for a connection of `version` (4 or 5; a Connect has its own).

    Raises ProtocolError or MalformedPacket if the other side would have to refuse the packet.
    """
    check_packet(packet, version)
    packet_type = packet.packet_type
    body = _BODIES[packet_type](packet, version)
    if len(body) > MAX_VARINT:
        raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"{packet_type.name}: a body of {len(body)} bytes")
    return bytes((packet_type << 4 | _flags(packet),)) + encode_varint(len(body)) + body


def success(packet_type: PacketType, packet_id: int) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP of success: the same four bytes in both versions."""
    return bytes((packet_type << 4 | _FIXED_FLAGS.get(packet_type, 0), 2, packet_id >> 8, packet_id & 255))


def _flags(packet: Packet) -> int:
    if isinstance(packet, Publish):
        return packet.dup << 3 | packet.qos << 1 | packet.retain
    return _FIXED_FLAGS.get(packet.packet_type, 0)


def _connect_body(packet: Connect, _version: int) -> bytes:
    return connect_body(packet)


def _connack_body(packet: ConnAck, version: int) -> bytes:
    code = packet.reason_code if version == MQTT_5 else connack_return_code(packet.reason_code)
    return bytes((packet.session_present, code)) + _property_block(packet, version)


def _publish_body(packet: Publish, version: int) -> bytes:
    return b"".join(
        (
            encode_string(packet.topic_name, "PUBLISH topic_name"),
            b"" if packet.packet_id is None else _packet_id(packet, packet.packet_id),
            _property_block(packet, version),
            packet.payload,
        )
    )


def _acknowledgement_body(packet: Acknowledgement, version: int) -> bytes:
    packet_id = _packet_id(packet, packet.packet_id)
    return packet_id if version != MQTT_5 else packet_id + _optional_reason(packet)


def _optional_reason(packet: Acknowledgement | Disconnect) -> bytes:
    """The shortest form: defaults at the end of the packet are left out (3.4.2.1, 3.14.2.1)."""
    if packet.properties != Properties():
        return encode_uint8(packet.reason_code, "reason_code") + _property_block(packet, MQTT_5)
    if packet.reason_code != ReasonCode.SUCCESS:
        return encode_uint8(packet.reason_code, "reason_code")
    return b""


def _subscribe_body(packet: Subscribe, version: int) -> bytes:
    return b"".join(
        (
            _packet_id(packet, packet.packet_id),
            _property_block(packet, version),
            *(_subscription(request, version) for request in packet.subscriptions),
        )
    )


def _subscription(request: SubscriptionRequest, version: int) -> bytes:
    options = int(request.qos)
    if version == MQTT_5:
        options |= request.no_local << 2
        options |= request.retain_as_published << 3
        options |= request.retain_handling << 4
    topic_filter = encode_string(request.topic_filter, "SUBSCRIBE topic_filter")
    return topic_filter + encode_uint8(options, "SUBSCRIBE subscription options")


def _suback_body(packet: SubAck, version: int) -> bytes:
    reason_codes = packet.reason_codes
    if version != MQTT_5:
        # 3.1.1 has only one failure code [MQTT-3.9.3-2].
        reason_codes = tuple(min(code, ReasonCode.UNSPECIFIED_ERROR) for code in reason_codes)
    packet_id = _packet_id(packet, packet.packet_id)
    return packet_id + _property_block(packet, version) + bytes(reason_codes)


def _unsubscribe_body(packet: Unsubscribe, version: int) -> bytes:
    return b"".join(
        (
            _packet_id(packet, packet.packet_id),
            _property_block(packet, version),
            *(encode_string(topic_filter, "UNSUBSCRIBE topic_filter") for topic_filter in packet.topic_filters),
        )
    )


def _unsuback_body(packet: UnsubAck, version: int) -> bytes:
    packet_id = _packet_id(packet, packet.packet_id)
    if version != MQTT_5:
        return packet_id
    return packet_id + _property_block(packet, version) + bytes(packet.reason_codes)


def _ping_body(_packet: PingReq | PingResp, _version: int) -> bytes:
    return b""


def _disconnect_body(packet: Disconnect, version: int) -> bytes:
    return b"" if version != MQTT_5 else _optional_reason(packet)


def _auth_body(packet: Auth, version: int) -> bytes:
    if packet == Auth():
        return b""
    return encode_uint8(packet.reason_code, "reason_code") + _property_block(packet, version)


_Identified = Publish | Acknowledgement | Subscribe | SubAck | Unsubscribe | UnsubAck
_WithProperties = _Identified | ConnAck | Disconnect | Auth


def _packet_id(packet: _Identified, packet_id: int) -> bytes:
    return encode_uint16(packet_id, f"{packet.packet_type.name} packet_id")


def _property_block(packet: _WithProperties, version: int) -> bytes:
    if version != MQTT_5:
        return b""
    return encode_property_block(packet.properties, PacketContext(packet.packet_type))


_BODIES: Final[MappingProxyType[PacketType, Callable[[Any, int], bytes]]] = MappingProxyType(
    {
        PacketType.CONNECT: _connect_body,
        PacketType.CONNACK: _connack_body,
        PacketType.PUBLISH: _publish_body,
        PacketType.PUBACK: _acknowledgement_body,
        PacketType.PUBREC: _acknowledgement_body,
        PacketType.PUBREL: _acknowledgement_body,
        PacketType.PUBCOMP: _acknowledgement_body,
        PacketType.SUBSCRIBE: _subscribe_body,
        PacketType.SUBACK: _suback_body,
        PacketType.UNSUBSCRIBE: _unsubscribe_body,
        PacketType.UNSUBACK: _unsuback_body,
        PacketType.PINGREQ: _ping_body,
        PacketType.PINGRESP: _ping_body,
        PacketType.DISCONNECT: _disconnect_body,
        PacketType.AUTH: _auth_body,
    }
)
