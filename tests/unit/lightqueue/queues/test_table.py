"""Light queues: names, packing, range reads, and what stays in memory or in RocksDB."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues import resident
from lightqueue.queues._queues import FILTER, LEVEL, LIVE, TOPIC, Ends, Queue
from lightqueue.queues.layout import entry_key, pack_count, packs_from, queue_key
from lightqueue.queues.table import LIVE_ID_BIT, level_of
from store.errors import IndexFailed
from store.records._records import RecordBatch
from store.records.records import RecordFlag, RecordType
from tests.support.stores import Stores, batch_of, crash_copy, payloads, publish, read_all


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path, segment_bytes=4 << 20)
    yield stores
    stores.close()


def packs(store: MessageStore, topic: str) -> list[tuple[int, int]]:
    """(first queue_offset, number of entries) of what RocksDB holds of a topic's queue."""
    queue = store.queues.stored(topic)
    assert queue is not None
    return [(first, pack_count(pack)) for first, pack in packs_from(store.index, queue.id, 0)]


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def test_the_payload_of_a_retained_message_is_looked_at_where_it_stands(open_store: Stores) -> None:
    """What applies it needs to know how large it is: a copy of 4 MB took 3 ms."""
    store = open_store()
    seen: list[Any] = []
    apply = store.queues.apply

    def noted(fields: tuple[Any, ...]) -> None:
        seen.append((type(fields[-1]), len(fields[-1])))
        apply(fields)

    store.queues.apply = noted
    for payload in (b"x" * 1_000_000, b""):
        batch = RecordBatch()
        batch.append(RecordType.MESSAGE, payload, topic=b"t", flags=RecordFlag.RETAIN)
        start = store.append(batch)
        assert store.retained.get(b"t") == (start if payload else None)
    assert seen == [(memoryview, 1_000_000), (memoryview, 0)]


# --- names

NAMES = [
    *("a/b", "a%b", "a//b", "/a", "a/", "a", "/", "//", "a%2Fb", "a b", "A/b", "a/B", "%", "a\x01b"),
    *("ü", "u\u0308", "\U0001f680/x", "$sys/a", "Aa", "BB", "q0a", "0a", "a/b/c", "a/b" * 50),
]


@pytest.mark.catalogue("E15")
def test_distinct_topics_never_share_a_queue(open_store: Stores) -> None:
    store = open_store()
    for i, name in enumerate(NAMES):
        publish(store, name, b"%d" % i)
    store.write_index()
    ids = {store.queues.load_topic(name.encode()).own.id for name in NAMES}
    assert len(ids) == len(NAMES)
    for i, name in enumerate(NAMES):
        assert payloads(store, name) == [b"%d" % i]
    open_store.stop(store)
    again = open_store()
    for i, name in enumerate(NAMES):
        assert payloads(again, name) == [b"%d" % i]


def test_keys_of_different_kinds_and_names_differ() -> None:
    keys = {queue_key(kind, name.encode()) for kind in (TOPIC, LEVEL, FILTER) for name in NAMES}
    assert len(keys) == 3 * len(NAMES)


def test_a_first_level_has_its_own_queue(open_store: Stores) -> None:
    store = open_store()
    for topic in ("a", "a/b", "b/a", "/a", "a/b/c", "aa"):
        publish(store, topic, topic.encode())
    assert payloads(store, "a/#") == [b"a", b"a/b", b"a/b/c"]
    assert payloads(store, "/#") == [b"/a"]
    assert payloads(store, "a") == [b"a"]


@pytest.mark.parametrize(
    ("topic_filter", "level"),
    [("a/#", "a"), ("/#", ""), ("#", None), ("+/#", None), ("a/b/#", None), ("a/+", None), ("a", None), ("$s/#", "$s")],
)
def test_the_filters_that_are_a_first_level(topic_filter: str, level: str | None) -> None:
    assert level_of(topic_filter) == level


# --- packing and reading


@pytest.mark.catalogue("B5")
def test_entries_that_arrive_together_are_packed(open_store: Stores) -> None:
    store = open_store()
    for count in (1, 3, 1024, 2500):
        publish(store, "t", *numbered(0, count))
        store.write_index()
    assert packs(store, "t") == [(0, 1), (1, 3), (4, 1024), (1028, 1024), (2052, 1024), (3076, 452)]


@pytest.mark.catalogue("B5")
def test_ranges_across_packs_and_the_tail(open_store: Stores) -> None:
    store = open_store()
    expected: list[bytes] = []
    for count in (1, 2, 30, 7):
        expected += numbered(len(expected), count)
        publish(store, "t", *expected[-count:])
        publish(store, "other", b"x")
        store.write_index()
    expected += numbered(40, 5)
    publish(store, "t", *expected[-5:])
    queue = store.queues.stored("t")
    assert queue is not None
    assert queue.tail_first_offset == 40
    for start, at_once in itertools.product(range(46), (1, 2, 1000)):
        assert [r.payload for r in read_all(store, queue, start, at_once)] == expected[start:]
    assert read_all(store, queue, 45) == []
    assert read_all(store, queue, 1000) == []


def test_a_range_ends_at_its_bounds(open_store: Stores) -> None:
    store = open_store()
    publish(store, "t", *numbered(0, 100))
    for in_rocksdb in (False, True):
        if in_rocksdb:
            store.write_index()
        queue = store.queues.stored("t")
        assert queue is not None
        records = store.read(queue, 10, 7, 1 << 20)
        assert (records.first, records.next, len(records)) == (10, 17, 7)
        records = store.read(queue, 10, 1000, 100)  # 48 bytes each: what passes the bound is the last
        assert (records.first, records.next) == (10, 13)
        assert records.log_offset(0) == store.queues.log_offset_at(queue, 10)


def test_a_seek_does_not_leak_into_another_queue(open_store: Stores) -> None:
    """Queue ids are neighbours, and some queue between two others has nothing stored."""
    store = open_store()
    for topic in ("a", "b", "c"):
        publish(store, topic, topic.encode())
    store.write_index()
    ids = [store.queues.load_topic(topic).own.id for topic in (b"a", b"b", b"c")]
    assert ids == [1, 3, 5]  # their levels lie between
    store.queues.edit(lambda: store.index.delete(entry_key(3, 0)))
    store.write_index()
    emptied = store.queues.stored_topic(b"b")
    assert (emptied.id, emptied.next_offset, store.queues.first_offset(emptied)) == (3, 0, 0)
    assert read_all(store, emptied) == []
    for other in ("a", "c"):
        queue = store.queues.stored(other)
        assert queue is not None
        assert [r.payload for r in read_all(store, queue)] == [other.encode()]
        assert store.queues.log_offset_at(queue, 1) == 0
        assert store.queues.position_of(queue, 0) == 0
        assert store.queues.position_of(queue, store.end) == 1


@pytest.mark.catalogue("B5")
def test_positions(open_store: Stores) -> None:
    store = open_store()
    offsets = []
    for i in range(60):
        offsets.append(publish(store, "t", b"x"))
        publish(store, "other", b"y")
        if i % 7 == 0:
            store.write_index()
    queue = store.queues.stored("t")
    assert queue is not None
    for i, log_offset in enumerate(offsets):
        assert store.queues.log_offset_at(queue, i) == log_offset
        assert store.queues.position_of(queue, log_offset) == i
        assert store.queues.position_of(queue, log_offset + 1) == i + 1
    assert store.queues.position_at(queue, 0) == 0
    assert store.queues.position_at(queue, 1 << 60) == 60
    last_ms = store.record(offsets[30]).timestamp_ms
    at = store.queues.position_at(queue, last_ms)
    assert store.record(offsets[at]).timestamp_ms == last_ms
    assert at == 0 or store.record(offsets[at - 1]).timestamp_ms < last_ms


# --- held filters


def test_a_held_filter_keeps_what_matches_from_then_on(open_store: Stores) -> None:
    store = open_store()
    publish(store, "a/1/x", b"before")
    store.queues.hold("a/+/x", store.end - 1)
    publish(store, "a/1/x", b"1")
    publish(store, "a/1/y", b"no")
    publish(store, "a/2/x", b"2")
    assert payloads(store, "a/+/x") == [b"1", b"2"]
    open_store.stop(store)
    again = open_store()
    assert payloads(again, "a/+/x") == [b"1", b"2"]
    publish(again, "a/3/x", b"3")
    assert payloads(again, "a/+/x") == [b"1", b"2", b"3"]


def test_a_dropped_filter_queue_leaves_nothing(open_store: Stores) -> None:
    store = open_store()
    store.queues.hold("a/+/x", store.end - 1)
    publish(store, "a/1/x", b"1")
    store.write_index()
    publish(store, "a/1/x", b"2")
    store.queues.release("a/+/x")
    assert store.queues.held.unheld() == ["a/+/x"]
    store.queues.drop("a/+/x", 0)
    assert store.queues.stored("a/+/x") is None
    publish(store, "a/1/x", b"3")
    store.write_index()
    assert [key for key, _ in store.index.scan(b"q2", b"q3")] == []
    queue_ids = {key[1:9] for key, _ in store.index.scan(b"e", b"f")}
    assert len(queue_ids) == 2  # the topic's and the level's
    assert payloads(store, "a/1/x") == [b"1", b"2", b"3"]


def test_a_filter_dropped_before_it_was_stored_stays_dropped(open_store: Stores) -> None:
    store = open_store()
    store.queues.hold("a/+/x", store.end - 1)
    publish(store, "a/1/x", b"1")
    store.queues.release("a/+/x")
    store.queues.drop("a/+/x", 0)
    store.write_index()
    assert [key for key, _ in store.index.scan(b"q2", b"q3")] == []
    open_store.stop(store)
    assert open_store().queues.stored("a/+/x") is None


def test_a_filter_taken_again_at_once_is_a_new_queue(open_store: Stores) -> None:
    store = open_store()
    store.queues.hold("a/+/x", store.end - 1)
    publish(store, "a/1/x", b"1")
    store.write_index()
    store.queues.release("a/+/x")
    store.queues.drop("a/+/x", 0)
    store.queues.hold("a/+/x", store.end - 1)
    publish(store, "a/1/x", b"2")
    open_store.stop(store)
    assert payloads(open_store(), "a/+/x") == [b"2"]


# --- live queues


def entries_of_live_queues(store: MessageStore) -> int:
    return sum(1 for _ in store.index.scan(entry_key(LIVE_ID_BIT, 0), b"f"))


def test_a_live_queue_is_told_of_and_leaves_nothing_behind(open_store: Stores) -> None:
    store = open_store()
    live = store.queues.watch("+/x")
    assert (live.kind, store.queues.watch("+/x") is live, live.watchers) == (LIVE, True, 2)
    publish(store, "a/x", b"1")
    publish(store, "a/y", b"no")
    assert store.collect_grown() == [live]
    assert store.collect_grown() == []
    assert [r.payload for r in read_all(store, live)] == [b"1"]
    store.write_index()
    assert [r.payload for r in read_all(store, live)] == [b"1"]
    store.queues.unwatch(live)
    store.queues.unwatch(live)
    publish(store, "a/x", b"2")
    store.write_index()
    assert store.collect_grown() == []
    assert (live.next_offset, entries_of_live_queues(store)) == (1, 0)
    assert [key for key, _ in store.index.scan(b"q", b"r") if b"+" in key] == []


def test_a_live_queue_forgets_what_its_readers_are_past(open_store: Stores) -> None:
    store = open_store(live_tail_entries=10)
    live = store.queues.watch("+/x")
    publish(store, "a/x", *numbered(0, 8))
    live.floor = 5
    store.write_index()
    assert live.tail_first_offset == 5
    publish(store, "a/x", *numbered(8, 20))
    store.write_index()
    assert live.tail_first_offset == 18  # the bound: its readers are of QoS 0 and lose the rest
    assert [r.payload for r in read_all(store, live, 5)] == numbered(18, 10)


def test_a_live_queue_that_may_not_lose_anything_spills(open_store: Stores) -> None:
    store = open_store(live_tail_entries=10)
    live = store.queues.watch("+/x")
    live.spills = True
    publish(store, "a/x", *numbered(0, 30))
    store.write_index()
    assert entries_of_live_queues(store) == 1
    publish(store, "a/x", *numbered(30, 5))
    assert [r.payload for r in read_all(store, live)] == numbered(0, 35)
    live.floor = 30  # everybody is past what was spilled
    store.write_index()
    store.write_index()
    assert entries_of_live_queues(store) == 0
    assert [r.payload for r in read_all(store, live, 30)] == numbered(30, 5)
    publish(store, "a/x", *numbered(35, 30))
    store.write_index()
    assert [r.payload for r in read_all(store, live, 30)] == numbered(30, 35)
    store.queues.unwatch(live)
    store.write_index()
    assert entries_of_live_queues(store) == 0


def test_spilled_entries_of_a_killed_process_are_removed(open_store: Stores, tmp_path: Path) -> None:
    store = open_store(live_tail_entries=1)
    live = store.queues.watch("+/x")
    live.spills = True
    publish(store, "a/x", *numbered(0, 30))
    store.write_index()
    store.index.flush()
    again = open_store(crash_copy(tmp_path, tmp_path.with_name("killed")))
    assert entries_of_live_queues(again) == 1
    again.write_index()
    assert entries_of_live_queues(again) == 0
    other = again.queues.watch("+/x")
    publish(again, "a/x", b"new")
    assert [r.payload for r in read_all(again, other)] == [b"new"]


# --- eviction


@pytest.mark.parametrize("remembered", [0, 10_000])
def test_idle_topics_leave_memory_and_come_back(open_store: Stores, remembered: int) -> None:
    store = open_store(cached_topics=100, remembered_topics=remembered)
    names = [f"level{i % 300}/topic{i}" for i in range(1000)]
    for part in (b"1", b"2", b"3"):
        for i, name in enumerate(names):
            publish(store, name, part)
            if i % 50 == 0:
                store.write_index()
        store.write_index()
        assert len(store.queues.dispatcher.topics) <= 100
        assert len(store.queues._residents.levels) <= 200
    for name in names:
        assert payloads(store, name) == [b"1", b"2", b"3"]
    assert len(payloads(store, "level7/#")) == 12


def test_remembered_queue_ends_are_bounded() -> None:
    names = [b"t/%d" % i for i in range(20_000)]
    queues = [Queue(name, TOPIC, i + 1, 2 * i, 3 * i) for i, name in enumerate(names)]
    for most in (0, 5_000, 100_000):
        ends = Ends(most)
        for queue in (*queues, *queues):  # the second time in place of the first
            ends.put(queue)
        found = {name: ends.queue(name, TOPIC) for name in names}
        kept = {name: queue for name, queue in found.items() if queue is not None}
        assert len(ends) == len(kept) <= max(2 * most, 8 * 1024)
        assert len(kept) == len(names) if most > len(names) else len(kept) >= most // 2
        for i, name in enumerate(names):
            if name in kept:
                assert (kept[name].id, kept[name].next_offset, kept[name].last_log_offset) == (i + 1, 2 * i, 3 * i)
    assert Ends(5).queue(b"never seen", TOPIC) is None


def test_watched_and_held_topics_are_not_evicted(open_store: Stores) -> None:
    store = open_store(cached_topics=10)
    watched = store.queues.watch("watched/topic")
    level = store.queues.watch("level/#")
    store.queues.hold("held/topic", store.end - 1)
    for i in range(100):
        publish(store, f"t{i}/x", b"x")
        store.write_index()
    publish(store, "watched/topic", b"1")
    publish(store, "level/x", b"2")
    assert store.collect_grown() == [watched, level]
    assert store.queues.watch("watched/topic") is watched
    assert store.queues.watch("level/#") is level
    assert b"held/topic" in store.queues.dispatcher.topics


def test_freed_memory_is_given_back_once_when_nothing_comes(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "IDLE_S", 0.0)
    store = open_store()
    residents = store.queues._residents
    for topic in ("a", "b"):
        newest = publish(store, topic, b"1")
        store.queues.evict_idle()
        assert residents._trimmed_at != newest
        store.queues.evict_idle()
        assert residents._trimmed_at == newest


# --- when the index cannot be written


def test_a_failed_index_write_loses_nothing(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.queues.hold("+/x", store.end - 1)
    publish(store, "a/x", b"1", retain=True)

    def fail(*_: int) -> None:
        raise IndexFailed(store.index.folder, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", fail)
        store.tick()
        for topic_filter in ("a/x", "a/#", "+/x"):
            assert payloads(store, topic_filter) == [b"1"]
        assert store.retained.get(b"a/x") is not None
        publish(store, "a/x", b"to the log")
    store._next_index_write = 0
    store.tick()
    publish(store, "a/x", b"2")
    open_store.stop(store)
    again = open_store()
    for topic_filter in ("a/x", "a/#", "+/x"):
        assert payloads(again, topic_filter) == [b"1", b"to the log", b"2"]


def test_messages_are_taken_again_whoever_wrote_the_index(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep may be the first to succeed after a failure: nothing is left to write then."""
    store = open_store()
    publish(store, "t", b"1")

    def fail(*_: int) -> None:
        raise IndexFailed(store.index.folder, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", fail)
        store.tick()
    store.write_index()
    store._next_index_write = 0
    store.tick()
    publish(store, "t", b"2")
    assert payloads(store, "t") == [b"1", b"2"]


def test_a_batch_larger_than_a_segment_is_stored_in_pieces(open_store: Stores) -> None:
    store = open_store(segment_bytes=64 << 10)
    store.append(batch_of(*[bytes((i,)) * 1000 for i in range(200)]))
    assert payloads(store, "t") == [bytes((i,)) * 1000 for i in range(200)]


def test_a_damaged_record_is_passed_over(open_store: Stores, tmp_path: Path, caplog: Any) -> None:
    store = open_store(segment_bytes=64 << 10)
    offsets = [publish(store, "t", bytes((i,)) * 1000) for i in range(100)]
    open_store.stop(store)
    damaged = offsets[10]
    with (tmp_path / "log" / f"{0:020}.log").open("r+b") as file:
        file.seek(damaged)
        file.write(b"\xff" * 8)
    again = open_store(segment_bytes=64 << 10, verify_at_start_bytes=0)
    assert [p[0] for p in payloads(again, "t")] == [i for i in range(100) if i != 10]
    assert f"damaged record: log_offset {damaged}" in caplog.text
