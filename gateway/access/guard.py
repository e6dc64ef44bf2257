"""Judges what clients publish and subscribe to: once per topic, then the connection remembers it. No I/O.

An answer may come later; until then the client is not listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from gateway.auth.access import Access, Question
from gateway.auth.left_by import ask_all, publishing
from gateway.auth.permissions import Action
from gateway.delivery.replays import reads_history
from gateway.mqtt._mqtt import Permits
from gateway.mqtt.errors import ProtocolError
from gateway.mqtt.packets import Connect, QoS, Subscribe
from gateway.mqtt.reason_codes import ReasonCode
from gateway.mqtt.topics import split_shared
from gateway.sessions.connection import Connection, Phase
from gateway.sessions.core import Core
from lightqueue.queues.matching import any_of
from notify.steps import Awaited, in_steps
from store.audit import AuditEvent

Refusals = Mapping[int, ReasonCode]
"""The refused subscriptions of a SUBSCRIBE: reason code by index in the packet."""


class Guard:
    """Checks permissions to publish and subscribe. Without `access` everything is allowed, and nothing is asked."""

    def __init__(self, core: Core, access: Access | None) -> None:
        self._access = access
        self._turn = core.turn
        self._events = core.events
        self._audit = core.audit
        self._soon = core.scheduler.soon
        self._has_direct = core.settings.direct_messages
        self.refused: Counter[str] = Counter(
            {"publish": 0, "subscribe": 0, "will": 0, "taken_away": 0, "session": 0, "withheld": 0, "left": 0}
        )

    def watch(self, connection: Connection, counts_topics: bool = False) -> None:
        """Give the connection a cache of permitted topics, unless every topic is allowed and none is counted.

        `counts_topics`: the connection's first message to each topic has to be counted.
        """
        is_open = self.is_open(connection) and not counts_topics
        connection.permits = None if is_open else Permits(self._turn)

    def is_open(self, connection: Connection) -> bool:
        """True if a client may do everything, so that nothing has to be asked."""
        return self._access is None or connection.identity is None or self._access.is_open_to(connection.identity)

    def forget(self) -> None:
        """Invalidate the permissions that connections have cached. Call this when permissions may have changed."""
        self._turn.permit_epoch += 1

    def tick(self) -> None:
        """Call once a second: invalidate cached permissions if some came from another server, whose answers expire."""
        if self._access is not None and self._access.asks_elsewhere:
            self.forget()

    @property
    def asks_again_s(self) -> int:
        """Seconds for which another server's answer is valid; 0: no other server is asked."""
        return self._access.asks_again_s if self._access is not None else 0

    def took_away(self, connection: Connection, client_id: str, topic_filter: str) -> None:
        """Count, log and audit a subscription that is ended because the client may no longer have it."""
        self.refused["taken_away"] += 1
        gone = "client %s: subscription to %s taken away: not allowed any more"
        self._events.warning("permission", gone, client_id, topic_filter)
        self._denied(connection, client_id, f"subscription to {topic_filter} taken away")

    def _denied(self, connection: Connection, client_id: str, reason: str) -> None:
        user, address = connection.username, connection.peer
        self._audit.note(AuditEvent.DENIED, user=user, client_id=client_id, address=address, reason=reason)

    # --- publishing

    def check_will(self, connection: Connection, connect: Connect, then: Callable[[bool], None]) -> None:
        """Check the permission to publish the will of a CONNECT. The will is checked again when it is due."""
        will, identity = connect.will, connection.identity
        if will is None or identity is None:
            then(True)
            return

        def heard(allowed: int) -> None:
            if allowed < will.qos:
                self.refused["will"] += 1
            then(allowed >= will.qos)

        self._least(connection, connect.client_id, publishing(will.retain), will.topic_name, heard)

    def publish(
        self, connection: Connection, topic_name: str, qos: int, retain: bool, then: Callable[[bool], bool]
    ) -> None:
        """Check the permission to publish, and cache it for the connection. Until the answer it is not read from.

        `then` gets the answer, and returns True if the connection has something more to wait for.
        """
        answered = False
        waits = False

        def heard(allowed: int) -> None:
            nonlocal answered
            answered = True
            if connection.phase is not Phase.OPEN:
                return  # nothing was acknowledged, so it comes again
            if allowed >= 0 and connection.permits is not None:
                connection.permits.add(topic_name.encode(), allowed, retain)
            if allowed < qos:
                self.refused["publish"] += 1
                self._denied(connection, connection.session.client_id, f"publish to {topic_name}")
            if not then(allowed >= qos) and waits:
                connection.proceed()

        if self.is_open(connection):
            heard(2)
            return
        self._least(connection, connection.client_id, publishing(retain), topic_name, heard)
        if not answered:
            waits = True
            connection.wait()

    # --- subscribing

    def subscribe(self, connection: Connection, subscribe: Subscribe, then: Callable[[Refusals], None]) -> None:
        """Check the permission for each subscription of a SUBSCRIBE; `then` gets the refused ones.

        The QoS of an allowed subscription is lowered to the highest QoS that the client may have.
        """
        refusals: dict[int, ReasonCode] = {}
        if connection.permits is None or connection.identity is None:
            then(refusals)
            return
        replays = reads_history(subscribe)

        def all_heard() -> None:
            if connection.phase is Phase.OPEN:
                then(refusals)

        awaited = Awaited(len(subscribe.subscriptions), all_heard)

        def heard(number: int, allowed: int) -> None:
            wanted = subscribe.subscriptions[number]
            if allowed < 0:
                self.refused["subscribe"] += 1
                refusals[number] = ReasonCode.NOT_AUTHORIZED
                refused = "client %s: subscription to %s refused: not allowed"
                self._events.warning("permission", refused, connection.client_id, wanted.topic_filter)
                self._denied(connection, connection.session.client_id, f"subscribe to {wanted.topic_filter}")
            else:
                wanted.qos = QoS(min(wanted.qos, allowed))
            awaited.came()

        def ask() -> Iterator[None]:
            for number, wanted in enumerate(subscribe.subscriptions):
                if connection.phase is not Phase.OPEN:
                    return
                self.may_subscribe(connection, wanted.topic_filter, partial(heard, number), replays)
                yield

        in_steps(ask(), self._soon)
        if awaited.number:
            connection.wait()

    def may_subscribe(
        self, connection: Connection, topic_filter: str, then: Callable[[int], None], replays: bool = False
    ) -> None:
        """Find the highest QoS at which a client may have a subscription; `then` gets it; negative: refused.

        `replays`: the client must also be allowed to read history.
        """
        if self.is_open(connection):
            then(2)
            return
        self.may_read(connection, connection.client_id, topic_filter, then, replays)

    def may_read(
        self,
        connection: Connection,
        client_id: str,
        topic_filter: str,
        then: Callable[[int], None],
        replays: bool = False,
    ) -> None:
        """Like may_subscribe(), but for a client identifier that the connection need not have yet.

        What is sent straight to a client it may have: who may publish there decides.
        """
        if self._has_direct and topic_filter == connection.names.direct_filter(client_id) and not replays:
            then(2)
            return
        try:
            group, _ = split_shared(topic_filter)
        except ProtocolError:
            group = None  # it is refused for another reason
        actions = (Action.SUBSCRIBE, Action.REPLAY) if replays else (Action.SUBSCRIBE,)
        self._least(connection, client_id, actions, _real_filter(topic_filter), then, group)

    def reads(self, connection: Connection, topic_filters: Callable[[], Iterable[str]]) -> Callable[[bytes], bool]:
        """Return a function that says whether a client may be sent a topic.

        It may if one of these allowed subscriptions covers the topic, or if the rules let the client read it. The
        second condition is for messages that were in flight when the client unsubscribed; no other server is asked.
        """
        identity, names, access = connection.identity, connection.names, self._access
        client_id = names.plain_client_id(connection.client_id)
        covered: Callable[[bytes], bool] | None = None

        def covers(topic: bytes) -> bool:
            nonlocal covered
            if covered is None:
                covered = any_of([_real_filter(each) for each in topic_filters()])
            if covered(topic) or identity is None or access is None:
                return True
            topic_name = names.plain_topic(topic.decode())
            question = Question(identity.username, client_id, Action.SUBSCRIBE, topic_name, names.name)
            allowed = access.decide(identity, question)
            if allowed is not None and allowed >= 0:
                return True
            self.refused["withheld"] += 1
            withheld = "client %s: what it has not acknowledged of %s is not sent: not allowed any more"
            self._events.warning("permission", withheld, client_id, topic_name)
            return False

        return covers

    # --- asking

    def _least(
        self,
        connection: Connection,
        client_id: str,
        actions: Iterable[Action],
        topic: str,
        then: Callable[[int], None],
        group: str | None = None,
    ) -> None:
        """Find the lowest of the highest QoS at which each of these actions is allowed; `then` gets it.

        The namespace's prefix is taken off the names before the question is asked.
        """
        identity, names = connection.identity, connection.names
        assert self._access is not None
        assert identity is not None
        client_id, topic = names.plain_client_id(client_id), names.plain_topic(topic)
        group = None if group is None else names.plain_group(group)
        questions = [Question(identity.username, client_id, action, topic, names.name, group) for action in actions]
        ask_all(self._access, identity, questions, then)


def _real_filter(topic_filter: str) -> str:
    """The topic filter of a subscription, without `$share` and the group's name."""
    try:
        return split_shared(topic_filter)[1]
    except ProtocolError:
        return topic_filter  # it is refused for another reason
