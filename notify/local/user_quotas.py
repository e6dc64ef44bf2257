"""Quotas of each user of a store, over all gateways and the SDK: sessions, subscriptions, topics, messages.
And quotas of each namespace, for all its users together.

The log has the usage (store.state.usage, store.state.sessions). What was granted and is not in the log yet is
remembered for a moment, so that no more is granted than there may be. A user with too much is refused one more, and
nothing.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import TOPIC
from lightqueue.queues.layout import queue_key
from notify.local.members import Member
from store.namespaces import DEFAULT, MARK, Namespace, is_namespace, namespace_of, shown
from store.records.record_bytes import walk
from store.records.records import Attribute, Record, RecordFlag, decode_attributes
from store.state.changes import WillState
from store.state.sessions import SessionState
from store.state.usage import NOTHING, UNNAMED, Counted, Used, counted_value

PENDING_S = 10.0  # what was granted and did not come is forgotten
KNOWN_TOPICS = 4_096  # of one client of the store, which need not be looked up again
CountedPublish = tuple[int, str, int, int, int]
"""As in store.state.changes.PeerAppended."""
IN = "\0"
"""In front of the name of a namespace: no user's name begins with it."""
NAMES = {
    "sessions": "sessions",
    "subscriptions": "subscriptions",
    "topics": "topics",
    "delayed": "delayed messages",
    "retained": "retained messages",
    "retained_bytes": "bytes of retained messages",
}
"""What users are told that they have, by the name of the limit."""


class Unlogged:
    """Owner of the counts of what is not in the log: connections without a session there, and what they subscribe.

    A key is the name of a user, or of a namespace, as in UserQuotas.
    """

    def __init__(self) -> None:
        self._keys: dict[str, tuple[str, ...]] = {}  # by client_id: the users and namespaces that it counts for
        self._sessions: Counter[str] = Counter()
        self._subscriptions: dict[Member, Counter[str]] = {}  # by user
        self._subscriptions_in: Counter[str] = Counter()  # of all members, by namespace

    # --- sessions

    def holds(self, client_id: str, keys: tuple[str, ...]) -> None:
        """A connection counts as a session for these."""
        self.lets_go(client_id)
        self._keys[client_id] = keys
        self._sessions.update(keys)

    def lets_go(self, client_id: str) -> None:
        """The connection is gone, or the log has its session."""
        for key in self._keys.pop(client_id, ()):
            self._sessions[key] -= 1
            if not self._sessions[key]:
                del self._sessions[key]

    def sessions(self, key: str) -> int:
        return self._sessions[key]

    # --- subscriptions

    def tell_live(self, member: Member, user: str, number: int) -> None:
        """Note a member's number of subscriptions of a user in sessions that the log does not have."""
        of_member = self._subscriptions.setdefault(member, Counter())
        self._subscriptions_in[namespace_of(user).name] += number - of_member[user]
        of_member[user] = number
        if not number:
            del of_member[user]
        if not of_member:
            del self._subscriptions[member]

    def left(self, member: Member) -> None:
        for user in list(self._subscriptions.get(member, ())):
            self.tell_live(member, user, 0)

    def subscriptions_of(self, user: str) -> int:
        return sum(each[user] for each in self._subscriptions.values())

    def subscriptions_in(self, namespace: str) -> int:
        return self._subscriptions_in[namespace]


class UserLimits(NamedTuple):
    """The limits of one user, or of one namespace; 0: any number."""

    sessions: int = 0
    subscriptions: int = 0
    topics: int = 0
    delayed: int = 0
    retained: int = 0
    retained_bytes: int = 0

    @property
    def counted(self) -> Counted:
        """The kinds of items that have a limit."""
        limited = {
            Counted.SESSION: self.sessions,
            Counted.SUBSCRIPTION: self.subscriptions,
            Counted.TOPIC: self.topics,
            Counted.DELAYED: self.delayed,
            Counted.RETAINED: self.retained or self.retained_bytes,
        }
        return Counted(sum(counted for counted, most in limited.items() if most))


class QuotaLimits(NamedTuple):
    """All quotas of a store. 0: any number."""

    user: UserLimits = UserLimits()
    namespace: UserLimits = UserLimits()
    user_groups: int = 0  # groups that a user may make
    namespace_groups: int = 0  # groups that the users of a namespace may make
    bounds_default: bool = False  # whether the limits of a namespace hold for the default one too


NO_QUOTAS = QuotaLimits()


@lru_cache(16)
def _counted(limits: UserLimits, namespace_limits: UserLimits, bounds_default: bool) -> Counted:
    """Asked with every connection."""
    of_default = Counted.DEFAULT_NAMESPACE if bounds_default and namespace_limits.counted else NOTHING
    return limits.counted | namespace_limits.counted | of_default


class _Counting(NamedTuple):
    """Whom something counts for: a user, or a namespace."""

    key: str  # a user's name in the log; a namespace's, with IN in front
    limits: UserLimits

    @property
    def namespace(self) -> str | None:
        """The namespace whose usage this is; None: it is a user's; empty: the default namespace's."""
        return self.key.removeprefix(IN) if self.key.startswith(IN) else None


class QuotaExceeded(ValueError):
    """A user has as much as it may have; says of what, and which setting it is."""


class _Granted:
    """Items that one user or namespace was granted and does not have yet, oldest first."""

    def __init__(self) -> None:
        self.items: OrderedDict[Hashable, tuple[float, Used]] = OrderedDict()  # until when, and how much it takes
        self.used = Used()

    def add(self, item: Hashable, until_s: float, used: Used) -> None:
        self.drop(item)
        self.items[item] = until_s, used
        self.used = Used(*map(sum, zip(self.used, used, strict=True)))

    def drop(self, item: Hashable) -> None:
        found = self.items.pop(item, None)
        if found is not None:
            self.used = Used(self.used.number - found[1].number, self.used.size_bytes - found[1].size_bytes)

    def drop_first(self) -> None:
        if self.items:
            self.drop(next(iter(self.items)))

    def forget(self, now_s: float) -> None:
        """Forget the items that did not come in time."""
        while self.items:
            item, (until_s, _) = next(iter(self.items.items()))
            if until_s > now_s:
                return
            self.drop(item)


class UserQuotas:
    """Owner of what was granted, of connections without a session in the log, and of refusals."""

    def __init__(
        self, messages: MessageStore, quotas: QuotaLimits = NO_QUOTAS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits, self.namespace_limits, self.bounds_default = quotas.user, quotas.namespace, quotas.bounds_default
        names = [*NAMES, *(f"namespace_{name}" for name in NAMES)]
        self.refused: Counter[str] = Counter(dict.fromkeys(names, 0))
        self._messages = messages
        self._clock = clock
        self._usage = messages.usage
        self._granted: dict[tuple[Counted, str], _Granted] = {}
        self._taking: list[tuple[Counted, Hashable]] = []  # what was granted of the messages that are looked at
        self._serial = 0  # of delayed messages, which have no name before they are in the log
        self.unlogged = Unlogged()
        messages.usage.listen(self)
        messages.sessions.listen(subscriptions=self)
        messages.absent.count_wills(self)

    @property
    def counted(self) -> Counted:
        return _counted(self.limits, self.namespace_limits, self.bounds_default)

    def _counting(self, user: str) -> list[_Counting]:
        """Whom the things of a user count for. The prefix of a namespace alone is its anonymous clients."""
        namespace = namespace_of(user).name
        found = [_Counting(user, self.limits)] if user != UNNAMED else []
        if namespace or self.bounds_default:
            found.append(_Counting(IN + namespace, self.namespace_limits))
        return found

    def of_client(self, user: str | None, namespace: str) -> tuple[dict[bytes, None] | None, str]:
        """For a client of the store: what take_records() is to know of its topics, and for whom what it publishes
        counts. `user`: None where users are not known; `namespace`: as in its Hello."""
        names = Namespace(namespace) if is_namespace(namespace) else DEFAULT
        is_counted = user is not None or names.name or (self.bounds_default and not namespace)
        unnamed = UNNAMED if is_counted and user is None else ""
        return {} if is_counted else None, user or names.prefix or unnamed

    # --- what a message is counted as

    def take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int) -> tuple[Counted, str]:
        """Grant a message for which a topic is made, or that is retained or delayed. What it counts as; or why not."""
        self._taking.clear()
        return self._take_message(user, wanted, topic, size_bytes)

    def _take_message(self, user: str, wanted: Counted, topic: bytes, size_bytes: int) -> tuple[Counted, str]:
        user = user or namespace_of(topic.decode()).prefix
        counting = [each for each in self._counting(user) if each.limits.counted]
        counted = reduce(or_, (each.limits.counted for each in counting), NOTHING)
        wanted &= counted | (Counted.DELAYED if counted & Counted.RETAINED else NOTHING)
        if wanted & Counted.TOPIC and self._is_there(topic):
            wanted &= ~Counted.TOPIC
        for each in counting:
            fault = (
                (self._topic_fault(each, topic) if wanted & Counted.TOPIC else "")
                or (self._delayed_fault(each) if wanted & Counted.DELAYED else "")
                or (self._retained_fault(each, wanted, topic, size_bytes) if wanted & Counted.RETAINED else "")
            )
            if fault:
                return NOTHING, fault
        self._serial += bool(wanted & Counted.DELAYED)
        for each in counting:
            if wanted & Counted.TOPIC:
                self._grant(Counted.TOPIC, each, topic)
            if wanted & Counted.DELAYED:
                self._grant(Counted.DELAYED, each, self._serial)
            elif wanted & Counted.RETAINED:
                self._grant(Counted.RETAINED, each, topic, self._more_retained(each, topic, size_bytes))
        return wanted, ""

    def _topic_fault(self, counting: _Counting, topic: bytes) -> str:
        granted, most = self._granted.get((Counted.TOPIC, counting.key)), counting.limits.topics
        if not most or (granted is not None and topic in granted.items):
            return ""
        used = self._used(Counted.TOPIC, counting).number
        return self._fault("topics", counting, used) if used >= most else ""

    def _delayed_fault(self, counting: _Counting) -> str:
        used, most = self._used(Counted.DELAYED, counting).number, counting.limits.delayed
        return self._fault("delayed", counting, used) if most and used >= most else ""

    def _retained_fault(self, counting: _Counting, wanted: Counted, topic: bytes, size_bytes: int) -> str:
        used, more = self._used(Counted.RETAINED, counting), self._more_retained(counting, topic, size_bytes)
        number, limits = used.number, counting.limits
        if wanted & Counted.DELAYED:  # each of those that are pending may become a retained one
            number += self._used(Counted.DELAYED, counting).number
        if limits.retained and more.number and number >= limits.retained:
            return self._fault("retained", counting, number)
        is_more = more.size_bytes > 0 and used.size_bytes + more.size_bytes > limits.retained_bytes
        return self._fault("retained_bytes", counting, used.size_bytes) if limits.retained_bytes and is_more else ""

    def _more_retained(self, counting: _Counting, topic: bytes, size_bytes: int) -> Used:
        """What a retained message needs in addition to the one that its topic has already."""
        owner = self._usage.owner(Counted.RETAINED, topic)
        is_namespace = counting.namespace is not None  # a topic is of one
        if owner is not None and (is_namespace or owner[0] == counting.key):
            return Used(0, size_bytes - owner[1])
        granted = self._granted.get((Counted.RETAINED, counting.key))
        if granted is not None and topic in granted.items:
            return Used(0, max(0, size_bytes - granted.items[topic][1].size_bytes))
        return Used(1, size_bytes)

    def _is_there(self, topic: bytes) -> bool:
        """Whether the store has the topic, or keeps no queue of it."""
        messages = self._messages
        if self._usage.owner(Counted.TOPIC, topic) is not None or messages.queues.is_live_only(topic):
            return True
        known = messages.queues.dispatcher.topics.get(topic)
        return (known is not None and known.own.next_offset > 0) or messages.index.get(
            queue_key(TOPIC, topic)
        ) is not None

    def _used(self, counted: Counted, counting: _Counting) -> Used:
        granted, namespace = self._granted.get((counted, counting.key)), counting.namespace
        used = self._usage.used(counted, counting.key)
        if namespace is not None:
            used = self._usage.used_in(counted, namespace)
        if granted is None:
            return used
        granted.forget(self._clock())
        return Used(used.number + granted.used.number, used.size_bytes + granted.used.size_bytes)

    def _grant(self, counted: Counted, counting: _Counting, item: Hashable, used: Used = Used(1)) -> None:  # noqa: B008
        granted = self._granted.setdefault((counted, counting.key), _Granted())
        granted.add(item, self._clock() + PENDING_S, used)
        self._taking.append((counted, item))

    def was_counted(self, counted: Counted, item: bytes, user: str) -> None:
        """The log has it."""
        if not self._granted:
            return
        for key, _ in self._counting(user):
            granted = self._granted.get((counted, key))
            if granted is not None and counted is Counted.DELAYED:
                granted.drop_first()
            elif granted is not None:
                granted.drop(item)
            if granted is not None and not granted.items:
                del self._granted[counted, key]

    def _fault(self, name: str, counting: _Counting, used: int) -> str:
        namespace, user, most = counting.namespace, counting.key, getattr(counting.limits, name)
        self.refused[name if namespace is None else f"namespace_{name}"] += 1
        if namespace is None:
            name_of_setting = f"quota.user_{name}"
            who = f"user {user}" if user else "clients without a user together"
        else:
            name_of_setting, who = f"quota.namespace_{name}", shown(namespace)
        return f"{name_of_setting}: {who} has {used} {NAMES[name]}, and may have no more than {most}"

    def count_will(self, session: SessionState, will: WillState) -> tuple[bytes, str]:
        """Grant a will that is sent now: the value of its attribute COUNTED, and why it may not be sent."""
        user = session.user or namespace_of(session.client_id).prefix
        if not user and not will.left_by and self.bounds_default:  # an anonymous client's, where users are not known
            user = UNNAMED
        if not self.counted or not (user or will.left_by):
            return b"", ""
        wanted = Counted.TOPIC
        if will.retain and will.payload:
            wanted |= Counted.RETAINED
        if will.left_by:
            wanted |= Counted.DELAYED
        topic = will.topic.encode()
        counted, fault = self.take_message(user, wanted, topic, len(topic) + len(will.payload))
        return counted_value(counted, user) if counted else b"", fault

    # --- what a client of the store publishes

    def take_records(
        self, user: str, known: dict[bytes, None] | None, records: memoryview
    ) -> tuple[CountedPublish, ...]:
        """Grant messages that a client of the store publishes, all or none. Raises QuotaExceeded.

        `known`: topics of this client that need not be looked up; None: nothing counts.
        """
        if known is None or not self.counted & (Counted.TOPIC | Counted.RETAINED | Counted.DELAYED):
            return ()
        self._taking.clear()
        found: dict[object, CountedPublish] = {}
        topics: dict[bytes, None] = {}
        at = 0
        for fields in walk(records):
            record = Record._make(fields)
            distance, at = len(records) - at, at + record.length
            wanted = _wanted(record, record.topic not in known and record.topic not in topics)
            if record.flags & RecordFlag.RETAIN:
                found.pop(record.topic, None)  # the last one counts
            if not wanted:
                continue
            topics[record.topic] = None
            size_bytes = len(record.topic) + len(record.payload)
            counted, fault = self._take_message(user, wanted, record.topic, size_bytes)
            if fault:
                self._give_back(user)
                raise QuotaExceeded(fault)
            if counted:
                due_ms = int.from_bytes(decode_attributes(record.attributes).get(Attribute.DUE_MS, b""), "little")
                is_retained = counted & (Counted.DELAYED | Counted.RETAINED) == Counted.RETAINED
                item = record.topic if is_retained else distance
                found[item] = (int(counted), record.topic.decode(), size_bytes, due_ms, distance)
        if len(known) + len(topics) > KNOWN_TOPICS:
            known.clear()
        known.update(topics)
        return tuple(found.values())

    def _give_back(self, user: str) -> None:
        """Give back what was granted for a request that failed."""
        for counted, item in self._taking:
            for key, _ in self._counting(user):
                granted = self._granted.get((counted, key))
                if granted is not None:
                    granted.drop(item)

    # --- subscriptions

    def take_subscriptions(
        self, member: Member, user: str, client_id: str, topic_filters: Sequence[str], live: int | None
    ) -> tuple[int, str]:
        """Grant new subscriptions of a session. How many, from the first on; and why no more, unless it is all.

        `live`: how many sessions that the log does not have, of the user at this member, have; None: the log has it.
        """
        live_of = user or namespace_of(client_id).prefix
        if live is not None:
            self.unlogged.tell_live(member, live_of, live)
        number, fault = len(topic_filters), ""
        counting = self._counting_session(user, client_id)
        for each in counting:
            used, most = self._subscriptions(each), each.limits.subscriptions
            if most and used + number > most:
                number = max(0, most - used)
                fault = self._fault("subscriptions", each, used + number)
        if live is not None:
            self.unlogged.tell_live(member, live_of, live + number)
        else:
            for each in counting:
                for topic_filter in topic_filters[:number] if each.limits.subscriptions else ():
                    self._grant(Counted.SUBSCRIPTION, each, (client_id, topic_filter))
        return number, fault

    def _counting_session(self, user: str | None, client_id: str) -> list[_Counting]:
        """Whom a session counts for: by its client identifier, since an anonymous client's user says nothing."""
        namespace = namespace_of(client_id).name
        of_user = [] if user is None or user == MARK + namespace else [_Counting(user, self.limits)]
        is_bounded = namespace or (self.bounds_default and client_id)
        return [*of_user, _Counting(IN + namespace, self.namespace_limits)] if is_bounded else of_user

    def _subscriptions(self, counting: _Counting) -> int:
        sessions, namespace = self._messages.sessions, counting.namespace
        granted = self._granted.get((Counted.SUBSCRIPTION, counting.key))
        number = 0
        if granted is not None:
            granted.forget(self._clock())
            number = granted.used.number
        if namespace is not None:
            return number + sessions.subscriptions_of_namespace(namespace) + self.unlogged.subscriptions_in(namespace)
        return number + sessions.subscriptions_of[counting.key] + self.unlogged.subscriptions_of(counting.key)

    def was_subscribed(self, session: SessionState, topic_filter: str) -> None:
        """The log has it."""
        if not self._granted:
            return
        for key, _ in self._counting_session(session.user or "", session.client_id):
            granted = self._granted.get((Counted.SUBSCRIPTION, key))
            if granted is not None:
                granted.drop((session.client_id, topic_filter))
                if not granted.items:
                    del self._granted[Counted.SUBSCRIPTION, key]

    # --- sessions

    def session_fault(self, user: str | None, client_id: str) -> str:
        """Why there may be no more sessions: of the user (None: it has not one more), or of the client's namespace (an
        empty client_id: it has not one more). Empty: there may."""
        sessions = self._messages.sessions
        for each in self._counting_session(user, client_id):
            namespace, most = each.namespace, each.limits.sessions
            used = sessions.users[each.key] if namespace is None else sessions.number_in(namespace)
            used += self.unlogged.sessions(each.key)
            if most and used >= most:
                return self._fault("sessions", each, used)
        return ""

    def holds(self, client_id: str, user: str | None) -> None:
        """A user has a connection; if the log has no session for it, so far or at all, it counts here."""
        counted = self.counted
        if not counted or not counted & Counted.SESSION or self._messages.sessions.get(client_id) is not None:
            return
        keys = tuple(each.key for each in self._counting_session(user, client_id) if each.limits.sessions)
        if keys:
            self.unlogged.holds(client_id, keys)


def _wanted(record: Record, is_new: bool) -> Counted:
    """The kinds of items that a message may count as; `is_new`: perhaps it makes its topic."""
    wanted = Counted.TOPIC if is_new else NOTHING
    if record.flags & RecordFlag.RETAIN and record.payload:
        wanted |= Counted.RETAINED
    return wanted | Counted.DELAYED if record.flags & RecordFlag.DELAYED else wanted
