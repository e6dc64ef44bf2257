"""The rules of the codec for any bytes."""

from __future__ import annotations

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Connect


def check(data: bytes) -> None:
    """They are a packet, which comes back, or a ProtocolError. The version, the first byte, the body: see codec.py."""
    if len(data) < 2:
        return
    version = 4 + (data[0] & 1)
    try:
        packet = decode(data[1], data[2:], version)
    except ProtocolError:
        return
    if isinstance(packet, Connect):
        version = packet.protocol_version
    again = encode(packet, version)
    size, start = decode_varint(again, 1)
    assert start + size == len(again)
    assert decode(again[0], again[start:], version) == packet
