"""Reads a store's log over the wire, as LogFolder does from a folder: raw bytes, decoded here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from penstock.columns import Messages
from penstock.spark.connection import StoreAccess
from penstock.spark.errors import DataLost, ReadDamaged, RequestFailed, TierUnreadable
from store.records._columns import verify_each
from store.records._records import verify
from store.wire.client_messages import Scan, Scanned, Seek
from store.wire.handshake import TABLE_VERSION
from store.wire.log_messages import (
    MOST_TOPICS,
    LocateTable,
    LogRead,
    QueueOffsets,
    QueueOffsetsFound,
    ReaderAt,
    ReaderNoted,
    ReadLog,
    SeekLog,
    Segments,
    SegmentsFound,
    TableLocated,
    Topics,
    TopicsFound,
)
from store.wire.messages import FailureCode, Sought

READ_BYTES = 1 << 20  # requested at a time, while the bytes before are decoded
MOST_TOPIC_BYTES = 128 << 10
TIER_PAUSE_S = 0.5  # before the store is asked again for a tier that is starting


class RemoteLog:
    """The log of a running store. Raises StoreUnreachable if there is none, DataLost, ReadDamaged."""

    def __init__(self, store: StoreAccess) -> None:
        self.path = store.address.url
        self._store = store
        self._connection = store.connect()

    def identity(self) -> str:
        """As LogFolder.identity(), of the connected store."""
        return self._connection.welcome.log_identity.hex()

    def base(self) -> int:
        """log_offset at which the oldest segment begins: no earlier record is kept."""
        return self._ends().log_base

    def end(self) -> int:
        """log_offset up to which the log can be read now."""
        return self._ends().log_end

    def _ends(self) -> SegmentsFound:
        return self._connection.call(Segments(2**63 - 1), SegmentsFound)

    def messages(self, start: int, end: int, skips_lost: bool = False) -> Iterator[Messages]:
        """As LogFolder.messages()."""
        at = start
        while at < end:
            asked = ReadLog(at, READ_BYTES)
            try:
                answer, data = self._connection.call_for_records(asked, LogRead)
            except RequestFailed as error:
                if error.code != FailureCode.NO_SUCH_POSITION:
                    raise
                raise ReadDamaged(self.path, at, str(error)) from None
            lost_until = min(answer.log_base, end)
            if at < lost_until and not skips_lost:
                raise DataLost(f"{self.path}: log_offset {at} to {lost_until} is not kept any more")
            if not data and answer.start < end:
                raise DataLost(f"{self.path}: the log ends at log_offset {answer.log_end}, before {end}")
            at = answer.start + len(data)
            if at < end:
                self._connection.ask_ahead(ReadLog(at, READ_BYTES))
            if data:
                yield self._checked(data, answer.start).before(end)

    def _checked(self, data: memoryview, log_offset: int) -> Messages:
        valid, _, reason = verify(data, log_offset)
        if valid < len(data):
            raise ReadDamaged(self.path, log_offset + valid, reason or "cut off")
        return Messages.find(np.frombuffer(data, np.uint8), log_offset)

    # --- positions

    def is_record(self, log_offset: int) -> bool:
        """Whether a record, also inside a batch, begins at this log_offset; or a segment, or the log ends there."""
        try:
            answer = self._connection.call(ReadLog(log_offset, 1), LogRead)
        except RequestFailed as error:
            if error.code not in (FailureCode.NO_SUCH_POSITION, FailureCode.RECORD_TOO_LARGE):
                raise
            return error.code == FailureCode.RECORD_TOO_LARGE
        return answer.log_base <= log_offset <= answer.log_end

    def position_at(self, timestamp_ms: int) -> int:
        """log_offset of the first record that was stored at this time or later; the log's end if there is none."""
        return self._seek(0, max(timestamp_ms, 1))

    def nearest(self, log_offset: int) -> int:
        """log_offset of the first record at or after this place."""
        return self._seek(log_offset, 0)

    def _seek(self, log_offset: int, timestamp_ms: int) -> int:
        sought = Sought(0, False)
        while not sought.found:
            sought = self._connection.call(SeekLog(log_offset, timestamp_ms, sought.log_offset), Sought)
        return sought.log_offset

    def split(self, start: int, end: int, parts: int) -> list[tuple[int, int]]:
        """[start, end) cut at records into `parts` ranges of about the same size, or fewer."""
        cuts = {start, end}
        for i in range(1, parts):
            cut = self._seek(start + (end - start) * i // parts, 0)
            if start < cut < end:
                cuts.add(cut)
        return list(pairwise(sorted(cuts)))

    # --- topics and readers

    def queue_offsets(self, before: int, topics: list[bytes]) -> Iterator[int]:
        """Number of messages of each of these topics before a log_offset."""
        portion: list[str] = []
        size_bytes = 0
        for topic in topics:
            if portion and (len(portion) == MOST_TOPICS or size_bytes > MOST_TOPIC_BYTES):
                yield from self._queue_offsets(before, portion)
                portion, size_bytes = [], 0
            portion.append(topic.decode())
            size_bytes += len(topic)
        yield from self._queue_offsets(before, portion)

    def _queue_offsets(self, before: int, topics: list[str]) -> list[int]:
        return self._connection.call(QueueOffsets(before, topics), QueueOffsetsFound).queue_offsets

    def matching_topics(self, topic_filter: str) -> Iterator[TopicsFound]:
        """The topics that match a filter, some at a time."""
        found = None
        while found is None or found.next:
            found = self._connection.call(Topics(topic_filter, found.next if found else ""), TopicsFound)
            yield found

    def place_in_topic(self, topic: str, queue_offset: int) -> int:
        """log_offset of a topic's message. Raises DataLost."""
        sought = Sought(0, False)
        try:
            while not sought.found:
                sought = self._connection.call(Seek(topic, f"@{queue_offset}", sought.log_offset), Sought)
        except RequestFailed as error:
            if error.code != FailureCode.NO_SUCH_POSITION:
                raise
            raise DataLost(f"{self.path}: message {queue_offset} of topic '{topic}' is not kept any more") from None
        return sought.log_offset

    def topic_messages(self, topic: str, start: int, end: int) -> Iterator[tuple[int, Messages]]:
        """A topic's kept messages in [start, end), by pieces, each with the queue_offset of its first message."""
        at = start
        while at < end:
            answer, data = self._connection.call_for_records(Scan(topic, at, end, READ_BYTES), Scanned)
            at = answer.next
            if at < end:
                self._connection.ask_ahead(Scan(topic, at, end, READ_BYTES))
            if answer.count:
                yield answer.queue_offset, self._checked_each(data, answer.count)

    def _checked_each(self, data: memoryview, count: int) -> Messages:
        """Verify records that are adjacent here, but not in the log."""
        found = Messages.find(np.frombuffer(data, np.uint8), 0)
        log_offsets, sizes = found.places()
        right, reason = verify_each(found.data, log_offsets, sizes)
        if reason or len(found) != count or sizes.sum(dtype=np.int64) != len(data):
            place = int(log_offsets[right]) if right < len(found) else 0
            raise ReadDamaged(self.path, place, reason or "not the records that were announced")
        return found

    def note_reader(self, name: str, log_offset: int) -> None:
        """Have the store show a reader's position."""
        self._connection.call(ReaderAt(name, log_offset), ReaderNoted)

    def table_url(self) -> str:
        """Where the table of the store's tier is; empty: it has none. Waits for a tier that is away, as for a store.

        Raises TierUnreadable.
        """
        if self._connection.welcome.version < TABLE_VERSION:
            raise TierUnreadable(f"{self.path}: the store is too old to say where its tier is; give the option tier")
        deadline_s = time.monotonic() + self._store.patience_s
        while True:
            try:
                return self._connection.call(LocateTable(), TableLocated).url
            except RequestFailed as error:
                if error.code != FailureCode.UNAVAILABLE:
                    raise
                if time.monotonic() > deadline_s:
                    raise TierUnreadable(f"{error} (say it with the option tier)") from None
            time.sleep(TIER_PAUSE_S)

    def close(self) -> None:
        self._connection.close("it has read what it wanted")
