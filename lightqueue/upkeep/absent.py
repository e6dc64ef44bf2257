"""What becomes of sessions whose client is away: the will after its delay, the end after the expiry.

Both stand in the log as records, so applying stays free of any clock.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from store.errors import StoreError
from store.log.clock import Clock
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, message_flags
from store.state.changes import SessionClosed, SessionEnded, WillFired, WillState, encode_change
from store.state.deadlines import Deadlines
from store.state.sessions import NEVER_EXPIRES_S, Sessions, SessionState

log = logging.getLogger("penstock.store")

PER_TICK = 500
RETRY_S = 1
WILL, EXPIRY = "will", "expiry"


class AbsentSessions:
    """Owner of the deadlines of all sessions that nobody has. A session is away from its SessionClosed on."""

    def __init__(
        self,
        sessions: Sessions,
        append: Callable[[RecordBatch], object],
        is_live_only: Callable[[bytes], bool],
        clock: Clock,
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._append = append
        self._is_live_only = is_live_only
        self._events = RateLimitedLog(log)
        self._deadlines = Deadlines()
        self._began_s = 0.0
        self._due: list[tuple[str, str]] = []
        self.count_will: Callable[[SessionState, WillState], tuple[bytes, str]] = _counts_for_nobody
        """The value of a will's attribute COUNTED (empty: none), and why it may not be sent."""
        self.expired = 0  # sessions that ended because nobody came back for them in time

    def begin(self, presence_changed: Callable[[str], None], waited_for: frozenset[str] = frozenset()) -> None:
        """After a start: a session that was connected when the process died is closed now, but for those whose holder
        is waited for.

        From here on `presence_changed` is called, with the client_id, while something is applied that says who has a
        session or that it ended.
        """

        def changed(client_id: str) -> None:
            self.look_at(client_id)
            presence_changed(client_id)

        self._began_s = self._clock.now_s()
        self._sessions.presence_changed = changed
        for state in self._sessions:
            self.look_at(state.client_id)
        with suppress(StoreError):  # on a full disk they stay as they are, for whoever claims them
            self.close(state for state in self._sessions if state.connected and state.holder not in waited_for)
            self.do_due()

    def close(self, states: Iterable[SessionState]) -> None:
        """Whoever had these sessions is gone without a word. Raises a StoreError."""
        batch = RecordBatch()
        for state in states:
            closed = SessionClosed(
                state.client_id, state.session_expiry_interval, state.will is not None, state.frontier, state.inflight
            )
            batch.append(*encode_change(closed))
        if batch.size:
            self._append(batch)

    def claim(self, client_id: str, clean_start: bool) -> SessionState | None:
        """What a connection finds that takes this session now; None if it is new, or begins anew.

        Raises a StoreError when what has to be said of the old one cannot be stored.
        """
        self._cancel(client_id)
        state = self._sessions.get(client_id)
        if state is None:
            return None
        batch = RecordBatch()
        now_s = self._clock.now_s()
        if clean_start or (not state.connected and now_s >= self._expires_at_s(state)):
            self._end(batch, state, is_back=now_s < self._grace_ends_at_s(state))
        elif not state.connected and state.will is not None and now_s >= self._will_at_s(state):
            self._fire(batch, state)
        if batch.size:
            self._append(batch)
        return self._sessions.get(client_id)

    def look_at(self, client_id: str) -> None:
        """Something was said of who has this session."""
        self._cancel(client_id)
        state = self._sessions.get(client_id)
        if state is None or state.connected:
            return
        if state.will is not None and not (self._will_delay_s(state) or state.will_grace_s):
            self._due.append((WILL, client_id))
        elif state.will is not None:
            self._set(WILL, client_id, self._will_at_s(state))
        if state.session_expiry_interval not in (0, NEVER_EXPIRES_S):  # with 0 it ends with its will
            self._set(EXPIRY, client_id, max(self._expires_at_s(state), self._grace_ends_at_s(state)))

    def tick(self) -> None:
        """Do what is due, so much of it at a time that the loop does not stand still. Raises a StoreError."""
        self._events.settle()
        self._deadlines.run(self._clock.now_s(), PER_TICK)
        self.do_due()

    @property
    def has_due(self) -> bool:
        """Whether do_due() has anything to do."""
        return bool(self._due)

    def do_due(self) -> None:
        """Do what became due by what was just applied. Raises a StoreError; then it is tried again later."""
        if not self._due:
            return
        due, self._due = self._due, []
        batch = RecordBatch()
        ending = {client_id for kind, client_id in due if kind == EXPIRY}
        for kind, client_id in due:
            state = self._sessions.get(client_id)
            if state is None or state.connected or (kind == WILL and client_id in ending):
                continue
            if kind == EXPIRY:
                self._expire(batch, state)
            else:
                self._fire(batch, state)
        if batch.size:
            try:
                self._append(batch)
            except StoreError:
                for kind, client_id in due:
                    self._set(kind, client_id, self._clock.now_s() + RETRY_S)
                raise

    # --- into a batch

    def _expire(self, batch: RecordBatch, state: SessionState) -> None:
        self.expired += 1
        self._events.info("expired", "session of client %s expired", state.client_id)
        self._end(batch, state)

    def _end(self, batch: RecordBatch, state: SessionState, is_back: bool = False) -> None:
        """The session ends, and with it the delay of its will [MQTT-3.1.3-9], unless the client is back in time."""
        if not state.connected and not is_back:
            self._fire(batch, state)
        batch.append(*encode_change(SessionEnded(state.client_id)))

    def _fire(self, batch: RecordBatch, state: SessionState) -> None:
        """Publish a will and record that it was: both or neither."""
        will = state.will
        if will is None:
            return
        counted, fault = self.count_will(state, will)
        if fault:
            self._events.warning("will", "will of client %s not sent: %s", state.client_id, fault)
            batch.append(*encode_change(WillFired(state.client_id)))
            return
        self._events.info("will", "will of client %s sent to %s", state.client_id, will.topic)
        topic = will.topic.encode()
        expires, live_only = b"\2" in will.properties, self._is_live_only(topic)
        flags = message_flags(will.qos, retain=will.retain, expires=expires, live_only=live_only)
        attributes = encode_attribute(Attribute.COUNTED, counted) if counted else b""
        if will.left_by:  # it is judged first, as a delayed message that is due
            flags |= RecordFlag.DELAYED
            due_ms = time.time_ns() // 1_000_000
            attributes += encode_attribute(Attribute.LEFT_BY, will.left_by)
            attributes += encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))
        batch.begin_atomic()
        batch.append(
            RecordType.MESSAGE,
            will.payload,
            topic=topic,
            client_id=state.client_id.encode(),
            attributes=attributes,
            properties=will.properties,
            flags=flags,
        )
        batch.append(*encode_change(WillFired(state.client_id)))
        batch.end_atomic()

    # --- deadlines

    def _set(self, kind: str, client_id: str, at_s: float) -> None:
        self._deadlines.set((kind, client_id), at_s, lambda: self._due.append((kind, client_id)))

    def _expires_at_s(self, state: SessionState) -> float:
        if state.session_expiry_interval == NEVER_EXPIRES_S:
            return float("inf")
        return self._clock.without_jumps(state.closed_at_ms / 1000) + state.session_expiry_interval

    def _will_at_s(self, state: SessionState) -> float:
        will_at_s = self._clock.without_jumps(state.closed_at_ms / 1000) + self._will_delay_s(state)
        return max(will_at_s, self._grace_ends_at_s(state))

    def _will_delay_s(self, state: SessionState) -> int:
        return min(state.will.delay_s, state.session_expiry_interval) if state.will is not None else 0

    def _grace_ends_at_s(self, state: SessionState) -> float:
        """Until when the will waits for the client since a gateway stopped. Without a store it could not come back."""
        if not state.will_grace_s or state.will is None:
            return 0.0
        return max(self._clock.without_jumps(state.closed_at_ms / 1000), self._began_s) + state.will_grace_s

    def _cancel(self, client_id: str) -> None:
        self._deadlines.cancel((WILL, client_id))
        self._deadlines.cancel((EXPIRY, client_id))


def _counts_for_nobody(_: SessionState, __: WillState) -> tuple[bytes, str]:
    return b"", ""
