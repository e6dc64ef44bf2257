"""All topics that a filter matches, sorted in one piece of bytes: a million topics take their own length and one byte
each, are searched in a few hundredths of a second, and counted by level without a tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.console.store.connection import StoreConnection
from penstock.console.views.history import NO_END
from penstock.console.views.sizes import in_worker
from penstock.sdk.errors import NotPermitted
from penstock.sdk.message import TOPIC
from store.records.record_bytes import walk
from store.wire.log_messages import Topics, TopicsFound
from store.wire.messages import Scan, Scanned

END = b"\0"
"""Stands before and after each topic; no topic has it."""
SLASH = ord("/")
PART_BYTES = 2 << 20
"""How much is searched in one turn of the loop."""
FRESH_S = 5.0
TAIL_BYTES = 16 << 20
SCAN_BYTES = 1 << 20
LEAST_BYTES = 4_096
"""What an answer without messages counts for."""
REFRESH_SHARE = 20.0
"""A refresh that took a second is not begun again for so many seconds."""


class Level(NamedTuple):
    """A name at one level: a topic, or the beginning of topics below it, or both."""

    name: str
    path: str
    is_topic: bool
    topics_below: int


class _FoundTopics:
    """Topics that come one after another: mostly in their order, and each once."""

    def __init__(self) -> None:
        self._found = bytearray()
        self._last = b""
        self._is_sorted = True

    def add(self, topics: Iterable[bytes]) -> None:
        for topic in topics:
            self._is_sorted = self._is_sorted and topic > self._last
            self._last = topic
            self._found += END + topic

    def blob(self) -> bytes:
        """All of them in their order, each once."""
        found = bytes(self._found + END)
        if self._is_sorted:
            return found
        topics = sorted(found[1:-1].split(END))  # filters one after another, so it has few pieces to join
        return END + END.join(dict.fromkeys(topics)) + END


class TopicIndex:
    """The topics of some filters. search() and levels() see those of the last refresh."""

    def __init__(self, *topic_filters: str) -> None:
        self.topic_filters = topic_filters
        self.refreshed_s = float("-inf")
        """When the last refresh began, in seconds of the loop's clock."""
        self._took_s = 0.0
        self._blob = END
        self._refreshing: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Its size in bytes."""
        return len(self._blob)

    async def refresh(self, connection: StoreConnection) -> None:
        """Ask the store again, unless the topics are fresh. Who comes first waits; later ones see what is there.

        Raises a ClientError.
        """
        now_s = asyncio.get_running_loop().time()
        is_first = self.refreshed_s < 0
        if now_s - self.refreshed_s < max(FRESH_S, REFRESH_SHARE * self._took_s):
            return
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._refresh(connection, now_s))
            self._refreshing.add_done_callback(self._refreshed)
        if is_first or self._took_s < FRESH_S / REFRESH_SHARE:
            await asyncio.shield(self._refreshing)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            task.exception()  # who waits has it; the next one asks again

    async def _refresh(self, connection: StoreConnection, now_s: float) -> None:
        found = _FoundTopics()
        starts = [await self._add_known(connection, each, found) for each in self.topic_filters]
        self._blob = await in_worker(found.blob)
        del found
        for topic_filter, start in zip(self.topic_filters, starts, strict=True):
            await self._add_newest(connection, topic_filter, start)
        self._took_s = asyncio.get_running_loop().time() - now_s
        self.refreshed_s = now_s

    async def _add_known(self, connection: StoreConnection, topic_filter: str, found: _FoundTopics) -> int:
        """Add what the store's index has. Returns the log_offset up to which it has all of it."""
        after, names = "", connection.names
        known_until: int | None = None
        while True:
            answer, _ = await connection.request(Topics(names.topic(topic_filter), after), TopicsFound)
            found.add(names.plain_topic(topic).encode() for topic in answer.topics)
            after = answer.next
            known_until = answer.known_until if known_until is None else known_until
            if not after:
                return known_until

    async def _add_newest(self, connection: StoreConnection, topic_filter: str, start: int) -> None:
        """Add topics whose first messages came so lately that the store's index does not have them yet, from a
        log_offset on. Of very many messages, the first TAIL_BYTES: the next refresh has the others.
        """
        in_log, names = connection.names.topic(topic_filter), connection.names
        topics: set[bytes] = set()
        read_bytes = 0
        while read_bytes < TAIL_BYTES:
            try:
                answer, records = await connection.request(Scan(in_log, start, NO_END, SCAN_BYTES), Scanned)
            except NotPermitted:  # it may subscribe, and not replay
                return
            topics.update(record[TOPIC] for record in walk(records))
            read_bytes += len(records) + LEAST_BYTES
            start = answer.next
            if start >= answer.log_end:
                break
        plain = {names.plain_topic(topic.decode()) for topic in topics}
        self._insert(sorted(topic.encode() for topic in plain if topic not in self))

    def _insert(self, topics: list[bytes]) -> None:
        """Add topics that are sorted, and not there yet."""
        parts: list[bytes] = []
        done = 0
        for topic in topics:
            at = self._lower(topic)
            parts += (self._blob[done:at], END + topic)
            done = at
        if topics:
            self._blob = b"".join((*parts, self._blob[done:]))

    # --- finding

    def count(self, prefix: str = "") -> int:
        """How many topics have this prefix."""
        low, high = self._range(prefix.encode())
        return self._blob.count(END, low, high)

    async def search(self, text: str, after: str, limit: int, prefix: str = "") -> list[str]:
        """Up to `limit` topics that contain a text, in their order, after the topic `after`. A text in lower case is
        found in any case.
        """
        blob = self._blob
        is_any_case = text == text.lower() and text != text.upper()
        wanted = text.encode()
        begin, end = self._range(prefix.encode())
        at = max(begin, self._behind(after.encode())) if after else begin
        found: list[str] = []
        while at < end and len(found) < limit:
            until = self._boundary(min(at + PART_BYTES, end), end)
            for topic in _matching(blob[at : until + 1], wanted, is_any_case):
                found.append(topic.decode())
                if len(found) == limit:
                    return found
            at = until
            await asyncio.sleep(0)
        return found

    def levels(self, prefix: str, after: str, limit: int) -> list[Level]:
        """Up to `limit` names of the level after `prefix` (empty, or it ends with /), after the name `after`."""
        blob, start = self._blob, prefix.encode()
        at, end = self._range(start)
        if after:
            at = max(at, self._range(start + after.encode() + b"/")[1], self._behind(start + after.encode()))
        found: dict[str, Level] = {}
        while at < end and len(found) <= limit:
            begin = at + 1 + len(start)
            stop = blob.index(END, begin)
            slash = blob.find(b"/", begin, stop)
            name = blob[begin : stop if slash < 0 else slash].decode(errors="replace")
            old = found.get(name, Level(name, prefix + name, False, 0))
            if slash < 0:
                found[name] = old._replace(is_topic=True)
                at = stop
            else:
                low, high = self._range(blob[at + 1 : slash + 1])
                found[name] = old._replace(topics_below=blob.count(END, low, high))
                at = max(high, stop)
        return list(found.values())[:limit]

    def __contains__(self, topic: str) -> bool:
        return self._blob.startswith(END + topic.encode() + END, self._lower(topic.encode()))

    # --- places in the blob: each is that of an END before a topic

    def _range(self, prefix: bytes) -> tuple[int, int]:
        """From the first topic with a prefix to after the last one."""
        if not prefix:
            return 0, len(self._blob) - 1
        return self._lower(prefix), self._lower(prefix[:-1] + bytes((prefix[-1] + 1,)))

    def _behind(self, topic: bytes) -> int:
        return self._lower(topic + b"\0")

    def _lower(self, name: bytes) -> int:
        """The first topic that is not below `name`."""
        blob = self._blob
        low, high = 0, len(blob) - 1
        while low < high:
            middle = blob.rindex(END, low, (low + high) // 2 + 1)
            stop = blob.index(END, middle + 1)
            if blob[middle + 1 : stop] < name:
                low = stop
            else:
                high = middle
        return low

    def _boundary(self, at: int, end: int) -> int:
        """The first END at or after a place."""
        return end if at >= end else self._blob.index(END, at)


def _matching(part: bytes, wanted: bytes, is_any_case: bool) -> Iterator[bytes]:
    """The topics of a part of the blob, which begins and ends with an END, that contain `wanted`."""
    searched = part.lower() if is_any_case else part
    at = 0
    while True:
        hit = searched.find(wanted, at + 1)
        if hit < 0:
            return
        begin = searched.rindex(END, 0, hit + 1)
        at = searched.find(END, hit + len(wanted))
        if at < 0:  # an empty text after the last one
            return
        yield part[begin + 1 : at]
