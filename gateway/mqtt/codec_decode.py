"""Decoding: from the first byte and the body of a packet to its value.

`_check_fixed_header` and one function per packet type parse the bytes. The rules for their values are in `codec_rules`,
which encoding uses, too.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from gateway.mqtt.codec_connect import decode_connect
from gateway.mqtt.codec_primitives import NO_LIMITS, Buffer, FieldReader, Limits
from gateway.mqtt.codec_rules import MQTT_5, check_packet, to_reason_code
from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.packets import (
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PacketType,
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
)
from gateway.mqtt.properties import PacketContext, Properties, read_properties
from gateway.mqtt.reason_codes import REASON_OF_CONNACK_RETURN_CODE, ReasonCode

_FLAGS_0010: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})
_PACKET_TYPES: Final = MappingProxyType({int(member): member for member in PacketType})

_SUBACK_CODES_3_1_1: Final = MappingProxyType(
    {
        0x00: ReasonCode.GRANTED_QOS_0,
        0x01: ReasonCode.GRANTED_QOS_1,
        0x02: ReasonCode.GRANTED_QOS_2,
        0x80: ReasonCode.UNSPECIFIED_ERROR,
    }
)

_QOS_BITS: Final = 0x03
_RETAIN_HANDLING_SHIFT: Final = 4
_RESERVED_OPTIONS: Final = 0xC0
_RESERVED_OPTIONS_3_1_1: Final = 0xFC

_Options = tuple[QoS, bool, bool, RetainHandling]
_OPTIONS: Final[MappingProxyType[int, _Options]] = MappingProxyType(
    {
        qos | no_local << 2 | as_published << 3 | handling << _RETAIN_HANDLING_SHIFT: (
            qos,
            no_local,
            as_published,
            handling,
        )
        for qos in QoS
        for no_local in (False, True)
        for as_published in (False, True)
        for handling in RetainHandling
    }
)
"""Subscription options by their byte (3.8.3.1); every other byte is an error."""
_OPTIONS_3_1_1: Final = MappingProxyType({int(qos): _OPTIONS[qos] for qos in QoS})


def decode(first_byte: int, body: Buffer, version: int, limits: Limits = NO_LIMITS) -> Packet:
    """Decode a packet without its fixed header.

    `version` (4 or 5) is the connection's; a CONNECT has its own. Raises ProtocolError or MalformedPacket, and no other
    error, for any bytes from a peer.
    """
    packet_type = _check_fixed_header(first_byte, version)
    reader = FieldReader(body, packet_type.name, 0, limits)
    if packet_type is PacketType.CONNECT:
        return decode_connect(reader)
    if packet_type is PacketType.PUBLISH:
        packet: Packet = _read_publish(reader, first_byte & 0x0F, version)
    else:
        packet = _READERS[packet_type](reader, version)
    reader.expect_end()
    check_packet(packet, version)
    return packet


def _check_fixed_header(first_byte: int, version: int) -> PacketType:
    packet_type = _PACKET_TYPES.get(first_byte >> 4)
    if packet_type is None or (packet_type is PacketType.AUTH and version != MQTT_5):
        raise MalformedPacket(f"packet type: {first_byte >> 4} is reserved")
    flags = first_byte & 0x0F
    required_flags = 0b0010 if packet_type in _FLAGS_0010 else 0
    if packet_type is not PacketType.PUBLISH and flags != required_flags:
        raise MalformedPacket(
            f"{packet_type.name} fixed header flags: {flags:04b} instead of {required_flags:04b} [MQTT-2.1.3-1]"
        )
    return packet_type


def _read_publish(reader: FieldReader, flags: int, version: int) -> Publish:
    qos_bits = flags >> 1 & _QOS_BITS
    if qos_bits == _QOS_BITS:
        raise MalformedPacket("PUBLISH qos: 3 [MQTT-3.3.1-4]")
    return Publish(
        qos=QoS(qos_bits),
        retain=bool(flags & 0x01),
        dup=bool(flags & 0x08),
        topic_name=reader.string("topic_name"),
        packet_id=reader.uint16("packet_id") if qos_bits else None,
        properties=_read_properties(reader, version),
        payload=reader.rest(),
    )


def _read_connack(reader: FieldReader, version: int) -> ConnAck:
    flags = reader.uint8("acknowledge flags")
    if flags > 1:
        raise MalformedPacket("CONNACK acknowledge flags: reserved bit set [MQTT-3.2.2-1]")
    return ConnAck(
        session_present=bool(flags),
        reason_code=_read_connack_code(reader, version),
        properties=_read_properties(reader, version),
    )


def _read_connack_code(reader: FieldReader, version: int) -> ReasonCode:
    if version == MQTT_5:
        return _read_reason_code(reader)
    return_code = reader.uint8("return code")
    reason_code = REASON_OF_CONNACK_RETURN_CODE.get(return_code)
    if reason_code is None:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"CONNACK return code: {return_code} is reserved")
    return reason_code


_Acknowledgement = type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp]


def _acknowledgement_reader(
    packet_class: _Acknowledgement,
) -> Callable[[FieldReader, int], PubAck | PubRec | PubRel | PubComp]:
    def read(reader: FieldReader, version: int) -> PubAck | PubRec | PubRel | PubComp:
        packet_id = reader.uint16("packet_id")
        reason_code, properties = _read_optional_reason(reader, version)
        return packet_class(packet_id, reason_code, properties)

    return read


def _read_optional_reason(reader: FieldReader, version: int) -> tuple[ReasonCode, Properties]:
    """A packet may end before its reason code, or before its properties (3.4.2.1, 3.14.2.1)."""
    if version != MQTT_5 or reader.at_end():
        return ReasonCode.SUCCESS, Properties()
    reason_code = _read_reason_code(reader)
    properties = Properties() if reader.at_end() else _read_properties(reader, version)
    return reason_code, properties


def _read_subscribe(reader: FieldReader, version: int) -> Subscribe:
    packet_id = reader.uint16("packet_id")
    properties = _read_properties(reader, version)
    options_of = _OPTIONS if version == MQTT_5 else _OPTIONS_3_1_1
    subscriptions: list[SubscriptionRequest] = []
    while not reader.at_end():
        topic_filter = reader.string("topic_filter")
        options = reader.uint8("subscription options")
        known = options_of.get(options)
        if known is None:
            raise _options_fault(options, version)
        subscriptions.append(SubscriptionRequest(topic_filter, *known))
        reader.limits.check_filters(len(subscriptions))
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _options_fault(options: int, version: int) -> ProtocolError:
    """3.8.3.1; in 3.1.1 all bits but the two of QoS are reserved, and QoS 3 is malformed as well."""
    is_v5 = version == MQTT_5
    if options & (_RESERVED_OPTIONS if is_v5 else _RESERVED_OPTIONS_3_1_1):
        return MalformedPacket("SUBSCRIBE subscription options: reserved bit set [MQTT-3.8.3-5]")
    if options & _QOS_BITS == _QOS_BITS:
        reason_code = ReasonCode.PROTOCOL_ERROR if is_v5 else ReasonCode.MALFORMED_PACKET
        return ProtocolError(reason_code, "SUBSCRIBE qos: 3 [3.1.1 MQTT-3-8.3-4]")
    return ProtocolError(ReasonCode.PROTOCOL_ERROR, "SUBSCRIBE retain_handling: 3")


def _read_suback(reader: FieldReader, version: int) -> SubAck:
    packet_id = reader.uint16("packet_id")
    properties = _read_properties(reader, version)
    reason_codes = []
    while not reader.at_end():
        reason_codes.append(_read_suback_code(reader, version))
        reader.limits.check_filters(len(reason_codes))
    return SubAck(packet_id, tuple(reason_codes), properties)


def _read_suback_code(reader: FieldReader, version: int) -> ReasonCode:
    if version == MQTT_5:
        return _read_reason_code(reader)
    return_code = reader.uint8("return code")
    reason_code = _SUBACK_CODES_3_1_1.get(return_code)
    if reason_code is None:
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR,
            f"SUBACK return code: 0x{return_code:02x} is reserved [3.1.1 MQTT-3.9.3-2]",
        )
    return reason_code


def _read_unsubscribe(reader: FieldReader, version: int) -> Unsubscribe:
    packet_id = reader.uint16("packet_id")
    properties = _read_properties(reader, version)
    topic_filters = []
    while not reader.at_end():
        topic_filters.append(reader.string("topic_filter"))
        reader.limits.check_filters(len(topic_filters))
    return Unsubscribe(packet_id, tuple(topic_filters), properties)


def _read_unsuback(reader: FieldReader, version: int) -> UnsubAck:
    packet_id = reader.uint16("packet_id")
    if version != MQTT_5:
        return UnsubAck(packet_id)
    properties = _read_properties(reader, version)
    reason_codes = []
    while not reader.at_end():
        reason_codes.append(_read_reason_code(reader))
        reader.limits.check_filters(len(reason_codes))
    return UnsubAck(packet_id, tuple(reason_codes), properties)


def _read_pingreq(_reader: FieldReader, _version: int) -> PingReq:
    return PingReq()


def _read_pingresp(_reader: FieldReader, _version: int) -> PingResp:
    return PingResp()


def _read_disconnect(reader: FieldReader, version: int) -> Disconnect:
    return Disconnect(*_read_optional_reason(reader, version))


def _read_auth(reader: FieldReader, version: int) -> Auth:
    """Unlike the others, an AUTH leaves out both its reason code and its properties, or neither (3.15.2.1)."""
    if reader.at_end():
        return Auth()
    return Auth(_read_reason_code(reader), _read_properties(reader, version))


def _read_reason_code(reader: FieldReader) -> ReasonCode:
    return to_reason_code(reader.uint8("reason_code"), PacketType[reader.label])


def _read_properties(reader: FieldReader, version: int) -> Properties:
    if version != MQTT_5:
        return Properties()
    return read_properties(reader, PacketContext[reader.label])


_READERS: Final[MappingProxyType[PacketType, Callable[[FieldReader, int], Any]]] = MappingProxyType(
    {
        PacketType.CONNACK: _read_connack,
        PacketType.PUBACK: _acknowledgement_reader(PubAck),
        PacketType.PUBREC: _acknowledgement_reader(PubRec),
        PacketType.PUBREL: _acknowledgement_reader(PubRel),
        PacketType.PUBCOMP: _acknowledgement_reader(PubComp),
        PacketType.SUBSCRIBE: _read_subscribe,
        PacketType.SUBACK: _read_suback,
        PacketType.UNSUBSCRIBE: _read_unsubscribe,
        PacketType.UNSUBACK: _read_unsuback,
        PacketType.PINGREQ: _read_pingreq,
        PacketType.PINGRESP: _read_pingresp,
        PacketType.DISCONNECT: _read_disconnect,
        PacketType.AUTH: _read_auth,
    }
)
