"""Reading the messages with one tag: an entry's hash says where to look, and the message itself whether it is one."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues.layout import pack_count, packs_from
from lightqueue.reading import replay
from lightqueue.reading.replay import ScanQuery, scan
from store.records._records import RecordBatch
from store.records.compression import compressed
from store.records.records import Attribute, RecordFlag, RecordType, encode_attribute, read_records
from store.topics import matches
from tests.support.stores import Stores, fill, run_upkeep

# Two texts with the same 64-bit FNV-1a.
ONE, OTHER = b"8yn0iYCKYHlIj4-BwPqk", b"GReLUrM4wMqfg9yzV3KQ"
TAGS = (b"", b"", b"C", b"F", ONE, OTHER)
FILTERS = ("t/1", "t/#", "t/+", "+/1", "#")
END = 2**63 - 1

Published = tuple[int, str, bytes]  # log_offset, topic, tag


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", segment_bytes=512 << 10)
    yield stores
    stores.close()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one reading takes many scans."""
    monkeypatch.setattr(replay, "MOST_ENTRIES", 50)
    monkeypatch.setattr(replay, "ROUND_BYTES", 4 << 10)
    monkeypatch.setattr(replay, "LOG_BYTES", 16 << 10)


def publish(store: MessageStore, rng: random.Random, count: int) -> list[Published]:
    """That many messages, some of them in batches, with tags at random."""
    published: list[Published] = []
    while len(published) < count:
        batch = RecordBatch()
        written: list[tuple[int, str, bytes]] = []
        for _ in range(rng.choice((1, 1, 30))):
            topic, tag = f"t/{rng.randrange(3)}", rng.choice(TAGS)
            key = encode_attribute(Attribute.KEY, b"k") if rng.random() < 0.5 else b""
            attributes = key + (encode_attribute(Attribute.TAG, tag) if tag else b"")
            written.append((batch.size, topic, tag))
            payload = rng.randbytes(rng.randrange(300))
            batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), attributes=attributes, flags=1)
        start = store.append(batch)
        published += [(start + at, topic, tag) for at, topic, tag in written]
    return published


def found(store: MessageStore, topic_filter: str, tag: bytes, start: int = 0, stop: int = END) -> list[int]:
    log_offsets: list[int] = []
    start = max(start, store.log.first)
    while start < min(stop, store.end):
        answer = scan(store, ScanQuery(topic_filter, start, stop, tag), 3_000, 1 << 20)
        log_offsets += [record.log_offset for record in read_records(memoryview(answer.records))]
        assert answer.queue_offset == -1
        assert answer.next > start
        start = answer.next
    return log_offsets


def expected(published: list[Published], topic_filter: str, tag: bytes, start: int = 0, stop: int = END) -> list[int]:
    return [
        log_offset
        for log_offset, topic, each in published
        if each == tag and matches(topic_filter, topic) and start <= log_offset < stop
    ]


def test_reading_by_tag_gives_all_matching_messages_and_no_others(stores: Stores) -> None:
    store = stores()
    rng = random.Random(8)
    published: list[Published] = []
    for _ in range(3):
        published += publish(store, rng, 400)
        store.write_index()
    published += publish(store, rng, 400)  # these are in memory alone
    middle, late = published[500][0], published[1_400][0]
    for _ in range(2):
        for topic_filter in FILTERS:
            for tag in (b"C", ONE, OTHER, b"nobody's"):
                assert found(store, topic_filter, tag) == expected(published, topic_filter, tag)
                bounds = (middle, late)
                assert found(store, topic_filter, tag, *bounds) == expected(published, topic_filter, tag, *bounds)
        stores.stop(store)
        store = stores()
    assert expected(published, "t/1", ONE)
    assert found(store, "unknown/topic", b"C") == []


def test_reading_by_tag_skips_messages_that_retention_dropped(tmp_path: Path) -> None:
    stores = Stores(tmp_path / "small", segment_bytes=256 << 10, retention_bytes=512 << 10)
    store = stores()
    rng = random.Random(9)
    published = publish(store, rng, 2_000)
    store.write_index()
    fill(store, 1)
    published += publish(store, rng, 500)
    run_upkeep(store)
    kept = [each for each in published if each[0] >= store.log.first]
    assert 0 < len(kept) < len(published)
    for topic_filter in FILTERS:
        assert found(store, topic_filter, b"C") == expected(kept, topic_filter, b"C")
    stores.close()


def test_messages_that_are_in_no_queue_are_not_found(stores: Stores) -> None:
    store = stores()
    batch = RecordBatch()
    tag = encode_attribute(Attribute.TAG, b"C")
    for flags in (1, 1 | RecordFlag.LIVE_ONLY):
        batch.append(RecordType.MESSAGE, b"x", topic=b"t/1", attributes=tag, flags=int(flags))
    start = store.append(batch)
    for topic_filter in FILTERS:
        assert found(store, topic_filter, b"C") == [start]


@pytest.mark.catalogue("D13")
@pytest.mark.parametrize("written", ["after each batch", "after both", "not at all"])
def test_a_batch_lies_under_one_key_of_the_index_and_each_of_its_messages_is_found(
    stores: Stores, written: str
) -> None:
    """ADR 17: what one entry for a batch would be for. Whenever the index is written, no batch is split by it."""
    store = stores()
    frame = compressed(bytes(10_000), 3)
    places: list[int] = []
    for size in (3, 2):
        batch = RecordBatch()
        batch.begin_atomic()
        for number in range(size):
            places.append(store.end + batch.size)
            flags = RecordFlag.COMPRESSED | 1 if number else 1
            batch.append(RecordType.MESSAGE, frame if number else b"x", topic=b"t/1", flags=int(flags))
        batch.end_atomic()
        store.append(batch)
        if written == "after each batch":
            store.write_index()
    if written == "after both":
        store.write_index()
    queue = store.queues.stored("t/1")
    assert queue is not None
    packs = packs_from(store.index, queue.id, 0)
    keys = {"after each batch": [(0, 3), (3, 2)], "after both": [(0, 5)], "not at all": []}
    assert [(first, pack_count(pack)) for first, pack in packs] == keys[written]
    assert [store.queues.log_offset_at(queue, number) for number in range(5)] == places
    assert [replay.queue_offset_of(store, "t/1", place) for place in places] == list(range(5))
    assert store.record(places[4]).payload == frame
