"""The properties of MQTT 5.0 (section 2.2.2), in one table from which the codec works.

Those of a PUBLISH are in `store/records/publish_properties.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gateway.mqtt.codec_primitives import (
    Buffer,
    FieldReader,
    encode_binary,
    encode_string,
    encode_string_pair,
    encode_uint8,
    encode_uint16,
    encode_uint32,
    encode_varint,
)
from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import validate_topic_name
from store.records.publish_properties import (
    PUBLISH_PROPERTIES,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    PublishProperty,
    ValueForm,
)


class PacketContext(IntEnum):
    """The places for properties: the packets that carry any, by packet type, and the will."""

    WILL = 0
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
    DISCONNECT = 14
    AUTH = 15


@dataclass(slots=True)
class Properties:
    """All properties that a packet or a will may carry; None or () if absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None


class DataType(NamedTuple):
    """How a property's value is read and written; both functions take the field's name."""

    read: Callable[[FieldReader, str], Any]
    write: Callable[[Any, str], bytes]


Check = Callable[[Any, str], None]


def _accept(_value: Any, _field: str) -> None:
    pass


def _not_zero(value: int, field: str) -> None:
    if value == 0:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{field}: must not be 0")


def _zero_or_one(value: int, field: str) -> None:
    if value not in (0, 1):
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{field}: {value} is neither 0 nor 1")


def _valid_topic_alias(value: int, field: str) -> None:
    if value == 0:
        raise ProtocolError(ReasonCode.TOPIC_ALIAS_INVALID, f"{field}: must not be 0 [MQTT-3.3.2-8]")


def _valid_response_topic(value: str, field: str) -> None:
    validate_topic_name(value, field, "MQTT-3.3.2-14")


def _read_flag(reader: FieldReader, field: str) -> bool:
    value = reader.uint8(field)
    _zero_or_one(value, f"{reader.label} {field}")
    return bool(value)


def _write_flag(value: bool, field: str) -> bytes:
    _zero_or_one(value, field)
    return encode_uint8(value, field)


BYTE: Final = DataType(FieldReader.uint8, encode_uint8)
FLAG: Final = DataType(_read_flag, _write_flag)
TWO_BYTE_INTEGER: Final = DataType(FieldReader.uint16, encode_uint16)
FOUR_BYTE_INTEGER: Final = DataType(FieldReader.uint32, encode_uint32)
VARIABLE_BYTE_INTEGER: Final = DataType(FieldReader.varint, encode_varint)
UTF8_STRING: Final = DataType(FieldReader.string, encode_string)
UTF8_STRING_PAIR: Final = DataType(FieldReader.string_pair, encode_string_pair)
BINARY_DATA: Final = DataType(FieldReader.binary, encode_binary)


class PropertySpec(NamedTuple):
    """One line of the standard's table 2-4, with the rules of the sections that the line refers to."""

    identifier: int
    field: str
    data_type: DataType
    packets: frozenset[PacketContext]
    may_repeat_in: frozenset[PacketContext] = frozenset()
    check: Check = _accept

    @property
    def is_tuple(self) -> bool:
        return bool(self.may_repeat_in)


def _in(*packets: PacketContext) -> frozenset[PacketContext]:
    return frozenset(packets)


_C = PacketContext
_HANDSHAKE: Final = _in(_C.CONNECT, _C.CONNACK)
_AUTHENTICATION: Final = _in(_C.CONNECT, _C.CONNACK, _C.AUTH)
_SESSION: Final = _in(_C.CONNECT, _C.CONNACK, _C.DISCONNECT)
_REDIRECTION: Final = _in(_C.CONNACK, _C.DISCONNECT)
_EVERYWHERE: Final = frozenset(_C)
_REPLIES: Final = _EVERYWHERE - _in(_C.CONNECT, _C.WILL, _C.PUBLISH, _C.SUBSCRIBE, _C.UNSUBSCRIBE)

_FORMS: Final[dict[ValueForm, tuple[DataType, Check]]] = {
    ValueForm.ZERO_OR_ONE: (BYTE, _zero_or_one),
    ValueForm.TWO_BYTES: (TWO_BYTE_INTEGER, _accept),
    ValueForm.FOUR_BYTES: (FOUR_BYTE_INTEGER, _accept),
    ValueForm.VARIABLE_BYTES: (VARIABLE_BYTE_INTEGER, _accept),
    ValueForm.BINARY: (BINARY_DATA, _accept),
    ValueForm.TEXT: (UTF8_STRING, _accept),
    ValueForm.TOPIC: (UTF8_STRING, _valid_response_topic),
    ValueForm.TWO_TEXTS: (UTF8_STRING_PAIR, _accept),
}
_CHECKS: Final[dict[int, Check]] = {SUBSCRIPTION_IDENTIFIER: _not_zero, TOPIC_ALIAS: _valid_topic_alias}
_ALSO_IN: Final = {SUBSCRIPTION_IDENTIFIER: _in(_C.SUBSCRIBE), USER_PROPERTY: _EVERYWHERE}
# 3.3.2.3.8 against 3.8.2.1.2: a message may match many subscriptions, but each has one identifier.
_ALSO_REPEATED_IN: Final = {USER_PROPERTY: _EVERYWHERE}


def _of_publish(line: PublishProperty) -> PropertySpec:
    data_type, check = _FORMS[line.form]
    messages = _in(_C.PUBLISH, _C.WILL) if line.in_will else _in(_C.PUBLISH)
    return PropertySpec(
        line.identifier,
        line.name,
        data_type,
        messages | _ALSO_IN.get(line.identifier, _in()),
        (messages if line.repeats else _in()) | _ALSO_REPEATED_IN.get(line.identifier, _in()),
        _CHECKS.get(line.identifier, check),
    )


_P = PropertySpec
_OF_OTHER_PACKETS: Final[tuple[PropertySpec, ...]] = (
    _P(0x11, "session_expiry_interval", FOUR_BYTE_INTEGER, _SESSION),
    _P(0x12, "assigned_client_identifier", UTF8_STRING, _in(_C.CONNACK)),
    _P(0x13, "server_keep_alive", TWO_BYTE_INTEGER, _in(_C.CONNACK)),
    _P(0x15, "authentication_method", UTF8_STRING, _AUTHENTICATION),
    _P(0x16, "authentication_data", BINARY_DATA, _AUTHENTICATION),
    _P(0x17, "request_problem_information", FLAG, _in(_C.CONNECT)),
    _P(0x18, "will_delay_interval", FOUR_BYTE_INTEGER, _in(_C.WILL)),
    _P(0x19, "request_response_information", FLAG, _in(_C.CONNECT)),
    _P(0x1A, "response_information", UTF8_STRING, _in(_C.CONNACK)),
    _P(0x1C, "server_reference", UTF8_STRING, _REDIRECTION),
    _P(0x1F, "reason_string", UTF8_STRING, _REPLIES),
    _P(0x21, "receive_maximum", TWO_BYTE_INTEGER, _HANDSHAKE, check=_not_zero),
    _P(0x22, "topic_alias_maximum", TWO_BYTE_INTEGER, _HANDSHAKE),
    _P(0x24, "maximum_qos", BYTE, _in(_C.CONNACK), check=_zero_or_one),
    _P(0x25, "retain_available", FLAG, _in(_C.CONNACK)),
    _P(0x27, "maximum_packet_size", FOUR_BYTE_INTEGER, _HANDSHAKE, check=_not_zero),
    _P(0x28, "wildcard_subscription_available", FLAG, _in(_C.CONNACK)),
    _P(0x29, "subscription_identifier_available", FLAG, _in(_C.CONNACK)),
    _P(0x2A, "shared_subscription_available", FLAG, _in(_C.CONNACK)),
)
PROPERTY_SPECS: Final = tuple(sorted((*map(_of_publish, PUBLISH_PROPERTIES), *_OF_OTHER_PACKETS)))

_SPEC_OF_IDENTIFIER: Final = MappingProxyType({spec.identifier: spec for spec in PROPERTY_SPECS})
_TUPLES: Final = frozenset(spec.field for spec in PROPERTY_SPECS if spec.is_tuple)
_values_of: Final = attrgetter(*(spec.field for spec in PROPERTY_SPECS))
_UNSET: Final = _values_of(Properties())
_Present = tuple[PropertySpec, tuple[Any, ...]]


def decode_properties(data: Buffer, pos: int, packet: PacketContext) -> tuple[Properties, int]:
    """The property block (length prefix and properties) at `pos`, and the position after it."""
    reader = FieldReader(data, packet.name, pos)
    return read_properties(reader, packet), reader.pos


def read_properties(reader: FieldReader, packet: PacketContext) -> Properties:
    section = reader.section(reader.varint("property length"), "properties")
    section.label = packet.name
    values: dict[str, Any] = {}
    while not section.at_end():
        spec = _read_spec(section, packet)
        field = spec.field
        if field in values and packet not in spec.may_repeat_in:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{packet.name} {field}: more than once")
        value = spec.data_type.read(section, field)
        if spec.check is not _accept:
            spec.check(value, f"{packet.name} {field}")
        if spec.is_tuple:  # a list until all are read: building a tuple for each value would take quadratic time
            found = values.setdefault(field, [])
            found.append(value)
            section.limits.check_properties(len(found))
        else:
            values[field] = value
    for field in _TUPLES.intersection(values):
        values[field] = tuple(values[field])
    return Properties(**values)


def _read_spec(section: FieldReader, packet: PacketContext) -> PropertySpec:
    """The table line of the next identifier. One that is unknown or not allowed makes the packet malformed
    (2.2.2.2).
    """
    identifier = section.varint("property identifier")
    spec = _SPEC_OF_IDENTIFIER.get(identifier)
    if spec is None:
        raise MalformedPacket(f"{packet.name}: unknown property identifier 0x{identifier:02x}")
    _check_allowed(spec, packet)
    return spec


def encode_properties(props: Properties) -> bytes:
    """The properties in the order of their identifiers, without the length prefix."""
    return _encode(_present(props))


def encode_property_block(props: Properties, packet: PacketContext | None = None) -> bytes:
    """The properties with their length prefix, as in a packet.

    Raises a ProtocolError if a property is not allowed in `packet`, or not as often; `packet` None: not checked.
    """
    present = _present(props)
    if not present:
        return b"\0"
    if packet is not None:
        _check_present(present, packet)
    encoded = _encode(present)
    return encode_varint(len(encoded), "property length") + encoded


def _encode(present: list[_Present]) -> bytes:
    encoded = bytearray()
    for spec, values in present:
        for value in values:
            spec.check(value, spec.field)
            encoded.append(spec.identifier)  # every identifier fits in one byte
            encoded += spec.data_type.write(value, spec.field)
    return bytes(encoded)


def _check_present(present: list[_Present], packet: PacketContext) -> None:
    for spec, values in present:
        _check_allowed(spec, packet)
        if len(values) > 1 and packet not in spec.may_repeat_in:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"{packet.name} {spec.field}: more than once")


def _check_allowed(spec: PropertySpec, packet: PacketContext) -> None:
    if packet not in spec.packets:
        raise MalformedPacket(f"{packet.name} {spec.field}: not allowed in this packet")


def _present(props: Properties) -> list[_Present]:
    """The properties that are set, in the order of their identifiers, each with its values."""
    values = _values_of(props)
    if values == _UNSET:
        return []
    return [
        (spec, tuple(value) if spec.is_tuple else (value,))
        for spec, value in zip(PROPERTY_SPECS, values, strict=True)
        if value is not None and value != ()
    ]


def has_its_format(payload: bytes, props: Properties) -> bool:
    """Whether a payload has the format of its payload format indicator (MQTT 5, 3.3.2.3.2)."""
    if props.payload_format_indicator != 1:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
