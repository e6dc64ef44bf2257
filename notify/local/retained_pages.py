"""Pages of retained messages that were found last: many who come back at once ask for the same ones."""

from __future__ import annotations

from lightqueue.message_store import MessageStore
from lightqueue.queues.retained_search import find_retained, heads_found
from notify.api import RetainedMessage, RetainedPage

PER_PAGE = 500  # some 2 ms, whether or not they match; a turn may take two
PAGES_KEPT = 64  # some 75 KB each


class RetainedPages:
    """Owner of the newest pages, true as long as no retained message is stored."""

    def __init__(self, messages: MessageStore) -> None:
        self._messages = messages
        self._pages: dict[tuple[str, str | None], RetainedPage] = {}
        self._as_of = messages.retained.changes

    def page(self, topic_filter: str, after: str | None) -> RetainedPage:
        """The retained messages that `topic_filter` matches behind the topic `after`. Raises a StoreError."""
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
