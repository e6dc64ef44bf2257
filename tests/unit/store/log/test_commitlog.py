"""The CommitLog on real files: appending, rolling, reopening after damage, and the three flush policies."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.errors import DiskFailed, RecordTooLarge, WriteFailed
from store.files.segment import HEADER_BYTES, segment_paths
from store.log.commitlog import CommitLog
from store.records.records import RECORD_HEADER_BYTES, Record, read_records
from tests.support.stores import SEGMENT_BYTES, batch_of, small, wait_until

OPEN_LOG = Callable[..., CommitLog]


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[OPEN_LOG]:
    """Opens the log in tmp_path; what is still open is closed in the end."""
    opened: list[CommitLog] = []

    def open_it(on_flushed: Callable[[], None] = lambda: None, **settings: Any) -> CommitLog:
        opened.append(CommitLog(tmp_path, small(tmp_path, **settings), on_flushed))
        return opened[-1]

    yield open_it
    for commit_log in opened:
        if commit_log.segments:
            commit_log.close()


def close(commit_log: CommitLog) -> None:
    commit_log.close()
    commit_log.segments.clear()


def contents(commit_log: CommitLog) -> list[Record]:
    return [record for _, data in commit_log.ranges(0, 1 << 30) for record in list(read_records(data))]


def fill(commit_log: CommitLog, number: int, seed: int = 0) -> list[tuple[int, bytes]]:
    """Append records of random sizes in random batches: (log_offset, payload) of each."""
    randomly = random.Random(seed)
    written: list[tuple[int, bytes]] = []
    while len(written) < number:
        payloads = [randomly.randbytes(randomly.randint(0, 3000)) for _ in range(randomly.randint(1, 8))]
        at = commit_log.append(batch_of(*payloads))
        for payload in payloads:
            written.append((at, payload))
            at += (RECORD_HEADER_BYTES + 1 + len(payload) + 7) & ~7
    return written


# --- appending and reading back


@pytest.mark.parametrize("flush", ["sync", "async", "buffered"])
@pytest.mark.catalogue("A1")
def test_everything_is_read_back_across_segments(open_log: OPEN_LOG, flush: str) -> None:
    commit_log = open_log(flush=flush)
    written = fill(commit_log, 400)
    assert len(commit_log.segments) > 5
    for log_offset, payload in written:
        assert commit_log.record(log_offset).payload == payload
    commit_log.commit()
    assert [(record.log_offset, record.payload) for record in contents(commit_log)] == written
    end = commit_log.end
    close(commit_log)
    again = open_log(flush=flush)
    assert again.end == end
    for log_offset, payload in written:
        assert again.record(log_offset).payload == payload


def test_a_new_log_begins_behind_its_header(open_log: OPEN_LOG) -> None:
    commit_log = open_log()
    assert (commit_log.base, commit_log.first, commit_log.end) == (0, HEADER_BYTES, HEADER_BYTES)
    assert commit_log.append(batch_of(b"x")) == HEADER_BYTES
    assert commit_log.end == HEADER_BYTES + 48


def test_ranges_come_in_pieces_and_from_the_middle(open_log: OPEN_LOG) -> None:
    commit_log = open_log()
    written = fill(commit_log, 200)
    pieces = [(at, len(data)) for at, data in commit_log.ranges(0, 4096)]
    assert len(pieces) > 50
    assert all(size < 4096 + 3100 for _, size in pieces)
    start = written[100][0]
    assert [r.log_offset for _, data in commit_log.ranges(start, 4096) for r in list(read_records(data))] == [
        log_offset for log_offset, _ in written[100:]
    ]
    assert list(commit_log.ranges(commit_log.end, 4096)) == []


def test_a_batch_larger_than_the_tail_buffer(open_log: OPEN_LOG) -> None:
    commit_log = open_log(segment_bytes=16 << 20)
    small_one = commit_log.append(batch_of(b"before"))
    payloads = [bytes((i,)) * 100_000 for i in range(50)]
    large = commit_log.append(batch_of(*payloads))
    after = commit_log.append(batch_of(b"after"))
    assert commit_log.record(small_one).payload == b"before"
    assert commit_log.record(large).payload == payloads[0]
    assert commit_log.record(after).payload == b"after"
    assert [record.payload for record in contents(commit_log)] == [b"before", *payloads, b"after"]


def test_the_tail_is_left_for_the_mapping(open_log: OPEN_LOG) -> None:
    """Twice the tail buffers' size later the first records come from the file."""
    commit_log = open_log(segment_bytes=32 << 20)
    offsets = [commit_log.append(batch_of(bytes((i,)) * 1_000_000)) for i in range(12)]
    assert commit_log.memory.mapped_bytes_read == 0
    assert [commit_log.record(log_offset).payload[0] for log_offset in offsets] == list(range(12))
    assert commit_log.memory.mapped_bytes_read > 3_000_000
    commit_log.forget_pages()
    assert commit_log.record(offsets[0]).payload == bytes(1_000_000)


def test_a_record_too_large_is_refused_and_nothing_else(open_log: OPEN_LOG) -> None:
    commit_log = open_log()
    at = commit_log.append(batch_of(b"before"))
    with pytest.raises(RecordTooLarge, match=str(SEGMENT_BYTES - HEADER_BYTES)):
        commit_log.append(batch_of(bytes(SEGMENT_BYTES)))
    largest = SEGMENT_BYTES - HEADER_BYTES - RECORD_HEADER_BYTES - 8
    large = commit_log.append(batch_of(bytes(largest)))
    assert [record.log_offset for record in contents(commit_log)] == [at, large]
    assert commit_log.record(large).payload == bytes(largest)


def test_segment_bytes_may_change_between_runs(open_log: OPEN_LOG) -> None:
    written = []
    for segment_bytes in (SEGMENT_BYTES, 4 * SEGMENT_BYTES, SEGMENT_BYTES, 2 * SEGMENT_BYTES):
        commit_log = open_log(segment_bytes=segment_bytes)
        written += fill(commit_log, 50, seed=segment_bytes)
        close(commit_log)
    assert [(record.log_offset, record.payload) for record in contents(open_log())] == written


def test_dropped_segments_are_gone(open_log: OPEN_LOG) -> None:
    commit_log = open_log()
    written = fill(commit_log, 200)
    commit_log.pop_first().remove()
    commit_log.pop_first().remove()
    first = commit_log.first
    assert commit_log.base == first - HEADER_BYTES == int(segment_paths(commit_log.folder)[0].stem)
    for log_offset, payload in written:
        if log_offset >= first:
            assert commit_log.record(log_offset).payload == payload
    with pytest.raises(LookupError):
        commit_log.record(written[0][0])
    close(commit_log)
    assert open_log().first == first


def test_the_active_segment_is_never_dropped(open_log: OPEN_LOG) -> None:
    with pytest.raises(ValueError, match="active"):
        open_log().pop_first().remove()


# --- opening after a crash


@pytest.mark.parametrize("left", [b"", bytes(10), bytes(SEGMENT_BYTES)])
def test_a_stillborn_last_file_is_forgotten(open_log: OPEN_LOG, tmp_path: Path, left: bytes) -> None:
    commit_log = open_log()
    written = fill(commit_log, 100)
    end = commit_log.end
    close(commit_log)
    (tmp_path / f"{end:020}.log").write_bytes(left)
    again = open_log()
    assert again.end == end
    fill(again, 100, seed=1)
    assert [(r.log_offset, r.payload) for r in contents(again)][: len(written)] == written


def test_a_crash_before_the_old_segment_was_sealed(open_log: OPEN_LOG, tmp_path: Path) -> None:
    commit_log = open_log()
    written = fill(commit_log, 100)
    close(commit_log)
    path = segment_paths(tmp_path)[-2]
    sealed_bytes = path.stat().st_size
    os.truncate(path, SEGMENT_BYTES)
    again = open_log()
    assert path.stat().st_size == sealed_bytes
    assert [(r.log_offset, r.payload) for r in contents(again)] == written


# --- when a write fails


def test_a_failed_append_leaves_nothing_that_could_come_back(
    open_log: OPEN_LOG, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed batch reached the file; a shorter one behind which its rest would fit must not revive that rest."""
    commit_log = open_log()
    commit_log.append(batch_of(b"kept"))

    def fail_after_writing(batch: Any, start: int) -> None:
        commit_log.memory.append(batch, start, 1)
        commit_log._commit_to(start + batch.size)
        commit_log.committed = start
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit_log, "_write", fail_after_writing)
    with pytest.raises(WriteFailed, match="Input/output"):
        commit_log.append(batch_of(b"lost 1", b"lost 2", b"lost 3"))
    monkeypatch.undo()
    assert [record.payload for record in contents(commit_log)] == [b"kept"]
    commit_log.append(batch_of(b"next 1"))
    close(commit_log)
    assert [record.payload for record in contents(open_log())] == [b"kept", b"next 1"]


def test_after_a_failed_sync_nothing_is_stored(open_log: OPEN_LOG, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    reported = threading.Event()
    commit_log = open_log(reported.set, flush="sync")
    monkeypatch.setattr(os, "fdatasync", fail)
    end = commit_log.end
    commit_log.append(batch_of(b"x"))
    assert reported.wait(10)
    assert commit_log.safe == end
    with pytest.raises(DiskFailed, match="Input/output error"):
        commit_log.append(batch_of(b"y"))
    with pytest.raises(OSError, match="Input/output error"):
        commit_log.flusher.flush_now()


# --- flush policies


class HeldSync:
    """Stands in for fdatasync: each call waits to be let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.calls = 0
        monkeypatch.setattr(os, "fdatasync", self)

    def __call__(self, fd: int) -> None:
        self.entered.release()
        assert self.go.acquire(timeout=10)
        self.calls += 1


def test_sync_is_safe_only_after_fdatasync(open_log: OPEN_LOG, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldSync(monkeypatch)
    flushed = threading.Semaphore(0)
    commit_log = open_log(flushed.release, flush="sync")
    start = commit_log.end
    commit_log.append(batch_of(b"1"))
    first_end = commit_log.end
    assert held.entered.acquire(timeout=10)
    for _ in range(10):  # these ride on the next sync together
        commit_log.append(batch_of(b"2"))
    assert commit_log.safe == start
    held.go.release()
    assert flushed.acquire(timeout=10)
    assert commit_log.safe == first_end
    held.go.release()
    assert flushed.acquire(timeout=10)
    assert commit_log.safe == commit_log.end
    assert (held.calls, commit_log.flusher.syncs) == (2, 2)
    for _ in range(2):
        held.go.release()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_unawaited_append_is_synced_with_the_next_one(open_log: OPEN_LOG, flush: str) -> None:
    commit_log = open_log(flush=flush, flush_interval_ms=10, flush_deadline_ms=20)
    commit_log.append(batch_of(b"1"), is_awaited=False)
    commit_log.append(batch_of(b"2"))
    wait_until(lambda: commit_log.flusher.flushed == commit_log.end)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_unawaited_append_is_synced_by_catch_up(open_log: OPEN_LOG, flush: str) -> None:
    commit_log = open_log(flush=flush, flush_interval_ms=10, flush_deadline_ms=20)
    for content in (b"1", b"2"):  # with the thread at its start, and at rest
        commit_log.append(batch_of(content), is_awaited=False)
        commit_log.flusher.catch_up()
        wait_until(lambda: commit_log.flusher.flushed == commit_log.end)


def test_async_is_safe_at_once(open_log: OPEN_LOG) -> None:
    commit_log = open_log(flush="async")
    commit_log.append(batch_of(b"1"))
    assert commit_log.safe == commit_log.end > commit_log.flusher.flushed


@pytest.mark.catalogue("A3")
def test_async_waits_for_enough_dirty_bytes(open_log: OPEN_LOG) -> None:
    commit_log = open_log(flush="async", flush_interval_ms=20, flush_dirty_bytes=1000, flush_deadline_ms=60_000)
    commit_log.append(batch_of(bytes(900)))
    few = commit_log.flusher
    assert not _changes(lambda: few.syncs, within_s=0.15)
    commit_log.append(batch_of(bytes(100)))
    wait_until(lambda: few.flushed == commit_log.end)
    assert few.syncs == 1


@pytest.mark.catalogue("A3")
def test_async_flushes_few_bytes_at_the_deadline(open_log: OPEN_LOG) -> None:
    commit_log = open_log(flush="async", flush_interval_ms=10, flush_dirty_bytes=1 << 20, flush_deadline_ms=60)
    commit_log.append(batch_of(b"few"))
    wait_until(lambda: commit_log.flusher.flushed == commit_log.end)


@pytest.mark.catalogue("A3")
def test_the_constants_are_rocketmqs(tmp_path: Path) -> None:
    from store.settings import StoreSettings

    settings = StoreSettings()
    assert (settings.flush_interval_ms, settings.flush_dirty_bytes, settings.flush_deadline_ms) == (500, 16384, 10_000)


@pytest.mark.catalogue("A3")
def test_a_sealed_segment_is_synced_at_once(open_log: OPEN_LOG) -> None:
    commit_log = open_log(flush="async", flush_interval_ms=60_000, flush_deadline_ms=60_000)
    fill(commit_log, 100)
    wait_until(lambda: commit_log.flusher.flushed >= commit_log.segments[-1].base)


def test_closing_syncs_what_came_during_the_last_sync(open_log: OPEN_LOG, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldSync(monkeypatch)
    commit_log = open_log(flush="sync")
    commit_log.append(batch_of(b"1"))
    assert held.entered.acquire(timeout=10)
    commit_log.append(batch_of(b"2"))
    for _ in range(4):
        held.go.release()
    end = commit_log.end
    close(commit_log)
    assert commit_log.flusher.flushed == end


@pytest.mark.catalogue("A4")
def test_buffered_commits_at_16_kib(open_log: OPEN_LOG, tmp_path: Path) -> None:
    commit_log = open_log(flush="buffered")
    start = commit_log.end
    at = commit_log.append(batch_of(b"x" * 8000))
    assert commit_log.committed == start < commit_log.safe == commit_log.end
    assert commit_log.record(at).payload == b"x" * 8000
    commit_log.append(batch_of(bytes(8000)))
    assert commit_log.committed == start
    commit_log.append(batch_of(bytes(500)))
    assert commit_log.committed == commit_log.end


@pytest.mark.catalogue("A4")
def test_buffered_commits_after_200_ms(open_log: OPEN_LOG, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_log = open_log(flush="buffered")
    now_s = 1000.0
    monkeypatch.setattr("store.log.commitlog.time.monotonic", lambda: now_s)
    start = commit_log.end
    commit_log.append(batch_of(b"1"))
    now_s += 0.15
    commit_log.append(batch_of(b"2"))
    commit_log.tick(now_s)
    assert commit_log.committed == start
    commit_log.tick(1000.2)
    assert commit_log.committed == commit_log.end


def test_buffered_loses_only_what_it_had_not_committed(open_log: OPEN_LOG, tmp_path: Path) -> None:
    commit_log = open_log(flush="buffered", segment_bytes=1 << 20)
    offsets = [commit_log.append(batch_of(bytes(3000))) for _ in range(20)]
    committed = commit_log.committed
    assert committed < commit_log.end
    copied = tmp_path / "killed"
    copied.mkdir()
    for path in segment_paths(tmp_path):
        (copied / path.name).write_bytes(path.read_bytes())
    killed = CommitLog(copied, small(copied, segment_bytes=1 << 20))
    assert killed.end == committed
    assert [r.log_offset for r in contents(killed)] == [at for at in offsets if at < committed]
    killed.close()


def test_buffered_across_a_roll(open_log: OPEN_LOG) -> None:
    commit_log = open_log(flush="buffered")
    written = fill(commit_log, 300)
    close(commit_log)
    assert [(r.log_offset, r.payload) for r in contents(open_log())] == written


def _changes(read: Callable[[], object], within_s: float) -> bool:
    """Whether a value becomes another one in a while."""
    before = read()
    changed = threading.Event()
    timer = threading.Timer(within_s, changed.set)
    timer.start()
    while not changed.is_set():
        if read() != before:
            timer.cancel()
            return True
    return False
