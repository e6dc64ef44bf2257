"""Sessions that must survive: a projection of the log. Applying a change is deterministic: no clock, no I/O.

A session's position is one log_offset, `acked`: every message of its subscriptions before it is done with. What is
known beyond it (QoS 2 packet identifiers, messages outside any queue) is in `sent`.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Protocol

import msgspec

from store.log.index import Index
from store.namespaces import MARK, namespace_of
from store.state import changes
from store.state.changes import Change, Sent, SubscriptionState, WillState
from store.state.filter_holds import FilterHolds
from store.topics import SHARE_PREFIX

PRESENCE = (changes.SessionOpened, changes.SessionClosed, changes.SessionEnded, changes.WillFired)
NEVER_EXPIRES_S = 0xFFFFFFFF  # a session_expiry_interval
KEY_PREFIX = b"s"
KEY_END = b"t"
RELEASED_AT_ONCE = 64  # filters, of 5 µs or so each
UNKNOWN_EXPIRY_S = 7 * 86_400  # of a session whose opening is lost


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
    gap: int = (
        0  # log_offset of lost records that may have been its, of which its client is not told yet; see renewed()
    )
    will_grace_s: int = 0  # that the will waits at least for the client to come back; see SessionClosed

    def held_filters(self) -> list[str]:
        """Filters whose messages are kept while the client is away."""
        if not self.session_expiry_interval:
            return []
        return [each.topic_filter for each in self.subscriptions.values() if is_held(each)]


def renewed(state: SessionState) -> SessionState:
    """The state of a session with a gap after its client was told that it has no session: it keeps what it has.

    The client has forgotten all that was under way, so that comes once more under new packet identifiers. Where the
    last connection had come to is not believed: that what it had in flight was done with may be lost.
    """
    done = set(state.done)
    owed = list(state.owed)
    for packet_id, sent in state.sent.items():
        if not sent.owed:
            done.add(sent.log_offset)
        if packet_id not in state.released:
            owed.append(msgspec.structs.replace(sent, packet_id=0, owed=True))
    for at in range(2, len(state.inflight), 10):
        log_offset = int.from_bytes(state.inflight[at : at + 8], "little")
        done.add(log_offset)
        owed.append(Sent(0, log_offset, 1, False, owed=True))
    return msgspec.structs.replace(
        state,
        gap=0,
        owed=owed,
        done=done,
        sent={},
        released=set(),
        received=set(),
        frontier=0,
        inflight=b"",
        shared=b"",
    )


def is_shared(topic_filter: str) -> bool:
    """Whether a subscription's messages are kept by a consumer group, and not for the session."""
    return topic_filter.startswith(SHARE_PREFIX)


def is_held(subscription: SubscriptionState) -> bool:
    """True if a subscription's messages are kept while the client is away."""
    return subscription.qos > 0 and not is_shared(subscription.topic_filter)


class PresenceListener(Protocol):
    """A listener for sessions that get or lose their connection."""

    def presence_changed(self, client_id: str) -> None:
        """A record changed the holder of a session or its will, or ended it. Nothing may be stored now."""


class SubscriptionListener(Protocol):
    """A listener for what sessions subscribe to."""

    def was_subscribed(self, session: SessionState, topic_filter: str) -> None:
        """A record gave a session this subscription. Nothing may be stored now."""


class Sessions:
    """Owner of all SessionState."""

    def __init__(self, index: Index, holds: FilterHolds) -> None:
        self._index = index
        self._hold, self._release = holds.hold, holds.release
        self._dirty: set[str] = set()
        self._releasing: deque[Iterator[str]] = deque()  # filters that ended sessions had held
        self._sessions: dict[str, SessionState] = {}
        self._presence_listener: PresenceListener | None = None
        self._subscription_listener: SubscriptionListener | None = None
        self.subscription_count = 0
        self.shares: Counter[str] = Counter()  # sessions by the shared subscription that they have
        self.users: Counter[str] = Counter()  # sessions by the user who owns them; "": by anonymous clients
        self.subscriptions_of: Counter[str] = Counter()  # subscriptions of these sessions
        self.namespaces: Counter[str] = Counter()  # sessions by namespace, but for the default one
        self.subscriptions_in: Counter[str] = Counter()  # subscriptions of these sessions
        self.connected = 0  # sessions that a connection has
        self._ended: set[str] = set()  # after a gap: what is said of them later is no news
        self.gap = 0  # log_offset of the newest lost records that may have been some session's
        decode = msgspec.msgpack.Decoder(SessionState).decode
        for _, value in index.scan(KEY_PREFIX, KEY_END):
            session = decode(value)
            self._sessions[session.client_id] = session
            self.subscription_count += len(session.subscriptions)
            self.shares.update(filter(is_shared, session.subscriptions))
            self.connected += session.connected
            self.gap = max(self.gap, session.gap)
            self._count_user(session, 1)
            self._count_namespace(session, 1)
            self._hold_all(session, 0)  # their queues are there and know where they began
        self._has_gap = self.gap > 0  # what is applied may be without what came before
        self._encode = msgspec.msgpack.Encoder().encode

    def listen(
        self, *, presence: PresenceListener | None = None, subscriptions: SubscriptionListener | None = None
    ) -> None:
        """Set the listeners that are told from now on; None: keep the one from before."""
        self._presence_listener = presence or self._presence_listener
        self._subscription_listener = subscriptions or self._subscription_listener

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

    @property
    def client_ids(self) -> Collection[str]:
        """The client identifiers of all sessions, in no order."""
        return self._sessions.keys()

    def stage(self) -> None:
        """Give what changed to the index, for its next write; once that has succeeded, call written()."""
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

    def cross_gap(self, log_offset: int) -> list[str]:
        """Records are lost before `log_offset`, and any session may be concerned. Returns the client identifiers."""
        self.gap = log_offset
        self._has_gap = True
        self._ended.clear()
        for client_id, session in self._sessions.items():
            session.gap = log_offset
            session.received.clear()  # a new message may have the packet identifier of one that was released
            self._dirty.add(client_id)
        return list(self._sessions)

    def all_applied(self) -> None:
        """All of the log is applied: from now on nothing is lost."""
        self._ended.clear()
        self._has_gap = False

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
        elif (session := self._sessions.get(client_id) or self._found(change, log_offset)) is not None:
            self._apply_to(session, change, log_offset, timestamp_ms)
        if self._presence_listener is not None and isinstance(change, PRESENCE):
            self._presence_listener.presence_changed(client_id)

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
                self._change_user(session, change.user)
            case changes.WillFired():
                session.will = None
                if not session.connected and not session.session_expiry_interval:
                    self._end(session.client_id)

    def _found(self, change: Change, log_offset: int) -> SessionState | None:
        """A session whose opening may be lost, if a record gives it something."""
        match change:
            case changes.Subscribed(client_id=client_id):
                pass
            case changes.Progress(client_id=client_id, sent=sent, owed=owed) if sent or owed:
                pass
            case changes.SessionClosed(client_id=client_id, session_expiry_interval=expiry_s, inflight=inflight) if (
                expiry_s and inflight
            ):
                pass
            case _:
                return None
        if not self._has_gap or client_id in self._ended:
            return None
        session = SessionState(client_id, UNKNOWN_EXPIRY_S, log_offset, gap=self.gap)
        self._add(session)
        return session

    def _add(self, session: SessionState) -> None:
        self._sessions[session.client_id] = session
        self._count_namespace(session, 1)
        self.connected += 1

    def _open(self, change: changes.SessionOpened, log_offset: int) -> None:
        known = self._sessions.get(change.client_id)
        owner = known.user if known is not None else None
        if change.clean_start:
            self._end(change.client_id)
        session = self._sessions.get(change.client_id)
        if session is None:
            session = SessionState(change.client_id, 0, log_offset)
            self._add(session)
        if change.renewed:
            session = self._sessions[change.client_id] = renewed(session)
        self._change_expiry(session, change.session_expiry_interval, log_offset)
        self.connected += not session.connected
        session.connected = True
        session.will = change.will
        session.holder = change.holder
        # A named owner keeps it: the record may have been on its way when an operator assigned the session.
        self._change_user(session, owner or (change.user if change.user is not None else owner))

    def _close(self, session: SessionState, change: changes.SessionClosed, log_offset: int, timestamp_ms: int) -> None:
        self._change_expiry(session, change.session_expiry_interval, log_offset)
        self.connected -= session.connected
        session.connected = False
        session.closed_at_ms, session.will_grace_s = timestamp_ms, change.will_grace_s
        session.frontier, session.inflight, session.shared = change.frontier, change.inflight, change.shared
        _acknowledge(session, change.acked)
        if not change.keep_will:
            session.will = None
            if not change.session_expiry_interval:
                self._end(session.client_id)

    def _end(self, client_id: str) -> None:
        session = self._sessions.pop(client_id, None)
        if self._has_gap:
            self._ended.add(client_id)
        if session is not None:
            self._count_user(session, -1)
            self._count_namespace(session, -1)
            self.subscription_count -= len(session.subscriptions)
            for topic_filter in filter(is_shared, session.subscriptions):
                _count(self.shares, topic_filter, -1)
            self.connected -= session.connected
            self._release_all(session)

    def _change_expiry(self, session: SessionState, expiry_s: int, log_offset: int) -> None:
        """Held filters change only with whether the session outlives its connection: there may be 10,000 filters."""
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
        self._count_subscription(session, 1)
        if self._subscription_listener is not None:
            self._subscription_listener.was_subscribed(session, subscription.topic_filter)
        if is_shared(subscription.topic_filter):
            _count(self.shares, subscription.topic_filter, 1)
        if is_held(subscription) and session.session_expiry_interval:
            self._hold(subscription.topic_filter, log_offset)

    def _unsubscribe(self, session: SessionState, topic_filter: str) -> None:
        known = session.subscriptions.pop(topic_filter, None)
        if known is not None:
            self._count_subscription(session, -1)
        if known is not None and is_shared(topic_filter):
            _count(self.shares, topic_filter, -1)
        if known is not None and is_held(known) and session.session_expiry_interval:
            self._release(topic_filter)

    def _change_user(self, session: SessionState, user: str | None) -> None:
        self._count_user(session, -1)
        session.user = user
        self._count_user(session, 1)

    def number_in(self, namespace: str) -> int:
        """Sessions of a namespace; empty: of the default one, which is asked about less often than changed."""
        return self.namespaces[namespace] if namespace else len(self) - self.namespaces.total()

    def subscriptions_of_namespace(self, namespace: str) -> int:
        """The same of their subscriptions."""
        return (
            self.subscriptions_in[namespace] if namespace else self.subscription_count - self.subscriptions_in.total()
        )

    def _count_user(self, session: SessionState, number: int) -> None:
        if session.user is not None:
            _count(self.users, session.user, number)
            _count(self.subscriptions_of, session.user, number * len(session.subscriptions))

    def _count_namespace(self, session: SessionState, number: int) -> None:
        if session.client_id.startswith(MARK):
            namespace = namespace_of(session.client_id).name
            _count(self.namespaces, namespace, number)
            _count(self.subscriptions_in, namespace, number * len(session.subscriptions))

    def _count_subscription(self, session: SessionState, number: int) -> None:
        self.subscription_count += number
        if session.user is not None:
            _count(self.subscriptions_of, session.user, number)
        if session.client_id.startswith(MARK):
            _count(self.subscriptions_in, namespace_of(session.client_id).name, number)

    def _hold_all(self, session: SessionState, log_offset: int) -> None:
        for topic_filter in session.held_filters():
            self._hold(topic_filter, log_offset)

    def _release_all(self, session: SessionState) -> None:
        """Release the queues of a session's filters; if there are many, release_some() does the rest later."""
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
        session.released.discard(sent.packet_id)  # that of another message, whose end is lost
        if sent.owed:
            _pay(session, sent.log_offset)
    session.released.update(change.released)
    for packet_id in change.completed:
        session.released.discard(packet_id)
        sent_before = session.sent.pop(packet_id, None)
        if sent_before is not None and not sent_before.owed:
            session.done.add(sent_before.log_offset)
    session.received.difference_update(change.received_done)
    _acknowledge(session, change.acked)


def _acknowledge(session: SessionState, acked: int) -> None:
    if acked > session.acked:
        session.acked = acked
        session.done = {log_offset for log_offset in session.done if log_offset >= session.acked}


def _pay(session: SessionState, log_offset: int) -> None:
    """Take one message from what is owed; it is the first, or one of the first."""
    for i, owed in enumerate(session.owed):
        if owed.log_offset == log_offset:
            del session.owed[i]
            return


def _count(counter: Counter[str], key: str, number: int) -> None:
    """Add to a count; a key whose count is 0 is deleted."""
    counter[key] += number
    if not counter[key]:
        del counter[key]
