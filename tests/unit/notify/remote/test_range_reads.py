"""What a gateway asks a store in another process for, of many queues at once."""

from __future__ import annotations

from lightqueue.queues._queues import LIVE, Queue
from notify.remote.range_reads import AHEAD, RangeReads
from store.records._records import RecordBatch, Records, ranges_from
from store.records.records import RecordType

MIB = 1 << 20
RECORDS = 4  # in each range


def some_records() -> Records:
    batch = RecordBatch()
    for _ in range(RECORDS):
        batch.append(RecordType.MESSAGE, b"", topic=b"t")
    (records,) = ranges_from(memoryview(bytes(batch)), [(0, RECORDS)])
    return records


def test_many_queues_are_read_as_each_of_them_is() -> None:
    queues = [Queue(b"q/%d" % number, LIVE, 0, 1_000) for number in range(100)]
    starts = [number % 6 for number in range(100)]
    apart, together = (
        RangeReads(64 * MIB, dict.fromkeys(queues, 1), lambda *_: None, lambda _: None) for _ in range(2)
    )
    for reads in (apart, together):
        reads.cache.add(100, [(queue, 0, some_records()) for queue in queues[::2]])
    one_by_one = [apart.read(queue, start, RECORDS, MIB) for queue, start in zip(queues, starts, strict=True)]
    found = together.read_many(queues, starts, RECORDS, MIB)
    assert [each is not None for each in found] == [each is not None for each in one_by_one]
    assert list(together._wanted) == list(apart._wanted)
    assert list(together._ahead) == list(apart._ahead)
    assert (together.cache.hits, together.cache.misses) == (apart.cache.hits, apart.cache.misses)


def test_only_so_many_of_thousands_of_queues_are_looked_ahead_in() -> None:
    """The others are not even asked how large their records are."""
    queues = [Queue(b"q/%d" % number, LIVE, 0, 1_000) for number in range(2_048)]
    reads = RangeReads(32 * MIB, dict.fromkeys(queues, 1), lambda *_: None, lambda _: None)
    reads.cache.add(100, [(queue, 0, some_records()) for queue in queues])
    looked: list[Queue] = []
    look_ahead = reads._look_ahead

    def look(queue: Queue, found: Records, max_records: int, max_bytes: int) -> None:
        looked.append(queue)
        look_ahead(queue, found, max_records, max_bytes)

    reads._look_ahead = look  # type: ignore[method-assign]
    reads.read_many(queues, [0] * len(queues), RECORDS, MIB)
    assert looked == queues[: reads._most_hurried]
    assert len(reads._ahead) <= AHEAD * reads._most_hurried
