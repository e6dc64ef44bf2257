"""What clients may publish and subscribe to: asked once per topic, then known to the connection. No I/O.

An answer may come later; until then the client is not listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from gateway._wire import Permits, Turn
from gateway.auth.access import Access, Question
from gateway.auth.identity import Identity
from gateway.auth.permissions import REFUSED, Action
from gateway.connection import Connection, Phase
from gateway.errors import ProtocolError
from gateway.packets import Connect, QoS, Subscribe
from gateway.reason_codes import ReasonCode
from gateway.topics import split_shared
from store.audit import Audit, AuditEvent
from store.ratelimit import RateLimitedLog

Refusals = Mapping[int, ReasonCode]
"""Which of a SUBSCRIBE's subscriptions are refused, by their place in it."""


class Guard:
    """Without `access` everything is allowed, and nothing is asked."""

    def __init__(self, access: Access | None, turn: Turn, events: RateLimitedLog, audit: Audit) -> None:
        self._access = access
        self._turn = turn
        self._events = events
        self._audit = audit
        self.refused: Counter[str] = Counter({"publish": 0, "subscribe": 0, "will": 0, "taken_away": 0})

    def watch(self, connection: Connection, identity: Identity) -> None:
        """Note whether a client is to be asked about."""
        is_open = self._access is None or self._access.is_open_to(identity)
        connection.permits = None if is_open else Permits(self._turn)

    def forget(self) -> None:
        """What connections know of permissions may have changed."""
        self._turn.permit_epoch += 1

    def tick(self) -> None:
        """To be called once a second: answers from elsewhere count for a while only."""
        if self._access is not None and self._access.asks_elsewhere:
            self.forget()

    def took_away(self, connection: Connection, client_id: str, topic_filter: str) -> None:
        """A subscription was allowed when it was made, and is not any more."""
        self.refused["taken_away"] += 1
        gone = "client %s: subscription to %s taken away: not allowed any more"
        self._events.warning("permission", gone, client_id, topic_filter)
        self._denied(connection, client_id, f"subscription to {topic_filter} taken away")

    def _denied(self, connection: Connection, client_id: str, reason: str) -> None:
        user = connection.identity.username if connection.identity is not None else ""
        address = connection.peer
        self._audit.note(AuditEvent.DENIED, user=user, client_id=client_id, address=address, reason=reason)

    # --- publishing

    def check_will(self, connection: Connection, connect: Connect, then: Callable[[bool], None]) -> None:
        """A will is published later, and judged now."""
        will, identity = connect.will, connection.identity
        if will is None or identity is None:
            then(True)
            return

        def heard(allowed: int) -> None:
            if allowed < will.qos:
                self.refused["will"] += 1
            then(allowed >= will.qos)

        actions = (Action.PUBLISH, Action.RETAIN) if will.retain else (Action.PUBLISH,)
        self._least(connection, connect.client_id, actions, will.topic_name, heard)

    def publish(
        self, connection: Connection, topic_name: str, qos: int, retain: bool, then: Callable[[bool], None]
    ) -> None:
        """Have it found out whether a client may publish, and remembered that it may."""
        assert connection.identity is not None
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
            then(allowed >= qos)
            if waits:
                connection.proceed()

        actions = (Action.PUBLISH, Action.RETAIN) if retain else (Action.PUBLISH,)
        self._least(connection, connection.client_id, actions, topic_name, heard)
        if not answered:
            waits = True
            connection.wait()

    # --- subscribing

    def subscribe(self, connection: Connection, subscribe: Subscribe, then: Callable[[Refusals], None]) -> None:
        """Have it found out which subscriptions are refused; others may be cut to a lower QoS."""
        refusals: dict[int, ReasonCode] = {}
        missing = len(subscribe.subscriptions)

        def heard(number: int, allowed: int) -> None:
            nonlocal missing
            missing -= 1
            wanted = subscribe.subscriptions[number]
            if allowed == REFUSED:
                self.refused["subscribe"] += 1
                refusals[number] = ReasonCode.NOT_AUTHORIZED
                refused = "client %s: subscription to %s refused: not allowed"
                self._events.warning("permission", refused, connection.client_id, wanted.topic_filter)
                self._denied(connection, connection.session.client_id, f"subscribe to {wanted.topic_filter}")
            else:
                wanted.qos = QoS(min(wanted.qos, allowed))
            if not missing and connection.phase is Phase.OPEN:
                then(refusals)

        for number, wanted in enumerate(subscribe.subscriptions):
            self.may_subscribe(connection, wanted.topic_filter, partial(heard, number))
        if missing:
            connection.wait()

    def may_subscribe(self, connection: Connection, topic_filter: str, then: Callable[[int], None]) -> None:
        """Have the highest QoS found out at which a client may have a subscription."""
        if connection.permits is None or connection.identity is None:
            then(2)
            return
        try:
            real_filter = split_shared(topic_filter)[1]
        except ProtocolError:
            real_filter = topic_filter  # it is refused for another reason
        self._least(connection, connection.client_id, (Action.SUBSCRIBE,), real_filter, then)

    # --- asking

    def _least(
        self, connection: Connection, client_id: str, actions: Iterable[Action], topic: str, then: Callable[[int], None]
    ) -> None:
        """The lowest of the QoS at which all these actions are allowed. Names are as the client knows them."""
        identity, names = connection.identity, connection.names
        assert self._access is not None
        assert identity is not None
        client_id, topic = names.plain_client_id(client_id), names.plain_topic(topic)
        questions = [Question(identity.username, client_id, action, topic, names.name) for action in actions]
        answers: list[int] = []

        def heard(allowed: int) -> None:
            answers.append(allowed)
            if len(answers) == len(questions):
                then(min(answers))

        for question in questions:
            known = self._access.decide(identity, question)
            if known is None:
                self._access.ask(question, heard)
            else:
                heard(known)
