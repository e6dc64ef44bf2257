"""Quotas of users that the store counts: topics, retained and delayed messages, subscriptions, sessions.

The store says how much there is and may be (notify.local.user_quotas). It is asked when something new is made, never
for a message like the one before. While it is asked the client is not listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gateway.auth.access import Access
from gateway.mqtt.packets import Publish, Subscribe
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.core import Core
from gateway.sessions.session import Session
from store.audit import AuditEvent
from store.state.usage import NOTHING, UNNAMED, Counted, counted_value

MOST_KNOWN_TOPICS = 100_000  # topics that the store need not be asked about; one more clears the table

Refusals = Mapping[int, ReasonCode]


class Counting:
    """Owner of what this gateway knows about usage: topics that exist, and subscriptions that the log does not have."""

    def __init__(self, core: Core, access: Access | None) -> None:
        self._audit = core.audit
        self._store = core.store
        self._store_batch = core.store_batch
        self._access = access
        names = ("sessions", "subscriptions", "topics", "delayed", "retained", "retained_bytes")
        self.refused: Counter[str] = Counter(dict.fromkeys([*names, *(f"namespace_{name}" for name in names)], 0))
        self._known: dict[bytes, None] = {}
        self._live: dict[Session, tuple[str, int]] = {}  # subscriptions of sessions that end with their connection
        self._live_of: Counter[str] = Counter()
        self._changed: set[Session] = set()
        self._told: dict[str, int] = {}
        self._told_to = ""

    def user_of(self, connection: Connection) -> str | None:
        """The name under which a client's usage is counted; None: the usage is not counted.

        That is its user. All anonymous clients count as one user (empty) where clients have users. Without users it is
        the prefix of the client's namespace, and UNNAMED for the default namespace if that one is bounded.
        """
        user = connection.username
        if user or (self._access is not None and connection.identity is not None and self._access.knows_users):
            return user
        is_bounded = bool(self._store.quotas.counted & Counted.DEFAULT_NAMESPACE)
        return connection.names.prefix or (UNNAMED if is_bounded else None)

    def counts(self, connection: Connection, what: Counted) -> bool:
        counted = self._store.quotas.counted
        return bool(counted) and bool(counted & what) and self.user_of(connection) is not None

    def watch(self, connection: Connection) -> bool:
        """Prepare a new client's connection. Returns whether its first message to each topic has to be counted."""
        connection.judges_retained = self.counts(connection, Counted.RETAINED)
        return self.counts(connection, Counted.TOPIC)

    def refuse(self, connection: Connection, fault: str) -> None:
        """Count a refusal by the setting that the text names, and audit it."""
        user, address = connection.username, connection.peer
        self._audit.note(AuditEvent.DENIED, user=user, client_id=connection.client_id, address=address, reason=fault)
        self.refused[fault.partition(":")[0].removeprefix("quota.").removeprefix("user_")] += 1

    # --- publishing

    def take(
        self,
        connection: Connection,
        publish: Publish,
        is_delayed: bool,
        is_new: bool,
        then: Callable[[bytes, str], None],
    ) -> bool:
        """Ask the quotas for a message. Returns True if the answer comes later.

        `then` gets the value of the message's attribute COUNTED (empty: none), and the reason if it is refused.
        `is_new`: this is the connection's first message to the topic.
        """
        user, counted = self.user_of(connection), self._store.quotas.counted
        topic = publish.topic_name.encode()
        wanted = NOTHING
        if is_new and topic not in self._known:
            wanted |= Counted.TOPIC & counted
        if publish.retain and publish.payload:
            wanted |= Counted.RETAINED & counted
        if is_delayed and counted & (Counted.DELAYED | Counted.RETAINED):
            wanted |= Counted.DELAYED
        if user is None or not wanted:
            then(b"", "")
            return False
        answered = waits = tried_again = False
        size_bytes = len(topic) + len(publish.payload)

        def heard(found: Counted, fault: str) -> None:
            nonlocal answered, tried_again
            if connection.phase is not Phase.OPEN:
                return
            if fault and not tried_again:  # something of it may have gone in this turn
                tried_again = True
                self._store_batch()
                self._store.quotas.take_message(user, wanted, topic, size_bytes, heard)
                return
            answered = True
            self._noted(connection, topic, wanted, fault)
            then(counted_value(found, user or connection.names.prefix) if found else b"", fault)
            if waits:
                connection.proceed()

        self._store.quotas.take_message(user, wanted, topic, size_bytes, heard)
        if not answered and connection.phase is Phase.OPEN:
            waits = True
            connection.wait()
        return waits

    def _noted(self, connection: Connection, topic: bytes, wanted: Counted, fault: str) -> None:
        if fault:
            self.refuse(connection, fault)
        if fault and connection.permits is not None:
            connection.permits.drop(topic)
        elif not fault and wanted & Counted.TOPIC:
            if len(self._known) >= MOST_KNOWN_TOPICS:
                self._known.clear()
            self._known[topic] = None

    # --- subscriptions

    def subscribe(
        self,
        session: Session,
        subscribe: Subscribe,
        refusals: Refusals,
        then: Callable[[Refusals, str], None],
    ) -> None:
        """Ask the quotas for new subscriptions.

        `then` gets `refusals` with the subscriptions beyond the quota added, and the reason for those.
        """
        connection = session.connection
        user = self.user_of(connection)
        if user is None or not self.counts(connection, Counted.SUBSCRIPTION):
            then(refusals, "")
            return
        places: dict[str, list[int]] = {}
        for number, wanted in enumerate(subscribe.subscriptions):
            topic_filter = wanted.topic_filter
            if number not in refusals and topic_filter not in session.readers and topic_filter not in session.shares:
                places.setdefault(topic_filter, []).append(number)
        if not places:
            then(refusals, "")
            return
        self._store_batch()  # what was unsubscribed counts no more
        answered = False
        live_of = user or connection.names.prefix

        def heard(granted: int, fault: str) -> None:
            nonlocal answered
            answered = True
            if live is not None:
                self._told[live_of] = live + granted  # as the store has it
            if connection.phase is not Phase.OPEN:
                return
            beyond = list(places.values())[granted:]
            if beyond:
                self.refuse(connection, fault)
            self._changed.add(session)
            then({**refusals, **{i: ReasonCode.QUOTA_EXCEEDED for each in beyond for i in each}}, fault)

        live = None if session.expiry_s else self._live_now(session, live_of)
        self._store.quotas.take_subscriptions(user, session.client_id, list(places), live, heard)
        if not answered:
            connection.wait()

    def came(self, session: Session) -> None:
        """Count the subscriptions of a session that another process handed over."""
        self._changed.add(session)

    def unsubscribed(self, session: Session) -> None:
        """Count a session's subscriptions again: some have ended, or will in this turn."""
        if session in self._live:
            self._changed.add(session)

    def left(self, session: Session) -> None:
        """Stop counting a session whose connection has ended."""
        self._changed.discard(session)
        user, number = self._live.pop(session, ("", 0))
        self._live_of[user] -= number

    def _live_now(self, session: Session, user: str) -> int:
        """Number of the user's subscriptions that the log does not have, without those that are being granted."""
        self._count(session)
        for each in [each for each in self._changed if each in self._live and self._live[each][0] == user]:
            self._count(each)
        return self._live_of[user]

    def _count(self, session: Session) -> None:
        user = self.user_of(session.connection)
        if session.expiry_s or user is None:
            return
        user = user or session.connection.names.prefix
        number = len(session.readers) + len(session.shares)
        if self._store.queues.is_live_only is not None:  # one may have two readers
            number = len(session.shares) + sum(not each.only_live for each in session.readers.values())
        self._live_of[user] += number - self._live.get(session, ("", 0))[1]
        self._live[session] = user, number

    def tick(self) -> None:
        """Call once a second: tell the store the changed numbers of subscriptions that the log does not have."""
        quotas = self._store.quotas
        if not quotas.counted & Counted.SUBSCRIPTION:
            return
        changed, self._changed = self._changed, set()
        for session in changed:
            if session.link is None:
                continue
            self._count(session)
            if session.connection.waiting:  # it is not done yet
                self._changed.add(session)
        if quotas.told_to != self._told_to:
            self._told_to = quotas.told_to
            self._told.clear()
        for user, number in list(self._live_of.items()):
            if number != self._told.get(user, 0):
                quotas.tell_live(user, number)
                self._told[user] = number
            if not number:
                del self._live_of[user]
                self._told.pop(user, None)
