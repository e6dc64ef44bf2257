"""Variable byte integers, and strings at the edges of what UTF-8 and MQTT allow."""

import pytest

from gateway.mqtt.codec import decode, decode_varint, encode, encode_varint
from gateway.mqtt.errors import MalformedPacket
from gateway.mqtt.packets import Publish

# MQTT 5.0, table 1-1: the ends of each length.
VARINTS = (
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2_097_151, "ffff7f"),
    (2_097_152, "80808001"),
    (268_435_455, "ffffff7f"),
)


@pytest.mark.parametrize(("value", "text"), VARINTS)
def test_varint(value: int, text: str) -> None:
    assert encode_varint(value).hex() == text
    data = bytes.fromhex(f"aa {text} bb")
    assert decode_varint(data, 1) == (value, len(data) - 1)
    assert decode_varint(memoryview(data), 1) == (value, len(data) - 1)


@pytest.mark.mqtt("MQTT-1.5.5-1")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("80", "truncated"),
        ("ffffff", "truncated"),
        ("8000", "minimally"),
        ("ffff00", "minimally"),
        ("80808000", "minimally"),
        ("ffffffff", "longer than 4 bytes"),
        ("8080808001", "longer than 4 bytes"),
    ],
)
def test_varint_that_is_malformed(text: str, words: str) -> None:
    with pytest.raises(MalformedPacket, match=words):
        decode_varint(bytes.fromhex(text), 0)


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_varint_out_of_range(value: int) -> None:
    with pytest.raises(MalformedPacket, match="between 0 and 268435455"):
        encode_varint(value)


@pytest.mark.mqtt("MQTT-1.5.4-3")
@pytest.mark.parametrize(
    "topic_name",
    ["\ufeffbom", "\x01\x1f", "\uffff", "😀", "a" * 65_535, " ", "/", "$SYS/x"],
)
def test_strings_that_are_allowed(topic_name: str) -> None:
    """A BOM stays [MQTT-1.5.4-3]; control and non-characters are only advised against (1.5.4)."""
    data = encode(Publish(topic_name), 4)
    body = data[len(data) - len(topic_name.encode()) - 2 :]
    assert decode(data[0], body, 4) == Publish(topic_name)


@pytest.mark.mqtt("MQTT-1.5.4-1", "MQTT-1.5.4-2")
@pytest.mark.parametrize(
    "text",
    ["80", "c3", "c080", "eda080", "edbfbf", "f4908080", "f8888080 80", "61 00 62"],
)
def test_strings_that_are_malformed(text: str) -> None:
    encoded = bytes.fromhex(text)
    with pytest.raises(MalformedPacket, match="PUBLISH topic_name"):
        decode(0x30, len(encoded).to_bytes(2, "big") + encoded, 4)
