"""Counts the messages that wait for absent sessions, again and again, a few sessions at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lightqueue.queues.table import QueueTable
from store.state.sessions import Sessions, SessionState

SESSIONS_PER_STEP = 50
INFLIGHT_BYTES = 10  # for each message in SessionClosed.inflight


class Waiting:
    """Owner of the count. A full count takes as long as a look at all sessions."""

    def __init__(self, sessions: Sessions, queues: QueueTable, end: Callable[[], int]) -> None:
        """`end` of the log: while it stays the same, nothing is counted again."""
        self._sessions = sessions
        self._queues = queues
        self._end = end
        self._began_at = -1  # the log's end when this count began
        self._left: Iterator[str] = iter(())
        self._found = 0
        self.messages = 0

    def step(self) -> None:
        """Look at the next few sessions. Call it several times a second."""
        for _ in range(SESSIONS_PER_STEP):
            client_id = next(self._left, None)
            if client_id is None:
                self.messages = self._found
                if self._began_at != self._end():
                    self._began_at, self._found = self._end(), 0
                    self._left = iter([state.client_id for state in self._sessions])
                return
            state = self._sessions.get(client_id)
            if state is not None and not state.connected:
                self._found += self._of(state)

    def _of(self, state: SessionState) -> int:
        """Messages that were in flight at the end of the connection, and later ones. Overlapping subscriptions each
        count.
        """
        since = max(state.frontier, state.acked)
        found = sum(self._of_filter(topic_filter, since) for topic_filter in state.held_filters())
        known = state.done.union(each.log_offset for each in state.sent.values() if not each.owed)
        found -= sum(log_offset >= since for log_offset in known)
        return max(found, 0) + len(state.sent) + len(state.inflight) // INFLIGHT_BYTES + len(state.owed)

    def _of_filter(self, topic_filter: str, since: int) -> int:
        queue = self._queues.stored(topic_filter)
        if queue is None or queue.last_log_offset < since:
            return 0
        return queue.next_offset - self._queues.position_of(queue, since)
