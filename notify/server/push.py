"""Records that a peer gets without asking: the rest of queues that it has read to their ends, as they grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lightqueue.queues._queues import Queue
from notify.local.store import LocalStore
from notify.requests.reads import ANSWER_BYTES, MOST_RANGES, read
from store.wire import messages as wire

PUSHED_RECORDS = 8_192

Range = tuple[int, int, int]  # (ref, queue_offset of the first record, number of records)


class PushedRanges(NamedTuple):
    """Ranges that go out now with their records, and the refs of queues of which only the end is told."""

    ranges: list[Range]
    records: bytes
    rest: list[int]


class Push:
    """Owner of how far one connection was given its queues. It begins with none: what was asked for goes on."""

    def __init__(self) -> None:
        self._given: dict[int, int] = {}  # by ref: the queue_offset behind it

    def was_read(self, queues: Mapping[int, Queue], ranges: Iterable[Range]) -> None:
        """These ranges went out as an answer."""
        for ref, first, count in ranges:
            if first + count == queues[ref].next_offset:
                self._given[ref] = first + count

    def stop(self, refs: Iterable[int]) -> None:
        """Push no more of these queues before the peer has read them to their ends again."""
        for ref in refs:
            self._given.pop(ref, None)

    def pass_over(self, queues: Mapping[int, Queue], refs: Iterable[int]) -> None:
        """Of these queues only the ends are told: the peer asks for their records, unless it was given them already."""
        if self._given:
            self.stop([ref for ref in refs if ref in self._given and self._given[ref] != queues[ref].next_offset])

    def take(self, store: LocalStore, queues: Mapping[int, Queue], grown: list[int], limit_bytes: int) -> PushedRanges:
        """The ranges to push of queues that grew. The peer asks for those that are too much for one push."""
        given = self._given
        wanted = [(ref, given[ref]) for ref in grown if ref in given and given[ref] < queues[ref].next_offset]
        if not wanted:
            return PushedRanges([], b"", grown)
        asked = wire.Read(wanted[:MOST_RANGES], PUSHED_RECORDS, ANSWER_BYTES)
        answer, records = read(store, queues, asked, limit_bytes)
        assert isinstance(answer, wire.Ranges)
        ranges = [each for each in answer.ranges if each[2]]  # nothing is what stands for a record that is too large
        self.was_read(queues, ranges)
        whole = {ref for ref, first, count in ranges if first + count == given[ref]}
        rest = [ref for ref in grown if ref not in whole]
        self.pass_over(queues, rest)
        return PushedRanges(ranges, records, rest)
