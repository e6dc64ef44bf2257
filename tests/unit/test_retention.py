"""Retention: what goes, what is carried forward, and that the index can be rebuilt whenever a kill comes."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightqueue import retention, trimming
from lightqueue._queues import pack_entry
from lightqueue.message_store import MessageStore
from lightqueue.table import entry_key, pack_count
from store import checkpoint
from store._records import RecordBatch
from store.changes import SessionEnded
from store.errors import NotRebuildable
from store.records import Attribute, RecordFlag, decode_attributes
from tests.store_workload import Workload, state_of
from tests.stores import (
    SEGMENT_BYTES,
    change,
    crash_copy,
    payloads,
    publish,
    read_all,
    small,
    subscribe,
    wait_until,
)

OpenStore = Callable[..., MessageStore]
KEPT_BYTES = 2 * SEGMENT_BYTES


class Clock:
    """The wall clock and the monotonic one as upkeep sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real, monotonic, real_ns = time.time, time.monotonic, time.time_ns
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead_s)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(self.ahead_s * 1e9))
        monkeypatch.setattr(time, "monotonic", lambda: monotonic() + self.ahead_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[MessageStore] = []

    def open_it(data: Path = tmp_path / "data", **settings: Any) -> MessageStore:
        opened.append(MessageStore(small(data, **({"retention_bytes": KEPT_BYTES} | settings))))
        return opened[-1]

    yield open_it
    for store in opened:
        if store.log.segments:
            close(store)


def close(store: MessageStore) -> None:
    store.close()
    store.log.segments.clear()


def fill(store: MessageStore, segments: int, topic: str = "filler") -> None:
    """Publish until the log has so many segments more."""
    wanted = len(store.log.segments) + segments
    number = 0
    while len(store.log.segments) < wanted:
        publish(store, topic, b"%07d" % number + bytes(5000))
        number += 1


def upkeep(store: MessageStore) -> None:
    """Let a check come due, and run until everything that follows from it is done and in the index."""
    store.upkeep._next_check_s = 0
    store.tick()

    def is_done() -> bool:
        store.tick()
        return not store.upkeep.busy

    wait_until(is_done)
    store.write_index()


# --- what goes


def test_the_oldest_segments_go_by_size(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 5)
    end = store.end
    upkeep(store)
    assert store.end - store.log.base <= KEPT_BYTES
    assert 1 < len(store.log.segments) < 4
    assert sorted(path.stem for path in store.log.folder.iterdir()) == [
        f"{segment.base:020}" for segment in store.log.segments
    ]
    assert store.end == end
    base = store.log.base
    upkeep(store)
    assert store.log.base == base


def test_nothing_goes_without_a_setting(open_store: OpenStore) -> None:
    store = open_store(retention_bytes=None)
    fill(store, 3)
    upkeep(store)
    assert store.log.base == 0


def test_the_active_segment_never_goes(open_store: OpenStore, clock: Clock) -> None:
    store = open_store(retention_bytes=1, retention_age_s=1)
    fill(store, 2)
    clock.ahead_s = 10**6
    upkeep(store)
    assert len(store.log.segments) == 1
    upkeep(store)
    assert len(store.log.segments) == 1


def test_segments_go_by_the_age_of_their_last_record(open_store: OpenStore, clock: Clock) -> None:
    store = open_store(retention_bytes=None, retention_age_s=1000)
    fill(store, 2)
    publish(store, "t", b"the last of its segment")
    clock.ahead_s = 500
    fill(store, 2)
    bases = [segment.base for segment in store.log.segments]
    clock.ahead_s = 1001
    upkeep(store)
    assert store.log.base == bases[2]  # its first record is old, its last one is not
    clock.ahead_s = 1501
    upkeep(store)
    assert store.log.base == bases[-1]


@pytest.mark.parametrize("verify_bytes", [0, 1 << 30])
def test_age_is_known_after_a_restart(open_store: OpenStore, clock: Clock, verify_bytes: int) -> None:
    store = open_store(retention_bytes=None, retention_age_s=1000)
    fill(store, 3)
    close(store)
    clock.ahead_s = 900
    store = open_store(retention_bytes=None, retention_age_s=1000, verify_at_start_bytes=verify_bytes)
    upkeep(store)
    assert store.log.base == 0
    clock.ahead_s = 1100
    upkeep(store)
    assert len(store.log.segments) == 1


# --- queues


def test_reads_below_the_first_offset_skip_forward(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 4, "t/1")
    queue = store.queues.stored("t/1")
    level = store.queues.stored("t/#")
    assert queue is not None
    assert level is not None
    before = read_all(store, queue)
    segments = len(store.log.segments)
    while len(store.log.segments) == segments:
        store.upkeep._next_check_s = 0
        store.tick()
    assert store.upkeep.busy  # dropped, and not yet trimmed
    for _ in range(2):
        kept = [record for record in before if record.log_offset >= store.log.first]
        assert 0 < len(kept) < len(before)
        for start in range(len(before)):
            assert read_all(store, queue, start) == kept[max(0, start - (len(before) - len(kept))) :]
        records = store.read(queue, 0, 10, 1 << 20)
        assert records.first == len(before) - len(kept)
        assert read_all(store, level) == kept
        assert store.queues.position_of(queue, store.log.first) == records.first
        assert store.queues.position_at(queue, 0) == records.first
        upkeep(store)
    assert store.queues.first_offset(queue) <= records.first


def test_entries_below_the_first_offset_are_trimmed(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 3)
    store = open_store()
    store.queues.hold("+/one")
    for i in range(300):
        publish(store, f"t{i % 40}/one", bytes(1000))
        if i % 10 == 0:
            store.write_index()
    upkeep(store)
    keys = list(store.index.scan(b"e", b"f"))
    assert keys
    for key, pack in keys:
        newest = pack_entry(pack, pack_count(pack) - 1)
        assert newest >= store.log.first, key
    assert trimming.trimmed_to(store.index) == store.log.first


def test_an_emptied_queue_goes_on_from_its_next_offset(open_store: OpenStore) -> None:
    store = open_store()
    publish(store, "old/1", b"1", b"2", b"3")
    subscribe(store, "client", ["old/+"])
    fill(store, 4)
    upkeep(store)
    for topic_filter, end in (("old/1", 3), ("old/#", 3), ("old/+", 0)):
        queue = store.queues.stored(topic_filter)
        assert queue is not None
        assert (queue.next_offset, read_all(store, queue)) == (end, [])
    assert [key for key, _ in store.index.scan(entry_key(1, 0), entry_key(3, 0))] == []
    close(store)
    again = open_store()
    publish(again, "old/1", b"4")
    queue = again.queues.stored("old/1")
    assert queue is not None
    assert (again.queues.first_offset(queue), queue.next_offset) == (3, 4)
    assert payloads(again, "old/#", 3) == [b"4"]
    assert payloads(again, "old/+") == [b"4"]


def test_trimming_goes_on_after_a_restart(open_store: OpenStore) -> None:
    store = open_store()
    for i in range(50):
        publish(store, f"old{i}", b"x")
    fill(store, 4)
    store.upkeep._next_check_s = 0
    while store.log.base == 0:
        store.tick()
    close(store)
    again = open_store()
    assert len(list(again.index.scan(b"e", b"f"))) > 50
    upkeep(again)
    assert len(list(again.index.scan(b"e", b"f"))) < 10


def test_trimming_takes_bounded_steps(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 10)
    store = open_store()
    for i in range(500):
        publish(store, f"old{i}", b"x")
    for _ in range(100):
        publish(store, "one", b"x")
        store.write_index()
    fill(store, 4)
    store.write_index()
    store.log.drop_first()
    looked_at = 0

    def counting(pack: bytes, i: int) -> int:
        nonlocal looked_at
        looked_at += 1
        return pack_entry(pack, i)

    monkeypatch.setattr(trimming, "pack_entry", counting)
    steps = trimming.Trimmer(store.index, store.queues, store.log.first).steps()
    most = 0
    for _ in steps:
        most, looked_at = max(most, looked_at), 0
    assert 5 <= most <= 12
    store.write_index()
    assert len(list(store.index.scan(b"e", b"f"))) < 200


def test_spilled_live_entries_are_trimmed(open_store: OpenStore) -> None:
    store = open_store(live_tail_entries=1)
    live = store.queues.watch("+/x")
    live.spills = True
    publish(store, "a/x", *[b"old"] * 10)
    store.write_index()
    fill(store, 4)
    publish(store, "a/x", *[b"new"] * 10)
    upkeep(store)
    assert [record.payload for record in read_all(store, live)] == [b"new"] * 10
    assert len(list(store.index.scan(entry_key(live.id, 0), b"f"))) == 1


# --- retained messages


def retained_payloads(store: MessageStore) -> dict[bytes, bytes]:
    return {topic: store.record(at).payload for topic, at in store.retained.below(b"")}


def test_retained_messages_are_carried_forward(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    upkeep(store)
    assert retained_payloads(store) == expected
    assert store.retained.get(b"state/9") == newest
    assert queue.next_offset == 1  # a carried message is no new one
    carried = store.record(store.retained.get(b"state/8") or 0)
    assert carried.flags == RecordFlag.RETAIN | RecordFlag.CARRIED
    stored_ms = decode_attributes(carried.attributes)[Attribute.STORED_MS]
    assert int.from_bytes(stored_ms, "little") == first_stored_ms
    for _ in range(2):  # and again, from where it was carried to
        fill(store, 4)
        upkeep(store)
        assert retained_payloads(store) == expected
        carried = store.record(store.retained.get(b"state/8") or 0)
        assert decode_attributes(carried.attributes)[Attribute.STORED_MS] == stored_ms
    close(store)
    assert retained_payloads(open_store()) == expected


def test_what_a_carried_message_says_is_unchanged(open_store: OpenStore) -> None:
    store = open_store()
    batch = RecordBatch()
    batch.append(1, b"p", topic=b"t", client_id=b"c", properties=b"\3\0\1x", flags=RecordFlag.RETAIN | 2)
    original = store.record(store.append(batch))
    fill(store, 4)
    upkeep(store)
    carried = store.record(store.retained.get(b"t") or 0)
    assert carried.log_offset > original.log_offset
    for name in ("topic", "client_id", "properties", "payload", "qos", "retain", "type"):
        assert getattr(carried, name) == getattr(original, name), name


def test_expired_retained_messages_are_not_carried(open_store: OpenStore, clock: Clock) -> None:
    store = open_store()
    publish(store, "short", b"x", retain=True, properties=b"\2" + (100).to_bytes(4, "big"))
    publish(store, "long", b"x", retain=True, properties=b"\2" + (1000).to_bytes(4, "big"))
    clock.ahead_s = 200
    fill(store, 4)
    upkeep(store)
    assert retained_payloads(store) == {b"long": b"x"}
    carried = store.record(store.retained.get(b"long") or 0)
    left_s = int.from_bytes(carried.properties[1:], "big")
    assert 798 <= left_s <= 800
    assert carried.flags & RecordFlag.EXPIRES
    clock.ahead_s = 600
    fill(store, 4)
    upkeep(store)
    carried = store.record(store.retained.get(b"long") or 0)
    assert 396 <= int.from_bytes(carried.properties[1:], "big") <= 400
    close(store)
    assert retained_payloads(open_store()) == {b"long": b"x"}


# --- the checkpoint


def with_history(store: MessageStore, seed: int = 1) -> None:
    """State of every kind, most of it in segments that are about to go."""
    workload = Workload(seed)
    workload.run(store, 60)
    fill(store, 4)


def test_a_lost_index_is_rebuilt_from_the_checkpoint(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    with_history(store)
    upkeep(store)
    assert store.log.base > 0
    publish(store, "later", b"x", retain=True)
    subscribe(store, "late", ["+/late/#"])
    expected = state_of(store)
    close(store)
    shutil.rmtree(tmp_path / "data" / "index")
    again = open_store(retention_bytes=None)
    assert again.replayed_bytes > 0
    assert state_of(again) == expected
    upkeep(again)
    assert state_of(again) == expected


def test_without_index_and_checkpoint_it_refuses(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    with_history(store)
    upkeep(store)
    close(store)
    data = tmp_path / "data"
    shutil.rmtree(data / "index")
    (data / "index-checkpoint").rename(data / "elsewhere")
    with pytest.raises(NotRebuildable) as caught:
        open_store()
    assert str(data / "index") in str(caught.value)
    assert "put one of the two back from a copy" in str(caught.value)
    assert not (data / "index").exists()
    (data / "elsewhere").rename(data / "index-checkpoint")
    open_store()


def test_an_index_from_before_the_log_begins_is_not_used(open_store: OpenStore, tmp_path: Path) -> None:
    """Somebody put an old copy of the index back."""
    store = open_store()
    with_history(store)
    store.write_index()
    store.index.checkpoint(tmp_path / "old")
    fill(store, 4)
    upkeep(store)
    expected = state_of(store)
    close(store)
    shutil.rmtree(tmp_path / "data" / "index")
    (tmp_path / "old").rename(tmp_path / "data" / "index")
    assert state_of(open_store()) == expected


def test_a_log_that_is_whole_needs_no_checkpoint(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(retention_bytes=None)
    with_history(store)
    expected = state_of(store)
    close(store)
    shutil.rmtree(tmp_path / "data" / "index")
    assert state_of(open_store(retention_bytes=None)) == expected


def test_a_kill_at_every_step(open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the folder after each step of retention opens to the same state, with its index and without it."""
    monkeypatch.setattr(retention, "TOPICS_PER_STEP", 3)
    monkeypatch.setattr(trimming, "KEYS_PER_STEP", 30)
    store = open_store()
    with_history(store)
    steps = 0
    store.upkeep._next_check_s = 0
    store.tick()
    while store.upkeep.busy:
        check_killed(store, tmp_path / "killed", open_store)
        store.tick()
        steps += 1
    check_killed(store, tmp_path / "killed", open_store)
    assert steps > 10
    assert store.log.base > 0


def check_killed(store: MessageStore, to: Path, open_store: OpenStore) -> None:
    data = crash_copy(store.settings.data, to)
    reopened = open_store(data)
    state = state_of(reopened)
    messages = retained_payloads(reopened)
    close(reopened)
    assert state == state_of(store)
    assert messages == retained_payloads(store)
    shutil.rmtree(data / "index")
    if store.log.base == 0 or (data / "index-checkpoint").exists():
        reopened = open_store(data)
        assert state_of(reopened) == state
        close(reopened)
    shutil.rmtree(data)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("kill_after", ["copied", "old renamed", "new renamed"])
def test_a_kill_while_the_checkpoint_is_replaced(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_after: str, existing: bool
) -> None:
    store = open_store()
    with_history(store)
    if existing:
        upkeep(store)
        with_history(store, seed=2)
    data = tmp_path / "data"
    store.write_index()
    checkpoint.write_checkpoint(store.index, store.folder)
    if kill_after == "new renamed":
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
        checkpoint.publish_checkpoint(store.folder)
        monkeypatch.undo()
    elif kill_after == "old renamed" and existing:
        (data / "index-checkpoint").rename(data / "index-checkpoint.old")
    killed = crash_copy(data, tmp_path / "killed")
    expected = state_of(store)
    shutil.rmtree(killed / "index")
    again = open_store(killed)
    assert state_of(again) == expected
    assert sorted(path.name for path in killed.glob("index*")) == sorted(
        ["index"] + ["index-checkpoint"] * (existing or kill_after == "new renamed")
    )


def test_the_checkpoint_waits_until_the_log_is_on_disk(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else power could fail with a checkpoint that is ahead of the log."""
    store = open_store(flush_interval_ms=10**6, flush_deadline_ms=10**6)
    with_history(store)
    published: list[tuple[int, int]] = []

    def publish_checked(folder: Any) -> None:
        published.append((store.log.flusher.flushed, store.index.applied_offset))
        checkpoint.publish_checkpoint(folder)

    monkeypatch.setattr(retention, "publish_checkpoint", publish_checked)
    upkeep(store)
    ((flushed, applied),) = published
    assert flushed >= applied > store.log.base > 0


# --- queues that nobody holds


def test_a_queue_that_nobody_holds_goes_after_its_grace(open_store: OpenStore, clock: Clock, tmp_path: Path) -> None:
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
    close(store)
    shutil.rmtree(tmp_path / "data" / "index")
    again = open_store()
    assert again.queues.stored("+/x") is None  # the log says so
    assert again.queues.stored("+/y") is not None


def test_a_queue_taken_again_in_time_stays(open_store: OpenStore, clock: Clock) -> None:
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
