"""The PROXY protocol's header: what is taken from it, and what is none."""

import socket
import struct

import pytest

from gateway.mqtt.errors import ProtocolError
from gateway.transport.proxy_protocol import MOST_BYTES, SIGNATURE, Peer, parse

TCP_4 = socket.inet_aton("192.0.2.7") + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 40_000, 1883)
TCP_6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "::1")
    + struct.pack("!HH", 40_001, 1883)
)


def header(command: int, family: int, rest: bytes, size: int | None = None) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest) if size is None else size) + rest


GOOD: list[tuple[bytes, Peer | None]] = [
    (header(0x21, 0x11, TCP_4), ("192.0.2.7", 40_000)),
    (header(0x21, 0x21, TCP_6), ("2001:db8::7", 40_001)),
    (header(0x21, 0x11, TCP_4 + b"\x04\x00\x03abc"), ("192.0.2.7", 40_000)),  # with an extension
    (header(0x21, 0x31, bytes(216)), None),
    (header(0x21, 0x00, b""), None),
    (header(0x20, 0x00, b""), None),  # the proxy looks whether somebody is here
    (header(0x20, 0x11, TCP_4), None),
    (header(0x21, 0x11, TCP_4 + bytes(MOST_BYTES - 28)), ("192.0.2.7", 40_000)),
]


@pytest.mark.parametrize(("data", "peer"), GOOD)
def test_proxy_header_names_the_client(data: bytes, peer: Peer | None) -> None:
    assert parse(data) == (len(data), peer)
    assert parse(data + b"\x10\x0c\0\4MQTT") == (len(data), peer)
    for size in range(len(data)) if len(data) < 300 else (1, 15, 16, 17, len(data) - 1):
        assert parse(data[:size]) is None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x10\x0c\0\4MQTT", "does not begin as one"),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 1883\r\n", "does not begin as one"),  # version 1
        (SIGNATURE[:-1] + b"\0", "does not begin as one"),
        (header(0x11, 0x11, TCP_4), "version and command 0x11"),
        (header(0x22, 0x11, TCP_4), "version and command 0x22"),
        (header(0x21, 0x12, TCP_4), "no stream"),
        (header(0x21, 0x41, TCP_4), "no stream"),
        (header(0x21, 0x11, TCP_4[:-1]), "shorter than its addresses"),
        (header(0x21, 0x21, TCP_4), "shorter than its addresses"),
        (header(0x21, 0x11, b"", 0xFFFF), "longer than 4096 bytes"),
        (header(0x21, 0x11, TCP_4, MOST_BYTES - 15), "longer than 4096 bytes"),
    ],
)
def test_proxy_header_that_is_invalid_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        parse(data)
