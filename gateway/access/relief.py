"""Bounds the memory of clients: if they use too much, the ones that have used it for the longest time are closed."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gateway.access.quotas import Quotas
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from gateway.sessions.farewell import Farewell
from store.audit import AuditEvent


class Relief:
    """Owner of the connections whose send buffer is full, the longest first."""

    def __init__(self, core: Core, quotas: Quotas) -> None:
        self._turn = core.turn
        self._settings = core.settings
        self._quotas = quotas
        self._events = core.events
        self._audit = core.audit
        self._soon = core.scheduler.soon
        self._clogged: dict[Connection, None] = {}
        self.shed: Counter[str] = Counter({"connecting": 0, "connected": 0})  # closed over packets that were not whole

    def clogged(self, connection: Connection) -> None:
        """The connection's send buffer is full. Called in the middle of a write, so connections are closed later."""
        self._clogged[connection] = None
        if connection.all_waiting_bytes > self._settings.max_waiting_bytes:
            self._soon(self._cut_off)
        if not self._quotas.may_wait(connection.username):
            why = "quota.user_waiting_bytes is reached"
            self._soon(partial(connection.close, ReasonCode.QUOTA_EXCEEDED, why))

    def unclogged(self, connection: Connection) -> None:
        """The connection's send buffer has drained, or the connection has ended."""
        self._clogged.pop(connection, None)

    def _cut_off(self) -> None:
        """Cut off the clients whose buffers have been full for the longest time, until the other buffers fit."""
        for connection in list(self._clogged):
            if connection.all_waiting_bytes <= self._settings.max_waiting_bytes:
                break
            self._quotas.refused["waiting"] += 1
            told = "%s: cut off, gateway.max_waiting_bytes wait for slow clients"
            self._events.warning("slow", told, connection.peer)
            connection.close(None, "too slow: gateway.max_waiting_bytes wait for slow clients", Farewell.CUT_OFF)

    def shed_incomplete(self, is_open: bool) -> None:
        """Close the connections with the oldest incomplete packets, until the others fit into their limit.

        `is_open`: of connections that have a session (incomplete_bytes), otherwise of new ones (connecting_bytes).
        """
        name = "incomplete_bytes" if is_open else "connecting_bytes"
        most: int = getattr(self._settings, name)
        while self._turn.kept_bytes(is_open) > most:
            connection: Connection = self._turn.oldest_incomplete(is_open)
            self.shed["connected" if is_open else "connecting"] += 1
            told = "%s: closed, its packet is not whole and gateway.%s is used up"
            self._events.warning("shed", told, connection.peer, name)
            why = f"gateway.{name} is used up"
            if not is_open:
                self._audit.note(AuditEvent.REFUSED, address=connection.peer, reason=why)
            connection.close(ReasonCode.QUOTA_EXCEEDED, why)
