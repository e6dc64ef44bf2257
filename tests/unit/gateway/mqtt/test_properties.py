"""The property table: each property in each packet, its values, and how often it may occur."""

from dataclasses import fields
from typing import Any

import pytest

from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.properties import (
    PROPERTY_SPECS,
    PacketContext,
    Properties,
    decode_properties,
    encode_properties,
    encode_property_block,
)
from gateway.mqtt.reason_codes import ReasonCode
from tests.support.mqtt_properties import TABLE

EVERY_PLACE = [
    (field, value, bytes.fromhex(text), context, context.name in packets.split())
    for field, value, text, packets in TABLE
    for context in PacketContext
]


def block(data: bytes) -> bytes:
    assert len(data) < 128
    return bytes((len(data),)) + data


def test_the_table_is_complete() -> None:
    names = [field.name for field in fields(Properties)]
    assert [spec.field for spec in PROPERTY_SPECS] == names == [line[0] for line in TABLE]


@pytest.mark.parametrize(("field", "value", "data", "context", "allowed"), EVERY_PLACE)
def test_each_property_in_each_packet(
    field: str, value: Any, data: bytes, context: PacketContext, allowed: bool
) -> None:
    if not allowed:
        with pytest.raises(MalformedPacket, match=f"{context.name} {field}: not allowed"):
            decode_properties(block(data), 0, context)
        return
    expected = Properties(**{field: value})
    assert decode_properties(block(data), 0, context) == (expected, len(data) + 1)
    assert encode_properties(expected) == data
    assert encode_property_block(expected) == block(data)


@pytest.mark.parametrize(("field", "value", "text", "_packets"), TABLE)
def test_each_property_twice(field: str, value: Any, text: str, _packets: str) -> None:
    spec = next(spec for spec in PROPERTY_SPECS if spec.field == field)
    data = block(bytes.fromhex(text) * 2)
    for context in sorted(spec.packets):
        if context in spec.may_repeat_in:
            props, _ = decode_properties(data, 0, context)
            assert getattr(props, field) == value * 2
            assert encode_property_block(props) == data
        else:
            with pytest.raises(ProtocolError, match=f"{context.name} {field}") as caught:
                decode_properties(data, 0, context)
            assert caught.value.reason_code is ReasonCode.PROTOCOL_ERROR


def test_only_user_properties_and_a_publish_repeat() -> None:
    assert {spec.field: set(spec.may_repeat_in) for spec in PROPERTY_SPECS if spec.is_tuple} == {
        "subscription_identifiers": {PacketContext.PUBLISH},
        "user_properties": set(PacketContext),
    }


BAD_VALUES = (
    ("01 02", PacketContext.PUBLISH, ReasonCode.PROTOCOL_ERROR, "payload_format_indicator"),
    ("08 0000", PacketContext.PUBLISH, ReasonCode.TOPIC_NAME_INVALID, "response_topic"),
    ("08 0001 2b", PacketContext.WILL, ReasonCode.TOPIC_NAME_INVALID, r"response_topic: .*\[MQTT-3.3.2-14\]"),
    ("0b 00", PacketContext.SUBSCRIBE, ReasonCode.PROTOCOL_ERROR, "subscription_identifiers"),
    ("0b 8000", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "subscription_identifiers"),
    ("0b ffffffff01", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "subscription_id"),
    ("17 02", PacketContext.CONNECT, ReasonCode.PROTOCOL_ERROR, "request_problem_information"),
    ("19 ff", PacketContext.CONNECT, ReasonCode.PROTOCOL_ERROR, "request_response_information"),
    ("21 0000", PacketContext.CONNECT, ReasonCode.PROTOCOL_ERROR, "receive_maximum"),
    ("23 0000", PacketContext.PUBLISH, ReasonCode.TOPIC_ALIAS_INVALID, "topic_alias"),
    ("24 02", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "maximum_qos"),
    ("25 02", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "retain_available"),
    ("27 00000000", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "maximum_packet_size"),
    ("28 02", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "wildcard_subscription"),
    ("29 02", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "subscription_identifier_av"),
    ("2a 02", PacketContext.CONNACK, ReasonCode.PROTOCOL_ERROR, "shared_subscription"),
    ("03 0001 00", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "content_type"),
    ("03 0003 eda080", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "content_type"),
    ("26 0001 ff 0000", PacketContext.AUTH, ReasonCode.MALFORMED_PACKET, "user_properties name"),
    ("26 0001 61", PacketContext.AUTH, ReasonCode.MALFORMED_PACKET, "user_properties value"),
    ("09 0002 00", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "correlation_data"),
    ("02 000000", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "message_expiry_interval"),
    ("00", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "unknown property"),
    ("2b 00", PacketContext.CONNACK, ReasonCode.MALFORMED_PACKET, "unknown property"),
    ("8101 00", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "unknown property"),
    ("8100 00", PacketContext.PUBLISH, ReasonCode.MALFORMED_PACKET, "property identifier"),
)


@pytest.mark.mqtt("MQTT-3.3.2-8", "MQTT-3.3.2-14")
@pytest.mark.parametrize(("text", "context", "reason_code", "words"), BAD_VALUES)
def test_values_that_are_refused(text: str, context: PacketContext, reason_code: ReasonCode, words: str) -> None:
    # The bytes that follow must not be taken for the rest of a value that is cut short.
    data = block(bytes.fromhex(text)) + bytes(16)
    with pytest.raises(ProtocolError, match=words) as caught:
        decode_properties(data, 0, context)
    assert caught.value.reason_code is reason_code
    assert caught.value.message.startswith(context.name)


@pytest.mark.parametrize(
    ("props", "words"),
    [
        (Properties(receive_maximum=0), "receive_maximum"),
        (Properties(receive_maximum=65_536), "receive_maximum"),
        (Properties(session_expiry_interval=-1), "session_expiry_interval"),
        (Properties(topic_alias=0), "topic_alias"),
        (Properties(maximum_qos=2), "maximum_qos"),
        (Properties(subscription_identifiers=(0,)), "subscription_identifiers"),
        (Properties(subscription_identifiers=(268_435_456,)), "subscription_identifiers"),
        (Properties(content_type="\0"), "content_type"),
        (Properties(content_type="\ud800"), "content_type"),
        (Properties(reason_string="x" * 65_536), "reason_string"),
        (Properties(correlation_data=bytes(65_536)), "correlation_data"),
        (Properties(response_topic="a/#"), "response_topic"),
        (Properties(user_properties=(("k", "\0"),)), "user_properties value"),
        (Properties(retain_available=2), "retain_available"),  # type: ignore[arg-type]
    ],
)
def test_values_that_are_not_encoded(props: Properties, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        encode_properties(props)


def test_a_block_in_the_middle_of_a_packet() -> None:
    data = bytes.fromhex("ffff 03 21 0005 ffff")
    props, pos = decode_properties(memoryview(data), 2, PacketContext.CONNECT)
    assert (props, pos) == (Properties(receive_maximum=5), 6)


@pytest.mark.mqtt("MQTT-2.2.2-1")
def test_an_empty_block() -> None:
    assert decode_properties(b"\x00", 0, PacketContext.CONNECT) == (Properties(), 1)
    assert encode_properties(Properties()) == b""
    assert encode_property_block(Properties()) == b"\x00"


@pytest.mark.parametrize("text", ["", "04 21 0005", "8000", "ffffffff"])
def test_a_block_whose_length_is_wrong(text: str) -> None:
    with pytest.raises(MalformedPacket, match="propert"):
        decode_properties(bytes.fromhex(text), 0, PacketContext.CONNECT)
