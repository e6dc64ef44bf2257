"""Stored messages, from the log of a store in this process."""

from __future__ import annotations

from collections.abc import Callable

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from notify.history import PAGE_BYTES, Page, SoughtPosition, pasts_of
from store.errors import StoreError


class LocalHistory:
    """A History (notify.history) whose answers come at once."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        from lightqueue.reading.replay import seek

        sought: SoughtPosition | None
        try:
            sought = SoughtPosition(*seek(self._messages, topic_filter, where, start))
        except (NoSuchPosition, StoreError):
            sought = None
        then(sought)

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        from lightqueue.reading.replay import ScanQuery, scan

        page: Page | None
        try:
            found = scan(self._messages, ScanQuery(topic_filter, start, stop), PAGE_BYTES, PAGE_BYTES << 10)
            page = Page(pasts_of(found.records), found.next)
        except (NoSuchPosition, StoreError):
            page = None
        then(page)
