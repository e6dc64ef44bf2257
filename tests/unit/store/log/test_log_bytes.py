"""The log's bytes as readers are given them: whole records, batches entered where they are too long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notify.local.reads import MOST_READERS, REMEMBERED_S, LogReaders
from store.errors import CorruptSegment, RecordTooLarge
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch, walk
from store.records.records import RecordType
from tests.support.stores import batch_of, small


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    log = CommitLog(tmp_path, small(tmp_path))
    yield log
    log.close()


def payloads(log: CommitLog, start: int, limit_bytes: int) -> list[bytes]:
    found = []
    while (piece := log.read(start, limit_bytes)).data:
        assert len(piece.data) <= limit_bytes
        assert piece.log_offset >= start
        found += [record[9] for record in walk(piece.data)]
        start = piece.log_offset + len(piece.data)
    assert start == log.end
    return found


def test_everything_whatever_the_limit(log: CommitLog) -> None:
    expected = []
    for i in range(40):
        batch = RecordBatch()
        batch.begin_atomic()
        for k in range(1 + i % 5):
            expected.append(b"%d.%d" % (i, k) + b"." * 500)
            batch.append(RecordType.MESSAGE, expected[-1], topic=b"t")
        batch.end_atomic()
        log.append(batch)
    assert len(log.segments) > 1
    for limit_bytes in (600, 1000, 2000, 10_000, 1 << 20):
        assert payloads(log, 0, limit_bytes) == expected


def test_where_no_record_begins_and_where_one_is_too_long(log: CommitLog) -> None:
    start = log.append(batch_of(b"x" * 1000))
    with pytest.raises(CorruptSegment):
        log.read(start + 8, 4096)
    with pytest.raises(RecordTooLarge):
        log.read(start, 512)
    assert log.read(log.end, 512) == (log.end, b"")
    assert log.parts_from(0, 10) == ([(0, log.segments[0].created_ms)], False)
    assert log.parts_from(8, 10) == ([], False)


def test_readers_are_forgotten() -> None:
    now_s = 0.0
    readers = LogReaders(lambda: now_s)
    for i in range(MOST_READERS + 5):
        readers.note(f"r{i}", i)
    readers.note("r7", 100)
    assert len(list(readers)) == MOST_READERS
    now_s = REMEMBERED_S - 1
    readers.note("r50", 1)
    now_s += 2
    assert list(readers) == [("r50", 1)]
