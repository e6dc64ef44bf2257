"""A client for tests that reads from its socket only when it is told to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import ConnAck, Connect, Packet, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from tests.interop.programs import TIMEOUT_S
from tests.support.mqtt_bench import acknowledgement


class RawClient:
    """MQTT 5 on a blocking socket with a small receive buffer; reads only when told to."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(("127.0.0.1", port))
        self._data = bytearray()
        self.send(Connect(name))
        assert isinstance(next(self.packets()), ConnAck)

    def send(self, packet: Packet) -> None:
        self._socket.sendall(encode(packet, 5))

    def subscribe(self, topic_filter: str, qos: QoS) -> None:
        self.send(Subscribe(1, (SubscriptionRequest(topic_filter, qos),)))
        assert isinstance(next(self.packets()), SubAck)

    def packets(self, most_bytes: int = 65_536) -> Iterator[Packet]:
        while True:
            packet = self._take()
            if packet is not None:
                yield packet
                continue
            data = self._socket.recv(most_bytes)
            assert data, "the server hung up"
            self._data += data

    def _take(self) -> Packet | None:
        try:
            size, start = decode_varint(bytes(self._data[:5]), 1)
        except ProtocolError:
            return None
        if start + size > len(self._data):
            return None
        packet = decode(self._data[0], bytes(self._data[start : start + size]), 5)
        del self._data[: start + size]
        return packet

    def payloads(self, count: int, most_bytes: int = 65_536) -> list[bytes]:
        """Read, and answer, until that many messages have come."""
        found: list[bytes] = []
        for packet in self.packets(most_bytes):
            if isinstance(packet, Publish):
                found.append(packet.payload)
            if answer := acknowledgement(packet):
                self.send(answer)
            if len(found) == count:
                break
        return found

    def close(self) -> None:
        self._socket.close()
