"""Absent sessions: publishes a will after its delay, and ends a session after its expiry interval.

Both are records in the log, so applying the log needs no clock.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from store.errors import StoreError
from store.log.clock import Clock
from store.ratelimit import RateLimitedLog
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, message_flags
from store.state.changes import SessionClosed, SessionEnded, WillFired, WillState, encode_change
from store.state.deadlines import Deadlines
from store.state.sessions import NEVER_EXPIRES_S, PresenceListener, Sessions, SessionState

log = logging.getLogger("penstock.store")

PER_TICK = 500
RETRY_S = 1
WILL, EXPIRY = "will", "expiry"


class WillCounts(Protocol):
    """The counts of wills that are sent for users."""

    def count_will(self, state: SessionState, will: WillState) -> tuple[bytes, str]:
        """The value of a will's attribute COUNTED (empty: none), and why it may not be sent (empty: it may)."""


class AbsentSessions:
    """Owner of the deadlines of all sessions without a connection. A session is absent from its SessionClosed on."""

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
        self._presence_listener: PresenceListener | None = None
        self._will_counts: WillCounts | None = None
        self.expired = 0  # sessions whose expiry interval passed

    def count_wills(self, counts: WillCounts) -> None:
        """Set `counts`, which says of each will whether it may be sent, and what it counts as."""
        self._will_counts = counts

    def begin(self, listener: PresenceListener | None = None, waited_for: frozenset[str] = frozenset()) -> None:
        """Close the sessions that were connected when the process died, except those of a holder in `waited_for`.

        `listener` is told of presence from here on.
        """
        self._began_s = self._clock.now_s()
        self._presence_listener = listener
        self._sessions.listen(presence=self)
        for state in self._sessions:
            self.look_at(state.client_id)
        with suppress(StoreError):  # on a full disk they stay open until a gateway claims them
            self.close(state for state in self._sessions if state.connected and state.holder not in waited_for)
            self.do_due()

    def presence_changed(self, client_id: str) -> None:
        """PresenceListener of the sessions: a record changed a session's holder, or ended it."""
        self.look_at(client_id)
        if self._presence_listener is not None:
            self._presence_listener.presence_changed(client_id)

    def close(self, states: Iterable[SessionState]) -> None:
        """Close sessions whose holder is gone without a word. Raises a StoreError."""
        batch = RecordBatch()
        for state in states:
            closed = SessionClosed(
                state.client_id, state.session_expiry_interval, state.will is not None, state.frontier, state.inflight
            )
            batch.append(*encode_change(closed))
        if batch.size:
            self._append(batch)

    def claim(self, client_id: str, clean_start: bool) -> SessionState | None:
        """The state for a connection that takes this session now; None if the session is new, or begins anew.

        Raises a StoreError if the records that end the old session or fire its will cannot be stored.
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
        """Set the deadlines of a session whose holder may have changed."""
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
        """Handle what is due, at most PER_TICK deadlines, so that the loop goes on. Raises a StoreError."""
        self._events.tell_left_out()
        self._deadlines.run(self._clock.now_s(), PER_TICK)
        self.do_due()

    @property
    def has_due(self) -> bool:
        """Whether do_due() has work."""
        return bool(self._due)

    def do_due(self) -> None:
        """Fire wills and end sessions that are due. Raises a StoreError; then it is tried again after RETRY_S."""
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
        """End a session. That ends its will delay, too [MQTT-3.1.3-9], unless the client is back in time."""
        if not state.connected and not is_back:
            self._fire(batch, state)
        batch.append(*encode_change(SessionEnded(state.client_id)))

    def _fire(self, batch: RecordBatch, state: SessionState) -> None:
        """Publish a will, and record that it was published: both or neither."""
        will = state.will
        if will is None:
            return
        counted, fault = self._will_counts.count_will(state, will) if self._will_counts is not None else (b"", "")
        if fault:
            self._events.warning("will", "will of client %s not sent: %s", state.client_id, fault)
            batch.append(*encode_change(WillFired(state.client_id)))
            return
        self._events.info("will", "will of client %s sent to %s", state.client_id, will.topic)
        topic = will.topic.encode()
        expires, live_only = b"\2" in will.properties, self._is_live_only(topic)
        flags = message_flags(will.qos, retain=will.retain, expires=expires, live_only=live_only)
        attributes = encode_attribute(Attribute.COUNTED, counted) if counted else b""
        if will.left_by:  # it is authorized first, as a delayed message that is due
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
        """Time until which a will waits for the client because a gateway stopped; at least as long after a start of the
        store.
        """
        if not state.will_grace_s or state.will is None:
            return 0.0
        return max(self._clock.without_jumps(state.closed_at_ms / 1000), self._began_s) + state.will_grace_s

    def _cancel(self, client_id: str) -> None:
        self._deadlines.cancel((WILL, client_id))
        self._deadlines.cancel((EXPIRY, client_id))
