"""Messages in flight that need more than a place in the ring: QoS 2 towards clients, and retained ones at QoS 1.

Their packet identifiers go to the log before they go to the client, so that a restart neither repeats nor forgets one
(MQTT 5 section 4.3.3; the identifiers of QoS 1 messages from queues need not survive: they are sent again).
"""

from __future__ import annotations

from typing import Protocol

from gateway._wire import Reader
from gateway.codec import encode
from gateway.packets import PubComp, PubRel
from gateway.reason_codes import ReasonCode
from gateway.session import Outgoing, Session, as_sent
from lightqueue._queues import read_at
from lightqueue.message_store import MessageStore
from store._records import Records
from store.changes import Change, Progress

SENT_PER_ROUND = 256


class Journal(Protocol):
    """Where state changes go: into the batch of this turn."""

    def record(self, change: Change) -> None: ...


class Exchange:
    """The QoS 2 (and held QoS 1) rules of a session; no I/O but through its link and the journal."""

    def __init__(self, store: MessageStore, journal: Journal) -> None:
        self._store = store
        self._journal = journal

    def send_next(self, session: Session, readers: list[Reader], ranges: list[Records]) -> bool:
        """Put the QoS 2 messages that the readers stand at in flight. False: the window is full."""
        started: list[tuple[int, Outgoing]] = []
        link = session.link
        assert link is not None
        while len(started) < SENT_PER_ROUND and link.stands_at_qos2(readers, ranges):
            if session.inflight.is_full():
                session.inflight.blocked = True
                break
            log_offset, qos, retain, subscription_ids = link.next_of(readers, ranges)
            if log_offset not in session.skip:
                outgoing = Outgoing(log_offset, qos, retain, subscription_ids)
                started.append((session.inflight.hold(outgoing), outgoing))
        self._start(session, started)
        return not session.inflight.blocked

    def send(self, session: Session, log_offset: int, qos: int, subscription_ids: tuple[int, ...]) -> None:
        """Send one retained message; if the window is full it is put in flight but sent on the next resumption."""
        link = session.link
        assert link is not None
        outgoing = Outgoing(log_offset, qos, True, subscription_ids)
        packet_id = session.inflight.hold(outgoing) if qos else 0
        if qos:
            self._start(session, [(packet_id, outgoing)])
        else:
            packet = self._encode(session, packet_id, outgoing, dup=False)
            if packet:
                link.write(packet)

    def _start(self, session: Session, started: list[tuple[int, Outgoing]]) -> None:
        if started and session.expiry_s:
            self._journal.record(Progress(session.client_id, sent=[as_sent(*item) for item in started]))
        for packet_id, outgoing in started:
            packet = self._encode(session, packet_id, outgoing, dup=False)
            if packet is None:
                self._finish(session, packet_id)
            elif session.expiry_s:
                session.link.answer_when_safe(packet)
            else:
                session.link.write(packet)

    def _encode(self, session: Session, packet_id: int, outgoing: Outgoing, dup: bool) -> bytes | None:
        """The PUBLISH, or None if the message is gone, expired or too large for this client."""
        try:
            records = read_at(self._store.log.memory, [outgoing.log_offset])
        except LookupError:
            return None
        assert session.link is not None
        packet: bytes | None = session.link.encode_publish(
            records, 0, outgoing.qos, packet_id, dup, outgoing.retain, outgoing.subscription_ids
        )
        return packet

    def resend(self, session: Session) -> None:
        """After a reconnection: everything in flight again, in order, with its identifiers [MQTT-4.4.0-1]."""
        link = session.link
        assert link is not None
        for packet_id, log_offset in session.inflight.unacknowledged():
            packet = self._encode(session, packet_id, Outgoing(log_offset, 1, False, ()), dup=True)
            if packet:
                link.write(packet)
            else:
                session.inflight.ack(packet_id)
        for packet_id, outgoing in list(session.inflight.held.items()):
            if outgoing.released:
                link.write(encode(PubRel(packet_id), link.version))
                continue
            packet = self._encode(session, packet_id, outgoing, dup=True)
            if packet:
                link.write(packet)
            else:
                self._finish(session, packet_id)

    # --- what the client answers

    def on_puback(self, session: Session, packet_id: int) -> None:
        outgoing = session.inflight.held.get(packet_id)
        if outgoing is not None and outgoing.qos == 1:
            self._finish(session, packet_id)
        elif session.inflight.ack(packet_id):
            session.link.accept_more()

    def on_pubrec(self, session: Session, packet_id: int, reason_code: ReasonCode) -> None:
        outgoing = session.inflight.held.get(packet_id)
        link = session.link
        assert link is not None
        if outgoing is None or outgoing.qos != 2:
            not_found = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if link.version == 5 else ReasonCode.SUCCESS
            link.write(encode(PubRel(packet_id, not_found), link.version))
        elif reason_code >= 0x80:
            self._finish(session, packet_id)
        else:
            outgoing.released = True
            if session.expiry_s:
                self._journal.record(Progress(session.client_id, released=[packet_id]))
            link.answer_when_safe(encode(PubRel(packet_id), link.version))

    def on_pubcomp(self, session: Session, packet_id: int) -> None:
        outgoing = session.inflight.held.get(packet_id)
        if outgoing is not None and outgoing.qos == 2:
            self._finish(session, packet_id)

    def on_pubrel(self, session: Session, packet_id: int) -> None:
        """The client releases a QoS 2 message that it published."""
        link = session.link
        assert link is not None
        reason_code = ReasonCode.SUCCESS
        if packet_id in session.received:
            session.received -= {packet_id}
            if session.expiry_s:
                self._journal.record(Progress(session.client_id, received_done=[packet_id]))
        elif link.version == 5:
            reason_code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        link.answer_when_safe(encode(PubComp(packet_id, reason_code), link.version))

    def _finish(self, session: Session, packet_id: int) -> None:
        del session.inflight.held[packet_id]
        if session.expiry_s:
            self._journal.record(Progress(session.client_id, completed=[packet_id]))
        if session.link is not None:
            session.link.accept_more()
