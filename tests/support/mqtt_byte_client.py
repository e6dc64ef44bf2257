"""A client that says and hears bytes, so that a test of the protocol trusts no codec of ours."""

from __future__ import annotations

import socket
from contextlib import suppress

TIMEOUT_S = 10
PINGREQ, PINGRESP = b"\xc0\0", (0xD0, b"")


def text(value: bytes) -> bytes:
    """A string, or binary data, as it stands in a packet."""
    return len(value).to_bytes(2, "big") + value


def packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size, length = len(body), bytearray()
    while True:
        length.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return bytes((first_byte,)) + bytes(length) + body


def block(*properties: bytes) -> bytes:
    """Properties with their length, which must be below 128."""
    data = b"".join(properties)
    assert len(data) < 128
    return bytes((len(data),)) + data


def connect(
    client_id: bytes = b"",
    version: int = 5,
    flags: int = 2,
    properties: bytes = b"",
    payload: bytes = b"",
    keep_alive_s: int = 60,
) -> bytes:
    """`payload`: what comes behind the client identifier."""
    head = b"\0\4MQTT" + bytes((version, flags)) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, head, block(properties) if version == 5 else b"", text(client_id), payload)


def publish(
    topic: bytes, payload: bytes = b"", qos: int = 0, packet_id: int = 1, flags: int = 0, properties: bytes | None = b""
) -> bytes:
    """`properties`: None for MQTT 3.1.1."""
    head = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"")
    return packet(0x30 | qos << 1 | flags, head, b"" if properties is None else block(properties), payload)


def subscribe(topic_filter: bytes, options: int = 0, packet_id: int = 1, properties: bytes | None = b"") -> bytes:
    head = packet_id.to_bytes(2, "big") + (b"" if properties is None else block(properties))
    return packet(0x82, head, text(topic_filter), bytes((options,)))


class ByteClient:
    """One connection; everything it reads it reads to the end of a packet."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = bytearray()

    def send(self, *packets: bytes) -> None:
        self._socket.sendall(b"".join(packets))

    def fileno(self) -> int:
        return self._socket.fileno()

    def take(self) -> tuple[int, bytes]:
        """(first byte, body) of the next packet."""
        while (found := self._whole()) is None:
            data = self._socket.recv(65_536)
            assert data, "the server hung up"
            self._data += data
        return found

    def _whole(self) -> tuple[int, bytes] | None:
        size = shift = 0
        for at in range(1, 5):
            if at >= len(self._data):
                return None
            size |= (self._data[at] & 127) << shift
            shift += 7
            if not self._data[at] & 128:
                if len(self._data) < at + 1 + size:
                    return None
                found = self._data[0], bytes(self._data[at + 1 : at + 1 + size])
                del self._data[: at + 1 + size]
                return found
        raise AssertionError("a remaining length of more than four bytes")

    def until_pong(self) -> list[tuple[int, bytes]]:
        """What comes before the answer to a PINGREQ: all that the server had to say so far."""
        self.send(PINGREQ)
        found = []
        while (each := self.take()) != PINGRESP:
            found.append(each)
        return found

    def until_closed(self) -> list[tuple[int, bytes]]:
        """What comes before the server closes the connection, as it must."""
        found = []
        with suppress(ConnectionResetError):
            while data := self._socket.recv(65_536):
                self._data += data
        while (each := self._whole()) is not None:
            found.append(each)
        assert not self._data, "cut off in a packet"
        return found

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


def connected(
    port: int, client_id: bytes = b"", version: int = 5, flags: int = 2, properties: bytes = b""
) -> ByteClient:
    """A client that was accepted."""
    client = ByteClient(port)
    client.send(connect(client_id, version, flags, properties))
    first_byte, body = client.take()
    assert (first_byte, body[1]) == (0x20, 0), body
    return client
