"""Review of connected clients after permissions changed: ends what is no longer allowed."""

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
    """Checks connected clients against new permissions, and ends what they may no longer have, in steps."""

    def __init__(
        self, core: Core, guard: Guard, recognition: Recognition, withdrawal: Withdrawal, exchange: Exchange
    ) -> None:
        self._guard = guard
        self._recognition = recognition
        self._withdrawal = withdrawal
        self._exchange = exchange
        self._soon = core.scheduler.soon
        self._to_judge: deque[Session] = deque()  # sessions whose subscriptions are checked again, since answers expire

    def begin(self, sessions: Iterable[Session]) -> None:
        """Check all sessions: end connections with invalid credentials, and subscriptions that are not allowed."""
        self._guard.forget()
        self._judge(deque(sessions))

    def judge(self, session: Session, then: Callable[[set[str]], None]) -> None:
        """Check one session again, because permissions were reloaded before its new subscriptions took effect.

        `then` gets the filters of the subscriptions that were ended; answers of other servers may come after it.
        """
        in_steps(self._judge_one(session, then), self._soon)

    def _judge_one(self, session: Session, then: Callable[[set[str]], None]) -> Iterator[None]:
        taken: set[str] = set()
        if session.link is not None and self._recognition.check(session.link):
            yield from self._judge_subscriptions(session, taken)
        then(taken)

    def tick(self, sessions: Collection[Session]) -> None:
        """Call once a second: check some sessions again, each one before the answers of other servers expire."""
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
        """The steps of a review: one session after the other, one subscription a step."""
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
