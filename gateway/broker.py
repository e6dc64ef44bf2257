"""The gateway's heart: one loop turn. What all connections brought in is stored at once, acknowledged and delivered.

data arrives on sockets → links fill the turn's batch → end_turn():
  store_batch()   append; acknowledgements are sent, or wait until the batch is safe
  deliver         queues that grew → their readers; sessions with room pull
  flush           one write per connection
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from gateway._wire import BATCH_BYTES, Turn, overdue
from gateway.codec import decode_varint, encode
from gateway.connection import MOST_REASON_CHARACTERS, Connection
from gateway.deadlines import Deadlines
from gateway.delivery import Delivery
from gateway.errors import ProtocolError
from gateway.exchange import Exchange
from gateway.packets import PubAck, Publish, PubRec
from gateway.properties import encode_properties
from gateway.ratelimit import RateLimitedLog
from gateway.reason_codes import ReasonCode
from gateway.registry import SessionRegistry
from gateway.session import Session
from gateway.settings import GatewaySettings
from gateway.subscriptions import Subscriptions
from gateway.sys_topics import SysTopics
from lightqueue.message_store import MessageStore
from store.changes import Change, WillState, encode_change
from store.errors import StoreError
from store.records import Attribute, RecordFlag, RecordType, encode_attribute

log = logging.getLogger("penstock.gateway")

TICK_S = 0.05
READ_BUFFER_BYTES = 256 << 10
PUBACK_BYTE, PUBREC_BYTE = 0x40, 0x50


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], object]) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object: ...

    def time(self) -> float: ...


class Deferred(NamedTuple):
    """Something to do for a connection once what it recorded is safe; if that fails, the connection is closed."""

    connection: Connection
    action: Callable[[], None]


Acks = tuple[Connection, bytes, int]  # to whom, which packets, and how many publishes they acknowledge


class Waiting(NamedTuple):
    """What is to be done once the log is safe up to an offset."""

    log_offset: int
    since_s: float
    acks: list[Acks]
    then: list[Deferred]


class Broker:
    """Owner of the turn, and through its parts of everything that a gateway knows."""

    def __init__(self, store: MessageStore, settings: GatewaySettings, loop: Loop) -> None:
        self.store: MessageStore = store
        self.settings = settings
        self._loop = loop
        self.read_buffer = bytearray(READ_BUFFER_BYTES)
        live_only = store.queues.is_live_only if store.settings.live_only else None
        self.turn = Turn(self._wake, self.store_batch, self.end_turn, live_only)
        self.deadlines = Deadlines()
        self.exchange = Exchange(store, self)
        self.delivery = Delivery(store, settings, self.exchange)
        self.registry: SessionRegistry = SessionRegistry(self)
        self.subscriptions = Subscriptions(self)
        self.connections = 0
        self._new: dict[Connection, float] = {}  # without a CONNECT so far, oldest first, and since when
        self._waiting: deque[Waiting] = deque()
        self._then: list[Deferred] = []
        self._progressed: set[Session] = set()
        self.bad_input: Counter[str] = Counter()
        self.refused = 0  # messages that the store did not take
        self.not_authorized = 0  # messages to topics that are the server's own
        self.keep_alive_timeouts = 0
        self.sockets_total: int = 0
        self.opened_total: int = 0
        self.most_online: int = 0
        self.turns = 0
        self.listening = False
        self.draining = False
        self.events = RateLimitedLog(log)
        self._set_clock()
        self._started_s = self.turn.now_s
        self._next_second = 0.0
        self.sys_topics = SysTopics(self)

    # --- the turn

    def _wake(self) -> None:
        self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Store, acknowledge, deliver, send."""
        self.turns += 1
        self.turn.begin()
        self._set_clock()
        self.store_batch()
        self._take_ready()
        self.delivery.catch_up()
        if self.turn.batch.size or self.delivery.has_more:
            self.turn.request()
        for link in self.turn.take_dirty():
            link.flush()

    def store_batch(self) -> bool:
        """Append what the turn has gathered so far, and deliver what grew. False: the store did not take it."""
        batch, acking = self.turn.start_batch()
        acks = [(link, *link.take_acks()) for link in acking]  # what links are to send from here on is the next batch's
        self.delivery.forget_ranges()
        try:
            if batch.size:
                self.store.append(batch)
        except StoreError as error:
            self._not_stored(acks, error)
            return False
        self.delivery.grew(self.store.take_grown())  # before the acknowledgements: somebody waits for these
        self._acknowledge(acks)
        self._run_then()
        return True

    def _run_then(self) -> None:
        then, self._then = self._then, []
        if then and self.store.safe < self.store.end:
            self._waiting.append(Waiting(self.store.end, self.turn.now_s, [], then))
            return
        for deferred in then:
            deferred.action()

    def _acknowledge(self, acks: list[Acks]) -> None:
        if self.store.safe >= self.store.end and not self._waiting:
            for link, packets, count in acks:
                link.send_acks(packets, count)
            return
        self._waiting.append(Waiting(self.store.end, self.turn.now_s, acks, []))

    def safe_advanced(self) -> None:
        """The log became safe further than before: send what waited for it."""
        safe = self.store.safe
        self._set_clock()
        while self._waiting and self._waiting[0].log_offset <= safe:
            waiting = self._waiting.popleft()
            for link, packets, count in waiting.acks:
                link.send_acks(packets, count)
            for deferred in waiting.then:
                deferred.action()
        self.delivery.safe_advanced()
        self.turn.request()

    def _not_stored(self, acks: list[Acks], error: StoreError) -> None:
        """The batch is not in the log: whoever waits for it must not be told otherwise."""
        self.events.error("store", "messages refused: %s", error)
        for link, packets, count in acks:
            self._refuse_acks(link, packets, count, ReasonCode.QUOTA_EXCEEDED)
        self._refuse_deferred(self._then, ReasonCode.QUOTA_EXCEEDED)
        self._then = []

    @staticmethod
    def _refuse_deferred(then: list[Deferred], reason_code: ReasonCode) -> None:
        for deferred in then:
            deferred.connection.close(reason_code)

    def _refuse_acks(self, link: Connection, packets: bytes, count: int, reason_code: ReasonCode) -> None:
        """MQTT 5 has reason codes for it; an MQTT 3.1.1 client learns from the connection's end to try again."""
        self.refused += count
        told = link.version == 5 and not link.closing and _only_publish_acks(packets)
        received = [packet_id for first_byte, packet_id in _answers(packets) if first_byte == PUBREC_BYTE]
        self.exchange.forget_received(link.session, received, told)
        if not told:
            link.close(reason_code)
            return
        link.send_acks(b"", count)
        for first_byte, packet_id in _answers(packets):
            if first_byte == PUBREC_BYTE:
                link.write(encode(PubRec(packet_id, reason_code), 5))
            else:
                link.write(encode(PubAck(packet_id, reason_code), 5))

    def _take_ready(self) -> None:
        """Clients that acknowledged: note how far they came, and let them have more."""
        sessions = [link.session for link in self.turn.take_ready() if link.session is not None]
        self._progressed.update(session for session in sessions if session.expiry_s)
        self.delivery.room(sessions)

    # --- what the parts ask for

    def record(self, change: Change) -> None:
        """Put a state change into this turn's batch."""
        record_type, payload = encode_change(change)
        self.turn.batch.append(record_type, payload)
        self.turn.request()

    def when_safe(self, connection: Connection, action: Callable[[], None]) -> None:
        """Do something for a connection once everything recorded so far is safe; at once if it is."""
        if not self.turn.batch.size and self.store.safe >= self.store.end and not self._waiting:
            action()
            return
        self._then.append(Deferred(connection, action))
        self.turn.request()

    def soon(self, action: Callable[[], object]) -> None:
        """Do something in a later turn."""
        self._loop.call_soon(action)

    def take_publish(self, connection: Connection, publish: Publish) -> None:
        """Store a PUBLISH that came through the full codec."""
        attributes = b""
        durable = connection.session.expiry_s > 0
        if publish.qos == 2 and durable:
            attributes = encode_attribute(Attribute.PACKET_ID, (publish.packet_id or 0).to_bytes(2, "little"))
        properties = publish.properties
        self.turn.batch.append(
            RecordType.MESSAGE,
            publish.payload,
            topic=publish.topic_name.encode(),
            client_id=connection.client_id,
            attributes=attributes,
            properties=encode_properties(properties) if connection.version == 5 else b"",
            flags=_flags(publish.qos, publish.retain, properties.message_expiry_interval is not None)
            | self._live_only(publish.topic_name),
        )
        self.turn.count_received(publish.qos, len(publish.payload))
        if publish.qos == 2:
            connection.session.receive(publish.packet_id)
        if publish.qos:
            ack = PubRec(publish.packet_id or 0) if publish.qos == 2 else PubAck(publish.packet_id or 0)
            connection.answer_when_safe(encode(ack, 4), True)
        if self.turn.batch.size >= BATCH_BYTES:
            self.store_batch()
        self.turn.request()

    def refuse_publish(self, connection: Connection, publish: Publish) -> None:
        """A PUBLISH to a topic that is the server's own. MQTT 3.1.1 has no words for it: acknowledged and ignored."""
        self.not_authorized += 1
        ignored = "client %s: publish to %s ignored: what starts with $ is the server's"
        self.events.warning("topic", ignored, connection.session.client_id, publish.topic_name)
        reason_code = ReasonCode.NOT_AUTHORIZED if connection.version == 5 else ReasonCode.SUCCESS
        if publish.qos:
            ack = PubRec if publish.qos == 2 else PubAck
            connection.answer_when_safe(encode(ack(publish.packet_id or 0, reason_code), connection.version), True)

    def publish_will(self, client_id: str, will: WillState, fired: Change) -> None:
        """Store a will and the record that it was sent, both or neither."""
        batch = self.turn.batch
        batch.begin_atomic()
        batch.append(
            RecordType.MESSAGE,
            will.payload,
            topic=will.topic.encode(),
            client_id=client_id.encode(),
            properties=will.properties,
            flags=_flags(will.qos, will.retain, b"\2" in will.properties) | self._live_only(will.topic),
        )
        record_type, payload = encode_change(fired)
        batch.append(record_type, payload)
        batch.end_atomic()
        self.turn.request()

    def _live_only(self, topic: str) -> int:
        live_only = self.store.settings.live_only and self.store.queues.is_live_only(topic.encode())
        return RecordFlag.LIVE_ONLY if live_only else 0

    def publish(self, topic: str, payload: bytes, live_only: bool = False) -> None:
        """Publish something of the server's own, at QoS 0."""
        flags = RecordFlag.LIVE_ONLY if live_only else 0
        self.turn.batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), flags=flags)
        self.turn.request()

    # --- connections

    def arrived(self, connection: Connection) -> None:
        self.connections += 1
        self.sockets_total += 1
        self._new[connection] = self.turn.now_s
        if self.connections > self.settings.max_connections or self.draining:
            reason = "the server is stopping" if self.draining else "max_connections are connected"
            self.events.warning("limit", "%s: refused, %s", connection.peer, reason)
            connection.close(None)

    def opened(self, session: Session) -> None:
        self.opened_total += 1
        if session.link is not None:
            self._new.pop(session.link, None)
            self.most_online = max(self.most_online, self.online)
            self.events.info("connected", "client %s connected from %s", session.client_id, session.link.peer)

    def left(self, connection: Connection, why: str) -> None:
        """A connection ended; called once for each."""
        self.connections -= 1
        self._new.pop(connection, None)
        if connection.session is not None:
            self.events.info("disconnected", "client %s disconnected: %s", connection.session.client_id, why)
            self.registry.left(connection)

    def count_bad_input(self, connection: Connection, error: ProtocolError) -> None:
        self.bad_input[error.reason_code.name.lower()] += 1
        message = error.message[:MOST_REASON_CHARACTERS]
        self.events.warning("input", "%s: %s (%s)", connection.peer, message, error.reason_code.name)

    # --- several times a second

    def _set_clock(self) -> None:
        self.turn.now_s = self._loop.time()
        self.turn.now_ms = time.time_ns() // 1_000_000

    def tick(self) -> None:
        """To be called every TICK_S: the store's upkeep, positions, deadlines."""
        self._set_clock()
        self.deadlines.run(time.time())
        progressed, self._progressed = self._progressed, set()
        self.registry.note_positions(progressed)
        self.store_batch()
        self.delivery.settle()
        self.store.tick()
        self._fail_stalled()
        if self.turn.now_s >= self._next_second:
            self._next_second = self.turn.now_s + 1
            self._close_silent()
            self.sys_topics.tick()
            self.events.settle()

    def _close_silent(self) -> None:
        """Clients past 1.5 times their keep alive [MQTT-3.1.2-22], and connections that never said CONNECT."""
        now_s = self.turn.now_s
        for link in overdue(self.registry.sessions.values(), self.turn):
            self.keep_alive_timeouts += 1
            self.events.info("keepalive", "%s: silent for too long", link.peer)
            link.close(ReasonCode.KEEP_ALIVE_TIMEOUT)
        for connection, since_s in list(self._new.items()):
            if now_s - since_s < self.settings.connect_timeout_s:
                break
            self.count_bad_input(connection, ProtocolError(ReasonCode.MAXIMUM_CONNECT_TIME, "no CONNECT in time"))
            connection.close(None)

    def _fail_stalled(self) -> None:
        """A flush that takes longer than flush_timeout_ms is an error, never a false acknowledgement."""
        limit_s = self.store.settings.flush_timeout_ms / 1000
        while self._waiting and self.turn.now_s - self._waiting[0].since_s > limit_s:
            waiting = self._waiting.popleft()
            self.events.error("flush", "the disk did not confirm a flush within %s s", limit_s)
            for link, packets, count in waiting.acks:
                self._refuse_acks(link, packets, count, ReasonCode.UNSPECIFIED_ERROR)
            self._refuse_deferred(waiting.then, ReasonCode.UNSPECIFIED_ERROR)

    # --- how it is doing

    @property
    def online(self) -> int:
        """Clients that are connected and were told so."""
        return self.connections - len(self._new)

    @property
    def offline(self) -> int:
        """Sessions without a client."""
        return max(0, len(self.registry.sessions) - self.online)

    @property
    def subscription_count(self) -> int:
        return self.store.sessions.subscription_count + self.delivery.transient

    @property
    def waiting_for_safe(self) -> int:
        """Turns whose acknowledgements wait for the disk."""
        return len(self._waiting)

    @property
    def uptime_s(self) -> float:
        return float(self.turn.now_s - self._started_s)

    def unready(self) -> str:
        """Why clients had better not be sent here now; empty if they may be."""
        if self.draining:
            return "stopping"
        if not self.listening:
            return "not listening yet"
        return str(self.store.log.fault() or "")

    # --- start and stop

    def start(self) -> None:
        """Take over what the log knows of sessions."""
        self.registry.restore()
        self.deadlines.run(time.time())  # before a client can come back to what has expired
        self.store_batch()

    def drain(self) -> None:
        """Say goodbye to everyone; what they sent is stored first."""
        self.draining = True
        self.store_batch()
        for session in list(self.registry.sessions.values()):
            if session.link is not None:
                session.link.close(ReasonCode.SERVER_SHUTTING_DOWN)
        for connection in list(self._new):
            connection.close(None)
        self.end_turn()

    @property
    def quiet(self) -> bool:
        """Nobody is connected and nothing waits to become safe."""
        return not self.connections and not self._waiting and not self.turn.batch.size


def _flags(qos: int, retain: bool, expires: bool) -> int:
    return int(qos) | (RecordFlag.RETAIN if retain else 0) | (RecordFlag.EXPIRES if expires else 0)


def _answers(packets: bytes) -> Iterator[tuple[int, int]]:
    """(first byte, packet_id) of answers one after another."""
    at = 0
    while at < len(packets):
        size, body_at = decode_varint(packets, at + 1)
        yield packets[at], int.from_bytes(packets[body_at : body_at + 2], "big")
        at = body_at + size


def _only_publish_acks(packets: bytes) -> bool:
    """Whether these answers are PUBACK and PUBREC packets, and nothing else."""
    return all(first_byte in (PUBACK_BYTE, PUBREC_BYTE) for first_byte, _ in _answers(packets))
