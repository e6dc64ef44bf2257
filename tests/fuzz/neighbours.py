"""Well-behaved clients beside the fuzzer: what they publish must arrive once, in order, and soon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    QoS,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from gateway.mqtt.properties import Properties

LATE_S = 20
PAUSE_S = 0.02


class Disturbed(AssertionError):
    """A neighbour saw something that it should not have."""


async def packets(reader: asyncio.StreamReader, version: int) -> AsyncIterator[Packet]:
    """What the server sends, until it closes the connection. Raises ProtocolError."""
    data = bytearray()
    while chunk := await reader.read(65_536):
        data += chunk
        while len(data) >= 2:
            try:
                size, start = decode_varint(bytes(data[1:5]), 0)
            except ProtocolError:
                if len(data) >= 5:
                    raise
                break
            start += 1
            if len(data) < start + size:
                break
            yield decode(data[0], bytes(data[start : start + size]), version)
            del data[: start + size]


class Neighbour:
    """Publishes to itself, one message after another, of one QoS."""

    def __init__(self, port: int, qos: int) -> None:
        self.name = f"neighbour-{qos}"
        self.received = 0
        self.slowest_s = 0.0
        self._port = port
        self._qos = qos

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises Disturbed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        incoming = packets(reader, 5)
        topic = f"{self.name}/own"
        writer.write(encode(Connect(self.name, 5, keep_alive_s=5, properties=Properties(receive_maximum=10)), 5))
        await self._expect(incoming, ConnAck)
        writer.write(encode(Subscribe(1, (SubscriptionRequest(topic, QoS(self._qos)),)), 5))
        await self._expect(incoming, SubAck)
        while not stop.is_set():
            started_s = time.monotonic()
            await self._one_message(incoming, writer, topic)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
            await asyncio.sleep(PAUSE_S)
        writer.close()

    async def _one_message(self, incoming: AsyncIterator[Packet], writer: asyncio.StreamWriter, topic: str) -> None:
        payload = b"%d" % self.received
        writer.write(encode(Publish(topic, payload, QoS(self._qos), packet_id=1 if self._qos else None), 5))
        missing: list[type[Packet]] = [Publish, *((), (PubAck,), (PubRec, PubComp, PubRel))[self._qos]]
        while missing:
            packet = await self._next(incoming)
            if type(packet) not in missing:
                raise Disturbed(f"{self.name}: {packet} came, and {missing} is missing")
            missing.remove(type(packet))
            self._answer(packet, payload, writer)
        self.received += 1

    def _answer(self, packet: Packet, payload: bytes, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Publish):
            if packet.payload != payload or packet.dup or packet.qos != self._qos:
                raise Disturbed(f"{self.name}: {packet} in place of {payload!r}")
            if self._qos:
                ack = PubAck if self._qos == 1 else PubRec
                writer.write(encode(ack(packet.packet_id or 0), 5))
        elif isinstance(packet, PubRec):
            writer.write(encode(PubRel(packet.packet_id), 5))
        elif isinstance(packet, PubRel):
            writer.write(encode(PubComp(packet.packet_id), 5))

    async def _expect(self, incoming: AsyncIterator[Packet], kind: type[Packet]) -> None:
        packet = await self._next(incoming)
        if not isinstance(packet, kind):
            raise Disturbed(f"{self.name}: {packet} in place of {kind.__name__}")

    async def _next(self, incoming: AsyncIterator[Packet]) -> Packet:
        try:
            return await asyncio.wait_for(anext(incoming), LATE_S)
        except StopAsyncIteration:
            raise Disturbed(f"{self.name}: the server hung up") from None
        except TimeoutError:
            raise Disturbed(f"{self.name}: nothing came for {LATE_S} s") from None
