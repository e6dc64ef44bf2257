"""Messages in flight that need more than a place in the ring: QoS 2 to clients, and retained messages at QoS 1.

The identifiers of QoS 2 messages go to the log before they go to the client, so that a restart neither repeats nor
forgets one (MQTT 5 section 4.3.3; those of QoS 1 messages from queues need not survive: they are sent again).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, takewhile

from gateway.delivery.expander import Expander
from gateway.mqtt._inflight import Inflight
from gateway.mqtt._mqtt import Reader, next_at_qos2, send_listed, stands_at_qos2
from gateway.mqtt.codec import encode, success
from gateway.mqtt.packets import PacketType, PubComp, PubRel
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.journal import Journal
from gateway.sessions.session import BacklogItem, HeldMessage, RetainedBatch, Session, as_sent
from notify.api import Store
from store.records._records import Records
from store.records.records import Record
from store.state.changes import Progress
from store.topics import matches

SENT_PER_ROUND = 256
OWED_PER_RECORD = 1_000
SENT_BYTES_PER_ROUND = 1 << 20


Place = tuple[Records, int] | None
"""A record: a range and an index in it; None if the record is gone."""
Started = tuple[int, HeldMessage, Place]


class Exchange:
    """The rules of QoS 2 (and of held QoS 1 messages) of a session. Its only I/O goes through link and journal."""

    def __init__(self, store: Store, journal: Journal, expander: Expander) -> None:
        self._queues = store.queues
        self._expander = expander
        self._journal = journal
        # The check of a topic, for sessions whose messages in flight or put off may not be allowed any more.
        self._judged: dict[Session, Callable[[bytes], bool]] = {}

    def judge(self, session: Session, may_read: Callable[[bytes], bool]) -> None:
        """Check the topics of a session's messages in flight or put off before these are sent (again)."""
        if session.backlog or session.inflight:
            self._judged[session] = may_read

    def left(self, session: Session) -> None:
        """Forget a session whose connection has ended."""
        self._judged.pop(session, None)
        self._expander.left(session)

    def withdraw(self, session: Session, topic_filter: str) -> None:
        """Send no more of the retained messages that one subscription was to get."""
        if not session.backlog:
            return
        kept = [
            item
            for item in session.backlog
            if not (isinstance(item, RetainedBatch) and item.topic_filter == topic_filter)
        ]
        for item in session.backlog:
            if isinstance(item, RetainedBatch) and item.topic_filter == topic_filter and item.then is not None:
                session.listings -= 1  # which would have gone on with the next page
        session.backlog = deque(kept) if kept else ()
        session.connection.behind = session.has_something_first

    def send_next(self, session: Session, readers: list[Reader], ranges: list[Records], stop: int) -> bool:
        """Put the next QoS 2 messages before log_offset `stop` in flight. False: the window is full."""
        inflight, started = session.inflight, list[Started]()
        while len(started) < SENT_PER_ROUND:
            most = min(SENT_PER_ROUND - len(started), inflight.room())
            if not most:
                inflight.blocked = inflight.blocked or stands_at_qos2(readers, ranges, stop)
                break
            found = next_at_qos2(readers, ranges, most, stop)
            for log_offset, retain, subscription_ids, records, place in found:
                if log_offset not in session.skip:
                    outgoing = HeldMessage(log_offset, 2, retain, subscription_ids)
                    started.append((inflight.hold(outgoing), outgoing, (records, place)))
            if len(found) < most:
                break
        self._start(session, started)
        return not session.inflight.blocked

    def owe(self, session: Session, retained: list[HeldMessage]) -> None:
        """Put off retained messages for a new subscription; a durable session gets them even if this process dies."""
        owed = [as_sent(0, item) for item in retained if item.qos] if session.expiry_s else []
        for at in range(0, len(owed), OWED_PER_RECORD):
            self._journal.record(Progress(session.client_id, owed=owed[at : at + OWED_PER_RECORD]))
        self.put_off(session, retained)

    def put_off(self, session: Session, items: Sequence[BacklogItem]) -> None:
        """Queue items that are sent before anything more from the session's queues."""
        if not items:
            return
        if not isinstance(session.backlog, deque):
            session.backlog = deque()
        session.backlog.extend(items)
        session.connection.behind = True

    def go_on(self, session: Session) -> bool:
        """Send a bounded part of what was put off. False: the window is full, or the store will answer later."""
        link = session.connection
        started: list[Started] = []
        goes_on = not session.backlog or self._take_backlog(session, session.backlog, started)
        self._start(session, started)
        link.behind = session.has_something_first
        return goes_on

    def _send_listed(self, session: Session, listed: RetainedBatch) -> bool:
        """Send some messages of one list by the compiled path, which handles their acknowledgements too."""
        link = session.connection
        log_offsets = listed.log_offsets[listed.asked_from :] if listed.asked_from else listed.log_offsets
        found = self._queues.read_at(log_offsets, SENT_BYTES_PER_ROUND, link.accept_more)
        if found is None:
            return False
        left_bytes = SENT_BYTES_PER_ROUND
        places = found
        while left_bytes > 0:
            sent_bytes = send_listed(link, listed, places, places is not found, left_bytes)
            left_bytes -= sent_bytes
            if listed.sent == len(log_offsets) + listed.asked_from:
                return True
            if session.inflight.blocked:
                return False
            log_offset = listed.log_offsets[listed.sent]
            if log_offset not in found:
                listed.asked_from = listed.sent
                return True
            is_compressed = left_bytes > 0 and places is found
            if is_compressed:
                plain = self._plain(session, found[log_offset])
                if plain is None:
                    return False
                places = {log_offset: plain[0]}
            else:
                places = found
        return True

    def _plain(self, session: Session, place: Place) -> tuple[Place, int] | None:
        """The record with its payload as it was published, and its size if it had to be decompressed (otherwise 0).

        None: it is being decompressed, and the session is told when that is done.
        """
        if place is None:
            return None, 0
        records = self._expander.for_session(session, place[0], start=place[1], count=1)
        if records is None:
            return None
        return (place, 0) if records is place[0] else ((records, 0), Record._make(records[0]).length)

    def _take_backlog(self, session: Session, backlog: deque[BacklogItem], started: list[Started]) -> bool:
        first = backlog[0]
        if isinstance(first, RetainedBatch):
            goes_on = self._send_listed(session, first)
            if first.sent == len(first.log_offsets):
                backlog.popleft()
                if first.then is not None:
                    first.then()
        else:
            goes_on = self._send_singly(session, backlog, started)
        if not backlog:
            session.backlog = ()
            self._judged.pop(session, None)
        return goes_on

    def _send_singly(self, session: Session, backlog: deque[BacklogItem], started: list[Started]) -> bool:
        inflight = session.inflight
        ring = dict(inflight.unacknowledged()) if isinstance(backlog[0], int) else {}
        items = [(item, _position(item, inflight, ring)) for item in _singles(backlog)]
        wanted = [log_offset for _, log_offset in items if log_offset is not None]
        found = self._queues.read_at(wanted, SENT_BYTES_PER_ROUND, session.connection.accept_more) if wanted else {}
        if found is None:
            return False
        may_read = self._judged.get(session)
        # In flight, but not on this connection so far; these come first.
        sent_bytes = 0
        unsent = sum(1 for _ in takewhile(lambda item: isinstance(item, int), backlog))
        for item, log_offset in items:
            if log_offset is not None and log_offset not in found:
                break
            if isinstance(item, int):
                has_room = len(inflight) - unsent < inflight.window
            else:
                has_room = not item.qos or not inflight.is_full()
            if not has_room:
                inflight.blocked = True
                return False
            if sent_bytes >= SENT_BYTES_PER_ROUND:
                break
            found_at = found[log_offset] if log_offset is not None else None
            if isinstance(item, int) and log_offset is not None and found_at is None:
                session.connection.misses(1)
            if may_read is not None and found_at is not None and not may_read(_topic_at(found_at)):
                found_at = None  # as if it was gone: the handshake of its identifier ends, and the log says so
            plain = self._plain(session, found_at)
            if plain is None:
                return False
            backlog.popleft()
            place, size_bytes = plain
            sent_bytes += size_bytes
            if isinstance(item, int):
                unsent -= 1
                self._send_again(session, item, ring, place)
            elif item.qos:
                started.append((inflight.hold(item), item, place))
            else:
                _write(session, _encode(session, 0, item, place))
        return True

    def _start(self, session: Session, started: list[Started]) -> None:
        if started and session.expiry_s:
            sent = [as_sent(packet_id, outgoing) for packet_id, outgoing, _ in started]
            self._journal.record(Progress(session.client_id, sent=sent))
            if streamed := [outgoing.log_offset for _, outgoing, _ in started if not outgoing.owed]:
                session.untold = (*session.untold, min(streamed))
                self._journal.when_safe(session.connection, session.is_told)
        for packet_id, outgoing, place in started:
            packet = _encode(session, packet_id, outgoing, place)
            if packet is None:
                self._finish(session, packet_id)
            elif session.expiry_s and outgoing.qos == 2:
                session.connection.answer_when_safe(packet)
            else:
                session.connection.write(packet)

    def resend(self, session: Session) -> None:
        """Send everything in flight again after a reconnection, in order, with its identifiers [MQTT-4.4.0-1]."""
        retained = [item for item in session.backlog if not isinstance(item, int)]
        in_ring = [packet_id for packet_id, _ in session.inflight.unacknowledged()]
        session.backlog = ()
        self.put_off(session, [*in_ring, *session.inflight.held, *retained])
        if session.connection.behind:
            self.go_on(session)

    def _send_again(self, session: Session, packet_id: int, ring: dict[int, int], place: Place) -> None:
        """Send one message in flight again, unless it was acknowledged meanwhile or has expired."""
        outgoing = session.inflight.held.get(packet_id)
        if outgoing is not None and outgoing.released:
            _write(session, success(PacketType.PUBREL, packet_id))
            return
        if outgoing is None and packet_id in ring:
            outgoing = _as_subscribed(session, ring[packet_id], place)
        if outgoing is None:
            return
        packet = _encode(session, packet_id, outgoing, place, dup=True)
        if packet is None and outgoing.qos == 2:
            packet = self._give_up(session, packet_id, outgoing)
        elif packet is None and not session.inflight.ack(packet_id):
            self._finish(session, packet_id)
        _write(session, packet)

    def _give_up(self, session: Session, packet_id: int, outgoing: HeldMessage) -> bytes:
        """Send PUBREL for a QoS 2 message that is gone.

        The client may hold its identifier, and must not take the next message with it for this one.
        """
        outgoing.released = True
        if session.expiry_s:
            self._journal.record(Progress(session.client_id, released=[packet_id]))
        return success(PacketType.PUBREL, packet_id)

    # --- the client's answers

    def on_puback(self, session: Session, packet_id: int) -> None:
        outgoing = session.inflight.held.get(packet_id)
        if outgoing is not None and outgoing.qos == 1:
            self._acknowledged(session, packet_id)
        elif session.inflight.ack(packet_id):
            session.connection.turn.acknowledged += 1
            session.connection.accept_more()

    def on_pubrec(self, session: Session, packet_id: int, reason_code: ReasonCode = ReasonCode.SUCCESS) -> None:
        outgoing = session.inflight.held.get(packet_id)
        link = session.connection
        if outgoing is None or outgoing.qos != 2:
            not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if link.version == 5 else ReasonCode.SUCCESS
            link.write(encode(PubRel(packet_id, not_found), link.version))
        elif reason_code >= 0x80:
            self._acknowledged(session, packet_id)
        else:
            if outgoing.is_shared:
                outgoing.settle()
            outgoing.released = True
            if session.expiry_s:
                self._journal.record(Progress(session.client_id, released=[packet_id]))
            link.answer_when_safe(success(PacketType.PUBREL, packet_id))

    def on_pubcomp(self, session: Session, packet_id: int) -> None:
        outgoing = session.inflight.held.get(packet_id)
        if outgoing is not None and outgoing.qos == 2:
            self._acknowledged(session, packet_id)

    def on_pubrel(self, session: Session, packet_id: int) -> None:
        """Answer PUBREL for a QoS 2 message that the client published."""
        link = session.connection
        known = packet_id in session.received
        session.received -= {packet_id}
        if session.expiry_s:  # known or not: the log may have it from before it could not take more
            self._journal.record(Progress(session.client_id, received_done=[packet_id]))
        answer = success(PacketType.PUBCOMP, packet_id)
        if not known and link.version == 5:
            answer = encode(PubComp(packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), link.version)
        link.answer_when_safe(answer)

    def _acknowledged(self, session: Session, packet_id: int) -> None:
        session.connection.turn.acknowledged += 1
        self._finish(session, packet_id)

    def _finish(self, session: Session, packet_id: int) -> None:
        outgoing = session.inflight.held.pop(packet_id)
        if outgoing.is_shared:
            outgoing.settle()
        elif session.expiry_s:
            self._journal.record(Progress(session.client_id, completed=[packet_id]))
        if session.link is not None:
            session.link.accept_more()


def _singles(backlog: Iterable[BacklogItem]) -> Iterator[int | HeldMessage]:
    """The first items that were put off, up to a RetainedBatch."""
    for item in islice(backlog, SENT_PER_ROUND):
        if isinstance(item, RetainedBatch):
            return
        yield item


def _position(item: int | HeldMessage, inflight: Inflight, ring: dict[int, int]) -> int | None:
    """log_offset of the record that an item needs to be sent; None: it needs no record."""
    if isinstance(item, HeldMessage):
        return item.log_offset
    outgoing = inflight.held.get(item)
    if outgoing is None:
        return ring.get(item)
    return None if outgoing.released else outgoing.log_offset


def _topic_at(place: tuple[Records, int]) -> bytes:
    records, i = place
    return Record._make(records[i]).topic


def _encode(session: Session, packet_id: int, outgoing: HeldMessage, place: Place, dup: bool = False) -> bytes | None:
    """The PUBLISH, or None if the message is gone, expired or too large for this client."""
    if outgoing.lost:
        session.connection.misses(outgoing.lost)
        outgoing.lost = 0
    if place is None:
        return None
    return session.connection.encode_publish(
        *place, outgoing.qos, packet_id, dup, outgoing.retain, outgoing.subscription_ids, not outgoing.owed
    )


def _as_subscribed(session: Session, log_offset: int, place: Place) -> HeldMessage:
    """A QoS 1 message from the queues as it was sent: with the options of all matching subscriptions together."""
    if place is None:
        return HeldMessage(log_offset, 1, False, ())
    records, i = place
    record = Record._make(records[i])
    topic_name = record.topic.decode()
    subscriptions = (reader for reader in session.readers.values() if not reader.only_live)
    readers = [reader for reader in subscriptions if matches(reader.topic_filter, topic_name)]
    retain = record.retain and any(reader.retain_as_published for reader in readers)
    return HeldMessage(log_offset, 1, retain, tuple(r.subscription_id for r in readers if r.subscription_id))


def _write(session: Session, packet: bytes | None) -> None:
    if packet is not None and session.link is not None:
        session.link.write(packet)
