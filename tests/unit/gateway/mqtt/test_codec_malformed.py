"""Packets that a peer must not send: each line names the packet, its reason code and the field at fault."""

import pytest

from gateway.mqtt.codec import decode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.reason_codes import ReasonCode

Line = tuple[int, int, str, int, str]

V4, V5 = 4, 5
MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
BAD_NAME, BAD_FILTER = ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_FILTER_INVALID
BAD_ALIAS = ReasonCode.TOPIC_ALIAS_INVALID

# version, first byte, body, reason code, part of the message
FIXED_HEADER: tuple[Line, ...] = (
    (V5, 0x00, "", MALFORMED, "packet type"),
    (V4, 0xF0, "", MALFORMED, "packet type"),
    (V5, 0x11, "", MALFORMED, "CONNECT fixed header flags"),
    (V5, 0x28, "00 00 00", MALFORMED, "CONNACK fixed header flags"),
    (V5, 0x41, "0001", MALFORMED, "PUBACK fixed header flags"),
    (V4, 0x54, "0001", MALFORMED, "PUBREC fixed header flags"),
    (V4, 0x60, "0001", MALFORMED, "PUBREL fixed header flags"),
    (V4, 0x63, "0001", MALFORMED, "PUBREL fixed header flags"),
    (V5, 0x72, "0001", MALFORMED, "PUBCOMP fixed header flags"),
    (V5, 0x80, "0001 00 0001 61 00", MALFORMED, "SUBSCRIBE fixed header flags"),
    (V5, 0x92, "0001 00 00", MALFORMED, "SUBACK fixed header flags"),
    (V4, 0xA0, "0001 0001 61", MALFORMED, "UNSUBSCRIBE fixed header flags"),
    (V4, 0xB2, "0001", MALFORMED, "UNSUBACK fixed header flags"),
    (V4, 0xC1, "", MALFORMED, "PINGREQ fixed header flags"),
    (V5, 0xD8, "", MALFORMED, "PINGRESP fixed header flags"),
    (V5, 0xE1, "", MALFORMED, "DISCONNECT fixed header flags"),
    (V5, 0xF2, "", MALFORMED, "AUTH fixed header flags"),
)

CONNACK: tuple[Line, ...] = (
    (V4, 0x20, "00", MALFORMED, "return code"),
    (V4, 0x20, "02 00", MALFORMED, "acknowledge flags"),
    (V5, 0x20, "80 00 00", MALFORMED, "acknowledge flags"),
    (V4, 0x20, "00 06", PROTOCOL, "return code"),
    (V4, 0x20, "01 05", PROTOCOL, "session_present"),
    (V5, 0x20, "01 87 00", PROTOCOL, "session_present"),
    (V5, 0x20, "00 01 00", PROTOCOL, "reason_code"),
    (V5, 0x20, "00 00", MALFORMED, "property length"),
    (V4, 0x20, "00 00 00", MALFORMED, "after the end"),
)

PUBLISH: tuple[Line, ...] = (
    (V4, 0x36, "0001 61 0001", MALFORMED, "qos"),
    (V5, 0x36, "0001 61 0001 00", MALFORMED, "qos"),
    (V4, 0x38, "0001 61", MALFORMED, "dup"),
    (V5, 0x38, "0001 61 00", MALFORMED, "dup"),
    (V4, 0x32, "0001 61 0000", PROTOCOL, "packet_id"),
    (V5, 0x34, "0001 61 0000 00", PROTOCOL, "packet_id"),
    (V5, 0x32, "0001 61 01", MALFORMED, "packet_id"),
    (V4, 0x30, "", MALFORMED, "topic_name"),
    (V4, 0x30, "0002 61", MALFORMED, "topic_name"),
    (V4, 0x30, "0000 61", PROTOCOL, "topic_name"),
    (V5, 0x30, "0000 00 61", PROTOCOL, "topic_name"),
    (V5, 0x30, "0003 612f23 00", BAD_NAME, "topic_name"),
    (V4, 0x30, "0003 612f2b", BAD_NAME, "topic_name"),
    (V5, 0x30, "0003 610062 00", MALFORMED, "topic_name"),
    (V5, 0x30, "0003 eda080 00", MALFORMED, "topic_name"),
    (V4, 0x30, "0002 c0af", MALFORMED, "topic_name"),
    (V5, 0x30, "0001 61", MALFORMED, "property length"),
    (V5, 0x30, "0001 61 05 0101", MALFORMED, "properties"),
    (V5, 0x30, "0001 61 03 23 0000", BAD_ALIAS, "topic_alias"),
    (V5, 0x30, "0001 61 02 0b 00", PROTOCOL, "subscription_identifiers"),
    (V5, 0x30, "0001 61 04 08 0001 23", BAD_NAME, "response_topic"),
)

ACKNOWLEDGEMENTS: tuple[Line, ...] = (
    (V4, 0x40, "", MALFORMED, "packet_id"),
    (V4, 0x40, "00", MALFORMED, "packet_id"),
    (V4, 0x40, "0000", PROTOCOL, "packet_id"),
    (V5, 0x50, "0000", PROTOCOL, "packet_id"),
    (V5, 0x62, "0000 00 00", PROTOCOL, "packet_id"),
    (V4, 0x40, "0001 00", MALFORMED, "after the end"),
    (V5, 0x40, "0001 00 00 00", MALFORMED, "after the end"),
    (V5, 0x40, "0001 92", PROTOCOL, "PUBACK reason_code"),
    (V5, 0x50, "0001 05", PROTOCOL, "PUBREC reason_code"),
    (V5, 0x62, "0001 10", PROTOCOL, "PUBREL reason_code"),
    (V5, 0x70, "0001 80", PROTOCOL, "PUBCOMP reason_code"),
    (V5, 0x40, "0001 00 03 21 0001", MALFORMED, "receive_maximum"),
)

SUBSCRIBING: tuple[Line, ...] = (
    (V4, 0x82, "0001", PROTOCOL, "SUBSCRIBE subscriptions"),
    (V5, 0x82, "0001 00", PROTOCOL, "SUBSCRIBE subscriptions"),
    (V4, 0x82, "0000 0001 61 00", PROTOCOL, "packet_id"),
    (V5, 0x82, "0001 00 0001 61", MALFORMED, "subscription options"),
    (V4, 0x82, "0001 0001 61 03", MALFORMED, "qos"),
    (V5, 0x82, "0001 00 0001 61 03", PROTOCOL, "qos"),
    (V4, 0x82, "0001 0001 61 04", MALFORMED, "subscription options"),
    (V4, 0x82, "0001 0001 61 10", MALFORMED, "subscription options"),
    (V5, 0x82, "0001 00 0001 61 40", MALFORMED, "subscription options"),
    (V5, 0x82, "0001 00 0001 61 80", MALFORMED, "subscription options"),
    (V5, 0x82, "0001 00 0001 61 30", PROTOCOL, "retain_handling"),
    (V5, 0x82, "0001 00 000a 2473686172652f672f61 04", PROTOCOL, "no_local"),
    (V5, 0x82, "0001 00 0008 2473686172652f67 00", BAD_FILTER, "topic_filter"),
    (V5, 0x82, "0001 00 0000 00", BAD_FILTER, "topic_filter"),
    (V4, 0x82, "0001 0002 6123 00", BAD_FILTER, "topic_filter"),
    (V5, 0x82, "0001 02 0b 00 0001 61 00", PROTOCOL, "subscription_identifiers"),
    (V5, 0x82, "0001 04 0b 01 0b 02 0001 61 00", PROTOCOL, "subscription_identifiers"),
    (V4, 0x90, "0001", PROTOCOL, "reason_codes"),
    (V5, 0x90, "0001 00", PROTOCOL, "reason_codes"),
    (V4, 0x90, "0001 87", PROTOCOL, "SUBACK return code"),
    (V5, 0x90, "0001 00 11", PROTOCOL, "SUBACK reason_code"),
    (V5, 0x90, "0000 00 00", PROTOCOL, "packet_id"),
    (V4, 0xA2, "0001", PROTOCOL, "UNSUBSCRIBE topic_filters"),
    (V5, 0xA2, "0001 00", PROTOCOL, "UNSUBSCRIBE topic_filters"),
    (V5, 0xA2, "0000 00 0001 61", PROTOCOL, "packet_id"),
    (V5, 0xA2, "0001 00 0003 2b612f", BAD_FILTER, "topic_filter"),
    (V4, 0xA2, "0001 0001", MALFORMED, "topic_filter"),
    (V4, 0xB0, "0001 00", MALFORMED, "after the end"),
    (V5, 0xB0, "0001 00", PROTOCOL, "reason_codes"),
    (V5, 0xB0, "0001 00 01", PROTOCOL, "UNSUBACK reason_code"),
    (V5, 0xB0, "0000 00 00", PROTOCOL, "packet_id"),
)

SESSION: tuple[Line, ...] = (
    (V4, 0xC0, "00", MALFORMED, "PINGREQ"),
    (V5, 0xD0, "00", MALFORMED, "PINGRESP"),
    (V4, 0xE0, "00", MALFORMED, "after the end"),
    (V5, 0xE0, "01", PROTOCOL, "DISCONNECT reason_code"),
    (V5, 0xE0, "84", PROTOCOL, "DISCONNECT reason_code"),
    (V5, 0xE0, "00 00 00", MALFORMED, "after the end"),
    (V5, 0xE0, "00 03 21 0001", MALFORMED, "receive_maximum"),
    (V5, 0xF0, "80 00", PROTOCOL, "AUTH reason_code"),
    (V5, 0xF0, "18", MALFORMED, "property length"),
    (V5, 0xF0, "18 00", PROTOCOL, "authentication_method"),
    (V5, 0xF0, "00 03 16 0000", PROTOCOL, "authentication_method"),
)

LINES = FIXED_HEADER + CONNACK + PUBLISH + ACKNOWLEDGEMENTS + SUBSCRIBING + SESSION


@pytest.mark.mqtt(
    "MQTT-2.1.3-1",
    "MQTT-2.2.1-2",
    "MQTT-3.6.1-1",
    "MQTT-3.8.1-1",
    "MQTT-3.8.3-2",
    "MQTT-3.8.3-4",
    "MQTT-3.8.3-5",
    "MQTT-3.10.1-1",
    "MQTT-3.10.3-2",
    "MQTT-3.14.1-1",
    "MQTT-3.14.2-1",
    "MQTT-3.15.1-1",
    "MQTT-3.3.2-1",
    "3.1.1 MQTT-3.8.3-4",
)
@pytest.mark.parametrize(("version", "first_byte", "text", "reason_code", "words"), LINES)
def test_is_refused(version: int, first_byte: int, text: str, reason_code: ReasonCode, words: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(first_byte, bytes.fromhex(text), version)
    assert (caught.value.reason_code, words in caught.value.message) == (reason_code, True)
    assert caught.value.connack_version is None
