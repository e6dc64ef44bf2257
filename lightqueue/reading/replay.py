"""Reads stored messages again for clients: any topic filter, in the order of the log, from any position or time.

A position is a log_offset, whatever the filter, so the store keeps no state between two requests. A topic is read from
its own queue, `a/...` with wildcards from the queue of its first level, any other filter from the log itself. Each call
reads a bounded part; the client goes on from `next`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lightqueue.errors import NoSuchPosition
from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue, with_tag
from lightqueue.queues.matching import has_wildcard, literal_prefix
from lightqueue.queues.table import level_of
from lightqueue.reading.following import locate, time_ms
from store.errors import CorruptSegment
from store.log.api import ReadableLog
from store.records._records import (
    Records,
    check_records,
    lost_before,
    marked,
    messages_in,
    records_bytes,
    topics_of,
    verify,
)
from store.records.records import RecordFlag, RecordType, read_records
from store.topics import matches

ROUND_BYTES = 256 << 10  # of the log, or of a queue's messages, in one read
LOG_BYTES = 4 << 20  # of the log, in one scan
SEEK_BYTES = 16 << 20  # of the log, in one seek
MOST_RECORDS = 4_096  # read in one scan: some 3 ms
MOST_ENTRIES = 65_536  # queue entries compared in one scan for a tag: some 2 ms
LOST_ROUNDS = 2  # scan so many times MOST_ENTRIES until a message can carry the number of lost ones
TOPICS_REMEMBERED = 10_000
MOST_NAMES = 1_000  # of topics, in one request: some 2 ms
LONGEST_NAME_BYTES = 65_535
NAME_BYTES = 5  # added to each name in an answer

_MESSAGE = bytes((RecordType.MESSAGE,))
_IN_NO_QUEUE = RecordFlag.LIVE_ONLY | RecordFlag.CARRIED | RecordFlag.DELAYED


class ScannedPage(NamedTuple):
    """Messages in log format, their number, the log_offset to go on from, and the first one's queue_offset (-1: the
    filter is no topic).
    """

    records: bytes
    number: int
    next: int
    queue_offset: int = -1


class SeekResult(NamedTuple):
    """A log_offset; if it is not `found` yet, the one to go on from."""

    log_offset: int
    found: bool = True


class ScanQuery(NamedTuple):
    """A scan: messages of a topic filter between two log_offsets, with one tag (empty: any).

    `lost`: so many parts of history in front of `start` are lost, which the first message is to say.
    """

    topic_filter: str
    start: int
    stop: int
    tag: bytes = b""
    lost: int = 0


def scan(store: MessageStore, wanted: ScanQuery, max_bytes: int, limit_bytes: int) -> ScannedPage:
    """Messages with start <= log_offset < stop: about `max_bytes`, and never more than `limit_bytes`.

    Raises NoSuchPosition if no record begins at `start` and the log itself is read, or another StoreError.
    """
    topic_filter, start, stop, tag, lost = wanted
    room = _Room(max_bytes, limit_bytes, lost)
    stop = min(stop, store.end)
    if start >= stop:
        return ScannedPage(b"", 0, start)
    queue = _queue(store, topic_filter)
    is_wanted = _wanted(topic_filter)
    if queue is None:
        end = _scan_log(store.log, start, stop, tag, room, is_wanted)
        return ScannedPage(*room.taken, end)
    position = store.queues.position_of(queue, max(start, store.log.first))
    if tag:
        end = _scan_tagged(store, queue, position, stop, tag, room, is_wanted)
        return ScannedPage(*room.taken, end)
    end = _scan_queue(store, queue, position, stop, room, is_wanted)
    queue_offset = room.first_position if room.count and not has_wildcard(topic_filter) else -1
    return ScannedPage(*room.taken, end, queue_offset)


def _queue(store: MessageStore, topic_filter: str) -> Queue | None:
    """The queue that has all matches, and perhaps other messages; None if there is none."""
    if not has_wildcard(topic_filter):
        return store.queues.stored(topic_filter)
    level = topic_filter.split("/", 1)[0]
    return None if has_wildcard(level) else store.queues.stored(level + "/#")


def _wanted(topic_filter: str) -> Callable[[bytes], bool] | None:
    """A function that says whether a topic in that queue matches the filter; None if all do."""
    if not has_wildcard(topic_filter) or level_of(topic_filter) is not None:
        return None
    known: dict[bytes, bool] = {}

    def is_wanted(topic: bytes) -> bool:
        found = known.get(topic)
        if found is None:
            if len(known) >= TOPICS_REMEMBERED:
                known.clear()
            found = known[topic] = matches(topic_filter, topic.decode())
        return found

    return is_wanted


class _Room:
    """The messages that one scan has found so far, and the room that is left."""

    def __init__(self, max_bytes: int, limit_bytes: int, lost: int = 0) -> None:
        self._max_bytes = min(max_bytes, limit_bytes)
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._used_bytes = 0
        self._looked_at = 0
        self.count = 0
        self.first_position = 0
        self.lost = lost  # messages lost before the next one

    @property
    def taken(self) -> tuple[bytes, int]:
        return b"".join(self._parts), self.count

    @property
    def left_bytes(self) -> int:
        """Bytes that may still be read; not more than 0 at the end of the scan."""
        return self._max_bytes - self._used_bytes if self._looked_at < MOST_RECORDS else 0

    def take(self, records: Records, count: int, wanted: Callable[[bytes], bool] | None) -> int:
        """Add those of the first `count` records that are wanted. Returns how many were handled before the room was
        full.
        """
        self._looked_at += count
        if records.count:
            self.lost += lost_before(records)
        if wanted is None:
            return self._take_run(records, 0, count)
        topics = topics_of(records)
        at = 0
        while at < count:
            while at < count and not wanted(topics[at]):
                at += 1
            end = at
            while end < count and wanted(topics[end]):
                end += 1
            taken = self._take_run(records, at, end - at)
            if taken < end - at:
                return at + taken
            at = end
        return count

    def note_lost(self, records: Records, ends: list[int], wanted: Callable[[bytes], bool] | None) -> Records:
        """Note that parts of the log are lost, up to these log_offsets. Their messages are unknown: each part counts as
        one.

        The first wanted record after a part gets the number, in this or in a later read.
        """
        topics = topics_of(records) if wanted is not None else []
        places: Counter[int] = Counter()
        for end in ends:
            at = bisect_left(range(records.count), end, key=records.log_offset)
            while wanted is not None and at < records.count and not wanted(topics[at]):
                at += 1
            places[at] += 1
        for at, number in places.items():
            if 0 < at < records.count:
                records = marked(records, number, at)
            else:
                self.lost += number
        return records

    def _take_run(self, records: Records, at: int, count: int) -> int:
        if self.lost and count:
            records = marked(records, self.lost - (0 if at else lost_before(records)), at)
            self.lost = 0
        data = records_bytes(records, at, count)
        taken = count
        while taken and self._used_bytes + len(data) > self._limit_bytes:
            if taken == 1 and not self.count:
                return 1  # larger than any answer: skipped
            taken //= 2
            data = records_bytes(records, at, taken)
        if not self.count:
            self.first_position = records.first + at
        if taken:
            self._parts.append(data)
        self._used_bytes += len(data)
        self.count += taken
        return taken


def _scan_queue(
    store: MessageStore, queue: Queue, position: int, stop: int, room: _Room, wanted: Callable[[bytes], bool] | None
) -> int:
    """Read a queue; returns the log_offset to go on from."""
    behind = 0
    while room.left_bytes > 0:
        records = store.queues.read(queue, position, MOST_RECORDS, min(ROUND_BYTES, room.left_bytes))
        if not records.count:
            return stop
        count = bisect_left(range(records.count), stop, key=records.log_offset)
        taken = room.take(records, count, wanted)
        if taken:
            behind = records.log_offset(taken - 1) + 8  # any record is longer, so no other begins before
        if taken < count:
            return behind or records.log_offset(0)
        if count < records.count:
            return stop
        position = records.next
    return behind


def _scan_tagged(
    store: MessageStore,
    queue: Queue,
    position: int,
    stop: int,
    tag: bytes,
    room: _Room,
    wanted: Callable[[bytes], bool] | None,
) -> int:
    """Like _scan_queue(), for messages with a tag. Others cost 20 bytes of the index, and no read of the log."""
    left, rounds, hole = MOST_ENTRIES, 1, 0
    while True:
        start, end = position, position + left
        most_bytes = max(min(ROUND_BYTES, room.left_bytes), 1)
        records, position, following, lost = store.queues.read_tagged(queue, position, tag, stop, left, most_bytes)
        taken = room.take(records, len(records), wanted)
        if taken < len(records):
            return records.log_offset(taken)
        if lost and not room.lost:
            hole = store.queues.log_offset_at(queue, start)
        room.lost += lost
        left = max(end - position, 1)
        if following >= stop or (not following and position >= queue.next_offset):
            return stop
        if room.lost and not room.count and rounds < LOST_ROUNDS and position >= end:
            rounds, left = rounds + 1, MOST_ENTRIES  # so that a message after the lost ones can carry their number
        elif position >= end or room.left_bytes <= 0:
            if room.lost and room.count:
                return hole
            following = following or store.queues.log_offset_at(queue, position)
            if following:  # else retention has dropped it, and the next round skips it
                return following


def _scan_log(
    log: ReadableLog, start: int, stop: int, tag: bytes, room: _Room, wanted: Callable[[bytes], bool] | None
) -> int:
    """Like _scan_queue(), from the log, for filters without a queue."""
    until = min(stop, start + LOG_BYTES)
    for at, chunk, is_behind_damage in _ranges(log, start, stop):
        records = messages_in(chunk)
        if tag:
            records = with_tag(records, tag)
        count = bisect_left(range(records.count), stop, key=records.log_offset)
        ends = [at] * is_behind_damage + [end for begin, end in log.lost_ranges if at <= begin < at + len(chunk)]
        if ends:
            records = room.note_lost(records, ends, wanted)
        taken = room.take(records, count, wanted)
        following = records.log_offset(taken) if taken < count else at + len(chunk)
        is_full = taken < count
        del records  # it points into the chunk
        if is_full or room.left_bytes <= 0 or following >= until + SEEK_BYTES * bool(room.lost):
            if not is_full:
                log.look_at(following)
            return min(following, stop)
    return stop


def _ranges(log: ReadableLog, start: int, stop: int) -> Iterator[tuple[int, memoryview, bool]]:
    """Like ranges_passing(). Raises NoSuchPosition."""
    if stop > log.committed:
        log.commit()
    try:
        yield from log.ranges_passing(start, ROUND_BYTES)
    except CorruptSegment as error:
        raise NoSuchPosition(str(start)) from error


# --- where to begin


def seek(store: MessageStore, topic_filter: str, where: str, start: int) -> SeekResult:
    """The log_offset of `earliest`, `now`, `-1h`, an RFC 3339 time, `@7` (a queue_offset) or `=4096` (a log_offset).

    Raises NoSuchPosition, or another StoreError.
    """
    queue = _queue(store, topic_filter)
    if where == "earliest":
        return SeekResult(store.log.first)
    if where == "now":
        return SeekResult(store.end)
    position = re.fullmatch(r"([@=])(\d{1,19})", where)
    if position is None:
        at_ms = time_ms(where)
        if queue is None:
            return _seek_time(store.log, at_ms, start)
        return SeekResult(_log_offset(store, queue, store.queues.position_at(queue, at_ms)))
    number = int(position[2])
    if position[1] == "=":
        return SeekResult(number) if queue is not None else _seek_record(store.log, number, start)
    if queue is None or _wanted(topic_filter) is not None:
        raise NoSuchPosition(f"{where} of {topic_filter}")
    return SeekResult(_log_offset(store, queue, max(number, store.queues.first_offset(queue))))


def _log_offset(store: MessageStore, queue: Queue, queue_offset: int) -> int:
    if queue_offset >= queue.next_offset:
        return store.end
    return store.queues.log_offset_at(queue, queue_offset)


def seek_log(log: ReadableLog, log_offset: int, timestamp_ms: int, start: int) -> SeekResult:
    """The first record at or after a log_offset; if `timestamp_ms` is not 0, the first that was stored at it
    or later.
    """
    if timestamp_ms:
        return _seek_time(log, timestamp_ms, start)
    # Begin where a record certainly begins: bytes in a payload may look like a record.
    return _seek_record(log, log_offset, start or log.begins_before(log_offset))


def _seek_time(log: ReadableLog, at_ms: int, start: int) -> SeekResult:
    """The first record that was stored at a time or later."""
    start = start or log.before_time(at_ms)
    for at, chunk, _ in _ranges(log, start, log.end):
        for record in read_records(chunk) if verify(chunk, at)[1] >= at_ms else ():
            if record.timestamp_ms >= at_ms:
                return SeekResult(record.log_offset)
        if at + len(chunk) >= start + SEEK_BYTES:
            return SeekResult(at + len(chunk), False)
    return SeekResult(log.end)


def _seek_record(log: ReadableLog, target: int, start: int) -> SeekResult:
    """The first record at or after a log_offset, which may be in the middle of a record."""
    if target <= log.first or target >= log.end:
        return SeekResult(max(log.first, min(target, log.end)))
    if not start and not target & 7:
        try:
            log.timestamp_ms(target)
            return SeekResult(target)
        except LookupError:
            pass
    start = start or log.begins_before(target)
    for at, chunk, _ in _ranges(log, start, log.end):
        for record in read_records(chunk) if at + len(chunk) > target else ():
            if record.log_offset >= target:
                return SeekResult(record.log_offset)
        if at + len(chunk) >= start + SEEK_BYTES:
            return SeekResult(at + len(chunk), False)
    return SeekResult(log.end)


# --- one message


def get(store: MessageStore, log_offset: int) -> tuple[bytes, int] | None:
    """A message, and its queue_offset in its topic's queue; None if no queue has a message at this log_offset.

    Bytes in a payload may look like a record, so the queue decides.
    """
    if log_offset & 7:
        return None
    try:
        data = records_bytes(store.records_at([log_offset]))
        check_records(data, _MESSAGE)
        (record,) = read_records(memoryview(data))
        topic = record.topic.decode()
    except (LookupError, ValueError):
        return None
    if record.flags & _IN_NO_QUEUE or has_wildcard(topic):
        return None
    queue_offset = queue_offset_of(store, topic, log_offset)
    return None if queue_offset < 0 else (data, queue_offset)


def queue_offset_of(store: MessageStore, topic: str, log_offset: int) -> int:
    """queue_offset of the message at a log_offset in its topic's queue; -1 if the queue does not have it."""
    try:
        return locate(store, topic, f"={log_offset}")
    except NoSuchPosition:
        return -1


# --- topics


class Matched(NamedTuple):
    """Topics that match a filter, the number of topics compared, and the one to go on after (empty: no more)."""

    topics: list[str]
    looked_at: int
    next: str


def matching_topics(store: MessageStore, topic_filter: str, after: str, limit_bytes: int) -> Matched:
    """Topics after `after` that match a filter, as RocksDB has them.

    It has each topic with a kept message before `applied_offset`, and perhaps more.
    """
    topics: list[str] = []
    looked_at, left_bytes = 0, limit_bytes
    prefix = literal_prefix(topic_filter).encode()
    for name in store.queues.topic_names(prefix, after.encode()):
        topic = name.decode()
        looked_at += 1
        if matches(topic_filter, topic):
            topics.append(topic)
            left_bytes -= len(name) + NAME_BYTES
        if looked_at == MOST_NAMES or left_bytes < 2 * LONGEST_NAME_BYTES:  # room for one more name, and for `next`
            return Matched(topics, looked_at, topic)
    return Matched(topics, looked_at, "")


def count_before(store: MessageStore, topic: str, before: int) -> int:
    """Number of messages of a topic before a log_offset, dropped ones included."""
    queue = store.queues.stored(topic)
    return 0 if queue is None else store.queues.position_of(queue, before)
