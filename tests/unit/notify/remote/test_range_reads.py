"""A gateway's reads of many queues at once from a store in another process."""

from __future__ import annotations

from functools import partial

from lightqueue.queues._queues import LIVE, Queue
from notify.remote.reads import AHEAD, RangeReads
from store.records._records import RecordBatch, Records, ranges_from
from store.records.records import RecordType
from store.wire import messages as wire
from store.wire.frames import Frame
from store.wire.messages import WireMessage

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


class Asked:
    """Reads of one queue, whose answers come in the order that the test says."""

    def __init__(self) -> None:
        self.queue = Queue(b"q", LIVE, 0, 10_000)
        self.requests: list[tuple[int, int, partial[None]]] = []  # start, records, what takes the answer
        self.reads = RangeReads(64 * MIB, {self.queue: 1}, self._ask, lambda _: None)

    def _ask(self, message: WireMessage, answered: object, records: bytes = b"") -> None:
        assert isinstance(message, wire.Read)
        ((_, start),) = message.ranges
        assert callable(answered)
        self.requests.append((start, message.max_records, partial(self._answer, answered, start)))

    def _answer(self, answered: object, start: int, count: int) -> None:
        batch = RecordBatch()
        for _ in range(count):
            batch.append(RecordType.MESSAGE, b"", topic=b"t")
        assert callable(answered)
        answer = wire.Ranges([(1, start, count)])
        answered(answer, Frame(answer, 1, memoryview(bytes(batch)), batch.size))

    def answer_all(self) -> list[tuple[int, int]]:
        """Of each request the start and the records."""
        requests, self.requests = self.requests, []
        for _, records, answer in requests:
            answer(records)
        return [(start, records) for start, records, _ in requests]


def test_no_range_is_asked_for_twice_by_one_who_reads_and_looks_ahead() -> None:
    """Whoever reads to the end of what came wants what is asked for ahead in the same turn."""
    asked = Asked()
    position, covered = 0, []
    for _ in range(20):
        while (found := asked.reads.read(asked.queue, position, RECORDS, MIB)) is not None:
            assert found.first == position
            position = found.next
        asked.reads.ask()
        covered += asked.answer_all()
    assert position >= 20 * RECORDS
    assert sorted(covered) == [(start, RECORDS) for start in range(0, covered[-1][0] + 1, RECORDS)]
    assert len(asked.requests) == 0


def test_second_reader_reads_ahead_after_the_ranges_under_way() -> None:
    asked = Asked()
    asked.reads.cache.add(100, [(asked.queue, 0, some_records())])
    asked.reads.read(asked.queue, 0, RECORDS, MIB)
    asked.reads.ask()
    first = [(start, records) for start, records, _ in asked.requests]
    assert first == [(start * RECORDS, RECORDS) for start in range(1, AHEAD + 1)]
    asked.requests[0][2](RECORDS - 1)  # its answer is shorter than what was asked for
    del asked.requests[0]
    assert asked.reads.read(asked.queue, RECORDS, RECORDS, MIB) is not None
    asked.reads.ask()
    asked_ends = [start + records for start, records in first]
    assert all(start >= asked_ends[-1] for start, _, _ in asked.requests[AHEAD - 1 :])
