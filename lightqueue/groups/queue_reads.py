"""Reads of a group's queue: in the log, and where retention has dropped what is wanted, in the tier if there is one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

from lightqueue.queues._queues import Queue, tagged_records
from lightqueue.queues.table import QueueTable
from store.log.api import Log
from store.records._records import Records, lost_before, marked, records_bytes, records_from, records_size
from store.state.group_settings import TagSet

LOOKED_AT = 2_048
"""Entries of the index that one read compares with the group's tags: some 0.1 ms."""
READ_AT_ONCE = 512
READ_BYTES = 64 << 10
"""Of messages that a group with tags keeps, for each priority, while it looks for those with its tags."""


class TierPage(NamedTuple):
    """A page of a queue from the tier: from `start` on it has nothing before `records`, which may be none."""

    start: int
    records: Records

    @property
    def behind(self) -> int:
        return self.records.next


class QueueInTier(Protocol):
    """The messages of one queue that the log does not have any more. `why` it waits; empty: it does not."""

    why: str

    def page(self, queue_offset: int, kept: int) -> TierPage | None:
        """The page that has this queue_offset, which is before `kept`, where the log takes over.

        None: it is asked for, and the group is served once it is there.
        """

    def waits_for(self, queue_offset: int) -> bool:
        """True if the tier was asked for a queue_offset, and cannot be asked again now."""

    def close(self) -> None:
        """End the reading: nothing more is wanted."""


class QueueReads:
    """Reads for one group, of the messages with one priority. The last one's count what the group never got."""

    def __init__(
        self,
        log: Log,
        queues: QueueTable,
        queue: Queue,
        tags: TagSet,
        tier: Callable[[], QueueInTier | None],
        tell_skipped: Callable[[int], None] | None,
    ) -> None:
        """`tags`: of the messages that are wanted. `tier`: what there is of the queue in the tier.

        `tell_skipped`: is told how many messages are gone, as nothing has them; None: another priority's reads tell it.
        """
        self.skipped = 0
        self._tags = tags
        self._some = Records(0)  # what was read last, of a group with tags
        self._log = log
        self._queues = queues
        self._queue = queue
        self._open_tier = tier
        self._tell_skipped = tell_skipped
        self._tier: QueueInTier | None = None  # while the group stands before the log
        self._kept = 0  # queue_offset of the first message in the log, when ...
        self._as_of = -1  # ... the log began there
        self._told_until = 0
        self._gone = 0  # messages that were found gone one by one, which no message has said
        self._lost: dict[int, int] = {}  # how many messages are gone that a message says, by its queue_offset

    def read(self, start: int, most: int, max_bytes: int) -> Records:
        """Like QueueTable.read(); nothing from `start` on while the tier is asked. What is gone counts as lost.

        Messages with other tags are passed over: the result, which may be empty, begins after them.
        """
        records = self._read_tagged(start, most, max_bytes) if self._tags.tags else self._read(start, most, max_bytes)
        return self._telling(records)

    def _read_tagged(self, start: int, most: int, max_bytes: int) -> Records:
        """The first ones in a row from `start` on that have a tag of the group.

        The index says by hashes what need not be read. What may be wanted is read many at a time, since those that are
        wanted stand among others.
        """
        if not self._some.first <= start < self._some.next:
            if not self._tags.others and (self._tier is None or start >= self._kept_from()):
                at, until = self._queues.tagged_run(self._queue, start, self._tags.tags, LOOKED_AT)
                if at > start:
                    self._passed_over(start, 0)
                if at > start or at == until:
                    return Records(at)
            found = self._read(start, READ_AT_ONCE, READ_BYTES)
            self._some = records_from(records_bytes(found), found.first)  # for longer than until the next append
            start = found.first
            if not found.count:
                return found
        some = self._some
        first = start - some.first
        at, until = self._wanted(some, first)
        if first == 0 < at:
            self._passed_over(some.first, lost_before(some))
        return _part(some, at, min(most, until - at), max_bytes) if at < until else Records(some.first + at)

    def _wanted(self, records: Records, first: int) -> tuple[int, int]:
        """(at, until): the first wanted ones in a row, from number `first` on; their end twice, if none."""
        tags = self._tags.tags
        at, until = tagged_records(records, first, tags)
        if not self._tags.others:
            return at, until
        if at > first:  # the others stand in front of the first one with these tags, or behind it
            return first, at
        return until, tagged_records(records, until, tags)[0]

    def _passed_over(self, queue_offset: int, lost: int) -> None:
        """A message has another tag: what it would have said of messages that are gone, the next one says."""
        self._gone += self._lost.pop(queue_offset, lost)

    def _read(self, start: int, most: int, max_bytes: int) -> Records:
        if self._tier is None or start >= self._kept_from():
            records = self._queues.read(self._queue, start, most, max_bytes)
            if records.first == start:
                return records
            if not self._is_in_tier(start):
                lost = lost_before(records) if records.count else 0
                return self._told(start, max(start, records.first - lost), records)
        assert self._tier is not None
        kept, at = self._kept_from(), start
        while at < kept:
            page = self._tier.page(at, kept)
            if page is None:
                return Records(start)
            first = page.records.first
            if at < page.behind:
                return self._told(start, max(at, first), _part(page.records, max(0, at - first), most, max_bytes))
            at = page.behind
        return self._told(start, at, self._queues.read(self._queue, at, most, max_bytes))

    def record(self, queue_offset: int) -> bytes | None:
        """A message by its place; empty if it is not kept any more. None: the tier is asked."""
        if self._tier is None or queue_offset >= self._kept_from():
            records = self._queues.read(self._queue, queue_offset, 1, 1)
            if records.count and records.first == queue_offset:
                return records_bytes(self._marked(records))
            if not self._is_in_tier(queue_offset):
                return b""
        assert self._tier is not None
        page = self._tier.page(queue_offset, self._kept_from())
        if page is None:
            return None
        at = queue_offset - page.records.first
        if not 0 <= at < page.records.count:
            return b""
        return records_bytes(self._marked(_part(page.records, at, 1, 1)))

    def telling(self, queue_offset: int, data: bytes) -> bytes:
        """A message that is about to be handed out, which says how many are gone if no message has said so."""
        return data if not self._gone else records_bytes(self._telling(records_from(data, queue_offset)))

    def waits_for(self, queue_offset: int) -> bool:
        """Whether messages from there on are asked for in the tier, so that there is nothing to read now."""
        return self._tier is not None and queue_offset < self._kept_from() and self._tier.waits_for(queue_offset)

    def close_if_done(self, acked_offset: int) -> None:
        """Stop reading the tier once the group needs no more of it: all before `acked_offset` is done with."""
        if self._lost and min(self._lost) < acked_offset:
            self._lost = {each: lost for each, lost in self._lost.items() if each >= acked_offset}
        if self._tier is not None and acked_offset >= self._kept_from():
            self.close()

    def close(self) -> None:
        """Stop reading the tier for now, and keep nothing that was read."""
        self._some = Records(0)
        if self._tier is not None:
            self._tier.close()
            self._tier = None

    @property
    def why(self) -> str:
        """The reason why the tier does not answer; empty: it does, or it was not asked."""
        return self._tier.why if self._tier is not None else ""

    def gone(self) -> None:
        """A single message is not kept any more. The next one that is read says so."""
        assert self._tell_skipped is not None
        self.skipped += 1
        self._gone += 1
        self._tell_skipped(1)

    def _is_in_tier(self, queue_offset: int) -> bool:
        """Whether retention has dropped a message that the tier may have."""
        if queue_offset >= self._kept_from():
            return False
        self._tier = self._open_tier()
        return self._tier is not None

    def _kept_from(self) -> int:
        """queue_offset of the first message that the log has."""
        if self._as_of != self._log.first:
            self._as_of = self._log.first
            self._kept = self._queues.position_of(self._queue, self._as_of)
        return self._kept

    def _told(self, start: int, until: int, records: Records) -> Records:
        """`records`. The first one, or the next one that is read, says that all between two queue_offsets is gone."""
        if self._tell_skipped is None:
            return records
        new = until - max(start, self._told_until)
        if new > 0:
            self._told_until = until
            self.skipped += new
            self._tell_skipped(new)
        if missing := until - start:
            missing += self._lost.pop(start, 0)  # of a message that was to come there, and is gone as well
            missing += lost_before(records) if records.count else 0
            self._lost[records.first] = max(missing, self._lost.get(records.first, 0))
        return records

    def _telling(self, records: Records) -> Records:
        """`records`, of which the first one says what is gone that no message has said."""
        if self._gone and records.count:
            self._lost[records.first] = self._lost.get(records.first, lost_before(records)) + self._gone
            self._gone = 0
        return self._marked(records)

    def _marked(self, records: Records) -> Records:
        """`records`, of which the first one says what is gone, whenever it is read."""
        if not self._lost or not records.count:
            return records
        return marked(records, max(0, self._lost.get(records.first, 0) - lost_before(records)))


def _part(records: Records, first: int, most: int, max_bytes: int) -> Records:
    """Records from number `first` on: at most `most`, of `max_bytes`; one that is larger goes alone."""
    count = min(records.count - first, most)
    if not first and count == records.count and records_size(records) <= max_bytes:
        return records
    fits = bisect_right(range(1, count + 1), max_bytes, key=lambda number: len(records_bytes(records, first, number)))
    return records_from(records_bytes(records, first, max(1, fits)), records.first + first)
