"""The way into the log: the batch of this turn, and the acknowledgements and answers that wait until it is safe."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from gateway.mqtt._mqtt import Turn
from gateway.mqtt.codec import decode_varint, encode
from gateway.mqtt.packets import PubAck, PubRec
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.session import Session
from notify.api import Placed, Store
from store.errors import RequestRefused, StoreError
from store.log.durations import Durations
from store.ratelimit import RateLimitedLog
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, message_flags
from store.state.changes import Change, Progress, SessionClosed, SessionOpened, encode_change
from store.wire.messages import FailureCode

PUBACK_BYTE, PUBREC_BYTE = 0x40, 0x50


class Deferred(NamedTuple):
    """Something to do for a connection once what it recorded is safe; if that fails, the connection is closed."""

    connection: Connection
    action: Callable[[], None]
    refused: Callable[[ReasonCode], None] | None = None  # in place of that


NO_ANSWERS: Sequence[Deferred] = ()
NO_ENDS: Sequence[SessionClosed] = ()
Acks = tuple[Connection, bytes, int]  # to whom, which packets, and how many publishes they acknowledge


class UnsafeBatch(NamedTuple):
    """A batch that is appended and not safe: the answers that are sent once the store is safe up to its mark."""

    mark: int
    since_s: float
    acks: list[Acks]
    then: Sequence[Deferred]
    told: Sequence[SessionClosed]  # what the log must be told some time, if not now
    begun_s: float = 0.0  # when its append began, by perf_counter()


class Journal:
    """Owner of what waits for the log. The batch itself is the turn's, since the compiled part fills it."""

    def __init__(self, store: Store, turn: Turn, events: RateLimitedLog) -> None:
        self._store, self._appends = store, store.appends
        self._turn = turn
        self._events = events
        self._waiting: deque[UnsafeBatch] = deque()
        self._then: list[Deferred] = []
        self._told: list[SessionClosed] = []
        self._placed: list[
            tuple[int, Callable[[int], None]]
        ] = []  # (place in the batch, who wants to know its log_offset)
        self.has_changes = False  # in the batch
        self._changes_bytes = 0  # of the batch
        self._ended: set[str] = set()  # sessions whose end is in the batch
        self._to_tell: list[SessionClosed] = []  # what could not be told so far
        self._ends: dict[str, SessionClosed] = {}  # of each client the newest, until the log has it
        self.refused_messages = 0  # messages that the store did not take
        self.ack_times = Durations()  # from the append of publishes to their acknowledgement

    def __len__(self) -> int:
        """Batches that wait to become safe."""
        return len(self._waiting)

    @property
    def quiet(self) -> bool:
        """The batch is empty, and no batch waits to become safe."""
        return not self._turn.batch.size and not self._waiting

    @property
    def is_settled(self) -> bool:
        """Quiet, and the log knows of every session that ended here."""
        return self.quiet and not (self._to_tell or self._ends or self._then)

    @property
    def max_delay_s(self) -> int:
        """Longest delay that a message may have."""
        return self._store.max_delay_s

    # --- into the batch

    def record(self, change: Change) -> None:
        """Put a state change into this turn's batch."""
        if isinstance(change, SessionOpened):
            self._ends.pop(change.client_id, None)  # it goes on, and will be told how it ends this time
        record_type, payload = encode_change(change)
        batch = self._turn.batch
        size = batch.size
        batch.append(record_type, payload)
        self._changes_bytes += batch.size - size
        self._turn.request()
        self.has_changes = True

    def record_end(self, closed: SessionClosed) -> None:
        """Like record(); if the store does not take it now it is told later, unless the session has gone on by then."""
        self.record(closed)
        self._told.append(closed)
        self._ended.add(closed.client_id)
        self._ends[closed.client_id] = closed

    def tell_again(self) -> None:
        """Try once more with what the store did not take. Call this now and then."""
        ends, self._to_tell = self._to_tell, []
        for closed in ends:
            if self._ends.get(closed.client_id) is closed:
                self.record_end(closed)

    def message(
        self,
        topic_name: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        *,
        client_id: bytes = b"",
        properties: bytes = b"",
        expires: bool = False,
        packet_id: int = 0,
        delay_s: int | None = None,
        left_by: bytes = b"",
        counted: bytes = b"",
    ) -> None:
        """Put a message into this turn's batch; its packet_id if that must outlive a crash (QoS 2).

        `left_by`: by whom one that is delayed is judged when it is due. `counted`: the value of its attribute COUNTED.
        """
        topic = topic_name.encode()
        is_live_only = self._store.queues.is_live_only
        live_only = is_live_only is not None and is_live_only(topic)
        flags = message_flags(qos, retain=retain, expires=expires, live_only=live_only)
        attributes = encode_attribute(Attribute.PACKET_ID, packet_id.to_bytes(2, "little")) if packet_id else b""
        if counted:
            attributes += encode_attribute(Attribute.COUNTED, counted)
        if delay_s is not None:
            flags |= RecordFlag.DELAYED
            attributes += encode_attribute(Attribute.LEFT_BY, left_by) if left_by else b""
            attributes += encode_attribute(Attribute.DUE_MS, self._store.due_ms(delay_s).to_bytes(8, "little"))
        self._turn.batch.append(
            RecordType.MESSAGE,
            payload,
            topic=topic,
            client_id=client_id,
            attributes=attributes,
            properties=properties,
            flags=flags,
        )
        self._turn.expect(topic, len(payload))
        self._turn.request()

    def when_placed(self, then: Callable[[int], None]) -> None:
        """`then` gets the log_offset of what is put into the batch next; -1 if it was forgotten.

        Only while the batch has no changes: the store may add to these, and what is after them moves.
        """
        self._placed.append((self._turn.batch.size, then))

    def find_place(self, topic_name: str, log_offset: int, then: Callable[[int | None], None]) -> None:
        """queue_offset of the message at a log_offset in its topic's queue; None if it is in no queue."""
        self._store.queues.locate(topic_name, f"={log_offset}", then)

    def when_safe(
        self,
        connection: Connection,
        action: Callable[[], None],
        refused: Callable[[ReasonCode], None] | None = None,
    ) -> None:
        """Do something for a connection once everything recorded so far is safe; at once if it is.

        If the store does not take it the connection is closed, or `refused` is called with the reason.
        """
        if self.quiet and self._appends.safe_mark >= self._appends.mark:
            action()
            return
        self._then.append(Deferred(connection, action, refused))
        self._turn.request()

    # --- into the log

    @property
    def has_messages(self) -> bool:
        """True if the batch has messages, besides changes."""
        return bool(self._turn.batch.size > self._changes_bytes)

    def store_end_of(self, client_id: str) -> None:
        """Write the end of a session to the log if it ended in this turn.

        Call this before the session is claimed again.
        """
        if client_id in self._ended:
            self.store()

    def store(self) -> bool:
        """Append what the turn has gathered so far; release() sees to what waits for it. False: it was not taken."""
        begun_s = perf_counter()
        batch, acking = self._turn.start_batch()
        # What links are to send from here on is the next batch's.
        acks = [(link, *link.collect_acks()) for link in acking]
        has_messages = batch.size > self._changes_bytes
        placed: Placed | None = None
        then, told = NO_ANSWERS, NO_ENDS
        if self.has_changes or self._then or self._placed:
            then, told = self._then, self._told
            placed = partial(_tell_places, self._placed) if self._placed else None
            self._forget_batch()
        try:
            if batch.size:
                self._appends.append(batch, placed)
            if has_messages or acks or then:
                self._appends.await_safe()
        except StoreError as error:
            self._events.error("store", "messages refused: %s", error)
            self._refuse(UnsafeBatch(0, self._turn.now_s, acks, then, told), ReasonCode.QUOTA_EXCEEDED)
            return False
        if acks or then or told:
            self._waiting.append(UnsafeBatch(self._appends.mark, self._turn.now_s, acks, then, told, begun_s))
        return True

    def _forget_batch(self) -> None:
        """Forget what belongs to the batch that was taken."""
        self._then, self._told, self._placed, self.has_changes = [], [], [], False
        self._changes_bytes = 0
        self._ended.clear()

    def release(self) -> None:
        """Send and do what waited for what is safe by now."""
        batches = self._waiting
        if not batches:
            return
        safe = self._appends.safe_mark
        while batches and batches[0].mark <= safe:
            _, _, acks, then, told, begun_s = batches.popleft()
            acknowledged = 0
            for link, packets, count in acks:
                link.send_acks(packets, count)
                acknowledged += count
            if acknowledged:
                self.ack_times.add(perf_counter() - begun_s, acknowledged)
            for closed in told:
                if self._ends.get(closed.client_id) is closed:
                    del self._ends[closed.client_id]
            for deferred in then:
                deferred.action()

    def refused(self, mark: int, error: StoreError) -> None:
        """The store did not take the append that `mark` stands for, after all."""
        self.release()
        self._events.error("store", "messages refused: %s", error)
        is_late = isinstance(error, RequestRefused) and error.code == FailureCode.FENCED
        while self._waiting and self._waiting[0].mark <= mark:
            self._refuse(
                self._waiting.popleft(), ReasonCode.UNSPECIFIED_ERROR if is_late else ReasonCode.QUOTA_EXCEEDED
            )

    def discard(self, mark: int, error: StoreError) -> None:
        """Neither what was appended up to this mark nor what was to be counts."""
        self._turn.start_batch()
        self._forget_batch()
        self.refused(mark, error)
        self._to_tell.clear()
        self._ends.clear()

    def fail_stalled(self) -> None:
        """A flush that takes longer than the store's patience is an error, never a false acknowledgement.

        While the store is away all of it waits, and is sent again to the store that comes back: no message is refused.
        """
        store, limit_s = self._store, self._store.patience_s
        heard_s = min(self._turn.now_s, store.heard_s)
        while self._waiting and heard_s - max(self._waiting[0].since_s, store.reached_s) > limit_s:
            self._events.error("flush", "%s within %s s; it is refused", store.unconfirmed, limit_s)
            self._refuse(self._waiting.popleft(), ReasonCode.UNSPECIFIED_ERROR, is_known=self._store.is_certain)

    # --- what was not taken

    def _refuse(self, waiting: UnsafeBatch, reason_code: ReasonCode, is_known: bool = True) -> None:
        """The batch is not in the log: the clients that wait for it are not acknowledged.

        Unless `is_known` it may get there all the same, while what is recorded from now on does not.
        """
        self._to_tell += waiting.told
        for link, packets, count in waiting.acks:
            self._refuse_acks(link, packets, count, reason_code, is_known)
        for deferred in waiting.then:
            if deferred.refused is not None and is_known:
                deferred.refused(reason_code)
            else:
                deferred.connection.close(reason_code)

    def _refuse_acks(
        self, link: Connection, packets: bytes, count: int, reason_code: ReasonCode, is_known: bool
    ) -> None:
        """MQTT 5 has reason codes for it; an MQTT 3.1.1 client learns from the connection's end to try again.

        So does one whose QoS 2 message may be stored: if it took another one for the identifier, in another gateway,
        that would be a duplicate.
        """
        self.refused_messages += count
        kinds = {first_byte for first_byte, _ in _answers(packets)}
        told = link.version == 5 and not link.closing and kinds <= {PUBACK_BYTE, PUBREC_BYTE}
        told = told and (is_known or PUBREC_BYTE not in kinds)
        if told:
            self.forget_received(
                link.session, [id_ for first_byte, id_ in _answers(packets) if first_byte == PUBREC_BYTE]
            )
        if not told:
            link.close(reason_code)
            return
        link.send_acks(b"", count, len(packets))
        for first_byte, packet_id in _answers(packets):
            if first_byte == PUBREC_BYTE:
                link.write(encode(PubRec(packet_id, reason_code), 5))
            else:
                link.write(encode(PubAck(packet_id, reason_code), 5))

    def forget_received(self, session: Session, packet_ids: list[int]) -> None:
        """QoS 2 publishes were refused, and the client was told so: it takes other messages for these identifiers.

        The log may have them all the same. (A client that is not told sends the same messages again, in a session that
        knows which of them the log has.)
        """
        session.received = session.received.difference(packet_ids)
        if packet_ids and session.expiry_s:
            self.record(Progress(session.client_id, received_done=packet_ids))


def _tell_places(wanted: list[tuple[int, Callable[[int], None]]], first: int, size: int, log_offset: int) -> None:
    for place, then in wanted:
        if first <= place < first + size:
            then(log_offset + place - first if log_offset >= 0 else -1)


def _answers(packets: bytes) -> Iterator[tuple[int, int]]:
    """(first byte, packet_id) of answers one after another."""
    at = 0
    while at < len(packets):
        size, body_at = decode_varint(packets, at + 1)
        yield packets[at], int.from_bytes(packets[body_at : body_at + 2], "big")
        at = body_at + size
