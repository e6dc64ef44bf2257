"""Sessions that must survive: a projection of the log. Applying a change is deterministic: no clock, no I/O.

A session's position is one log_offset, `acked`: every message of its subscriptions before it is done with. What is
known beyond it (QoS 2 packet identifiers, messages outside any queue) is in `sent`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from store import changes
from store.changes import Change, Sent, SubscriptionState, WillState
from store.index import Index

PRESENCE = (changes.SessionOpened, changes.SessionClosed, changes.SessionEnded, changes.WillFired)
NEVER_EXPIRES_S = 0xFFFFFFFF  # a session_expiry_interval
KEY_PREFIX = b"s"
KEY_END = b"t"
SHARE_PREFIX = "$share/"
RELEASED_AT_ONCE = 64  # filters, of 5 µs or so each


class SessionState(msgspec.Struct):
    """All that a store knows of one session."""

    client_id: str
    session_expiry_interval: int
    acked: int
    connected: bool = True
    closed_at_ms: int = 0
    will: WillState | None = None
    subscriptions: dict[str, SubscriptionState] = {}
    sent: dict[int, Sent] = {}
    released: set[int] = set()
    done: set[int] = set()  # log_offsets above `acked` that must not be sent again (QoS 2, completed)
    received: set[int] = set()  # packet identifiers of QoS 2 messages stored but not yet released by the client
    owed: list[Sent] = []  # retained messages for new subscriptions, not sent so far
    frontier: int = 0  # when the last connection ended, everything before it had been put in flight
    inflight: bytes = b""  # QoS 1 from queues, not acknowledged then; see SessionClosed
    holder: str = ""  # the peer that has the connection, or had it last; see SessionOpened
    shared: bytes = b""  # what was in flight then and went back to groups; see SessionClosed
    user: str | None = None  # who owns it; empty: an anonymous client, None: not known (a session of an older log)

    def held_filters(self) -> list[str]:
        """Filters whose messages are kept while the client is away."""
        if not self.session_expiry_interval:
            return []
        return [each.topic_filter for each in self.subscriptions.values() if is_held(each)]


def is_shared(topic_filter: str) -> bool:
    """Whether a subscription's messages are kept by a consumer group, and not for the session."""
    return topic_filter.startswith(SHARE_PREFIX)


def is_held(subscription: SubscriptionState) -> bool:
    """Whether its messages are kept while the client is away."""
    return subscription.qos > 0 and not is_shared(subscription.topic_filter)


class Sessions:
    """Owner of all SessionState. `hold` and `release` are told which filters' messages have to be kept; from which
    log_offset on, if nobody did so far.
    """

    def __init__(self, index: Index, hold: Callable[[str, int], None], release: Callable[[str], None]) -> None:
        self._index = index
        self._hold = hold
        self._release = release
        self._dirty: set[str] = set()
        self._releasing: deque[Iterator[str]] = deque()  # filters that ended sessions had held
        self._sessions: dict[str, SessionState] = {}
        self.presence_changed: Callable[[str], None] = _nobody_asks
        self.subscription_count = 0
        self.shares: Counter[str] = Counter()  # sessions by the shared subscription that they have
        self.connected = 0  # sessions that a connection has
        decode = msgspec.msgpack.Decoder(SessionState).decode
        for _, value in index.scan(KEY_PREFIX, KEY_END):
            session = decode(value)
            self._sessions[session.client_id] = session
            self.subscription_count += len(session.subscriptions)
            self.shares.update(filter(is_shared, session.subscriptions))
            self.connected += session.connected
            self._hold_all(session, 0)  # their queues are there and know where they began
        self._encode = msgspec.msgpack.Encoder().encode

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def offline(self) -> int:
        """Sessions that no connection has."""
        return len(self._sessions) - self.connected

    def __iter__(self) -> Iterator[SessionState]:
        return iter(self._sessions.values())

    def get(self, client_id: str) -> SessionState | None:
        return self._sessions.get(client_id)

    def stage(self) -> None:
        """Hand what changed to the index, for its next write; once that succeeded, written() is to be called."""
        for client_id in self._dirty:
            session = self._sessions.get(client_id)
            key = KEY_PREFIX + client_id.encode()
            if session is None:
                self._index.delete(key)
            else:
                self._index.put(key, self._encode(session))

    def written(self) -> None:
        self._dirty.clear()

    # --- applying

    def received(self, client_id: str, packet_id: int) -> None:
        """A QoS 2 message with this packet identifier was stored for a publisher."""
        session = self._sessions.get(client_id)
        if session is not None:
            session.received.add(packet_id)
            self._dirty.add(client_id)

    def apply(self, change: Change, log_offset: int, timestamp_ms: int) -> None:
        """Apply one change that stands in the log at `log_offset`."""
        client_id: str = change.client_id  # type: ignore[attr-defined]
        self._dirty.add(client_id)
        if isinstance(change, changes.SessionOpened):
            self._open(change, log_offset)
        elif isinstance(change, changes.SessionEnded):
            self._end(client_id)
        elif (session := self._sessions.get(client_id)) is not None:
            self._apply_to(session, change, log_offset, timestamp_ms)
        if isinstance(change, PRESENCE):
            self.presence_changed(client_id)

    def _apply_to(self, session: SessionState, change: Change, log_offset: int, timestamp_ms: int) -> None:
        match change:
            case changes.SessionClosed():
                self._close(session, change, log_offset, timestamp_ms)
            case changes.Subscribed():
                for subscription in change.subscriptions:
                    self._subscribe(session, subscription, log_offset)
            case changes.Unsubscribed():
                for topic_filter in change.topic_filters:
                    self._unsubscribe(session, topic_filter)
            case changes.Progress():
                _progress(session, change)
            case changes.SessionAssigned():
                session.user = change.user
            case changes.WillFired():
                session.will = None
                if not session.connected and not session.session_expiry_interval:
                    self._end(session.client_id)

    def _open(self, change: changes.SessionOpened, log_offset: int) -> None:
        known = self._sessions.get(change.client_id)
        owner = known.user if known is not None else None
        if change.clean_start:
            self._end(change.client_id)
        session = self._sessions.get(change.client_id)
        if session is None:
            session = SessionState(change.client_id, 0, log_offset)
            self._sessions[change.client_id] = session
            self.connected += 1
        self._change_expiry(session, change.session_expiry_interval, log_offset)
        self.connected += not session.connected
        session.connected = True
        session.will = change.will
        session.holder = change.holder
        # A named owner keeps it: the record may have been on its way when an operator assigned the session.
        session.user = owner or (change.user if change.user is not None else owner)

    def _close(self, session: SessionState, change: changes.SessionClosed, log_offset: int, timestamp_ms: int) -> None:
        self._change_expiry(session, change.session_expiry_interval, log_offset)
        self.connected -= session.connected
        session.connected = False
        session.closed_at_ms = timestamp_ms
        session.frontier, session.inflight, session.shared = change.frontier, change.inflight, change.shared
        if not change.keep_will:
            session.will = None
            if not change.session_expiry_interval:
                self._end(session.client_id)

    def _end(self, client_id: str) -> None:
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self.subscription_count -= len(session.subscriptions)
            for topic_filter in filter(is_shared, session.subscriptions):
                self._count_share(topic_filter, -1)
            self.connected -= session.connected
            self._release_all(session)

    def _change_expiry(self, session: SessionState, expiry_s: int, log_offset: int) -> None:
        """What is held changes only with whether the session outlives its connection: there may be 10,000 filters."""
        if session.session_expiry_interval and not expiry_s:
            self._release_all(session)
        is_held_now = not session.session_expiry_interval and expiry_s > 0
        session.session_expiry_interval = expiry_s
        if is_held_now:
            self._hold_all(session, log_offset)

    def _subscribe(self, session: SessionState, subscription: SubscriptionState, log_offset: int) -> None:
        known = session.subscriptions.get(subscription.topic_filter)
        self._unsubscribe(session, subscription.topic_filter)
        since = known.since if known is not None and known.qos else log_offset
        subscription = msgspec.structs.replace(subscription, since=since)
        session.subscriptions[subscription.topic_filter] = subscription
        self.subscription_count += 1
        if is_shared(subscription.topic_filter):
            self._count_share(subscription.topic_filter, 1)
        if is_held(subscription) and session.session_expiry_interval:
            self._hold(subscription.topic_filter, log_offset)

    def _unsubscribe(self, session: SessionState, topic_filter: str) -> None:
        known = session.subscriptions.pop(topic_filter, None)
        self.subscription_count -= known is not None
        if known is not None and is_shared(topic_filter):
            self._count_share(topic_filter, -1)
        if known is not None and is_held(known) and session.session_expiry_interval:
            self._release(topic_filter)

    def _count_share(self, topic_filter: str, number: int) -> None:
        self.shares[topic_filter] += number
        if not self.shares[topic_filter]:
            del self.shares[topic_filter]

    def _hold_all(self, session: SessionState, log_offset: int) -> None:
        for topic_filter in session.held_filters():
            self._hold(topic_filter, log_offset)

    def _release_all(self, session: SessionState) -> None:
        """Of many filters later, by release_some(): that a queue is kept for a moment longer changes no state."""
        filters = iter(session.held_filters())
        for topic_filter in islice(filters, RELEASED_AT_ONCE):
            self._release(topic_filter)
        if len(session.subscriptions) > RELEASED_AT_ONCE:
            self._releasing.append(filters)

    def release_some(self) -> bool:
        """Go on releasing filters of sessions that ended. True if there are more."""
        if self._releasing:
            for topic_filter in (some := list(islice(self._releasing[0], RELEASED_AT_ONCE))):
                self._release(topic_filter)
            if len(some) < RELEASED_AT_ONCE:
                self._releasing.popleft()
        return bool(self._releasing)


def _progress(session: SessionState, change: changes.Progress) -> None:
    session.owed.extend(change.owed)
    for sent in change.sent:
        session.sent[sent.packet_id] = sent
        if sent.owed:
            _pay(session, sent.log_offset)
    session.released.update(change.released)
    for packet_id in change.completed:
        session.released.discard(packet_id)
        sent_before = session.sent.pop(packet_id, None)
        if sent_before is not None and not sent_before.owed:
            session.done.add(sent_before.log_offset)
    session.received.difference_update(change.received_done)
    if change.acked > session.acked:
        session.acked = change.acked
        session.done = {log_offset for log_offset in session.done if log_offset >= session.acked}


def _pay(session: SessionState, log_offset: int) -> None:
    """Take one message from what is owed; it is the first, or one of the first."""
    for i, owed in enumerate(session.owed):
        if owed.log_offset == log_offset:
            del session.owed[i]
            return


def _nobody_asks(_: str) -> None:
    pass
