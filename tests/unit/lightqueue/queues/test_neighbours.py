"""Keys of RocksDB for entries of neighbouring topics: when there are some, finding entries, what trimming leaves."""

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightqueue.message_store import MessageStore
from lightqueue.queues import neighbours, resident, table
from lightqueue.queues._queues import (
    neighbour_entry,
    neighbour_position,
    newest_neighbour,
    packed_neighbours,
    unpacked_neighbours,
)
from lightqueue.queues.neighbours import Neighbours, group_of
from store.errors import IndexFailed
from store.records._records import RecordBatch
from store.records.records import RecordType
from store.state.changes import SessionOpened, encode_change
from tests.support.index_entries import neighbours_keys, stored_entries
from tests.support.plain_numbers import number as plain_number
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    crash_copy,
    fill,
    payloads,
    publish,
    read_all,
    run_upkeep,
    write_step,
)

TOPICS = [f"n/{i}" for i in range(1_300)]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", index_flush_ms=10**6, segment_bytes=256 << 10)
    yield stores
    stores.close()


def publish_to(store: MessageStore, topics: list[str], payload: bytes = b"1") -> int:
    batch = RecordBatch()
    for topic in topics:
        batch.append(RecordType.MESSAGE, payload, topic=topic.encode())
    return store.append(batch)


def rounds(store: MessageStore, count: int, topics: list[str] = TOPICS) -> list[bytes]:
    """So many messages to each topic, each under keys of its own round; their payloads."""
    published = [b"%d" % number for number in range(count)]
    for payload in published:
        publish_to(store, topics, payload)
        store.write_index()
    return published


def own_entries(store: MessageStore, topic: str) -> list[int]:
    """queue_offsets of a queue's entries that are under keys of its own."""
    queue_id = store.queues.topic_queue(topic.encode()).id
    return [
        int.from_bytes(key[9:], "big")
        for key, _ in store.index.scan(b"e", b"f")
        if key[1:9] == queue_id.to_bytes(8, "big")
    ]


# --- when


def test_many_topics_share_keys(open_store: Stores) -> None:
    store = open_store()
    published = rounds(store, 3)
    groups = len(TOPICS) // 64 + 1
    assert neighbours_keys(store.index) == 3 * groups
    assert len(list(store.index.scan(b"e", b"f"))) == 3 * 2  # the first level's
    assert {topic: payloads(store, topic) for topic in TOPICS} == dict.fromkeys(TOPICS, published)
    open_store.stop(store)
    again = open_store()
    assert {topic: payloads(again, topic) for topic in TOPICS} == dict.fromkeys(TOPICS, published)


def test_few_topics_do_not(open_store: Stores) -> None:
    store = open_store()
    rounds(store, 2, TOPICS[:1_000])
    assert neighbours_keys(store.index) == 0


def test_few_of_a_group_do_not(open_store: Stores) -> None:
    store = open_store()
    publish_to(store, [f"n/{i}" for i in range(8_000)])
    store.write_index()
    before = neighbours_keys(store.index)
    publish_to(store, [f"n/{i}" for i in range(0, 8_000, 5)])  # 12 or 13 of 64
    store.write_index()
    assert neighbours_keys(store.index) == before
    publish_to(store, [f"n/{i}" for i in range(0, 8_000, 3)])  # 21 or 22
    store.write_index()
    assert neighbours_keys(store.index) == 2 * before
    assert payloads(store, "n/15") == [b"1"] * 3


def test_a_topic_that_is_an_object_keeps_its_own_keys(open_store: Stores) -> None:
    store = open_store()
    rounds(store, 1)
    busy = store.queues.topic_queue(b"n/700")
    rounds(store, 1)
    assert own_entries(store, "n/700") == [1]
    assert neighbours_keys(store.index) == 2 * (len(TOPICS) // 64 + 1)
    assert busy.next_offset == 2
    assert payloads(store, "n/700") == payloads(store, "n/701") == [b"0", b"0"]


def test_entries_in_turn_under_both_kinds_of_keys(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic comes alone and with others; what is read goes on from one kind of key to the other."""
    monkeypatch.setattr(resident, "IDLE_S", 0.0)
    monkeypatch.setattr(neighbours, "KEYS_LOOKED_AT", 2)
    store = open_store()
    expected: list[bytes] = []
    for number in range(30):
        payload = b"%d" % number
        alone = number % 7 in (1, 2, 5)
        publish_to(store, ["n/700"] if alone else TOPICS, payload)
        store.write_index()
        expected.append(payload)
        if number % 11 == 3:
            store.queues.topic_queue(b"n/700")
        for _ in range(3):
            store.queues.evict_idle()
    own = own_entries(store, "n/700")
    assert 12 < len(own) < 20
    for there in (store, open_store(crash_copy(store.settings.data, store.settings.data.with_name("killed")))):
        queue = there.queues.topic_queue(b"n/700")
        assert queue.next_offset == len(expected)
        offsets = [there.queues.log_offset_at(queue, at) for at in range(len(expected))]
        assert offsets == sorted(set(offsets))
        for start in range(len(expected)):
            assert payloads(there, "n/700", start) == expected[start:]
            assert there.queues.position_of(queue, offsets[start]) == start
            assert there.queues.position_of(queue, offsets[start] + 1) == start + 1
        packs = list(there.queues.stored_entries(queue, 0, len(expected)))
        assert sum(len(pack) // 20 for _, pack in packs) == len(expected)


# --- writing and coming back


def test_a_failed_write_is_done_again(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    rounds(store, 1)

    def fail(*_: int) -> None:
        raise IndexFailed(store.index.folder, "No space left on device")

    publish_to(store, TOPICS, b"1")
    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", fail)
        with pytest.raises(IndexFailed):
            store.write_index()
    store.index._batch.clear()  # as a write that fails leaves it
    store.write_index()
    assert neighbours_keys(store.index) == 2 * (len(TOPICS) // 64 + 1)
    assert len(stored_entries(store.index)) == len(TOPICS) + 1
    assert payloads(store, "n/700") == [b"0", b"1"]


@pytest.mark.slow
def test_a_kill_within_a_group(open_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB has newer entries of a group; those that replay finds missing are older, and get keys of their own."""
    monkeypatch.setattr(table, "STEP_COST", 20)
    monkeypatch.setattr(table, "DIRTY_SHARE", 10**6)
    topics = [f"n/{i}" for i in range(2_000)]
    store = open_store()
    rounds(store, 1, topics)
    for topic in topics[:500:2]:
        store.queues.topic_queue(topic.encode())
    publish_to(store, topics, b"1")
    store.log.commit()
    for kill in range(20):
        keys = neighbours_keys(store.index)
        assert not write_step(store, store.end)
        store.index.flush()
        again = open_store(crash_copy(store.settings.data, tmp_path / f"killed-{kill}"))
        publish_to(again, topics, b"2")
        again.write_index()
        entries = stored_entries(again.index)  # also that groups' keys are in the order of all their entries
        assert len(entries) == len(topics) + 1
        assert neighbours_keys(again.index) > keys
        for topic in topics[:520:7]:
            assert payloads(again, topic) == [b"0", b"1", b"2"]
        open_store.stop(again)


def test_as_many_groups_are_remembered_as_there_is_room_for(open_store: Stores) -> None:
    store = open_store()
    published = rounds(store, 2)
    few = Neighbours(store.index, remembered_topics=300)
    queue_ids = [store.queues.topic_queue(topic.encode()).id for topic in TOPICS]
    for _ in range(2):
        assert {few.end(queue_id)[0] for queue_id in queue_ids} == {len(published)}
        assert len(few._newest) == 5


# --- trimming


def test_trimming_leaves_only_keys_with_kept_entries(open_store: Stores) -> None:
    store = open_store(retention_bytes=KEPT_BYTES)
    rounds(store, 3)
    half = TOPICS[:640]
    publish_to(store, half, b"3")
    store.write_index()  # a window that is not sorted: under keys of their own
    fill(store, 2)
    publish_to(store, half, b"4")
    store.write_index()
    run_upkeep(store)
    assert store.log.first > 0
    kept = [(key, value) for key, value in store.index.scan(b"n", b"o")]
    assert [group_of(key) for key, _ in kept] == list(range(len(TOPICS) // 64 + 1))  # the newest of each
    assert [newest_neighbour(unpacked_neighbours(value)) for _, value in kept] == [0] * len(kept)
    open_store.stop(store)
    again = open_store(retention_bytes=KEPT_BYTES)
    for topic in TOPICS[::50]:
        queue = again.queues.topic_queue(topic.encode())
        is_newer = topic in half
        assert queue.next_offset == (5 if is_newer else 3)
        assert again.queues.first_offset(queue) == (4 if is_newer else 3)
        assert [record.payload for record in read_all(again, queue)] == ([b"4"] if is_newer else [])
    published = rounds(again, 2)
    assert payloads(again, TOPICS[-1]) == published
    run_upkeep(again)
    assert payloads(again, TOPICS[-1]) == published
    assert again.queues.topic_queue(TOPICS[-1].encode()).next_offset == 5


def test_a_value_that_is_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="too short"):
        neighbour_entry(bytes(1_000), 1)
    with pytest.raises(ValueError, match="not as long"):
        newest_neighbour(bytes(1_024) + b"\1" + bytes(7))
    assert neighbour_position(b"", 1) == (0, 0)
    assert neighbour_entry(bytes(1_032), 1) is None


@given(st.data())
def test_a_value_is_stored_short_and_read_whole(data: st.DataObject) -> None:
    """Beside docs/formats.md in plain Python."""
    log_offsets = st.integers(0, (1 << 60) - 1)
    positions = data.draw(st.lists(st.tuples(st.integers(0, (1 << 64) - 1), log_offsets), min_size=64, max_size=64))
    positions = [(end, 8 * place if end else 0) for end, place in positions]
    bits = data.draw(st.integers(0, (1 << 64) - 1))
    tags = st.one_of(st.just(0), st.integers(1, (1 << 64) - 1))
    sizes = st.integers(0, (1 << 29) - 1)
    marks = [(8 * data.draw(sizes), data.draw(tags)) for _ in range(bits.bit_count())]
    whole = b"".join(struct.pack("<QQ", *each) for each in positions) + struct.pack("<Q", bits)
    whole += b"".join(struct.pack("<IQ", *mark) for mark in marks)
    short, previous = b"", 0
    for end, place in positions:
        short += plain_number(end)
        if end:
            step = (place - previous) // 8
            short += plain_number(2 * step if step >= 0 else -2 * step - 1)
            previous = place
    short += struct.pack("<Q", bits)
    for size, tag in marks:
        short += plain_number(size // 8 * 2 + (tag != 0)) + (struct.pack("<Q", tag) if tag else b"")
    assert packed_neighbours(whole) == short
    assert unpacked_neighbours(short) == whole
    with pytest.raises(ValueError, match=r"too short|not as long"):
        unpacked_neighbours(short[: data.draw(st.integers(0, len(short) - 1))])


@given(st.binary(max_size=300))
def test_anything_at_all_is_a_value_or_an_error(data: bytes) -> None:
    with suppress(ValueError):
        assert len(unpacked_neighbours(data)) >= 1_032


def test_neighbours_entries_not_yet_in_rocksdb_are_found(open_store: Stores) -> None:
    """What is not in RocksDB yet is found as well."""
    store = open_store()
    rounds(store, 1)
    publish(store, "n/5", b"1")
    assert payloads(store, "n/5") == [b"0", b"1"]


# --- many


def test_records_of_many_topics_among_others(open_store: Stores) -> None:
    """The pass over records looks up names of those that come next; of whatever kind they are, each gets its own."""
    randomly = random.Random(3)
    store = open_store(segment_bytes=8 << 20)
    topics = [f"m/{i}" for i in range(40_000)]
    expected: dict[str, list[bytes]] = {}
    for at in range(0, len(topics), 5_000):
        publish_to(store, topics[at : at + 5_000], b"first")
    store.write_index()
    for turn in range(200):
        batch = RecordBatch()
        for i in range(randomly.choice((1, 31, 32, 33, 100))):
            topic, payload = topics[randomly.choice((7, randomly.randrange(len(topics))))], b"%d.%d" % (turn, i)
            kind = randomly.randrange(8)
            if kind == 0:
                record_type, change = encode_change(SessionOpened(f"client-{i}", True, 60))
                batch.append(record_type, change)
                continue
            if kind == 1:
                batch.begin_atomic()
            for _ in range(randomly.choice((1, 1, 2))):
                batch.append(RecordType.MESSAGE, payload, topic=topic.encode())
                expected.setdefault(topic, [b"first"]).append(payload)
            if kind == 1:
                batch.end_atomic()
        store.append(batch)
        if turn % 20 == 0:
            store.write_index()
    assert len(store.sessions) > 50
    for topic, published in expected.items():
        assert payloads(store, topic) == published


@pytest.mark.parametrize("remembered", [2_000_000, 2_500])
def test_topics_in_the_order_of_the_last_time_and_in_others(open_store: Stores, remembered: int) -> None:
    """The one that came after a topic is looked at first; with fewer places than topics they take each other's."""
    randomly = random.Random(4)
    store = open_store(remembered_topics=remembered)
    topics = [f"o/{i}" for i in range(4_000)]
    orders = [topics, topics, topics[::-1], topics[2_000:] + topics[:2_000], topics[::2] + topics[1::2]]
    orders += [randomly.sample(topics, len(topics)), topics]
    for number, order in enumerate(orders):
        publish_to(store, order, b"%d" % number)
        store.write_index()
    published = [b"%d" % number for number in range(len(orders))]
    for topic in topics[::13]:
        assert payloads(store, topic) == published
    assert len({store.queues.topic_queue(topic.encode()).id for topic in topics}) == len(topics)
