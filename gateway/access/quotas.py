"""Quotas of a client, and of all clients of one user or namespace, at this gateway: token buckets, and counts.

No I/O, no clock.

The gateway stops reading from a client that publishes too fast until its bucket has tokens again, so nothing is lost.
A connection above the limit is refused (0x97). A client that stops reading receives nothing more until its send buffer
drains. If the send buffers of all clients of one user hold more than user_waiting_bytes, the next client of that user
whose buffer is full is closed (0x97); it loses nothing. The store counts what a user has there
(gateway.clients.counting).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.access.quota_settings import QuotaSettings
from gateway.sessions.connection import Connection
from store.namespaces import shown

UNLIMITED = 1 << 30
GRANTED_MESSAGES = 64
GRANTED_BYTES = 64 << 10
"""The most that a connection is granted at a time."""
LEAST_PAUSE_S = 0.02


class Bucket:
    """A token bucket: tokens come at a rate, up to a maximum. The number is negative while a debt is paid back."""

    def __init__(self, per_s: int, burst_s: float, now_s: float) -> None:
        self.per_s = per_s
        self.most = max(per_s * burst_s, 1.0)
        self.tokens = self.most
        self._at_s = now_s

    def refill(self, now_s: float) -> None:
        self.tokens = min(self.most, self.tokens + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s


def grant(buckets: list[Bucket], unused: int, most: int, now_s: float) -> tuple[int, float]:
    """Return unused tokens to the buckets (negative: more were used than granted), and take up to `most` new ones.

    Returns the number granted, and the seconds to wait if it is 0.
    """
    if not buckets:
        return UNLIMITED, 0.0
    for bucket in buckets:
        bucket.refill(now_s)
        bucket.tokens = min(bucket.tokens + unused, bucket.most)
    found = min(int(min(bucket.tokens for bucket in buckets)), most)
    if found < 1:
        return 0, max(LEAST_PAUSE_S, *((1 - bucket.tokens) / bucket.per_s for bucket in buckets))
    for bucket in buckets:
        bucket.tokens -= found
    return found, 0.0


@dataclass(slots=True)
class ConnectionBuckets:
    """The buckets that one connection takes from: its own, its user's and its namespace's."""

    quotas: Quotas
    messages: list[Bucket]
    bytes_: list[Bucket]

    def renew(self, connection: Connection, now_s: float) -> float:
        """Grant the connection its next allowance. Returns the seconds to stop reading from it; 0: it has tokens."""
        unused_messages = connection.allowed_messages if self.messages else 0
        unused_bytes = connection.allowed_bytes if self.bytes_ else 0
        connection.allowed_messages, pause_s = grant(self.messages, unused_messages, GRANTED_MESSAGES, now_s)
        connection.allowed_bytes, longer_s = grant(self.bytes_, unused_bytes, GRANTED_BYTES, now_s)
        pause_s = max(pause_s, longer_s)
        self.quotas.pauses += pause_s > 0
        return pause_s


@dataclass(slots=True)
class _Shared:
    """The buckets that all clients of one user, or of one namespace, share."""

    messages: list[Bucket]
    bytes_: list[Bucket]
    connections: set[Connection] = field(default_factory=set)

    def has_full_buckets(self, now_s: float) -> bool:
        """True if all buckets are full: new ones would be the same, so these can be deleted."""
        for bucket in (*self.messages, *self.bytes_):
            bucket.refill(now_s)
        return all(each.tokens >= each.most for each in (*self.messages, *self.bytes_))


class Quotas:
    """Owner of what users have used up in this gateway."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        self._burst_s = settings.burst_ms / 1000
        self._users: dict[str, _Shared] = {}
        self._namespaces: dict[str, _Shared] = {}  # the default one if it is bounded
        self._gone: set[str] = set()  # users without a connection
        self.refused: Counter[str] = Counter({"connections": 0, "waiting": 0, "namespace_connections": 0})
        self.pauses = 0

    def _buckets(self, per_s: int, now_s: float) -> list[Bucket]:
        return [Bucket(per_s, self._burst_s, now_s)] if per_s else []

    # --- coming and going

    def fault(self, username: str, namespace: str, held: Connection | None) -> str:
        """The quota that refuses one more connection; empty: the connection may enter.

        A connection that replaces `held` is always accepted.
        """
        settings = self._settings
        if _is_full(self._users.get(username), settings.user_connections, held):
            self.refused["connections"] += 1
            return f"quota.user_connections of {username} is reached"
        if _is_full(self._namespaces.get(namespace), settings.namespace_connections, held):
            self.refused["namespace_connections"] += 1
            return f"quota.namespace_connections of {shown(namespace)} is reached"
        return ""

    def entered(self, connection: Connection, username: str) -> None:
        """Count a connection, and give it its buckets."""
        settings, now_s = self._settings, connection.turn.now_s
        messages = self._buckets(settings.client_messages_per_s, now_s)
        bytes_ = self._buckets(settings.client_bytes_per_s, now_s)
        shared: list[_Shared] = []
        if username:
            rates = settings.user_messages_per_s, settings.user_bytes_per_s
            shared.append(self._join(self._users, username, connection, rates))
            self._gone.discard(username)
        namespace = connection.names.name
        if namespace or settings.bound_default_namespace:
            rates = settings.namespace_messages_per_s, settings.namespace_bytes_per_s
            shared.append(self._join(self._namespaces, namespace, connection, rates))
        for each in shared:
            messages, bytes_ = messages + each.messages, bytes_ + each.bytes_
        if messages or bytes_:
            connection.meter = ConnectionBuckets(self, messages, bytes_)
            connection.metered = True
        if settings.client_waiting_bytes:
            connection.let_wait(settings.client_waiting_bytes)

    def _join(self, parts: dict[str, _Shared], name: str, connection: Connection, rates: tuple[int, int]) -> _Shared:
        """`rates`: messages and bytes in a second."""
        found = parts.get(name)
        if found is None:
            messages, bytes_ = (self._buckets(rate, connection.turn.now_s) for rate in rates)
            found = parts[name] = _Shared(messages, bytes_)
        found.connections.add(connection)
        return found

    def left(self, connection: Connection, username: str) -> None:
        namespace = self._namespaces.get(connection.names.name)
        if namespace is not None:
            namespace.connections.discard(connection)
        user = self._users.get(username)
        if user is not None:
            user.connections.discard(connection)
            if not user.connections:
                self._gone.add(username)

    def tick(self, now_s: float) -> None:
        """Call once a second: delete users and namespaces that have no connection and whose buckets are full."""
        for username in [name for name in self._gone if self._users[name].has_full_buckets(now_s)]:
            del self._users[username]
            self._gone.discard(username)
        without = [name for name, each in self._namespaces.items() if not each.connections]
        for name in [name for name in without if self._namespaces[name].has_full_buckets(now_s)]:
            del self._namespaces[name]

    # --- what is refused

    def may_wait(self, username: str) -> bool:
        """Check user_waiting_bytes after another send buffer of this user became full. Counts a refusal.

        Returns False if the full send buffers of the user's clients together hold more bytes than that.
        """
        most, user = self._settings.user_waiting_bytes, self._users.get(username)
        if not most or user is None:
            return True
        if sum(each.waiting_bytes for each in user.connections if each.paused) <= most:
            return True
        self.refused["waiting"] += 1
        return False


def _is_full(shared: _Shared | None, most: int, held: Connection | None) -> bool:
    return bool(most) and shared is not None and len(shared.connections) >= most and held not in shared.connections
