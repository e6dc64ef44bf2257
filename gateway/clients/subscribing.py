"""Checks of SUBSCRIBE and UNSUBSCRIBE: names are translated to the log's, then permissions, then quotas. No I/O."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gateway.access.guard import Guard, Refusals
from gateway.clients.counting import Counting
from gateway.delivery.subscriptions import Subscriptions
from gateway.delivery.withdrawal import Withdrawal
from gateway.mqtt.packets import Subscribe, Unsubscribe
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.connection import Connection
from gateway.sessions.core import Core
from gateway.sessions.session import Session
from store.namespaces import is_reserved
from store.state.sessions import is_shared


class Subscribing:
    """The checks of SUBSCRIBE and UNSUBSCRIBE, before they take effect."""

    def __init__(
        self, core: Core, guard: Guard, counting: Counting, subscriptions: Subscriptions, withdrawal: Withdrawal
    ) -> None:
        self._turn = core.turn
        self._store_batch = core.store_batch
        self._guard = guard
        self._counting = counting
        self._subscriptions = subscriptions
        self._withdrawal = withdrawal

    def subscribe(self, connection: Connection, subscribe: Subscribe) -> None:
        reserved: dict[int, ReasonCode] = {}
        for number, wanted in enumerate(subscribe.subscriptions):
            if is_reserved(wanted.topic_filter):
                reserved[number] = ReasonCode.NOT_AUTHORIZED
            if connection.tenant is not None:
                wanted.topic_filter = connection.names.topic_filter(wanted.topic_filter)
            if connection.is_bridge:  # as Mosquitto does it: nothing goes back to where it came from
                wanted.no_local, wanted.retain_as_published = not is_shared(wanted.topic_filter), True
        judged = partial(self._subscribe, connection, subscribe, reserved, self._turn.permit_epoch)
        self._guard.subscribe(connection, subscribe, judged)

    def _subscribe(
        self,
        connection: Connection,
        subscribe: Subscribe,
        reserved: dict[int, ReasonCode],
        epoch: int,
        refusals: Refusals,
    ) -> None:
        session: Session = connection.session
        refusals = {**refusals, **reserved} if reserved else refusals
        then = partial(self._subscriptions.subscribe, session, subscribe, epoch)
        self._counting.subscribe(session, subscribe, refusals, then)

    def unsubscribe(self, connection: Connection, unsubscribe: Unsubscribe) -> None:
        self._store_batch()
        if connection.tenant is not None:
            topic_filters = tuple(map(connection.names.topic_filter, unsubscribe.topic_filters))
            unsubscribe = replace(unsubscribe, topic_filters=topic_filters)
        self._withdrawal.unsubscribe(connection.session, unsubscribe)
        self._counting.unsubscribed(connection.session)
