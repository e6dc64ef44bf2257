"""Reading a session's queues while its client is connected: from the CONNACK until the connection ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from gateway.access.guard import Guard
from gateway.auth.permissions import UNANSWERED
from gateway.delivery.deliverer import Deliverer
from gateway.delivery.exchange import Exchange
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.core import Core
from gateway.sessions.session import HistoryReplay, Session
from lightqueue.reading.following import FROM_NOW, Followed
from notify.steps import Awaited, in_steps
from store.state.changes import SubscriptionState, Unsubscribed
from store.state.sessions import is_shared


class SessionReading:
    """Begins and ends the reading of sessions."""

    def __init__(
        self,
        core: Core,
        exchange: Exchange,
        deliverer: Deliverer,
        shared: SharedSubscriptions,
        guard: Guard,
        judge_again: Callable[[Session, Callable[[set[str]], None]], None],
    ) -> None:
        """`judge_again`: AccessReview.judge()."""
        self._queues = core.store.queues
        self._settings = core.settings
        self._journal = core.journal
        self._soon = core.scheduler.soon
        self._exchange = exchange
        self._deliverer = deliverer
        self._shared = shared
        self._guard = guard
        self._judge_again = judge_again

    def begin(self, session: Session, known: list[SubscriptionState]) -> None:
        """Read the queues of a session's known subscriptions, as far as those are still allowed."""
        epoch = session.connection.turn.permit_epoch
        if known:
            self._follow_all(session, known, epoch)
        else:
            self._all_there(session, [], epoch)

    def _follow_all(self, session: Session, known: list[SubscriptionState], epoch: int) -> None:
        shares: list[SubscriptionState] = []
        awaited = Awaited(len(known), lambda: self._all_there(session, shares, epoch))

        def followed(subscription: SubscriptionState, start: int, queues: list[Followed]) -> None:
            self._read(session, subscription, start, queues)
            awaited.came()

        def judged(subscription: SubscriptionState, allowed: int) -> None:
            if allowed == UNANSWERED and session.link is not None:
                session.connection.close(ReasonCode.SERVER_BUSY, "no answer about what it may subscribe to")
                return
            if allowed < 0 or session.link is None or not session.link.names.has_filter(subscription.topic_filter):
                self._forget(session, subscription)
                awaited.came()
                return
            subscription = msgspec.structs.replace(subscription, qos=min(subscription.qos, allowed))
            if is_shared(subscription.topic_filter):
                shares.append(subscription)
                awaited.came()
                return
            start = max(session.frontier, subscription.since) if subscription.qos else FROM_NOW
            then = partial(followed, subscription, start)
            self._queues.follow(subscription.topic_filter, start, subscription.qos > 0, subscription.qos > 0, then)

        def judge() -> Iterator[None]:
            for subscription in known:
                if session.link is None:
                    return  # no answer about one of them
                self._guard.may_subscribe(session.link, subscription.topic_filter, partial(judged, subscription))
                yield

        in_steps(judge(), self._soon)

    def _forget(self, session: Session, subscription: SubscriptionState) -> None:
        """Drop a subscription of the log that is no longer allowed."""
        if session.link is not None:
            self._guard.took_away(session.connection, session.client_id, subscription.topic_filter)
            self._journal.record(Unsubscribed(session.client_id, [subscription.topic_filter]))

    def _read(self, session: Session, subscription: SubscriptionState, start: int, followed: list[Followed]) -> None:
        if session.link is None:
            for each in followed:
                self._queues.unfollow(each.queue)
            return
        if not followed:
            session.connection.close(ReasonCode.QUOTA_EXCEEDED, "the store follows no more queues")
            return
        end = self._queues.end
        begins = max(start, followed[0].begins) if start != FROM_NOW else end
        for reader in session.add_readers(subscription, followed, begins):
            reader.skip_qos0_before = 0 if self._settings.queue_qos0 else end
            self._deliverer.add(reader)
        if FROM_NOW < start < begins:
            self._deliverer.replays.begin(session, HistoryReplay(subscription, start, begins, True))

    def _all_there(self, session: Session, shares: list[SubscriptionState], epoch: int) -> None:
        """Go on once all subscriptions are followed. `epoch`: the permissions' epoch when the first one was checked."""
        link = session.link
        if link is None or epoch == link.turn.permit_epoch:
            self._read_on(session, shares)
        else:  # a reload looked only at what was there then
            self._shared.start(session, shares)
            self._judge_again(session, lambda _: self._read_on(session, []))

    def _read_on(self, session: Session, shares: list[SubscriptionState]) -> None:
        """Begin to send: all readers of the session exist."""
        if session.link is None:
            return
        session.reading = True
        if not self._guard.is_open(session.connection):
            held = [each.topic_filter for each in session.readers.values()] + [each.topic_filter for each in shares]
            held += list(session.shares)
            self._exchange.judge(session, self._guard.reads(session.connection, lambda: held))
        session.connection.behind = session.has_something_first
        self._exchange.resend(session)
        self._deliverer.room([session])
        session.link.turn.request()
        self._shared.start(session, shares)
        session.link.owner.opened(session.link)
        if session.link.waiting:
            self._soon(session.link.proceed)

    def leave_groups(self, session: Session) -> bytes:
        """End the session's shared subscriptions. Returns the QoS 1 messages that are not acknowledged."""
        return self._shared.leave(session)

    def end(self, session: Session) -> None:
        """The session's connection has ended."""
        self._deliverer.stop(session)
        self._exchange.left(session)
