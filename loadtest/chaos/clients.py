"""Clients that follow the rules of MQTT in any fault: publishers and subscribers with sessions.

Each reconnects whenever its connection ends, keeps its half of the session (MQTT 5, 4.1 and 4.3), and records what it
sent and received in a ledger.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.mqtt.packets import (
    Disconnect,
    Packet,
    PingReq,
    PingResp,
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
from gateway.mqtt.reason_codes import ReasonCode
from loadtest.chaos.ledger import Ledger, SentMessage
from loadtest.chaos.mqtt_client import ANSWER_TIMEOUT_S, MqttConnection, persistent

RECONNECT_S = 0.01
PADDING_BYTES = (0, 0, 0, 40, 300, 9_000)
SUBSCRIBE_ID = 1
FAREWELLS = frozenset((ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.USE_ANOTHER_SERVER))
REFUSALS = frozenset((ReasonCode.SERVER_UNAVAILABLE, ReasonCode.USE_ANOTHER_SERVER))


class Server(Protocol):
    """A server, or several servers of which any will do."""

    @property
    def port(self) -> int: ...

    def restart(self) -> None: ...


@dataclass(frozen=True)
class ChaosSession:
    """Whose session it is, on which server, what it saw, its random choices, and its version of MQTT (4 or 5)."""

    client_id: str
    server: Server
    ledger: Ledger
    rng: random.Random
    version: int = 5


class ChaosClient:
    """One session. `run` goes on until the task is cancelled; clear `online` to keep the client away."""

    def __init__(self, session: ChaosSession) -> None:
        self.client_id = session.client_id
        self.ledger = session.ledger
        self.rng = session.rng
        self.online = asyncio.Event()
        self.online.set()
        self.accepted_farewells = FAREWELLS
        self.accepted_refusals = REFUSALS
        self.patience_s: float | None = None  # pings after so much silence, and reconnects after as much again
        self.pause_s = RECONNECT_S
        self.known = False  # the server has confirmed that it has the session
        self.lives = 0
        self.farewells: list[ReasonCode] = []
        self.connection: MqttConnection | None = None
        self.port = 0  # of the current or last connection
        self._abandoned: list[MqttConnection] = []
        self._server = session.server
        most = self.rng.choice((5, 40, 200))
        self._connect = persistent(self.client_id, version=session.version, receive_maximum=most)

    def keep_session(self, seconds: int) -> None:
        """Set the session expiry interval from the next connection on; MQTT 3.1.1 keeps the session anyhow."""
        if self._connect.protocol_version == 5:
            self._connect.properties.session_expiry_interval = seconds

    async def run(self) -> None:
        while True:
            await self.online.wait()
            try:
                await self._connected()
            except TimeoutError as error:
                if self.patience_s is None:
                    self.fault(f"no answer: {error}")
            except (OSError, EOFError):
                await asyncio.sleep(self.pause_s)

    async def _connected(self) -> None:
        port = self._server.port
        connection, connack = await MqttConnection.open(port, self._connect, self.patience_s or ANSWER_TIMEOUT_S)
        self.close_abandoned()
        async with connection:
            self.port = port
            if connack.reason_code in self.accepted_refusals:
                raise ConnectionResetError("the server has no store, or was given up by it")
            if connack.reason_code != ReasonCode.SUCCESS:
                self.fault(f"refused: {connack.reason_code.name}")
            if self.known and not connack.session_present:
                self.fault("the session is gone")
            self.known = True
            self.ledger.on_connected(self.client_id)
            self.lives += 1
            self.connection = connection
            try:
                await self.live(connection)
            finally:
                self.connection = None

    async def live(self, connection: MqttConnection) -> None:
        raise NotImplementedError

    async def packets(self, connection: MqttConnection) -> list[Packet]:
        """The packets received, at least one. Raises ConnectionResetError if a ping is not answered."""
        if self.patience_s is None:
            return await connection.packets()
        asked = False
        found: list[Packet]
        while True:
            try:
                async with asyncio.timeout(self.patience_s):
                    found = await connection.packets()
            except TimeoutError:
                if asked:
                    raise ConnectionResetError("the server says nothing") from None
                connection.send(PingReq())
                asked = True
            else:
                asked = False
                found = [packet for packet in found if not isinstance(packet, PingResp)]
                if found:
                    return found

    def check_farewell(self, packet: Packet) -> None:
        """Handle the DISCONNECT of a server that is stopped or has lost its store."""
        if isinstance(packet, Disconnect) and packet.reason_code in self.accepted_farewells:
            self.farewells.append(packet.reason_code)
            raise ConnectionResetError("the server is shutting down")

    def cut(self) -> None:
        """Abort the connection, if there is one."""
        if self.connection is not None:
            self.connection.cut()

    def move(self) -> None:
        """Connect again while the server still considers the old connection alive."""
        if self.connection is not None and not self.connection.abandoned:
            self.connection.abandon()
            self._abandoned.append(self.connection)

    def close_abandoned(self) -> None:
        for connection in self._abandoned:
            connection.cut()
        self._abandoned.clear()

    def go_offline(self) -> None:
        self.online.clear()
        self.cut()

    def fault(self, text: str) -> None:
        self.ledger.faults.append(f"{self.client_id} (life {self.lives}): {text}")


@dataclass
class InFlight:
    """A message that is not acknowledged yet; `received`: the publisher has its PUBREC."""

    message: SentMessage
    padding: int
    dup: bool = False
    received: bool = False


class ChaosPublisher(ChaosClient):
    """Publishes to its topics in turn, with up to `window` unacknowledged messages, while `budget` lasts."""

    def __init__(self, session: ChaosSession, topics: Sequence[tuple[str, int]]) -> None:
        super().__init__(session)
        self.topics = topics
        self.budget = 0
        self.retain = False
        self.expires = False  # each third message has a message expiry interval of 1 s
        self.may_be_refused = False
        self.inflight: dict[int, InFlight] = {}  # in the order of sending
        self.acknowledged = 0
        self._window = self.rng.choice((1, 8, 30))
        self._sequence = 0
        self._next_id = 1

    @property
    def idle(self) -> bool:
        return not self.budget and not self.inflight

    def allow(self, messages: int) -> None:
        """Publish so many more messages."""
        self.budget += messages
        if self.connection is not None:
            self._fill(self.connection)

    async def live(self, connection: MqttConnection) -> None:
        for packet_id, entry in self.inflight.items():
            connection.send(self._packet(packet_id, entry))
        self._fill(connection)
        while True:
            for packet in await self.packets(connection):
                self.check_farewell(packet)
                self._on_packet(connection, packet)
            self._fill(connection)

    def _fill(self, connection: MqttConnection) -> None:
        while self.budget and len(self.inflight) < self._window:
            self.budget -= 1
            topic, qos = self.topics[self._sequence % len(self.topics)]
            self._sequence += 1
            message = SentMessage(self.client_id, topic, qos, self._sequence)
            self.ledger.on_sent(message)
            if self.expires and self._sequence % 3 == 0:
                self.ledger.expiring.add(message)
            entry = InFlight(message, self.rng.choice(PADDING_BYTES))
            if not qos:
                connection.send(self._packet(None, entry))
                continue
            packet_id = self._free_id()
            self.inflight[packet_id] = entry
            self.ledger.on_flight(message, packet_id)
            connection.send(self._packet(packet_id, entry))

    def _free_id(self) -> int:
        """A free packet identifier. Identifiers are reused soon, so that a wrong match with a duplicate shows."""
        while self._next_id in self.inflight:
            self._next_id = self._next_id % 50 + 1
        packet_id = self._next_id
        self._next_id = self._next_id % 50 + 1
        return packet_id

    def _packet(self, packet_id: int | None, entry: InFlight) -> Packet:
        if entry.received and packet_id is not None:
            return PubRel(packet_id)
        message = entry.message
        payload = message.payload(entry.padding)
        dup, entry.dup = entry.dup, True
        properties = Properties(message_expiry_interval=1 if message in self.ledger.expiring else None)
        return Publish(message.topic, payload, QoS(message.qos), self.retain, dup, packet_id, properties)

    def _on_packet(self, connection: MqttConnection, packet: Packet) -> None:
        if not isinstance(packet, PubAck | PubRec | PubComp):
            self.fault(f"got {packet}")
            return
        entry = self.inflight.get(packet.packet_id)
        refused = packet.reason_code >= 0x80 and not isinstance(packet, PubComp)
        if entry is not None and refused and self.may_be_refused:
            del self.inflight[packet.packet_id]
            self.ledger.on_refused(entry.message)
        elif entry is None or refused:
            self.fault(f"got {packet} for {entry}")
        elif isinstance(packet, PubRec):
            entry.received = True
            self.ledger.on_acked(entry.message)  # from here on the server must deliver it
            connection.send(PubRel(packet.packet_id))
        else:
            del self.inflight[packet.packet_id]
            self.acknowledged += 1
            self.ledger.on_acked(entry.message)


class ChaosSubscriber(ChaosClient):
    """Subscribes once, sometimes again; holds back up to `lazy` acknowledgements."""

    def __init__(self, session: ChaosSession, filters: Mapping[str, int]) -> None:
        super().__init__(session)
        self.ledger.filters[self.client_id] = dict(filters)
        self.subscribed = False
        self.lazy = 0
        self.patient = True  # may hold acknowledgements back
        self.subscribes_again = True
        self.expects_retained = False  # all messages come with RETAIN set; otherwise none does
        self.retain_as_published = False
        self._released: set[int] = set()
        self._held: set[int] = set()  # QoS 2 packet identifiers received and not released
        self._answers: list[Packet] = []

    async def live(self, connection: MqttConnection) -> None:
        self._answers.clear()
        self.lazy = self.rng.choice((0, 0, 3)) if self.patient else 0
        if not self.subscribed or (self.subscribes_again and self.rng.random() < 0.5):
            connection.send(Subscribe(SUBSCRIBE_ID, tuple(self._requests())))
        while True:
            for packet in await self.packets(connection):
                self.check_farewell(packet)
                self._on_packet(packet)
            while len(self._answers) > self.lazy:
                connection.send(self._answers.pop(0))

    def _requests(self) -> Iterator[SubscriptionRequest]:
        for name, qos in self.ledger.filters[self.client_id].items():
            yield SubscriptionRequest(name, QoS(qos), retain_as_published=self.retain_as_published)

    def receive_at_most(self, messages: int) -> None:
        """Set the Receive Maximum from the next connection on."""
        self._connect.properties.receive_maximum = messages

    def settle(self) -> None:
        """Send all acknowledgements, and hold none back from now on."""
        self.patient = False
        self.lazy = 0
        if self.connection is not None:
            self.connection.send(*self._answers)
            self._answers.clear()

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case SubAck():
                self.subscribed = True
            case Publish(qos=QoS.AT_MOST_ONCE):
                self._deliver(packet)
            case Publish(qos=QoS.AT_LEAST_ONCE):
                self._deliver(packet)
                self._answers.append(PubAck(packet.packet_id or 0))
            case Publish(qos=QoS.EXACTLY_ONCE):
                if packet.packet_id not in self._held:
                    self._held.add(packet.packet_id or 0)
                    self._deliver(packet)
                self._answers.append(PubRec(packet.packet_id or 0))
            case PubRel():
                self._held.discard(packet.packet_id)
                self._answers.append(PubComp(packet.packet_id))
            case _:
                self.fault(f"got {packet}")

    def _deliver(self, packet: Publish) -> None:
        message = SentMessage.parse(packet.payload)
        if packet.retain != self.expects_retained or packet.topic_name != message.topic:
            self.fault(f"{message} came as {packet.topic_name}, retain {packet.retain}")
        self.ledger.on_delivered(self.client_id, message)
