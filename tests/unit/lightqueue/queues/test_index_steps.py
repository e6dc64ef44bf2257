"""The index is written a little at a time: how much a step does, what it leaves for the next, replaying from there."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues import resident, table
from lightqueue.queues._queues import FILTER
from lightqueue.queues.layout import entry_key, queue_key
from lightqueue.queues.table import LIVE_ID_BIT
from store.errors import IndexFailed
from store.records._records import RecordBatch
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute
from store.state import retained
from store.state.changes import Progress, QueueDropped, SessionEnded, SessionOpened, Subscribed, SubscriptionState
from tests.support.stores import (
    Stores,
    change,
    commit_log,
    crash_copy,
    payloads,
    publish,
    read_all,
    retained_payloads,
    subscribe,
    wait_until,
)

TOPICS = [f"t{i}/x" for i in range(300)]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", index_flush_ms=10**6)
    yield stores
    stores.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "STEP_COST", 10)
    monkeypatch.setattr(table, "ENTRIES_PER_COST", 5)
    monkeypatch.setattr(retained, "KEYS_PER_STEP", 10)


def publish_to(store: MessageStore, topics: list[str], payload: bytes = b"1", flags: int = 0) -> None:
    batch = RecordBatch()
    for topic in topics:
        batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), flags=flags)
    store.append(batch)


def begin(store: MessageStore) -> bool:
    """Let an index write come due."""
    store._next_index_write = 0
    return store.tick()


def steps(store: MessageStore) -> int:
    """Write until the index has all that there was; how many steps that takes."""
    count = 1
    more = begin(store)
    while more:
        more = store.tick()
        count += 1
    return count


def keys_written(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """From now on: the keys that are put, until somebody clears the list."""
    keys: list[bytes] = []
    put = store.index.put

    def noting(key: bytes, value: bytes) -> None:
        keys.append(key)
        put(key, value)

    monkeypatch.setattr(store.index, "put", noting)
    return keys


def killed(store: MessageStore, tmp_path: Path) -> Path:
    """What a kill now leaves, RocksDB having flushed just before."""
    store.index.flush()
    return crash_copy(store.settings.data, tmp_path / "killed")


# --- how much


def test_a_step_writes_a_bounded_number_of_queues(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    keys = keys_written(store, monkeypatch)
    publish_to(store, TOPICS)
    more, most, entries = begin(store), 0, 0
    while True:
        most = max(most, len(keys))
        entries += sum(key.startswith(b"e") for key in keys)
        keys.clear()
        if not more:
            break
        more = store.tick()
    assert entries == 2 * len(TOPICS)  # each topic's and each first level's
    assert 20 <= most <= 22
    assert store.queues.dispatcher.pending == 0
    assert store.index.applied_offset == store.end


def test_a_step_writes_a_bounded_number_of_pointers(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "STEP_COST", 10_000)
    store = open_store()
    publish_to(store, TOPICS, flags=RecordFlag.RETAIN)
    assert begin(store)
    assert len(store.retained) == len(list(store.index.scan(b"r", b"s"))) == 12  # 10 and a share of the backlog
    at = store.retained.get(TOPICS[12].encode())
    assert store.index.applied_offset == at
    assert [topic.decode() for topic, _ in store.retained.below(b"")] == sorted(TOPICS)
    while store.tick():
        pass
    assert len(store.retained) == len(TOPICS)


def test_a_long_queue_is_written_in_pieces(open_store: Stores) -> None:
    store = open_store()
    numbered = [b"%d" % i for i in range(1000)]
    first = publish(store, "a", *numbered)
    assert begin(store)
    queue = store.queues.stored("a")
    assert queue is not None
    assert (queue.tail_first_offset, store.index.applied_offset) == (50, first)
    publish(store, "a", b"more")
    in_pieces = 1
    while store.tick():
        assert store.index.applied_offset == first
        in_pieces += 1
    assert in_pieces == 2 * 1000 // 50
    assert payloads(store, "a") == [*numbered, b"more"]
    assert payloads(store, "a/#") == [*numbered, b"more"]


def test_steps_grow_with_the_backlog(open_store: Stores) -> None:
    store = open_store(index_flush_entries=100)
    publish_to(store, [f"{i}" for i in range(3000)])
    counted = steps(store)
    most = 10 + 5900 / table.BACKLOG_SHARE + 5950 / table.DIRTY_SHARE
    assert 2 * 3000 / most < counted < 2 * 3000 / 40


def test_eviction_looks_at_a_bounded_number(open_store: Stores) -> None:
    store = open_store(cached_topics=100)
    publish_to(store, 2 * [f"t/{i}" for i in range(1000)])
    in_memory = len(store.queues.dispatcher.topics)
    assert in_memory == 1000
    more = begin(store)
    while more:
        before, in_memory = in_memory, len(store.queues.dispatcher.topics)
        assert before - in_memory <= 20
        more = store.tick()
    assert len(store.queues.dispatcher.topics) <= 100


def test_a_level_stays_as_long_as_one_of_its_topics(open_store: Stores) -> None:
    store = open_store(cached_topics=3)
    publish_to(store, 2 * [f"a/{i}" for i in range(20)])
    steps(store)
    topics = store.queues.dispatcher.topics.values()
    assert len(topics) == 3
    assert {topic.level for topic in topics} == {store.queues.stored("a/#")}


def test_topics_in_use_are_passed_over(open_store: Stores) -> None:
    store = open_store(cached_topics=5)
    watched = [store.queues.watch(f"watched/{i}") for i in range(50)]
    for i in range(100):
        publish(store, f"t{i}/x", b"1")
        steps(store)
    assert [store.queues.stored(f"watched/{i}") for i in range(50)] == watched
    assert store.queues.counts()["topic"] < 70
    assert store.queues.counts()["level"] < 20


# --- which


def test_entries_added_during_an_index_write_wait_for_the_next_one(open_store: Stores) -> None:
    """Else busy queues would be written an entry at a time."""
    store = open_store()
    publish_to(store, TOPICS[:22])
    more = begin(store)
    while more:
        publish(store, "busy", b"x")
        more = store.tick()
    busy = store.queues.stored("busy")
    assert busy is not None
    assert busy.tail_first_offset == 0
    assert busy.next_offset > 1
    assert not store.tick()
    assert begin(store) is False
    assert busy.tail_first_offset == busy.next_offset


def test_live_queues_hold_nothing_back(open_store: Stores) -> None:
    store = open_store(live_tail_entries=1000)
    live = [store.queues.watch(f"+/{i}") for i in range(30)]
    for i in range(30):
        publish(store, f"a/{i}", b"x", b"y")
    store.write_index()
    assert store.index.applied_offset == store.end
    assert store.queues.dispatcher.pending == 0
    assert {queue.tail_first_offset for queue in live} == {0}
    for queue in live:
        store.queues.unwatch(queue)
    for looked_at in (13, 25, 30):  # 10 and an eighth of what is left
        publish(store, "t", b"x")
        steps(store)
        assert len(store.queues.dispatcher.live) == 30 - looked_at


def test_a_live_queue_spills_in_pieces(open_store: Stores) -> None:
    store = open_store(live_tail_entries=10)
    live = store.queues.watch("+/x")
    live.spills = True
    numbered = [b"%d" % i for i in range(200)]
    publish(store, "a/x", *numbered)
    assert begin(store)
    assert live.tail_first_offset == 50
    while store.tick():
        pass
    spilled = list(store.index.scan(entry_key(LIVE_ID_BIT, 0), b"f"))
    assert len(spilled) > 1
    assert [record.payload for record in read_all(store, live)] == numbered


def test_a_failed_step_loses_nothing(open_store: Stores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = open_store()
    publish_to(store, TOPICS, flags=RecordFlag.RETAIN)
    assert begin(store)
    applied = store.index.applied_offset

    def fail(*_: int) -> None:
        raise IndexFailed(store.index.folder, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", fail)
        assert store.tick() is False  # not at once again
    assert store.index.applied_offset == applied
    begin(store)
    publish_to(store, TOPICS, b"2")
    for reopened in (store, open_store(killed(store, tmp_path))):
        assert [payloads(reopened, topic) for topic in TOPICS] == [[b"1", b"2"]] * len(TOPICS)
        assert len(retained_payloads(reopened)) == len(TOPICS)
    steps(store)
    assert store.index.applied_offset == store.end
    assert len(store.retained) == len(TOPICS)


def test_a_dropped_queue_is_not_waited_for(open_store: Stores) -> None:
    store = open_store()
    subscribe(store, "client", ["+/x"])
    publish_to(store, TOPICS)
    change(store, SessionEnded("client"))
    pending = store.queues.dispatcher.pending
    change(store, QueueDropped(["+/x"]))
    assert store.queues.dispatcher.pending == pending - len(TOPICS)
    steps(store)
    assert (store.queues.dispatcher.pending, len(store.queues.dispatcher.missing)) == (0, 0)
    assert store.index.applied_offset == store.end
    assert store.index.get(queue_key(FILTER, b"+/x")) is None


def test_retention_waits_until_the_index_has_what_goes(open_store: Stores) -> None:
    store = open_store(retention_bytes=1)
    publish_to(store, TOPICS, bytes(300), flags=RecordFlag.RETAIN)
    assert len(commit_log(store).segments) > 1
    boundary = commit_log(store).segments[-1].base
    store.upkeep._next_check_s = 0
    end = store.end
    more = begin(store)
    while more:
        assert store.end == end or store.index.applied_offset >= boundary  # nothing is carried before
        more = store.tick()

    def is_dropped() -> bool:
        store.tick()
        return store.log.base > 0

    wait_until(is_dropped)
    assert [len(payload) for payload in retained_payloads(store).values()] == [300] * len(TOPICS)


# --- replaying from the oldest that is missing


def behind(store: MessageStore) -> None:
    """Messages of which the index has but a few, the store's state all the same."""
    assert begin(store)
    assert store.index.applied_offset < store.index.state_offset == store.end


def test_replay_begins_at_the_oldest_that_is_missing(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    publish_to(store, TOPICS)
    behind(store)
    missing = store.index.applied_offset
    publish_to(store, TOPICS[:50], b"2")
    again = open_store(killed(store, tmp_path))
    assert again.replayed_bytes == store.end - missing
    for i, topic in enumerate(TOPICS):
        assert payloads(again, topic) == payloads(again, f"t{i}/#") == ([b"1", b"2"] if i < 50 else [b"1"])


def test_a_filter_gets_no_message_from_before_it_was_held(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    publish_to(store, TOPICS)
    subscribe(store, "client", ["+/x"])
    behind(store)
    again = open_store(killed(store, tmp_path))
    assert payloads(again, "+/x") == []
    open_store.stop(again)
    publish(store, "t7/x", b"2")
    assert payloads(open_store(killed(store, tmp_path)), "+/x") == [b"2"]


def test_a_filter_dropped_and_held_again(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    publish_to(store, TOPICS, b"before")
    subscribe(store, "client", ["+/x"])
    publish(store, "t7/x", b"first")
    change(store, SessionEnded("client"))
    change(store, QueueDropped(["+/x"]))
    publish(store, "t7/x", b"between")
    subscribe(store, "other", ["+/x"])
    publish(store, "t7/x", b"second")
    behind(store)
    again = open_store(killed(store, tmp_path))
    assert payloads(again, "+/x") == [b"second"]
    assert again.queues.held.unheld() == []
    change(again, SessionEnded("other"))
    assert again.queues.held.unheld() == ["+/x"]


def test_a_filter_that_was_dropped_stays_dropped(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    subscribe(store, "client", ["+/x", "t7/+"])
    store.write_index()
    publish_to(store, TOPICS)
    change(store, SessionEnded("client"))
    change(store, QueueDropped(["+/x"]))
    behind(store)
    again = open_store(killed(store, tmp_path))
    assert again.queues.stored("+/x") is None
    assert payloads(again, "t7/+") == [b"1"]
    again.write_index()
    assert [key for key, _ in again.index.scan(queue_key(FILTER, b""), queue_key(FILTER + 1, b""))] == [b"q2t7/+"]


def test_sessions_are_not_taken_back(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    publish_to(store, TOPICS)
    change(store, SessionOpened("gone", True, 60), SessionEnded("gone"))
    change(store, SessionOpened("client", True, 60), Subscribed("client", [SubscriptionState("a", 1)]))
    batch = RecordBatch()
    identifier = encode_attribute(Attribute.PACKET_ID, b"\5\0")
    batch.append(RecordType.MESSAGE, b"2", topic=b"a", client_id=b"client", attributes=identifier, flags=2)
    store.append(batch)
    change(store, Progress("client", store.end, received_done=[5]))
    behind(store)
    again = open_store(killed(store, tmp_path))
    (session,) = again.sessions
    assert session == store.sessions.get("client")
    assert session.received == set()


def test_pointers_that_moved_while_they_waited(open_store: Stores, tmp_path: Path) -> None:
    """Messages that are in no queue, so that nothing but the pointers says where replay has to begin."""
    store = open_store()
    kept = RecordFlag.RETAIN | RecordFlag.LIVE_ONLY
    publish_to(store, TOPICS[:200], b"1", kept)
    publish_to(store, TOPICS[:5], b"2", kept)
    publish_to(store, TOPICS[5:10], b"", kept)
    publish_to(store, TOPICS[200:], b"3", kept)
    expected = retained_payloads(store)
    assert len(expected) == len(TOPICS) - 5
    more = begin(store)
    while more:
        again = open_store(killed(store, tmp_path))
        assert retained_payloads(again) == expected
        assert len(again.retained) == len(expected)
        open_store.stop(again)
        more = store.tick()
    assert len(store.retained) == len(expected)


def test_an_index_whose_sessions_are_ahead_of_the_log_is_built_again(open_store: Stores, tmp_path: Path) -> None:
    """Power fails with flush=async. What it has of the log is there, but not what its sessions stand for."""
    store = open_store()
    publish_to(store, TOPICS)
    cut_at = store.end
    subscribe(store, "client", ["+/x"])
    behind(store)
    assert store.index.applied_offset < cut_at
    data = killed(store, tmp_path)
    with (data / "log" / f"{0:020}.log").open("r+b") as file:
        file.truncate(cut_at)
    again = open_store(data)
    assert (list(again.sessions), again.queues.stored("+/x")) == ([], None)
    assert payloads(again, "t7/x") == [b"1"]


# --- topics of which only the end is in memory


def test_a_topic_becomes_an_object_where_it_stands_among_those_to_be_written(
    open_store: Stores, tmp_path: Path
) -> None:
    store = open_store()
    publish_to(store, TOPICS)
    asked = [store.queues.topic_queue(topic.encode()) for topic in TOPICS[5::3]]
    publish_to(store, TOPICS[::2], b"2")
    assert len(store.queues.dispatcher.topics) == len({*TOPICS[5::3], *TOPICS[::2]})
    assert [queue.oldest_missing for queue in asked] == sorted(queue.oldest_missing for queue in asked)
    expected = {topic: [b"1", b"2"] if i % 2 == 0 else [b"1"] for i, topic in enumerate(TOPICS)}
    more = begin(store)
    for turn in range(10):
        assert more
        assert all(queue.oldest_missing == 0 or queue.oldest_missing >= store.index.applied_offset for queue in asked)
        after_kill = open_store(killed(store, tmp_path / str(turn)))
        assert {topic: payloads(after_kill, topic) for topic in TOPICS} == expected
        more = store.tick()
    assert {topic: payloads(store, topic) for topic in TOPICS} == expected
    steps(store)
    assert {topic: payloads(store, topic) for topic in TOPICS} == expected
    assert len(store.queues.dispatcher.missing) == 0


def test_idle_topics_leave_and_new_filters_count_for_them(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "IDLE_S", 0.0)
    store = open_store()
    publish_to(store, TOPICS * 2)
    watched = store.queues.watch(TOPICS[0])
    steps(store)
    publish(store, "other", b"1")
    steps(store)
    for _ in TOPICS:
        store.queues.evict_idle()
    assert list(store.queues.dispatcher.topics) == [TOPICS[0].encode()]
    before = store.queues.watch("+/x")
    publish_to(store, TOPICS, b"3")
    after = store.queues.watch("t7/+")
    publish_to(store, TOPICS[:10], b"4")
    assert [(queue.next_offset) for queue in (watched, before, after)] == [4, len(TOPICS) + 10, 1]
    assert [payloads(store, topic) for topic in TOPICS[:10]] == [[b"1", b"1", b"3", b"4"]] * 10


def test_more_first_levels_than_ways(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "MOST_WAYS", 7)
    store = open_store()
    for turn in range(5):
        publish_to(store, TOPICS, b"%d" % turn)
        assert len(store.queues.dispatcher.ways) <= 7
        steps(store)
    for topic in TOPICS:
        assert payloads(store, topic) == payloads(store, topic.split("/")[0] + "/#") == [b"%d" % i for i in range(5)]


def test_many_are_written_in_the_order_of_their_ids(open_store: Stores, tmp_path: Path) -> None:
    store = open_store(index_flush_entries=10**6)
    names = [f"t{i}/x" for i in range(1500)]
    publish_to(store, names)
    steps(store)
    shuffled = random.Random(1).sample(names, len(names))
    publish_to(store, shuffled, b"2")
    applied = store.index.applied_offset
    more, turn = begin(store), 0
    while more:
        turn += 1
        publish(store, shuffled[turn], b"meanwhile")
        more = store.tick()
    assert turn > 100
    assert store.index.applied_offset > applied
    expected = {name: [b"1", b"2"] for name in names}
    for name in shuffled[1 : turn + 1]:
        expected[name] = [b"1", b"2", b"meanwhile"]
    for there in (store, open_store(killed(store, tmp_path))):
        assert {name: payloads(there, name) for name in names} == expected
