"""Pages of history in both directions, by the index: a topic's or a first level's queue is counted, so its newest page
costs as much as any other. Other filters are searched backwards in parts of the log that grow.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from penstock.console.store.connection import StoreConnection
from penstock.console.views.messages import MessageFields
from penstock.console.views.sizes import ANSWER_BYTES, fitting, shown_bytes
from penstock.sdk.errors import NotFound, StoreRefused
from penstock.sdk.positions import Position, where
from store.records.record_bytes import walk
from store.wire import messages as wire
from store.wire.messages import FailureCode

NO_END = (1 << 63) - 1
QUEUE_END = "@" + str(10**18)
SCAN_BYTES = 1 << 20
FIRST_STEP = 16
"""Messages of a queue that are read before it is known how large they are."""
MESSAGE_BYTES = 512
"""How much of messages is asked for, for each that is wanted; more is asked for if that was too little."""
LEAST_BYTES = 4_096
FIRST_WINDOW_BYTES = 256 << 10
LAST_WINDOW_BYTES = 64 << 20
RECORD_UNIT_BYTES = 8
"""Each record is longer, and begins at a multiple."""
SEARCH_S = 2.0
"""A search that takes longer gives what it found; the next page goes on."""
MOST_BEGINNINGS = 1_024


class HistoryPage(NamedTuple):
    """Messages, and from where the next page goes on (`at`, `until`); None: that was all."""

    messages: list[MessageFields]
    next: tuple[int, int] | None


class HistorySpan(NamedTuple):
    """What is read: a filter from `start` (that one included) to `stop` (that one not). `tag`: with this alone."""

    topic_filter: str
    start: Position = "earliest"
    stop: Position = "now"
    tag: str = ""


def is_counted(topic_filter: str) -> bool:
    """Whether a filter has a queue of its own, whose messages are counted: a topic, or `a/#`.

    >>> [is_counted(each) for each in ("a/b", "a/#", "a/+/b", "#")]
    [True, True, False, False]
    """
    first, _, rest = topic_filter.partition("/")
    return not ("+" in first or "#" in first) and (rest == "#" or not ("+" in rest or "#" in rest))


class _Newest:
    """The newest messages of those that were added oldest first: `most` of them, and what an answer may have and one
    more. `count`: all that were added.
    """

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self._found: deque[MessageFields] = deque()
        self._most = most
        self._bytes = 0

    def add(self, messages: Iterable[MessageFields]) -> None:
        for each in messages:
            self.count += 1
            self._found.append(each)
            self._bytes += shown_bytes(each[0])
            while self._bytes - shown_bytes(self._found[0][0]) > ANSWER_BYTES or len(self._found) - 1 == self._most:
                self._bytes -= shown_bytes(self._found.popleft()[0])

    def part(self, left_bytes: int, at_least_one: bool) -> tuple[list[MessageFields], int]:
        """Those that take no more than that, oldest first, and what they take."""
        newest = [record for record, _ in reversed(self._found)]
        number = max(fitting(newest, left_bytes), int(at_least_one and bool(newest)))
        return list(islice(self._found, len(newest) - number, None)), sum(map(shown_bytes, newest[:number]))


class HistoryPages:
    """Pages of what one user may read. Each store connection has one: it remembers where records begin."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._beginnings: list[int] = []

    # --- oldest first

    async def forward(self, span: HistorySpan, limit: int, goes_on: tuple[int, int] | None = None) -> HistoryPage:
        """A page in the order of the log. `goes_on`: `next` of the page before."""
        at, until = goes_on or (await self.log_offset(span, span.start), await self.log_offset(span, span.stop))
        return await self._scan(span, at, until, limit)

    async def _scan(
        self, span: HistorySpan, at: int, until: int, limit: int, most_bytes: int = ANSWER_BYTES
    ) -> HistoryPage:
        found: list[MessageFields] = []
        left_bytes = most_bytes
        in_log = self._connection.names.topic(span.topic_filter)
        deadline_s = asyncio.get_running_loop().time() + SEARCH_S
        while at < until:
            missing = limit - len(found)
            max_bytes = min(max(missing * MESSAGE_BYTES, LEAST_BYTES), SCAN_BYTES)
            request = wire.Scan(in_log, at, until, max_bytes, span.tag)
            answer, records = await self._connection.request(request, wire.Scanned)
            self._begins(answer.log_end)
            first = answer.queue_offset
            for number, record in enumerate(walk(records)):
                left_bytes -= shown_bytes(record)
                if number == missing or (left_bytes < 0 and found):
                    return HistoryPage(found, (record[0], until))
                found.append((record, first + number if first >= 0 else None))
            at = answer.next
            is_late = not records and asyncio.get_running_loop().time() > deadline_s
            if at >= answer.log_end:
                break
            if len(found) >= limit or is_late:
                return HistoryPage(found, (at, until) if at < until else None)
        return HistoryPage(found, None)

    # --- newest first

    async def backward(self, span: HistorySpan, limit: int, goes_on: tuple[int, int] | None = None) -> HistoryPage:
        """A page with the newest message first. `goes_on`: `next` of the page before."""
        if is_counted(span.topic_filter) and not span.tag:
            return await self._backward_in_queue(span, limit, goes_on)
        return await self._backward_in_log(span, limit, goes_on)

    async def _backward_in_queue(self, span: HistorySpan, limit: int, goes_on: tuple[int, int] | None) -> HistoryPage:
        """`next` are queue_offsets: the end of the next page, and the first message that is wanted."""
        try:
            end, first = goes_on or (
                await self.queue_offset(span, span.stop),
                await self.queue_offset(span, span.start),
            )
        except NotFound:
            return HistoryPage([], None)
        while end > first:
            begin = max(first, end - limit)
            messages, begin = await self._newest_in_queue(span, begin, end)
            messages.reverse()
            if messages:
                return HistoryPage(messages, (begin, first) if begin > first else None)
            end = begin  # retention dropped them, or they are lost
        return HistoryPage([], None)

    async def in_queue(self, span: HistorySpan, begin: int, end: int, most_bytes: int = ANSWER_BYTES) -> HistoryPage:
        """Messages of a counted queue from queue_offset `begin` to `end`, oldest first: as many as have `most_bytes`,
        or one.
        """
        at = await self._sought(span.topic_filter, f"@{begin}")
        page = await self._scan(span, at, NO_END, end - begin, most_bytes)
        return HistoryPage([each for each in page.messages if each[1] is None or each[1] < end], page.next)

    async def _newest_in_queue(self, span: HistorySpan, begin: int, end: int) -> tuple[list[MessageFields], int]:
        """Those of these queue_offsets, oldest first; or as many of the newest as an answer may have. And the
        queue_offset at which they begin.

        Few are read at first: how large they are is known after that.
        """
        found: list[MessageFields] = []
        step, at = FIRST_STEP, end
        while at > begin:
            start = max(begin, at - step)
            newest = _Newest()
            goes_on: tuple[int, int] | None = (await self._sought(span.topic_filter, f"@{start}"), NO_END)
            while goes_on is not None:
                page = await self._scan(span, *goes_on, at - start)
                inside = [each for each in page.messages if each[1] is None or each[1] < at]
                newest.add(inside)
                goes_on = page.next if len(inside) == len(page.messages) and newest.count < at - start else None
            part, used_bytes = newest.part(ANSWER_BYTES - sum(shown_bytes(record) for record, _ in found), not found)
            found = part + found
            if len(part) < newest.count:
                oldest = part[0][1] if part else None
                return found, at - len(part) if oldest is None else oldest
            step = min(4 * step, max(1, ANSWER_BYTES * step // max(1, used_bytes)))
            at = start
        return found, begin

    async def _backward_in_log(self, span: HistorySpan, limit: int, goes_on: tuple[int, int] | None) -> HistoryPage:
        """`next` are log_offsets: where the part before ends, and the first one that is wanted."""
        stop, first = goes_on or (await self.log_offset(span, span.stop), await self.log_offset(span, span.start))
        found: list[MessageFields] = []
        left_bytes = ANSWER_BYTES
        window_bytes = FIRST_WINDOW_BYTES
        deadline_s = asyncio.get_running_loop().time() + SEARCH_S
        while stop > first and len(found) < limit:
            start = max(first, stop - window_bytes)
            start = await self._beginning(span.topic_filter, start) if start > first else first
            if start >= stop:
                window_bytes *= 4
                continue
            missing = limit - len(found)
            newest = await self._newest_of(span, start, stop, missing + 1)
            part, used_bytes = newest.part(left_bytes, not found)
            part.reverse()
            left_bytes -= used_bytes
            is_cut = len(part) < newest.count or len(part) > missing
            found += part[:missing]
            if is_cut:
                return HistoryPage(found, (found[-1][0][0], first))
            stop = start
            window_bytes = min(4 * window_bytes, LAST_WINDOW_BYTES)
            if asyncio.get_running_loop().time() > deadline_s:
                break
        return HistoryPage(found, (stop, first) if stop > first else None)

    async def _newest_of(self, span: HistorySpan, start: int, stop: int, most: int) -> _Newest:
        """The newest messages of a part of the log."""
        found = _Newest(most)
        goes_on: tuple[int, int] | None = (start, stop)
        while goes_on is not None:
            page = await self._scan(span, *goes_on, SCAN_BYTES // MESSAGE_BYTES)
            found.add(page.messages)
            goes_on = page.next
        return found

    async def _beginning(self, topic_filter: str, log_offset: int) -> int:
        """The first record at or after a log_offset. Where the log itself is read, a record that is known to begin
        nearby spares the store a search from the start of the segment.
        """
        first = topic_filter.split("/", 1)[0]
        if "+" not in first and "#" not in first:
            return log_offset  # a queue is read, which any log_offset suits
        number = bisect_right(self._beginnings, log_offset)
        known = self._beginnings[number - 1] if number else 0
        found = await self._sought(topic_filter, f"={log_offset}", known)
        self._begins(found)
        return found

    # --- places

    async def behind(self, topic_filter: str, log_offset: int) -> int:
        """Where the record after that at a log_offset begins, so that a stream goes on without a gap or a repeat."""
        in_log = self._connection.names.topic(topic_filter)
        place = f"={log_offset + RECORD_UNIT_BYTES}"
        try:
            answer, _ = await self._connection.request(wire.Seek(in_log, place, log_offset), wire.Sought)
        except StoreRefused as error:
            if error.code != FailureCode.NO_SUCH_POSITION:
                raise
        else:
            if answer.found:
                return answer.log_offset
        return await self._sought(topic_filter, place)

    async def log_offset(self, span: HistorySpan, position: Position) -> int:
        """The log_offset of a position."""
        found = await self._sought(span.topic_filter, where(position))
        if position == "now":
            self._begins(found)
        return found

    async def queue_offset(self, span: HistorySpan, position: Position) -> int:
        """The queue_offset of a position in a counted queue. Raises NotFound if there is no queue."""
        at = where(position)
        if at[0] == "=":
            raise StoreRefused(FailureCode.BAD_REQUEST, "a log_offset does not begin or end a page with order=desc")
        in_log = self._connection.names.topic(span.topic_filter)
        request = wire.Locate(in_log, QUEUE_END if at == "now" else at)
        try:
            answer, _ = await self._connection.request(request, wire.Located)
        except StoreRefused as error:
            if error.code == FailureCode.NO_SUCH_POSITION:
                raise NotFound(f"{span.topic_filter}: no message") from None
            raise
        return answer.queue_offset

    async def _sought(self, topic_filter: str, place: str, start: int = 0) -> int:
        in_log = self._connection.names.topic(topic_filter)
        while True:
            answer, _ = await self._connection.request(wire.Seek(in_log, place, start), wire.Sought)
            if answer.found:
                return answer.log_offset
            start = answer.log_offset

    def _begins(self, log_offset: int) -> None:
        """A record begins there, or will."""
        if not self._beginnings or self._beginnings[-1] + FIRST_WINDOW_BYTES < log_offset:
            self._beginnings.append(log_offset)
        elif all(abs(each - log_offset) > FIRST_WINDOW_BYTES for each in islice(self._beginnings, MOST_BEGINNINGS)):
            insort(self._beginnings, log_offset)
        if len(self._beginnings) > MOST_BEGINNINGS:
            del self._beginnings[::2]
