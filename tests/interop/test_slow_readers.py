"""Subscribers that read late, or little at a time, over real sockets: everything comes, whole and in order."""

import random
import socket
from collections.abc import Iterator

import pytest

from gateway.codec import decode, decode_varint, encode
from gateway.errors import ProtocolError
from gateway.packets import ConnAck, Connect, Packet, Publish, QoS, SubAck, Subscribe, SubscriptionRequest
from tests.conftest import TOGETHER_AND_APART, ServerFactory
from tests.interop.programs import TIMEOUT_S, PahoClient
from tests.server_process import PenstockServer
from tests.wire_client import acknowledgement

pytestmark = [pytest.mark.interop, TOGETHER_AND_APART]


class RawClient:
    """MQTT 5 on a blocking socket with a small receive buffer; reads only when told to."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
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


@pytest.fixture
def server(penstock_server: ServerFactory) -> PenstockServer:
    return penstock_server(flush="async", settings={"gateway.write_buffer_bytes": 100_000})


@pytest.mark.parametrize("qos", QoS)
def test_who_reads_late_gets_everything(server: PenstockServer, qos: QoS) -> None:
    readers = [RawClient(server.port, f"reader-{number}") for number in range(3)]
    for reader in readers:
        reader.subscribe("t", qos)
    rng = random.Random(qos)
    payloads = [b"%d " % i + bytes(rng.choice((10, 1_000, 100_000))) for i in range(300)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", payloads, max(qos, 1))
    publisher.leave()
    for reader in readers:
        assert reader.payloads(len(payloads)) == payloads
        reader.close()


def test_who_reads_little_at_a_time_gets_everything(server: PenstockServer) -> None:
    reader = RawClient(server.port, "reader")
    reader.subscribe("t", QoS.AT_MOST_ONCE)
    payloads = [b"%d " % i + bytes(i % 5_000) for i in range(400)]
    publisher = PahoClient(server.port).connect()
    publisher.publish("t", payloads, 0)
    publisher.leave()
    assert reader.payloads(len(payloads), most_bytes=997) == payloads
    reader.close()


def test_retained_messages_wait_for_a_slow_reader(server: PenstockServer) -> None:
    publisher = PahoClient(server.port).connect()
    kept = {b"%03d" % i + bytes(50_000) for i in range(100)}
    for payload in sorted(kept):
        publisher.client.publish(f"kept/{payload[:3].decode()}", payload, 1, retain=True)
    publisher.publish("end", [b""], 1)
    readers = [RawClient(server.port, f"reader-{number}") for number in range(5)]
    for reader, qos in zip(readers, (*QoS, *QoS), strict=False):
        reader.subscribe("kept/#", qos)
    publisher.publish("kept/000", [b"live"], 1)
    publisher.leave()
    for reader in readers:
        found = reader.payloads(101)
        assert set(found) == {*kept, b"live"}
        assert found[-1] == b"live"
        reader.close()
