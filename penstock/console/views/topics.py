"""What a user may see of the topics: the tree by level, a search, and one topic with its count and last message."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from msgspec import Struct

from penstock.console.store.connection import StoreConnection
from penstock.console.views.history import NO_END, HistoryPages, HistorySpan
from penstock.console.views.messages import MessageFields, StoredMessage, shown
from penstock.console.views.rates import Rates
from penstock.console.views.readable import EVERYTHING, readable_below
from penstock.console.views.sizes import ANSWER_BYTES, in_worker, shown_bytes
from penstock.console.views.topic_index import TopicIndex
from penstock.sdk.errors import ClientError
from store.wire.log_messages import MOST_TOPICS, QueueOffsets, QueueOffsetsFound

MOST_INDEXES = 64
LAST_AT_A_TIME = 8
"""Last messages that are read at a time."""
MOST_INDEX_BYTES = 96 << 20


class TopicRow(Struct):
    """A name at one level of the tree, or a topic that was found.

    `topics_below`: those whose names go on after it. `messages`: how many it has had, dropped ones included.
    """

    name: str
    topic: str
    is_topic: bool
    topics_below: int
    messages: int | None = None
    rate_per_s: float | None = None
    last: StoredMessage | None = None


class TopicsPage(Struct):
    """`topics_known`: all that the filter matches. `next`: the cursor of the next page; null: that was all."""

    topics: list[TopicRow]
    topics_known: int
    next: str | None = None


class TopicViews:
    """Owner of the indexes of topics, shared by users of one namespace, and of the rates."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[tuple[str, ...], TopicIndex] = OrderedDict()
        self.rates = Rates()

    async def index(self, connection: StoreConnection, prefix: str = "") -> TopicIndex:
        """The topics with a prefix, or those of them that this user may read by other filters. Raises a ClientError."""
        place = (connection.names.name, *await readable_below(connection, prefix))
        index = self._indexes.get(place)
        if index is None:
            index = TopicIndex(*place[1:])
            await index.refresh(connection)
            self._indexes[place] = index
            self._bound()
        else:
            await index.refresh(connection)
        self._indexes[place] = index  # it may have been forgotten meanwhile
        self._indexes.move_to_end(place)
        return index

    def _bound(self) -> None:
        """Forget indexes that were not used for longest; the newest one stays."""
        while len(self._indexes) > 1 and (
            len(self._indexes) > MOST_INDEXES or sum(map(len, self._indexes.values())) > MOST_INDEX_BYTES
        ):
            self._indexes.popitem(last=False)

    async def tree(
        self, connection: StoreConnection, prefix: str, after: str, limit: int
    ) -> tuple[list[TopicRow], int, str]:
        """The names after a prefix, how many topics are known, and the name to go on after (empty: that was all)."""
        index = await self.index(connection, prefix)
        levels = index.levels(prefix, after, limit + 1)
        following = levels[limit - 1].name if len(levels) > limit else ""
        rows = [TopicRow(each.name, each.path, each.is_topic, each.topics_below) for each in levels[:limit]]
        is_whole = index.topic_filters == (prefix + EVERYTHING,)
        return await self._seen(connection, rows, is_whole), index.count(prefix), following

    async def search(
        self, connection: StoreConnection, text: str, prefix: str, after: str, limit: int
    ) -> tuple[list[TopicRow], int, str]:
        """The topics that contain a text, as tree()."""
        index = await self.index(connection, prefix)
        found = await index.search(text, after, limit + 1, prefix)
        following = found[limit - 1] if len(found) > limit else ""
        rows = [TopicRow(topic.rpartition("/")[2], topic, True, 0) for topic in found[:limit]]
        return await self._seen(connection, rows), index.count(prefix), following

    async def _seen(
        self, connection: StoreConnection, rows: list[TopicRow], judges_levels: bool = False
    ) -> list[TopicRow]:
        """Those rows that this user may see, with the counts of topics. `judges_levels`: otherwise a level is there by
        topics below it that the user may see, and by no others.
        """
        judged = [row for row in rows if row.is_topic or judges_levels]
        if judged:
            paths = [row.topic if row.is_topic else f"{row.topic}/{EVERYTHING}" for row in judged]
            permitted = await connection.permitted("subscribe", paths)
            refused = {row.topic for row, is_permitted in zip(judged, permitted, strict=True) if not is_permitted}
            rows = [row for row in rows if row.topic not in refused]
        topics = [row for row in rows if row.is_topic]
        for at in range(0, len(topics), MOST_TOPICS):
            await self._count(connection, topics[at : at + MOST_TOPICS])
        return rows

    async def _count(self, connection: StoreConnection, rows: list[TopicRow]) -> None:
        names = connection.names
        request = QueueOffsets(NO_END, [names.topic(row.topic) for row in rows])
        answer, _ = await connection.request(request, QueueOffsetsFound)
        now_s = asyncio.get_running_loop().time()
        for row, count in zip(rows, answer.queue_offsets, strict=True):
            row.messages = count
            row.rate_per_s = self.rates.rate((names.name, row.topic), count, now_s)

    async def one(self, connection: StoreConnection, pages: HistoryPages, topic: str) -> TopicRow:
        """A topic with its last message, if this user may read that. Raises a ClientError."""
        row = TopicRow(topic.rpartition("/")[2], topic, True, 0)
        await self._count(connection, [row])
        await self.add_last(connection, pages, [row])
        return row

    async def add_last(self, connection: StoreConnection, pages: HistoryPages, rows: list[TopicRow]) -> int:
        """Add the last messages, of topics that this user may read. How many rows an answer has room for."""
        left_bytes = ANSWER_BYTES
        for at in range(0, len(rows), LAST_AT_A_TIME):
            some = rows[at : at + LAST_AT_A_TIME]
            found = await asyncio.gather(*(self._last(connection, pages, row) for row in some))
            for number, (row, last) in enumerate(zip(some, found, strict=True), at):
                if last is None:
                    continue
                left_bytes -= shown_bytes(last[0])
                if left_bytes < 0 and number:
                    return number
                (row.last,) = await in_worker(shown, [last], connection.place)
        return len(rows)

    async def _last(self, connection: StoreConnection, pages: HistoryPages, row: TopicRow) -> MessageFields | None:
        if not row.is_topic:
            return None
        try:
            page = await pages.backward(HistorySpan(row.topic), 1)
        except ClientError:  # it may subscribe, and not replay
            return None
        return page.messages[0] if page.messages else None
