"""How much a client, and all clients of one user, may do: token buckets for publishing, and counts. No I/O, no clock.

Who publishes faster is not listened to until there are tokens again, so nothing is lost; who has too many connections,
subscriptions or retained messages is told so (0x97). Who does not take what is sent to him gets no more until he has;
of a user whose clients leave too much together, those that come to leave more are closed (0x97); they lose nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.connection import Connection
from gateway.packets import Subscribe
from gateway.quota_settings import QuotaSettings
from gateway.reason_codes import ReasonCode
from gateway.session import Session

UNLIMITED = 1 << 30
GRANTED_MESSAGES = 64
GRANTED_BYTES = 64 << 10
"""What a connection is given at most at a time, without asking again."""
LEAST_PAUSE_S = 0.02
MOST_OWNERS = 100_000
"""Of retained messages who are counted; who set none for the longest time is forgotten first."""


class Bucket:
    """Tokens that come at a rate, up to a number; what was taken too much is paid back first."""

    def __init__(self, per_s: int, burst_s: float, now_s: float) -> None:
        self.per_s = per_s
        self.most = max(per_s * burst_s, 1.0)
        self.tokens = self.most
        self._at_s = now_s

    def refill(self, now_s: float) -> None:
        self.tokens = min(self.most, self.tokens + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s


def grant(buckets: list[Bucket], unused: int, most: int, now_s: float) -> tuple[int, float]:
    """Give back what was not used (negative: more was), and take anew: how much, and how long to wait if nothing."""
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
class Meter:
    """The buckets that one connection takes from: its own, and its user's."""

    quotas: Quotas
    messages: list[Bucket]
    bytes_: list[Bucket]

    def settle(self, connection: Connection, now_s: float) -> float:
        """Give the connection an allowance; or say for how long it is not to be listened to (s)."""
        unused_messages = connection.allowed_messages if self.messages else 0
        unused_bytes = connection.allowed_bytes if self.bytes_ else 0
        connection.allowed_messages, pause_s = grant(self.messages, unused_messages, GRANTED_MESSAGES, now_s)
        connection.allowed_bytes, longer_s = grant(self.bytes_, unused_bytes, GRANTED_BYTES, now_s)
        pause_s = max(pause_s, longer_s)
        self.quotas.pauses += pause_s > 0
        return pause_s


@dataclass(slots=True)
class _User:
    """What all clients of one user share."""

    messages: list[Bucket]
    bytes_: list[Bucket]
    connections: set[Connection] = field(default_factory=set)

    def has_full_buckets(self, now_s: float) -> bool:
        """Whoever comes back would find no others in a new user's place."""
        for bucket in (*self.messages, *self.bytes_):
            bucket.refill(now_s)
        return all(each.tokens >= each.most for each in (*self.messages, *self.bytes_))


class Quotas:
    """Owner of what users have used up in this gateway."""

    def __init__(self, settings: QuotaSettings) -> None:
        self._settings = settings
        self._burst_s = settings.burst_ms / 1000
        self._users: dict[str, _User] = {}
        self._gone: set[str] = set()  # users without a connection
        self._retained: OrderedDict[tuple[str, str], set[str]] = OrderedDict()
        self.refused: Counter[str] = Counter({"connections": 0, "subscriptions": 0, "retained": 0, "waiting": 0})
        self.pauses = 0

    def _buckets(self, per_s: int, now_s: float) -> list[Bucket]:
        return [Bucket(per_s, self._burst_s, now_s)] if per_s else []

    # --- coming and going

    def may_enter(self, username: str, client_id: str) -> bool:
        """Whether one more client of this user may; one that takes the place of another always may."""
        most, user = self._settings.user_connections, self._users.get(username)
        if not most or user is None or len(user.connections) < most:
            return True
        if any(each.client_id == client_id for each in user.connections):
            return True
        self.refused["connections"] += 1
        return False

    def entered(self, connection: Connection, username: str) -> None:
        """From now on the connection counts."""
        settings, now_s = self._settings, connection.turn.now_s
        messages = self._buckets(settings.client_messages_per_s, now_s)
        bytes_ = self._buckets(settings.client_bytes_per_s, now_s)
        if username:
            user = self._users.get(username)
            if user is None:
                of_user = self._buckets(settings.user_messages_per_s, now_s)
                user = _User(of_user, self._buckets(settings.user_bytes_per_s, now_s))
                self._users[username] = user
            user.connections.add(connection)
            self._gone.discard(username)
            messages, bytes_ = messages + user.messages, bytes_ + user.bytes_
        if messages or bytes_:
            connection.meter = Meter(self, messages, bytes_)
            connection.metered = True
        connection.judges_retained = settings.user_retained > 0
        if settings.client_waiting_bytes:
            connection.let_wait(settings.client_waiting_bytes)

    def left(self, connection: Connection, username: str) -> None:
        user = self._users.get(username)
        if user is not None:
            user.connections.discard(connection)
            if not user.connections:
                self._gone.add(username)

    def tick(self, now_s: float) -> None:
        """To be called once a second: forget who is gone, and has nothing to pay back."""
        for username in [name for name in self._gone if self._users[name].has_full_buckets(now_s)]:
            del self._users[username]
            self._gone.discard(username)

    # --- what is refused

    def may_wait(self, username: str) -> bool:
        """Whether so much may wait for the user's clients as does, now that another one takes no more for a while."""
        most, user = self._settings.user_waiting_bytes, self._users.get(username)
        if not most or user is None:
            return True
        if sum(each.waiting_bytes for each in user.connections if each.paused) <= most:
            return True
        self.refused["waiting"] += 1
        return False

    def subscriptions(
        self, session: Session, username: str, subscribe: Subscribe, refusals: Mapping[int, ReasonCode]
    ) -> Mapping[int, ReasonCode]:
        """The refusals, and those beyond the quota: subscriptions that the client has already are not new."""
        most, user = self._settings.user_subscriptions, self._users.get(username)
        if not most or user is None:
            return refusals
        found = dict(refusals)
        sessions = (each.session for each in user.connections if each.session is not None)
        used = sum(not reader.only_live for each in sessions for reader in each.readers.values())
        new: set[str] = set()
        for number, wanted in enumerate(subscribe.subscriptions):
            if number in found or wanted.topic_filter in session.readers or wanted.topic_filter in new:
                continue
            if used + len(new) >= most:
                found[number] = ReasonCode.QUOTA_EXCEEDED
                self.refused["subscriptions"] += 1
            else:
                new.add(wanted.topic_filter)
        return found

    def may_retain(self, username: str, client_id: str, topic: str, is_empty: bool) -> bool:
        """Whether a message may be retained; if so it counts. An empty one takes another one away."""
        most = self._settings.user_retained
        if not most:
            return True
        owner = ("user", username) if username else ("client", client_id)
        topics = self._retained.setdefault(owner, set())
        self._retained.move_to_end(owner)
        if is_empty:
            topics.discard(topic)
        elif topic not in topics and len(topics) >= most:
            self.refused["retained"] += 1
            return False
        else:
            topics.add(topic)
        if not topics:
            del self._retained[owner]
        if len(self._retained) > MOST_OWNERS:
            self._retained.popitem(last=False)
        return True
