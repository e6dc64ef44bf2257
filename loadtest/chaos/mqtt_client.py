"""A plain MQTT connection on asyncio streams: sends and receives packets. The caller follows MQTT's rules."""

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from gateway.mqtt.codec import decode, decode_varint, encode
from gateway.mqtt.errors import MalformedPacket
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
from loadtest.errors import LoadTestError

ANSWER_TIMEOUT_S = 20
# A connection from 127.0.0.1 to a dead server's port may, once in 28,000 times, connect a socket to itself.
SOURCE_ADDRESS = ("127.0.0.2", 0)

Answer = TypeVar("Answer")


class MqttConnection:
    """One network connection. Reading raises ConnectionError once the other side is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.version = version
        self._reader = reader
        self._writer = writer
        self._unread = b""
        self._waiting: list[Packet] = []
        self.abandoned = False

    @classmethod
    async def open(
        cls, port: int, connect: Connect, patience_s: float = ANSWER_TIMEOUT_S
    ) -> tuple["MqttConnection", ConnAck]:
        """Connect, and wait for the CONNACK. Raises TimeoutError if either takes too long."""
        async with asyncio.timeout(patience_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=SOURCE_ADDRESS)
        connection = cls(reader, writer, connect.protocol_version)
        try:
            connection.send(connect)
            return connection, await connection.receive(ConnAck, patience_s)
        except BaseException:
            connection.cut()
            raise

    def send(self, *packets: Packet) -> None:
        if not self._writer.is_closing() and not self.abandoned:
            self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def packets(self) -> list[Packet]:
        """At least one packet, and all that came with it."""
        found, self._waiting = self._waiting, []
        while not found:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._unread += data
            found = self._split()
        return found

    async def receive(self, kind: type[Answer], patience_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """The next packet of a kind; packets before it are kept for later."""
        passed: list[Packet] = []
        async with asyncio.timeout(patience_s):
            while True:
                found = await self.packets()
                for i, packet in enumerate(found):
                    if isinstance(packet, kind):
                        self._waiting = passed + found[:i] + found[i + 1 :]
                        return packet
                passed += found

    async def publish(self, publish: Publish) -> None:
        """Publish at QoS 1, and wait for the PUBACK."""
        self.send(publish)
        answer = await self.receive(PubAck)
        if (answer.packet_id, answer.reason_code < 0x80) != (publish.packet_id, True):
            raise LoadTestError(f"{publish} was answered by {answer}")

    async def publish_once(self, publish: Publish) -> None:
        """Publish at QoS 2, with all four steps."""
        self.send(publish)
        received = await self.receive(PubRec)
        self.send(PubRel(received.packet_id))
        completed = await self.receive(PubComp)
        if (received.packet_id, received.reason_code, completed.reason_code) != (publish.packet_id, 0, 0):
            raise LoadTestError(f"{publish} was answered by {received} and {completed}")

    async def subscribe(self, packet_id: int, topic_filter: str, qos: QoS) -> None:
        self.send(Subscribe(packet_id, (SubscriptionRequest(topic_filter, qos),)))
        granted = [*map(int, (await self.receive(SubAck)).reason_codes)]
        if granted != [qos]:
            raise LoadTestError(f"{topic_filter} at QoS {qos} was answered by {granted}")

    async def take(self) -> Publish:
        """The next message at QoS 0 or 1, acknowledged."""
        publish = await self.receive(Publish)
        if publish.packet_id is not None:
            self.send(PubAck(publish.packet_id))
        return publish

    async def ended(self) -> None:
        """Wait until the server has closed the connection; a reset counts as well."""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                while await self._reader.read(1 << 16):
                    pass

    def cut(self) -> None:
        """Abort the network connection, as a lost link would."""
        self._writer.transport.abort()

    def abandon(self) -> None:
        """Stop reading, but leave the connection open: for the server the client is still there."""
        self.abandoned = True
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]
        self._reader.feed_eof()

    async def __aenter__(self) -> "MqttConnection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.abandoned:
            self.cut()

    def _split(self) -> list[Packet]:
        packets: list[Packet] = []
        at = 0
        while at + 2 <= len(self._unread):
            try:
                remaining, body_at = decode_varint(self._unread, at + 1)
            except MalformedPacket:  # the length is incomplete
                break
            end = body_at + remaining
            if end > len(self._unread):
                break
            packets.append(decode(self._unread[at], self._unread[body_at:end], self.version))
            at = end
        self._unread = self._unread[at:]
        return packets


def persistent(client_id: str, *, version: int = 5, receive_maximum: int | None = None) -> Connect:
    """CONNECT of a client with a session for an hour and no keep alive."""
    properties = Properties(session_expiry_interval=3600, receive_maximum=receive_maximum)
    properties = properties if version == 5 else Properties()
    return Connect(client_id, version, clean_start=False, keep_alive_s=0, properties=properties)
