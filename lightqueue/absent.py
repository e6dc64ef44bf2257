"""What becomes of sessions whose client is away: the will after its delay, the end after the expiry.

Both stand in the log as records, so applying stays free of any clock.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from store._records import RecordBatch
from store.changes import SessionClosed, SessionEnded, WillFired, encode_change
from store.deadlines import Deadlines
from store.errors import StoreError
from store.ratelimit import RateLimitedLog
from store.records import RecordType, message_flags
from store.sessions import NEVER_EXPIRES_S, Sessions, SessionState

log = logging.getLogger("penstock.store")

PER_TICK = 500
RETRY_S = 1
WILL, EXPIRY = "will", "expiry"


class AbsentSessions:
    """Owner of the deadlines of all sessions that nobody has. A session is away from its SessionClosed on."""

    def __init__(
        self, sessions: Sessions, append: Callable[[RecordBatch], object], is_live_only: Callable[[bytes], bool]
    ) -> None:
        self._sessions = sessions
        self._append = append
        self._is_live_only = is_live_only
        self._events = RateLimitedLog(log)
        self._deadlines = Deadlines()
        self._due: list[tuple[str, str]] = []
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
        now_s = time.time()
        if clean_start or (not state.connected and now_s >= _expires_at_s(state)):
            self._end(batch, state)
        elif not state.connected and state.will is not None and now_s >= _will_at_s(state):
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
        if state.will is not None and not min(state.will.delay_s, state.session_expiry_interval):
            self._due.append((WILL, client_id))
        elif state.will is not None:
            self._set(WILL, client_id, _will_at_s(state))
        if state.session_expiry_interval != NEVER_EXPIRES_S:
            self._set(EXPIRY, client_id, _expires_at_s(state))

    def tick(self) -> None:
        """Do what is due, so much of it at a time that the loop does not stand still. Raises a StoreError."""
        self._events.settle()
        self._deadlines.run(time.time(), PER_TICK)
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
                    self._set(kind, client_id, time.time() + RETRY_S)
                raise

    # --- into a batch

    def _expire(self, batch: RecordBatch, state: SessionState) -> None:
        self.expired += 1
        self._events.info("expired", "session of client %s expired", state.client_id)
        self._end(batch, state)

    def _end(self, batch: RecordBatch, state: SessionState) -> None:
        """The session ends, and with it the delay of its will [MQTT-3.1.3-9]."""
        if not state.connected:
            self._fire(batch, state)
        batch.append(*encode_change(SessionEnded(state.client_id)))

    def _fire(self, batch: RecordBatch, state: SessionState) -> None:
        """Publish a will and record that it was: both or neither."""
        will = state.will
        if will is None:
            return
        self._events.info("will", "will of client %s sent to %s", state.client_id, will.topic)
        topic = will.topic.encode()
        batch.begin_atomic()
        batch.append(
            RecordType.MESSAGE,
            will.payload,
            topic=topic,
            client_id=state.client_id.encode(),
            properties=will.properties,
            flags=message_flags(
                will.qos,
                retain=will.retain,
                expires=b"\2" in will.properties,
                live_only=self._is_live_only(topic),
            ),
        )
        batch.append(*encode_change(WillFired(state.client_id)))
        batch.end_atomic()

    # --- deadlines

    def _set(self, kind: str, client_id: str, at_s: float) -> None:
        self._deadlines.set((kind, client_id), at_s, lambda: self._due.append((kind, client_id)))

    def _cancel(self, client_id: str) -> None:
        self._deadlines.cancel((WILL, client_id))
        self._deadlines.cancel((EXPIRY, client_id))


def _expires_at_s(state: SessionState) -> float:
    if state.session_expiry_interval == NEVER_EXPIRES_S:
        return float("inf")
    return state.closed_at_ms / 1000 + state.session_expiry_interval


def _will_at_s(state: SessionState) -> float:
    delay_s = state.will.delay_s if state.will is not None else 0
    return state.closed_at_ms / 1000 + min(delay_s, state.session_expiry_interval)
