"""Retained messages for a new subscription: found some pages at a time, and sent before anything newer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gateway.delivery.deliverer import Deliverer
from gateway.delivery.exchange import SENT_PER_ROUND, Exchange
from gateway.delivery.retained_lookups import RetainedLookups
from gateway.delivery.sys_topics import SysTopics
from gateway.mqtt.packets import RetainHandling
from gateway.sessions.core import Core
from gateway.sessions.session import HeldMessage, MorePages, RetainedBatch, Session
from notify.api import RetainedMessage, RetainedPage
from notify.steps import in_steps
from store.state.changes import SubscriptionState
from store.state.sessions import is_shared

Pages = list[tuple[SubscriptionState, RetainedPage]]


class RetainedMessages:
    """The rules of sending retained messages to new subscriptions."""

    def __init__(self, core: Core, exchange: Exchange, deliverer: Deliverer, sys_topics: SysTopics) -> None:
        self.lookups = RetainedLookups(core.store, core.scheduler.soon)
        self._store = core.store
        self._turn = core.turn
        self._soon = core.scheduler.soon
        self._exchange = exchange
        self._deliverer = deliverer
        self._sys_topics = sys_topics

    def are_wanted(self, session: Session, subscription: SubscriptionState) -> bool:
        """True if retain_handling asks for retained messages: at each SUBSCRIBE, at a new one, or never (3.8.3.1).

        Call this before the subscription takes effect.
        """
        if is_shared(subscription.topic_filter):
            return False
        if subscription.retain_handling == RetainHandling.SEND_IF_NEW_SUBSCRIPTION:
            return subscription.topic_filter not in session.readers
        return subscription.retain_handling == RetainHandling.SEND_AT_SUBSCRIBE

    def send(self, session: Session, pages: Pages) -> None:
        """Send the first pages, in steps. Later pages are looked up as the client takes these."""
        session.listings += 1  # nothing newer overtakes them
        in_steps(self._send_pages(session, pages, self._store.queues.end), self._soon)

    def _send_pages(self, session: Session, pages: Pages, end: int) -> Iterator[None]:
        for state, page in pages:
            if session.link is None:
                return
            self._sys_topics.send_to(session, state)
            self._found_retained(session, state, page, end)
            yield
        session.listings -= 1
        if session.link is not None:
            session.link.behind = session.has_something_first
            self._deliverer.room([session])
            self._turn.request()

    def going_on(self, session: Session, more: MorePages) -> Callable[[], object]:
        """Return a function that looks up the next page."""
        return partial(self._soon, partial(self._next_retained, session, more.subscription, more.after, more.end))

    def _next_retained(self, session: Session, subscription: SubscriptionState, after: str, end: int) -> None:
        """Look up the next page; pages of other subscriptions come in between."""
        if session.link is not None and not self._is_over(session, subscription):
            then = partial(self._found_more, session, subscription, end)
            self.lookups.add(subscription.topic_filter, after, then)

    def _is_over(self, session: Session, subscription: SubscriptionState) -> bool:
        """True if a subscription ended while its retained messages were looked up; then the look-up ends too."""
        if session.link is None or subscription.topic_filter in session.readers:
            return False
        session.listings -= 1
        session.connection.behind = session.has_something_first
        self._deliverer.room([session])
        self._turn.request()
        return True

    def _found_more(self, session: Session, subscription: SubscriptionState, end: int, page: RetainedPage) -> None:
        if self._is_over(session, subscription):
            return
        session.listings -= 1
        older = [message for message in page.messages if message.log_offset < end]
        self._found_retained(session, subscription, RetainedPage(older, page.after), end)
        self._turn.request()

    def _found_retained(self, session: Session, subscription: SubscriptionState, page: RetainedPage, end: int) -> None:
        """Send one page. `end`: log_offset from which on the subscription's queues have messages of later pages."""
        if session.link is None:
            return
        goes_on: Callable[[], object] | None = None
        if page.after is not None:
            session.listings += 1
            goes_on = self.going_on(session, MorePages(subscription, page.after, end))
        messages = page.messages
        if subscription.no_local:
            client_id = session.client_id.encode()
            messages = [message for message in messages if message.client_id != client_id]
        if session.expiry_s or (subscription.qos == 2 and any(message.qos == 2 for message in messages)):
            self._exchange.owe(session, _owed(subscription, messages))
        elif messages:
            lists = list(_lists(subscription, messages))
            if page.after is not None:
                lists[-1].more = MorePages(subscription, page.after, end)
            lists[-1].then, goes_on = goes_on, None  # what is not sent yet of other pages need not be known either
            self._exchange.put_off(session, lists)
        if goes_on is not None:
            goes_on()
        session.connection.behind = session.has_something_first
        self._deliverer.room([session])


def _owed(subscription: SubscriptionState, messages: list[RetainedMessage]) -> list[HeldMessage]:
    ids = (subscription.subscription_id,) if subscription.subscription_id else ()
    return [HeldMessage(each.log_offset, min(each.qos, subscription.qos), True, ids, owed=True) for each in messages]


def _lists(subscription: SubscriptionState, messages: list[RetainedMessage]) -> Iterator[RetainedBatch]:
    ids = (subscription.subscription_id,) if subscription.subscription_id else ()
    for at in range(0, len(messages), SENT_PER_ROUND):
        log_offsets = [message.log_offset for message in messages[at : at + SENT_PER_ROUND]]
        yield RetainedBatch(log_offsets, subscription.qos, ids, subscription.topic_filter)
