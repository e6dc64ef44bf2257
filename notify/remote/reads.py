"""Reads of a store in another process: ranges of queues, records by their position, pages of history.

Ranges are kept where they were given, and asked for once a turn where not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from lightqueue.queues._queues import Queue
from notify.api import HISTORY_PAGE_BYTES, Page, RecordsAt, SoughtPosition, page_of
from notify.remote.range_cache import RangeCache
from notify.requests.reads import ANSWER_BYTES
from store.records._records import Records, ranges_from, records_from, records_size
from store.wire import messages as wire
from store.wire.client.requests import Answered, Outcome, PendingRequests
from store.wire.frames import Frame
from store.wire.messages import WireMessage

AHEAD = 4  # ranges that are asked for ahead of a reader that is far behind
AHEAD_SHARE = 2  # one part in this many of the cache may be such
FILL = 0.9  # of an answer, by what records took before, so that some that are larger do not exceed it
MOST_UNREAD_BYTES = 256 << 10  # of a queue: its reader is behind, and will ask

Place = tuple[Queue, int]  # and the queue_offset to begin at
Ask = Callable[[WireMessage, Answered], object]


class RangeReads:
    """Owner of the range cache, and of the reads that are under way or about to be asked for."""

    def __init__(self, cache_bytes: int, refs: Mapping[Queue, int], ask: Ask, came: Callable[[Queue], None]) -> None:
        """`refs` of the queues that are followed; `came`: there is something to be read that was asked for."""
        self.cache = RangeCache(cache_bytes)
        self._refs = refs
        self._ask = ask
        self._came = came
        self._wanted: dict[Place, None] = {}  # at the end of the turn
        self._ahead: dict[Place, int] = {}  # likewise, so many records each, which come one by one
        self.has_wanted = False  # there is something to ask()
        self._hurried: dict[Queue, int] = {}  # of which ranges are asked for ahead: the place after the last of them
        self._most_hurried = max(1, cache_bytes // (AHEAD_SHARE * AHEAD * ANSWER_BYTES))
        self._asked: set[Place] = set()
        self._max_records = self._max_bytes = 1
        self._unread_bytes: dict[Queue, int] = {}  # were pushed, and not read since

    def read(self, queue: Queue, start: int, max_records: int, max_bytes: int) -> Records | None:
        """See notify.api.Store; a range that is not here is requested at the end of the turn."""
        found = self.cache.get(queue, start)
        self._unread_bytes.pop(queue, None)
        if found is None:
            self._want((queue, start), max_records, max_bytes)
            return None
        if found.count and self._may_look_ahead(queue, start, max_records):
            self._look_ahead(queue, found, max_records, max_bytes)
        return found

    def read_many(
        self, queues: list[Queue], starts: list[int], max_records: int, max_bytes: int
    ) -> list[Records | None]:
        """Like read() for each of some queues, of which one session may have thousands."""
        ranges = self.cache.get_many(queues, starts)
        unread_bytes = self._unread_bytes
        for queue, start, found in zip(queues, starts, ranges, strict=True):
            if unread_bytes:
                unread_bytes.pop(queue, None)
            if found is None:
                self._want((queue, start), max_records, max_bytes)
            elif found.count and self._may_look_ahead(queue, start, max_records):
                self._look_ahead(queue, found, max_records, max_bytes)
        return ranges

    def _want(self, place: Place, max_records: int, max_bytes: int) -> None:
        """Ask for a range at the end of the turn, unless it is on its way, or asked for ahead in this turn."""
        if place not in self._asked and place not in self._ahead:
            self._wanted[place] = None
            self.has_wanted = True
            self._max_records, self._max_bytes = max_records, max_bytes

    def _may_look_ahead(self, queue: Queue, start: int, max_records: int) -> bool:
        if queue in self._hurried:
            return True
        return queue.next_offset - start > max_records and len(self._hurried) < self._most_hurried

    def _look_ahead(self, queue: Queue, found: Records, max_records: int, max_bytes: int) -> None:
        """Want what comes after `found` before it is read, if that is more than an answer.

        It begins after the last range that was wanted ahead, if that is near: ranges do not overlap then.
        """
        step = min(max_records, int(FILL * max_bytes) * found.count // records_size(found))
        last = min(found.next + (AHEAD - 1) * step, queue.next_offset - step)
        if not step or last < found.next:
            self._hurried.pop(queue, None)
            return
        self._max_bytes = max_bytes
        at = self._hurried.get(queue, 0)
        if not found.next <= at <= found.next + AHEAD * step:
            at = found.next
        while at <= last:
            if (queue, at) not in self._asked and (queue, at) not in self._wanted and not self.cache.has(queue, at):
                self._ahead[queue, at] = step
                self.has_wanted = True
            at += step
        self._hurried[queue] = at

    def ask(self) -> None:
        """Send one request for all ranges that were found missing in a turn."""
        asked = [(queue, start) for queue, start in self._wanted if queue in self._refs]
        self._wanted.clear()
        self._asked.update(asked)
        for at in range(0, len(asked), wire.ITEMS_PER_FRAME):
            part = asked[at : at + wire.ITEMS_PER_FRAME]
            ranges = [(self._refs[queue], start) for queue, start in part]
            self._ask(wire.Read(ranges, self._max_records, self._max_bytes), partial(self._answered, part))
        for (queue, start), records in self._ahead.items():
            if queue in self._refs:
                self._asked.add((queue, start))
                request = wire.Read([(self._refs[queue], start)], records, self._max_bytes)
                self._ask(request, partial(self._answered, [(queue, start)]))
        self._ahead.clear()
        self.has_wanted = False

    def _answered(self, asked: list[Place], answer: Outcome, frame: Frame) -> None:
        self._asked.difference_update(asked)
        for queue, _ in asked:
            if queue in self._refs:
                self._came(queue)
        if isinstance(answer, wire.Ranges):  # fewer than asked for, if all of them were too much
            came = ranges_from(frame.records, [(first, count) for _, first, count in answer.ranges])
            ranges = [(*each, records) for each, records in zip(asked, came, strict=False)]
            useful = [each for each in ranges if each[0] in self._refs and each[2].next > each[1]]
            self.cache.add(frame.size_bytes, useful)

    def pushed(self, message: wire.Pushed, frame: Frame, queues: Mapping[int, Queue]) -> list[int]:
        """Take ranges that were pushed. The refs of those queues whose ranges are not read."""
        came = ranges_from(frame.records, [(first, count) for _, first, count in message.ranges])
        each_bytes = frame.size_bytes // len(message.ranges)
        ranges = []
        too_much = []
        for (ref, first, _), records in zip(message.ranges, came, strict=True):
            queue = queues.get(ref)
            if queue is None or not records.count:  # nothing would stand there for what comes next
                continue
            ranges.append((queue, first, records))
            unread_bytes = self._unread_bytes.pop(queue, 0) + each_bytes
            if unread_bytes > MOST_UNREAD_BYTES:
                too_much.append(ref)
            else:
                self._unread_bytes[queue] = unread_bytes
        self.cache.add(frame.size_bytes, ranges)
        return too_much

    def forget(self, queue: Queue) -> None:
        """No reader here follows this queue any more."""
        self.cache.forget(queue)
        self._hurried.pop(queue, None)
        self._unread_bytes.pop(queue, None)

    def restart(self) -> None:
        """Forget all requests: their answers will not come."""
        self._wanted.clear()
        self._ahead.clear()
        self.has_wanted = False
        self._asked.clear()
        self._hurried.clear()

    def clear(self) -> None:
        """Nor is any queue followed any more."""
        self.restart()
        self.cache.clear()
        self._unread_bytes.clear()


def records_there(log_offsets: list[int], found: list[bool], data: memoryview) -> RecordsAt:
    """The records of an answer, by their log_offsets: of the first ones, if it has fewer."""
    records = records_from(data, 0)
    places = iter(range(records.count))
    return {
        log_offset: (records, next(places)) if is_kept else None
        for log_offset, is_kept in zip(log_offsets, found, strict=False)
    }


class RemoteHistory:
    """A History (notify.api) over the wire."""

    def __init__(self, requests: PendingRequests) -> None:
        self._ask = requests.ask

    def seek(self, topic_filter: str, where: str, start: int, then: Callable[[SoughtPosition | None], None]) -> None:
        def answered(answer: Outcome, _: Frame) -> None:
            then(SoughtPosition(answer.log_offset, answer.found) if isinstance(answer, wire.Sought) else None)

        self._ask(wire.Seek(topic_filter, where, start), answered)

    def may_have(self, log_offset: int) -> bool:
        return True  # the store knows

    def page(self, topic_filter: str, start: int, stop: int, then: Callable[[Page | None], None]) -> None:
        def answered(answer: Outcome, frame: Frame) -> None:
            then(page_of(answer, bytes(frame.records), start))

        self._ask(wire.Scan(topic_filter, start, stop, HISTORY_PAGE_BYTES), answered)
