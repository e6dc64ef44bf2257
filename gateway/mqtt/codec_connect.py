"""The codec of CONNECT (section 3.1 of both standards).

    protocol name | level | connect flags | keep alive | properties (5.0)
    client id | will properties (5.0), will topic, will payload | user name | password

Each field of the second line but the client id is there only if its flag is set.

The level's highest bit is no part of MQTT 3.1.1: Mosquitto (`try_private`) and its successors set it to say that the
client is the bridge of another broker.
"""

from __future__ import annotations

from typing import Final

from gateway.mqtt.codec_primitives import (
    FieldReader,
    encode_binary,
    encode_string,
    encode_uint8,
    encode_uint16,
)
from gateway.mqtt.codec_rules import MQTT_3_1_1, MQTT_5, check_packet
from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.packets import Connect, QoS, Will
from gateway.mqtt.properties import (
    PacketContext,
    Properties,
    encode_property_block,
    read_properties,
)
from gateway.mqtt.reason_codes import ReasonCode

_PROTOCOL_NAME: Final = "MQTT"
_BRIDGE: Final = 0x80
"""A bit of the protocol level."""

_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_QOS_SHIFT: Final = 3
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USERNAME: Final = 0x80

_ANSWERED_IN_3_1_1: Final = frozenset({ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID})


def decode_connect(reader: FieldReader) -> Connect:
    level = _read_level(reader)
    version = level & ~_BRIDGE
    try:
        packet = _read_after_version(reader, version)
        packet.is_bridge = level != version
        reader.expect_end()
        check_packet(packet, version)
    except ProtocolError as error:
        error.connack_version = _connack_version(version, error.reason_code)
        raise
    return packet


def _read_level(reader: FieldReader) -> int:
    """The protocol level: the version, with _BRIDGE if that is set."""
    name = reader.string("protocol name")
    level = reader.uint8("protocol version")
    if name == _PROTOCOL_NAME and level in (MQTT_3_1_1, MQTT_3_1_1 | _BRIDGE, MQTT_5):
        return level
    error = ProtocolError(
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        f"CONNECT protocol version: {name!r} {level} is not supported [MQTT-3.1.2-1]",
    )
    # MQTT 3.1 ("MQIsdp" 3) understands the CONNACK of 3.1.1; a later version more likely that of 5.0.
    error.connack_version = MQTT_3_1_1 if level & ~_BRIDGE < MQTT_5 else MQTT_5
    raise error


def _connack_version(version: int, reason_code: ReasonCode) -> int | None:
    """3.1.1 has a CONNACK only for reasons with a return code (3.2.2.3); 5.0 has one for all (4.13.1)."""
    return version if version == MQTT_5 or reason_code in _ANSWERED_IN_3_1_1 else None


def _read_after_version(reader: FieldReader, version: int) -> Connect:
    flags = reader.uint8("connect flags")
    _check_flags(flags)
    return Connect(
        protocol_version=version,
        clean_start=bool(flags & _CLEAN_START),
        keep_alive_s=reader.uint16("keep alive"),
        properties=_read_properties(reader, version, PacketContext.CONNECT),
        client_id=reader.string("client_id"),
        will=_read_will(reader, version, flags) if flags & _WILL else None,
        username=reader.string("username") if flags & _USERNAME else None,
        password=reader.binary("password") if flags & _PASSWORD else None,
    )


def _check_flags(flags: int) -> None:
    if flags & _RESERVED:
        raise MalformedPacket("CONNECT connect flags: reserved bit set [MQTT-3.1.2-3]")
    if flags & _WILL_QOS == _WILL_QOS:
        raise MalformedPacket("CONNECT will qos: 3 [MQTT-3.1.2-12]")
    if flags & (_WILL_QOS | _WILL_RETAIN) and not flags & _WILL:
        raise MalformedPacket("CONNECT will qos or will retain: set without a will [MQTT-3.1.2-11, 3.1.2-13]")


def _read_will(reader: FieldReader, version: int, flags: int) -> Will:
    return Will(
        properties=_read_properties(reader, version, PacketContext.WILL),
        topic_name=reader.string("will topic_name"),
        payload=reader.binary("will payload"),
        qos=QoS((flags & _WILL_QOS) >> _WILL_QOS_SHIFT),
        retain=bool(flags & _WILL_RETAIN),
    )


def _read_properties(reader: FieldReader, version: int, context: PacketContext) -> Properties:
    return read_properties(reader, context) if version == MQTT_5 else Properties()


def connect_body(packet: Connect) -> bytes:
    if packet.protocol_version not in (MQTT_3_1_1, MQTT_5):
        raise ProtocolError(
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
            f"CONNECT protocol version: {packet.protocol_version} is not supported",
        )
    if packet.is_bridge and packet.protocol_version != MQTT_3_1_1:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "CONNECT is_bridge: only MQTT 3.1.1 has a bit for it")
    return b"".join(
        (
            encode_string(_PROTOCOL_NAME, "protocol name"),
            encode_uint8(packet.protocol_version | (_BRIDGE if packet.is_bridge else 0), "protocol version"),
            encode_uint8(_connect_flags(packet), "connect flags"),
            encode_uint16(packet.keep_alive_s, "CONNECT keep_alive_s"),
            _property_block(packet.properties, packet.protocol_version, PacketContext.CONNECT),
            encode_string(packet.client_id, "CONNECT client_id"),
            _will_fields(packet.will, packet.protocol_version),
            b"" if packet.username is None else encode_string(packet.username, "CONNECT username"),
            b"" if packet.password is None else encode_binary(packet.password, "CONNECT password"),
        )
    )


def _connect_flags(packet: Connect) -> int:
    flags = _CLEAN_START if packet.clean_start else 0
    if packet.username is not None:
        flags |= _USERNAME
    if packet.password is not None:
        flags |= _PASSWORD
    if packet.will is not None:
        flags |= _WILL | packet.will.qos << _WILL_QOS_SHIFT
        flags |= _WILL_RETAIN if packet.will.retain else 0
    return flags


def _will_fields(will: Will | None, version: int) -> bytes:
    if will is None:
        return b""
    return (
        _property_block(will.properties, version, PacketContext.WILL)
        + encode_string(will.topic_name, "CONNECT will topic_name")
        + encode_binary(will.payload, "CONNECT will payload")
    )


def _property_block(props: Properties, version: int, context: PacketContext) -> bytes:
    if version != MQTT_5:
        return b""
    return encode_property_block(props, context)
