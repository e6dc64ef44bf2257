"""The end of subscriptions: UNSUBSCRIBE, and subscriptions that a client may not have any more."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.delivery.deliverer import Deliverer
from gateway.delivery.exchange import Exchange
from gateway.delivery.shared_subscriptions import SharedSubscriptions
from gateway.mqtt.codec import encode
from gateway.mqtt.packets import UnsubAck, Unsubscribe
from gateway.mqtt.reason_codes import ReasonCode
from gateway.sessions.core import Core
from gateway.sessions.session import HistoryReplay, Session
from notify.steps import in_steps
from store.state.changes import Unsubscribed


class Withdrawal:
    """The rules of ending a subscription."""

    def __init__(self, core: Core, exchange: Exchange, deliverer: Deliverer, shared: SharedSubscriptions) -> None:
        self._journal = core.journal
        self._soon = core.scheduler.soon
        self._exchange = exchange
        self._deliverer = deliverer
        self._shared = shared

    def take_away(self, session: Session, topic_filters: list[str]) -> None:
        """End subscriptions that are no longer allowed, or that cannot take effect."""
        for topic_filter in topic_filters:
            for reader in session.drop_readers(topic_filter):
                self._deliverer.remove(reader)
            self._shared.unsubscribe(session, topic_filter)
            self._exchange.withdraw(session, topic_filter)
        if topic_filters and session.expiry_s:
            self._journal.record(Unsubscribed(session.client_id, topic_filters))

    def unsubscribe(self, session: Session, unsubscribe: Unsubscribe) -> None:
        answers: list[ReasonCode] = []
        in_steps(self._unsubscribe_all(session, unsubscribe, answers), self._soon)
        if len(answers) < len(unsubscribe.topic_filters):
            session.connection.wait()

    def _unsubscribe_all(self, session: Session, unsubscribe: Unsubscribe, answers: list[ReasonCode]) -> Iterator[None]:
        for topic_filter in unsubscribe.topic_filters:
            if session.link is None:
                return
            readers = session.drop_readers(topic_filter)
            if readers or self._shared.unsubscribe(session, topic_filter):
                for reader in readers:
                    self._deliverer.remove(reader)
                if session.expiry_s:
                    self._journal.record(Unsubscribed(session.client_id, [topic_filter]))
                answers.append(ReasonCode.SUCCESS)
            else:
                answers.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
            if len(answers) < len(unsubscribe.topic_filters):
                yield
        link = session.connection
        codes = tuple(answers) if link.version == 5 else ()
        link.answer_when_safe(encode(UnsubAck(unsubscribe.packet_id, codes), link.version))
        if link.waiting:
            self._soon(link.proceed)

    def end_replay(self, session: Session, replay: HistoryReplay) -> None:
        """End a replay that is no longer allowed."""
        self._deliverer.replays.end(session, replay)
