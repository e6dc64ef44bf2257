"""Looks at what comes to a topic: the newest messages, and the number of the others. A look costs three short requests
where nothing is large, however much came.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.console.store.connection import StoreConnection
from penstock.console.views.history import HistoryPages, HistorySpan
from penstock.console.views.messages import MessageFields
from penstock.sdk.errors import NotFound

LOOK_ROWS = 20
LOOK_BYTES = 256 << 10
"""Of the messages of one look; one message may be more."""


class TopicLook(NamedTuple):
    """What came since the look before: the newest messages, oldest first, and how many are not among them."""

    messages: list[MessageFields]
    others: int


class TopicLooks:
    """Looks at one topic from a queue_offset on. Each goes on where the one before ended, so that each message is shown
    or counted once.
    """

    def __init__(self, connection: StoreConnection, topic: str, next_offset: int) -> None:
        self._pages = HistoryPages(connection)
        self._span = HistorySpan(topic)
        self.next_offset = next_offset
        """queue_offset from which on the next look shows or counts messages."""

    async def look(self) -> TopicLook:
        """Raises a ClientError."""
        end = await end_of(self._pages, self._span.topic_filter)
        if end < self.next_offset:  # this is another queue of the same name: what came before is not known
            self.next_offset = max(0, end - LOOK_ROWS)
        if end == self.next_offset:
            return TopicLook([], 0)
        first = max(self.next_offset, end - LOOK_ROWS)
        messages = (await self._pages.in_queue(self._span, first, end, LOOK_BYTES)).messages
        newest = messages[-1][1] if messages else None
        goes_on = end if newest is None else newest + 1
        others = goes_on - self.next_offset - len(messages)
        self.next_offset = goes_on
        return TopicLook(messages, others)


async def end_of(pages: HistoryPages, topic: str) -> int:
    """queue_offset of the next message of a topic."""
    try:
        return await pages.queue_offset(HistorySpan(topic), "now")
    except NotFound:
        return 0
