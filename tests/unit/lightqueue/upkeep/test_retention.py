"""Retention: what goes, what is carried forward, and which queues are dropped."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.upkeep import retention
from store.errors import DiskFailed, IndexFailed
from store.files.segment import segment_paths
from store.log.index import Index
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, decode_attributes
from store.state.changes import SessionEnded
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    change,
    commit_log,
    fill,
    payloads,
    publish,
    read_all,
    retained_payloads,
    run_upkeep,
    subscribe,
    wait_until,
)


class Clock:
    """The wall clock and the monotonic one as upkeep sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real, monotonic, real_ns = time.time, time.monotonic, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(self.ahead_s * 1e9))
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.ahead_s)
        monkeypatch.setattr(time, "clock_gettime", lambda _: monotonic() + self.ahead_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    yield stores
    stores.close()


# --- what goes


def test_the_oldest_segments_go_by_size(open_store: Stores) -> None:
    store = open_store()
    fill(store, 5)
    end = store.end
    run_upkeep(store)
    assert store.end - store.log.base <= KEPT_BYTES
    assert 1 < len(commit_log(store).segments) < 4
    assert [path.stem for path in segment_paths(commit_log(store).folder)] == [
        f"{segment.base:020}" for segment in commit_log(store).segments
    ]
    assert store.end == end
    base = store.log.base
    run_upkeep(store)
    assert store.log.base == base


def test_retention_drops_nothing_without_a_setting(open_store: Stores) -> None:
    store = open_store(retention_bytes=None)
    fill(store, 3)
    run_upkeep(store)
    assert store.log.base == 0


def test_the_active_segment_never_goes(open_store: Stores, clock: Clock) -> None:
    store = open_store(retention_bytes=1, retention_age_s=1)
    fill(store, 2)
    clock.ahead_s = 10**6
    run_upkeep(store)
    assert len(commit_log(store).segments) == 1
    run_upkeep(store)
    assert len(commit_log(store).segments) == 1


def test_segments_go_by_the_age_of_their_last_record(open_store: Stores, clock: Clock) -> None:
    store = open_store(retention_bytes=None, retention_age_s=1000)
    fill(store, 2)
    publish(store, "t", b"the last of its segment")
    clock.ahead_s = 500
    fill(store, 2)
    bases = [segment.base for segment in commit_log(store).segments]
    clock.ahead_s = 1001
    run_upkeep(store)
    assert store.log.base == bases[2]  # its first record is old, its last one is not
    clock.ahead_s = 1501
    run_upkeep(store)
    assert store.log.base == bases[-1]


@pytest.mark.parametrize("verify_bytes", [0, 1 << 30])
def test_age_is_known_after_a_restart(open_store: Stores, clock: Clock, verify_bytes: int) -> None:
    store = open_store(retention_bytes=None, retention_age_s=1000)
    fill(store, 3)
    open_store.stop(store)
    clock.ahead_s = 900
    store = open_store(retention_bytes=None, retention_age_s=1000, verify_at_start_bytes=verify_bytes)
    run_upkeep(store)
    assert store.log.base == 0
    clock.ahead_s = 1100
    run_upkeep(store)
    assert len(commit_log(store).segments) == 1


# --- what the disk refuses


def steps_until(steps: Iterator[None], error: type[Exception]) -> Exception:
    """Go on until they raise this."""
    raised: list[Exception] = []

    def is_raised() -> bool:
        try:
            next(steps)
        except error as found:
            raised.append(found)
        return bool(raised)

    wait_until(is_raised)
    return raised[0]


def test_a_failed_sync_ends_it(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(on_failed_sync="refuse", flush_interval_ms=10**6, flush_deadline_ms=10**6)
    fill(store, 5)
    run_upkeep(store)
    fill(store, 1)
    publish(store, "t", b"not synced")
    store.write_index()
    base = store.log.base

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "no disk")

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        steps_until(store.upkeep._retention.steps(1), DiskFailed)
    assert store.log.base == base


def test_an_index_that_is_never_flushed_ends_it(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    fill(store, 5)
    store.write_index()
    base = store.log.base
    with monkeypatch.context() as failing:
        failing.setattr(retention, "FLUSH_PATIENCE_S", 0.0, raising=False)
        failing.setattr(Index, "is_flushing", True)
        steps_until(store.upkeep._retention.steps(1), IndexFailed)
    assert store.log.base == base
    run_upkeep(store)
    assert store.log.base > base


# --- retained messages


def test_retained_messages_are_carried_forward(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TOPICS_PER_STEP", 7)
    store = open_store()
    expected = {}
    for i in range(30):
        publish(store, f"state/{i}", b"%d" % i, retain=True)
        expected[b"state/%d" % i] = b"%d" % i
    publish(store, "state/7", b"", retain=True)
    del expected[b"state/7"]
    queue = store.queues.stored("state/8")
    assert queue is not None
    first_stored_ms = read_all(store, queue)[0].timestamp_ms
    fill(store, 3)
    publish(store, "state/9", b"newer", retain=True)
    expected[b"state/9"] = b"newer"
    newest = store.retained.get(b"state/9")
    run_upkeep(store)
    assert retained_payloads(store) == expected
    assert store.retained.get(b"state/9") == newest
    assert queue.next_offset == 1  # a carried message is no new one
    carried = store.record(store.retained.get(b"state/8") or 0)
    assert carried.flags == RecordFlag.RETAIN | RecordFlag.CARRIED
    stored_ms = decode_attributes(carried.attributes)[Attribute.STORED_MS]
    assert int.from_bytes(stored_ms, "little") == first_stored_ms
    for _ in range(2):  # and again, from where it was carried to
        fill(store, 4)
        run_upkeep(store)
        assert retained_payloads(store) == expected
        carried = store.record(store.retained.get(b"state/8") or 0)
        assert decode_attributes(carried.attributes)[Attribute.STORED_MS] == stored_ms
    open_store.stop(store)
    assert retained_payloads(open_store()) == expected


def test_retained_message_carried_past_retention_is_unchanged(open_store: Stores) -> None:
    store = open_store()
    batch = RecordBatch()
    batch.append(1, b"p", topic=b"t", client_id=b"c", properties=b"\3\0\1x", flags=RecordFlag.RETAIN | 2)
    original = store.record(store.append(batch))
    fill(store, 4)
    run_upkeep(store)
    carried = store.record(store.retained.get(b"t") or 0)
    assert carried.log_offset > original.log_offset
    for name in ("topic", "client_id", "properties", "payload", "qos", "retain", "type"):
        assert getattr(carried, name) == getattr(original, name), name


def test_expired_retained_messages_are_not_carried(open_store: Stores, clock: Clock) -> None:
    store = open_store()
    publish(store, "short", b"x", retain=True, properties=b"\2" + (100).to_bytes(4, "big"))
    publish(store, "long", b"x", retain=True, properties=b"\2" + (1000).to_bytes(4, "big"))
    clock.ahead_s = 200
    fill(store, 4)
    run_upkeep(store)
    assert retained_payloads(store) == {b"long": b"x"}
    carried = store.record(store.retained.get(b"long") or 0)
    left_s = int.from_bytes(carried.properties[1:], "big")
    assert 798 <= left_s <= 800
    assert carried.flags & RecordFlag.EXPIRES
    clock.ahead_s = 600
    fill(store, 4)
    run_upkeep(store)
    carried = store.record(store.retained.get(b"long") or 0)
    assert 396 <= int.from_bytes(carried.properties[1:], "big") <= 400
    open_store.stop(store)
    assert retained_payloads(open_store()) == {b"long": b"x"}


# --- queues that nobody holds


def test_a_queue_that_nobody_holds_goes_after_its_grace(open_store: Stores, clock: Clock, tmp_path: Path) -> None:
    store = open_store(queue_grace_s=100, retention_check_s=10)
    subscribe(store, "client", ["+/x"])
    subscribe(store, "other", ["+/y"])
    watched = store.queues.watch("+/x")
    publish(store, "a/x", b"1")
    store.tick()
    change(store, SessionEnded("client"))
    clock.ahead_s = 200
    store.tick()
    assert store.queues.stored("+/x") is watched  # somebody still looks at it
    store.queues.unwatch(watched)
    for ahead_s, there in ((211, True), (305, True), (322, False)):
        clock.ahead_s = ahead_s
        store.tick()
        assert (store.queues.stored("+/x") is not None) is there, ahead_s
    assert store.queues.stored("+/y") is not None
    open_store.stop(store)
    shutil.rmtree(tmp_path / "data" / "index")
    again = open_store()
    assert again.queues.stored("+/x") is None  # the log says so
    assert again.queues.stored("+/y") is not None


def test_a_queue_taken_again_in_time_stays(open_store: Stores, clock: Clock) -> None:
    store = open_store(queue_grace_s=100, retention_check_s=10)
    for round_ in range(4):
        subscribe(store, "client", ["+/x"])
        publish(store, "a/x", b"%d" % round_)
        change(store, SessionEnded("client"))
        store.upkeep._next_check_s = 0
        store.tick()
        clock.ahead_s += 60
        subscribe(store, "other", ["+/x"])
        store.upkeep._next_check_s = 0
        store.tick()
        change(store, SessionEnded("other"))
    assert payloads(store, "+/x") == [b"0", b"1", b"2", b"3"]
