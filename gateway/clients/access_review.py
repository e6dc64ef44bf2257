"""Reviewing connected clients after permissions changed: what they were allowed may not be allowed any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from gateway.access.guard import Guard
from gateway.access.recognition import Recognition
from gateway.auth.permissions import REFUSED, UNANSWERED
from gateway.delivery.exchange import Exchange
from gateway.delivery.withdrawal import Withdrawal
from gateway.sessions.core import Core
from gateway.sessions.session import HistoryReplay, Session
from notify.steps import in_steps


class AccessReview:
    """Has connected clients judged by permissions that were read again: it ends what they may not have any more.

    It does some of that in each turn of the loop.
    """

    def __init__(
        self, core: Core, guard: Guard, recognition: Recognition, withdrawal: Withdrawal, exchange: Exchange
    ) -> None:
        self._guard = guard
        self._recognition = recognition
        self._withdrawal = withdrawal
        self._exchange = exchange
        self._soon = core.scheduler.soon
        self._to_judge: deque[Session] = deque()  # whose subscriptions to ask about again, since answers expire

    def begin(self, sessions: Iterable[Session]) -> None:
        """Judge all clients: end connections that would not be let in, and subscriptions that would be refused."""
        self._guard.forget()
        self._judge(deque(sessions))

    def judge(self, session: Session, then: Callable[[set[str]], None]) -> None:
        """Judge one whose subscriptions were judged before they took effect, as a reload came between.

        `then` gets those that were taken away; what has to be asked elsewhere goes on behind it.
        """
        in_steps(self._judge_one(session, then), self._soon)

    def _judge_one(self, session: Session, then: Callable[[set[str]], None]) -> Iterator[None]:
        taken: set[str] = set()
        if session.link is not None and self._recognition.check(session.link):
            yield from self._judge_subscriptions(session, taken)
        then(taken)

    def tick(self, sessions: Collection[Session]) -> None:
        """To be called once a second: ask again about the subscriptions of all sessions, since answers expire."""
        lasts_s = self._guard.asks_again_s
        if not lasts_s:
            return
        if not self._to_judge:
            self._to_judge = deque(sessions)
        number = min(-(-len(sessions) // lasts_s), len(self._to_judge))
        self._judge(deque(self._to_judge.popleft() for _ in range(number)))

    def _judge(self, sessions: deque[Session]) -> None:
        in_steps(self._judge_each(sessions), self._soon)

    def _judge_each(self, sessions: deque[Session]) -> Iterator[None]:
        """One after the other, each subscription of a session by itself."""
        while sessions:
            session = sessions.popleft()
            if session.link is not None and self._recognition.check(session.link):
                yield from self._judge_subscriptions(session, set())
            yield

    def _judge_subscriptions(self, session: Session, taken: set[str]) -> Iterator[None]:
        def judged(topic_filter: str, qos: int, allowed: int) -> None:
            if session.link is None or allowed >= qos or allowed == UNANSWERED:
                return
            taken.add(topic_filter)
            self._guard.took_away(session.connection, session.client_id, topic_filter)
            self._withdrawal.take_away(session, [topic_filter])
            self._exchange.judge(session, self._guard.reads(session.connection, partial(_topic_filters, session)))

        held = [(reader.topic_filter, reader.qos) for reader in session.readers.values() if not reader.only_live]
        held += [(topic_filter, share.subscription.qos) for topic_filter, share in session.shares.items()]
        for topic_filter, qos in held:
            if session.link is None:
                return
            self._guard.may_subscribe(session.connection, topic_filter, partial(judged, topic_filter, qos))
            yield

        def judged_replay(replay: HistoryReplay, allowed: int) -> None:
            if session.link is not None and allowed == REFUSED:
                self._withdrawal.end_replay(session, replay)

        for replay in [each for each in session.replays if not each.resumes]:
            if session.link is None:
                return
            topic_filter = replay.subscription.topic_filter
            self._guard.may_subscribe(session.connection, topic_filter, partial(judged_replay, replay), replays=True)


def _topic_filters(session: Session) -> list[str]:
    return [reader.topic_filter for reader in session.readers.values()] + list(session.shares)
