"""How entries lie in RocksDB: what the compiled code writes and reads, beside docs/formats.md in plain Python."""

import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightqueue.queues._queues import ENTRY_BYTES, PACK_ENTRIES, unpacked
from lightqueue.queues.layout import entry_key
from store.records._records import RecordBatch
from store.records.records import Attribute, Record, RecordType, encode_attribute
from tests.support.plain_numbers import number
from tests.support.stores import Stores, batch_of

Entry = tuple[int, int, int]  # log_offset, size, tag hash
FAST = 0xEF5A4A7916C5F26F  # 64-bit FNV-1a


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data")
    yield stores
    stores.close()


def plain_pack(entries: list[Entry]) -> bytes:
    data = struct.pack("<Q", entries[0][0])
    expected = entries[0][0]
    for log_offset, size, tag in entries:
        data += number((log_offset - expected) // 8 * 2 + (tag != 0)) + number(size // 8)
        data += struct.pack("<Q", tag) if tag else b""
        expected = log_offset + size
    return data


def plain_entries(entries: list[Entry]) -> bytes:
    return b"".join(struct.pack("<QIQ", *entry) for entry in entries)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Entry]:
    at = 8 * draw(st.integers(8, 1 << 58))
    entries = []
    for _ in range(draw(st.integers(1, 40))):
        at += 8 * draw(st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 1 << 30)))
        size = 8 * draw(st.one_of(st.integers(5, 40), st.integers(5, (1 << 29) - 1)))
        entries.append((at, size, draw(st.one_of(st.just(0), st.integers(1, (1 << 64) - 1)))))
        at += size
    return entries


@given(entry_lists())
def test_reads_what_the_page_says(entries: list[Entry]) -> None:
    assert unpacked(plain_pack(entries)) == plain_entries(entries)


@given(entry_lists(), st.data())
def test_a_cut_pack_is_an_error_or_fewer_entries(entries: list[Entry], data: st.DataObject) -> None:
    cut = plain_pack(entries)[: data.draw(st.integers(0, len(plain_pack(entries)) - 1))]
    try:
        found = unpacked(cut)
    except ValueError:
        found = b""
    assert plain_entries(entries).startswith(found)
    assert len(found) < len(entries) * ENTRY_BYTES


@given(st.binary(max_size=200))
def test_anything_at_all_is_entries_or_an_error(data: bytes) -> None:
    with suppress(ValueError):
        assert len(unpacked(data)) % ENTRY_BYTES == 0


def test_more_than_fit_are_an_error() -> None:
    most = [(64 + 48 * i, 48, 0) for i in range(1025)]
    assert len(unpacked(plain_pack(most[:1024]))) == 1024 * ENTRY_BYTES
    with pytest.raises(ValueError, match="not a pack"):
        unpacked(plain_pack(most))


def test_writes_what_the_page_says(open_store: Stores) -> None:
    store = open_store()
    chosen = random.Random(7)
    for _ in range(50):
        batch = RecordBatch()
        for _ in range(chosen.randrange(1, 30)):
            tag = encode_attribute(Attribute.TAG, b"fast") if chosen.random() < 0.5 else b""
            topic = chosen.choice([b"a", b"b"])
            batch.append(RecordType.MESSAGE, bytes(chosen.randrange(3000)), topic=topic, attributes=tag)
        store.append(batch)
    queue = store.queues.stored("a")
    assert queue is not None
    found = store.queues.read(queue, 0, 10_000, 1 << 30)
    records = [Record._make(found[i]) for i in range(len(found))]
    assert len(records) > 300
    entries = [(record.log_offset, stored_size(record), FAST if record.attributes else 0) for record in records]
    store.write_index()
    assert store.index.get(entry_key(queue.id, 0)) == plain_pack(entries)


def stored_size(record: Record) -> int:
    return -(40 + len(record.topic) + len(record.attributes) + len(record.payload)) // 8 * -8


@pytest.mark.catalogue("Q73")
@pytest.mark.parametrize("max_bytes", [1, 20_000, 1 << 20])
def test_a_read_is_bounded_by_bytes_and_messages_and_lower_from_disk(open_store: Stores, max_bytes: int) -> None:
    """Where the index has a queue's entries on disk, one read takes those of a pack at most."""
    store = open_store()
    store.append(batch_of(*(bytes(100) for _ in range(3 * PACK_ENTRIES)), topic=b"a"))
    queue = store.queues.topic_queue(b"a")
    fit = ceil(max_bytes / stored_size(Record._make(store.queues.read(queue, 0, 1, 1)[0])))  # the last one may pass it
    for start in (0, 7):
        from_memory = store.queues.read(queue, start, 2 * PACK_ENTRIES, max_bytes)
        assert (from_memory.first, from_memory.count) == (start, min(2 * PACK_ENTRIES, fit))
    store.write_index()
    assert queue.tail_first_offset == 3 * PACK_ENTRIES
    for start in (0, 7, PACK_ENTRIES, 3 * PACK_ENTRIES - 1):
        from_disk = store.queues.read(queue, start, 2 * PACK_ENTRIES, max_bytes)
        assert (from_disk.first, from_disk.count) == (start, min(PACK_ENTRIES - start % PACK_ENTRIES, fit))
