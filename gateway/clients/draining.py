"""A gateway that stops sees its clients off a few at a time, so that other gateways can take them in. No I/O.

Nothing new is begun (QoS 1 and 2) for a client that leaves; it has a moment to acknowledge what is in flight. Then it
is not listened to any more, what it published is answered, and it is told. What it has not acknowledged by then, or
sent too late, is sent again in its next connection, which is somewhere else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from functools import partial

from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.farewell import Farewell
from gateway.sessions.journal import Journal
from gateway.sessions.session import Session

ACK_GRACE_S = 1.0
"""The time that a client has to acknowledge what is in flight to it."""
LAST_S = 2.0
"""The last part of the timeout, in which clients that have been told close their connections."""
BURST_S = 0.1
"""Clients whose turn comes within this time may be told together."""


class Draining:
    """Owner of the clients that were told to leave, and of the others. Call go_on() until it is False, then end()."""

    def __init__(
        self,
        sessions: Iterable[Session],
        journal: Journal,
        reason_code: ReasonCode,
        clients_per_s: float,
        timeout_s: float,
        now_s: float,
    ) -> None:
        """`clients_per_s` is raised if `timeout_s` is too short for all; math.inf: no client waits for another."""
        self._journal = journal
        self._reason_code = reason_code
        self._staying = deque(sessions)
        self._leaving: dict[Session, float] = {}  # until when each has time to acknowledge
        self._told: set[Connection] = set()
        telling_s = max(timeout_s - LAST_S, timeout_s / 2)
        least = len(self._staying) / telling_s if telling_s else math.inf
        self.clients_per_s = max(clients_per_s, least)
        self.told = 0
        self._allowed = 1.0
        self._asked_s = now_s
        self._tell_all_s = now_s + telling_s
        self._end_s = now_s + timeout_s

    @property
    def left(self) -> int:
        """Connections that are not closed yet."""
        return len(self._staying) + len(self._leaving) + len(self._told)

    def is_late(self, now_s: float) -> bool:
        return now_s >= self._end_s

    def go_on(self, now_s: float) -> bool:
        """Call some hundred times a second, after records were stored. False: all clients are gone, or time is up."""
        if now_s >= self._tell_all_s:
            self.clients_per_s = math.inf
        burst = max(1.0, self.clients_per_s * BURST_S)
        passed_s = max(now_s - self._asked_s, 1e-9)
        self._allowed = min(self._allowed + passed_s * self.clients_per_s, burst)
        self._asked_s = now_s
        self._let_leave(now_s)
        self._tell(now_s)
        self._told = {connection for connection in self._told if connection.transport is not None}
        return bool(self.left) and not self.is_late(now_s)

    def _let_leave(self, now_s: float) -> None:
        """Send nothing new (QoS 1 and 2) to as many clients as can be told within ACK_GRACE_S.

        So a client that is slow to acknowledge does not delay the others.
        """
        most = ACK_GRACE_S * self.clients_per_s + 1
        while self._staying and len(self._leaving) < most:
            session = self._staying.popleft()
            if session.link is not None:
                session.inflight.window = 0
                self._leaving[session] = now_s + ACK_GRACE_S

    def _tell(self, now_s: float) -> None:
        for session, until_s in list(self._leaving.items()):
            if session.link is None:
                del self._leaving[session]
            elif self._allowed < 1:
                return
            elif not session.inflight or now_s >= min(until_s, self._tell_all_s):
                del self._leaving[session]
                self._allowed -= 1
                self._say_goodbye(session.connection)

    def _say_goodbye(self, connection: Connection) -> None:
        """Close a client's connection with the reason code once everything that it sent has been answered."""
        self.told += 1
        self._told.add(connection)
        connection.wait()
        self._journal.when_safe(connection, partial(connection.close, self._reason_code, farewell=Farewell.SEE_OFF))

    def end(self) -> None:
        """Tell the clients that are left, without waiting for them."""
        for session in [*self._staying, *self._leaving]:
            if session.link is not None:
                session.link.close(self._reason_code)
        for connection in self._told:
            connection.close(self._reason_code)
            if connection.transport is not None:
                connection.transport.close()
        self._staying.clear()
        self._leaving.clear()
        self._told.clear()
