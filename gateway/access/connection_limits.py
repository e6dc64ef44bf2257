"""Limits on the number of connections: in all, at one listener, from one address. No I/O, no clock."""

from __future__ import annotations

from collections import Counter

from gateway.auth.sources import source_of
from gateway.sessions.connection import Connection, Entrance
from gateway.settings import GatewaySettings
from store.audit import Audit, AuditEvent
from store.files.descriptors import first_of_operators
from store.ratelimit import RateLimitedLog

MAX_CONNECTIONS = "max_connections"
LISTENER_MAX_CONNECTIONS = "listener_max_connections"
PER_ADDRESS = "max_connections_per_address"
DESCRIPTORS = "descriptors"
LIMITS = (MAX_CONNECTIONS, LISTENER_MAX_CONNECTIONS, PER_ADDRESS, DESCRIPTORS)
"""Settings, and the descriptors that the process may have."""


class ConnectionLimits:
    """Owner of the number of connections from each address. An address without connections is not in its table."""

    def __init__(self, settings: GatewaySettings, events: RateLimitedLog, audit: Audit) -> None:
        self._settings = settings
        self._events = events
        self._audit = audit
        self._from: dict[str, int] = {}  # by source_of() the address
        self.refused: Counter[str] = Counter(dict.fromkeys(LIMITS, 0))

    @property
    def addresses(self) -> int:
        """Addresses that have connections."""
        return len(self._from)

    def is_full(self, host: str) -> bool:
        """True if an address has as many connections as max_connections_per_address allows."""
        most = self._settings.max_connections_per_address
        return most > 0 and self._from.get(source_of(host), 0) >= most

    def add(self, connection: Connection) -> None:
        """Count a new connection by the address that its transport names, until remove()."""
        if not self._settings.max_connections_per_address:
            return
        source = source_of(connection.host)
        if source:
            connection.source = source
            self._from[source] = self._from.get(source, 0) + 1

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection whose socket is closed. Idempotent."""
        source, connection.source = connection.source, ""
        if not source:
            return
        left = self._from[source] - 1
        if left:
            self._from[source] = left
        else:
            del self._from[source]

    def exceeded(self, connections: int, entrance: Entrance | None, source: str) -> str:
        """The setting whose limit this number of connections exceeds; empty: none is exceeded."""
        settings = self._settings
        if connections > settings.max_connections:
            return MAX_CONNECTIONS
        if entrance is not None and entrance.connections > entrance.most:
            return LISTENER_MAX_CONNECTIONS
        if source and self._from[source] > settings.max_connections_per_address:
            return PER_ADDRESS
        return ""

    def refuse(self, peer: str, limit: str) -> None:
        """Count, log and audit a connection that is closed because of this limit, which is one of LIMITS."""
        self.refused[limit] += 1
        if limit == DESCRIPTORS:
            reason = f"all {first_of_operators()} descriptors for clients are in use; raise the limit (ulimit -n)"
        else:
            reason = f"{limit} are {'connected from its address' if limit == PER_ADDRESS else 'connected'}"
        self._events.warning("limit", "%s: refused, %s", peer, reason)
        self._audit.note(AuditEvent.REFUSED, address=peer, reason=reason)
