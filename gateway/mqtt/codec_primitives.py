"""MQTT's data types as bytes (MQTT 5.0, 1.5): integers, UTF-8 strings, binary data.

Every function takes the name of its field, for error messages.
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from gateway.mqtt.errors import MalformedPacket, ProtocolError
from gateway.mqtt.reason_codes import ReasonCode

Buffer = bytes | memoryview

MAX_VARINT: Final = 268_435_455
_MAX_VARINT_BYTES: Final = 4
_CONTINUATION: Final = 0x80
_SEVEN_BITS: Final = 0x7F
_MAX_UINT16: Final = 0xFFFF
_NOT_FOUND: Final = -1


class Limits(NamedTuple):
    """Limits of the elements in one packet: settings of the gateway. Both checks raise QUOTA_EXCEEDED."""

    max_user_properties: int = sys.maxsize
    max_filters_per_packet: int = sys.maxsize

    def check_properties(self, count: int) -> None:
        """Check the number of values of one property."""
        if count > self.max_user_properties:
            raise _too_many("max_user_properties", self.max_user_properties)

    def check_filters(self, count: int) -> None:
        """Check the number of topic filters, or of the reason codes that answer them."""
        if count > self.max_filters_per_packet:
            raise _too_many("max_filters_per_packet", self.max_filters_per_packet)


def _too_many(setting: str, most: int) -> ProtocolError:
    return ProtocolError(ReasonCode.QUOTA_EXCEEDED, f"packet brings more than gateway.{setting} = {most} allows")


NO_LIMITS: Final = Limits()


def decode_varint(data: Buffer, pos: int, field: str = "variable byte integer") -> tuple[int, int]:
    """The variable byte integer at `pos`, and the position after it (MQTT 5.0, 1.5.5)."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if pos + index >= len(data):
            raise MalformedPacket(f"{field}: truncated")
        byte = data[pos + index]
        value |= (byte & _SEVEN_BITS) << (7 * index)
        if not byte & _CONTINUATION:
            if byte == 0 and index > 0:
                raise MalformedPacket(f"{field}: not minimally encoded [MQTT-1.5.5-1]")
            return value, pos + index + 1
    raise MalformedPacket(f"{field}: longer than {_MAX_VARINT_BYTES} bytes")


def encode_varint(value: int, field: str = "variable byte integer") -> bytes:
    if not 0 <= value <= MAX_VARINT:
        raise MalformedPacket(f"{field}: {value} is not between 0 and {MAX_VARINT}")
    encoded = bytearray()
    while value > _SEVEN_BITS:
        encoded.append(value & _SEVEN_BITS | _CONTINUATION)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_uint8(value: int, field: str) -> bytes:
    return _encode_uint(value, 1, field)


def encode_uint16(value: int, field: str) -> bytes:
    return _encode_uint(value, 2, field)


def encode_uint32(value: int, field: str) -> bytes:
    return _encode_uint(value, 4, field)


def encode_string(text: str, field: str) -> bytes:
    if "\0" in text:
        raise MalformedPacket(f"{field}: contains U+0000 [MQTT-1.5.4-2]")
    try:
        return encode_binary(text.encode(), field)
    except UnicodeEncodeError:
        raise MalformedPacket(f"{field}: contains a surrogate [MQTT-1.5.4-1]") from None


def encode_string_pair(pair: tuple[str, str], field: str) -> bytes:
    name, value = pair
    return encode_string(name, f"{field} name") + encode_string(value, f"{field} value")


def encode_binary(data: bytes, field: str) -> bytes:
    if len(data) > _MAX_UINT16:
        raise MalformedPacket(f"{field}: has {len(data)} bytes, more than {_MAX_UINT16}")
    return len(data).to_bytes(2, "big") + data


def _encode_uint(value: int, size_bytes: int, field: str) -> bytes:
    try:
        return value.to_bytes(size_bytes, "big")
    except OverflowError:
        raise MalformedPacket(f"{field}: {value} does not fit in {size_bytes} bytes") from None


class FieldReader:
    """Reads fields one after another, never past its end; its errors begin with its label."""

    __slots__ = ("_data", "label", "limits", "pos")

    def __init__(self, data: Buffer, label: str, pos: int = 0, limits: Limits = NO_LIMITS) -> None:
        self._data = memoryview(data)
        self.label = label
        self.limits = limits
        self.pos = pos

    def at_end(self) -> bool:
        return self.pos >= len(self._data)

    def section(self, size_bytes: int, field: str) -> FieldReader:
        """A reader of the next `size_bytes` only; this one goes on after them."""
        return FieldReader(self._take(size_bytes, field), self.label, 0, self.limits)

    def rest(self) -> bytes:
        return bytes(self._take(len(self._data) - self.pos, "rest"))

    def expect_end(self) -> None:
        if not self.at_end():
            surplus = len(self._data) - self.pos
            raise MalformedPacket(f"{self.label}: {surplus} bytes after the end of the packet")

    def uint8(self, field: str) -> int:
        pos = self.pos
        if pos >= len(self._data):
            raise MalformedPacket(f"{self.label} {field}: truncated")
        self.pos = pos + 1
        return self._data[pos]

    def uint16(self, field: str) -> int:
        data, pos = self._data, self.pos
        if pos + 2 > len(data):
            raise MalformedPacket(f"{self.label} {field}: truncated")
        self.pos = pos + 2
        return data[pos] << 8 | data[pos + 1]

    def uint32(self, field: str) -> int:
        return int.from_bytes(self._take(4, field), "big")

    def varint(self, field: str) -> int:
        data, pos = self._data, self.pos
        if pos < len(data) and data[pos] < _CONTINUATION:
            self.pos = pos + 1
            return data[pos]
        value, self.pos = decode_varint(data, pos, f"{self.label} {field}")
        return value

    def string(self, field: str, part: str = "") -> str:
        """`part` is the second half of the field's name; the halves are joined only for an error."""
        data, start = self._data, self.pos + 2
        end = start + (data[start - 2] << 8 | data[start - 1]) if start <= len(data) else _NOT_FOUND
        if not start <= end <= len(data):
            raise MalformedPacket(f"{self.label} {field}{part}: truncated")
        self.pos = end
        try:
            text = str(data[start:end], "utf-8")
        except UnicodeDecodeError:
            raise MalformedPacket(f"{self.label} {field}{part}: not UTF-8 [MQTT-1.5.4-1]") from None
        if "\0" in text:
            raise MalformedPacket(f"{self.label} {field}{part}: contains U+0000 [MQTT-1.5.4-2]")
        return text

    def string_pair(self, field: str) -> tuple[str, str]:
        return self.string(field, " name"), self.string(field, " value")

    def binary(self, field: str) -> bytes:
        return bytes(self._take(self.uint16(field), field))

    def _take(self, size_bytes: int, field: str) -> memoryview:
        end = self.pos + size_bytes
        if end > len(self._data):
            raise MalformedPacket(f"{self.label} {field}: truncated")
        taken = self._data[self.pos : end]
        self.pos = end
        return taken
