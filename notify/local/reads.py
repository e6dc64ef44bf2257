"""Reads of a store in this process: pages of retained messages and of history, and its figures."""

from __future__ import annotations

from collections.abc import Callable

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.queues.retained_search import find_retained, heads_found
from notify.api import HISTORY_PAGE_BYTES, Page, RetainedMessage, RetainedPage, SoughtPosition, page_of
from notify.local.tier_reads import Past, TierReads
from store.errors import StoreError
from store.wire import messages as wire
from store.wire.messages import WireMessage

PER_PAGE = 500  # some 2 ms, whether or not they match; a turn may take two
PAGES_KEPT = 64  # some 75 KB each


class RetainedPages:
    """Owner of the pages that were found last, true as long as no retained message is stored.

    Many who come back at once ask for the same ones.
    """

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages
        self._pages: dict[tuple[str, str | None], RetainedPage] = {}
        self._as_of = messages.retained.changes

    def page(self, topic_filter: str, after: str | None) -> RetainedPage:
        """The retained messages that `topic_filter` matches after the topic `after`. Raises a StoreError."""
        changes = self._messages.retained.changes
        if changes != self._as_of:
            self._as_of = changes
            self._pages.clear()
        found = self._pages.get((topic_filter, after))
        if found is None:
            found = self._find(topic_filter, after)
            while len(self._pages) >= PAGES_KEPT:
                del self._pages[next(iter(self._pages))]
            self._pages[topic_filter, after] = found
        return found

    def _find(self, topic_filter: str, after: str | None) -> RetainedPage:
        found = find_retained(self._messages.retained, topic_filter, after, PER_PAGE)
        heads, goes_on_behind = heads_found(self._messages.log, *found)
        return RetainedPage(list(map(RetainedMessage._make, heads)), goes_on_behind)


class LocalHistory:
    """A History (notify.api). What the log has is answered at once, the rest once the tier has read it."""

    def __init__(self, messages: MessageStore, tier_reads: TierReads) -> None:
        self._messages = messages
        self._tier_reads = tier_reads

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        from lightqueue.reading.replay import seek

        def sought(answer: WireMessage, _: bytes) -> None:
            then(SoughtPosition(answer.log_offset, answer.found) if isinstance(answer, wire.Sought) else None)

        request = wire.Seek(topic_filter, where, start)
        if not self._asked_tier(request, sought):
            known = self._tier_reads.known(where)
            found: SoughtPosition | None
            try:
                result = seek(self._messages, topic_filter, where, start) if known is None else (known, True)
                found = SoughtPosition(*result)
            except (NoSuchPosition, StoreError):
                found = None
            then(found)

    def may_have(self, log_offset: int) -> bool:
        return self._tier_reads.has(log_offset)

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        from lightqueue.reading.replay import ScanQuery, scan

        def read(answer: WireMessage, records: bytes) -> None:
            then(page_of(answer, records, start))

        request = wire.Scan(topic_filter, start, stop, HISTORY_PAGE_BYTES)
        if not self._asked_tier(request, read):
            page: Page | None
            try:
                found = scan(
                    self._messages, ScanQuery(topic_filter, start, stop), HISTORY_PAGE_BYTES, HISTORY_PAGE_BYTES << 10
                )
                page = Page(found.records, found.next)
            except (NoSuchPosition, StoreError):
                page = None
            then(page)

    def _asked_tier(self, request: Past, then: Callable[[WireMessage, bytes], None]) -> bool:
        question = self._tier_reads.question(request, HISTORY_PAGE_BYTES)
        if question is not None:
            self._tier_reads.ask(request, question, HISTORY_PAGE_BYTES << 10, then)
        return question is not None


class LocalStatus:
    """The state of a store in this process, for the gateway beside it: a StoreStatus (notify.api)."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages

    @property
    def stored_messages(self) -> int:
        return self._messages.queues.dispatcher.messages

    @property
    def log_bytes(self) -> int:
        return self._messages.end - self._messages.log.first

    @property
    def retained(self) -> int:
        return len(self._messages.retained)

    @property
    def subscriptions(self) -> int:
        return self._messages.sessions.subscription_count

    @property
    def absent_sessions(self) -> int:
        return self._messages.sessions.offline

    @property
    def expired_sessions(self) -> int:
        return self._messages.absent.expired

    def sessions_by_namespace(self, most: int) -> dict[str, float]:
        return dict(self._messages.sessions.namespaces.most_common(most))
