"""Look-ups of the retained messages that match subscriptions, some pages at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial

from notify.api import RetainedPage, Store
from notify.steps import STEP_S


class RetainedLookups:
    """Owner of the topic filters to look up. A store in this process takes 2 ms for a page, of 500 topics."""

    def __init__(self, store: Store, soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon` calls a function in a later turn."""
        self._store = store
        self._wanted: deque[tuple[str, str | None, int, Callable[[RetainedPage], None]]] = deque()
        self._soon = soon
        self._goes_on = False  # in a later turn

    def add(self, topic_filter: str, after: str | None, then: Callable[[RetainedPage], None]) -> None:
        """Find the first page of messages that are retained now, or the page after the topic `after`.

        A store in this process is asked when go_on() is called, or in a later turn.
        """
        if not self._store.answers_at_once:
            self._store.queues.retained(topic_filter, after, then)
        else:
            self._wanted.append((topic_filter, after, self._store.queues.end, then))
            self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._soon(self._look_later)

    def _look_later(self) -> None:
        self._goes_on = False
        self.go_on()

    def go_on(self) -> None:
        """Look up pages for some 2 ms. Call it at most once in a turn; the rest is done in later turns."""
        ends_s = time.perf_counter() + STEP_S
        while self._wanted and time.perf_counter() < ends_s:
            topic_filter, after, end, then = self._wanted.popleft()
            self._store.queues.retained(topic_filter, after, partial(_give, then, end))
        if self._wanted:
            self._go_on_later()


def _give(then: Callable[[RetainedPage], None], end: int, page: RetainedPage) -> None:
    """Pass on a page without the messages from log_offset `end` on: the subscription's queues have those."""
    if any(message.log_offset >= end for message in page.messages):
        page = RetainedPage([message for message in page.messages if message.log_offset < end], page.after)
    then(page)
