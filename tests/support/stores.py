"""Small stores for tests: settings, batches, and copies that look as if the process had been killed."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightqueue.message_store import MessageStore
from lightqueue.queues._queues import Queue
from lightqueue.queues.keys import PART_BITS
from store.errors import IndexBusy
from store.files.segment import HEADER_BYTES
from store.log.commitlog import CommitLog
from store.records._records import LogMemory, RecordBatch, verify
from store.records.records import Attribute, Record, RecordFlag, RecordType, encode_attribute, read_records
from store.settings import StoreSettings
from store.state.changes import Change, SessionOpened, Subscribed, SubscriptionState, encode_change

SOCKETS = shutil.ignore_patterns("*.sock")
"""What a copy of a data folder leaves out."""

SEGMENT_BYTES = 64 << 10
KEPT_BYTES = 2 * SEGMENT_BYTES


def small(data: Path, **changes: Any) -> StoreSettings:
    """Settings with small segments, for a file system of any size."""
    defaults: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "flush": "async", "reserve_bytes": 0}
    return StoreSettings(data=data, **(defaults | changes))


class Stores:
    """Opens stores, by default on one folder; whatever is still open at the end is closed by close()."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self._data = data
        self._settings = settings
        self._open: list[MessageStore] = []

    def __call__(self, data: Path | None = None, **settings: Any) -> MessageStore:
        self._open.append(MessageStore(small(data or self._data, **(self._settings | settings))))
        return self._open[-1]

    @property
    def newest(self) -> MessageStore:
        return self._open[-1]

    def stop(self, store: MessageStore) -> None:
        self._open.remove(store)
        store.close()

    def close(self) -> None:
        for store in list(self._open):
            self.stop(store)


def commit_log(store: MessageStore) -> CommitLog:
    """The log of a store, with what a CommitLog alone has."""
    assert isinstance(store.log, CommitLog)
    return store.log


def fill(store: MessageStore, segments: int, topic: str = "filler") -> None:
    """Publish until the log has so many segments more."""
    wanted = len(commit_log(store).segments) + segments
    number = 0
    while len(commit_log(store).segments) < wanted:
        publish(store, topic, b"%07d" % number + bytes(5000))
        number += 1


def run_upkeep(store: MessageStore) -> None:
    """Let a check come due, and go on until everything that follows from it is done and in the index."""
    store.upkeep._next_check_s = 0
    store.tick()

    def is_done() -> bool:
        store.tick()
        return not store.upkeep.busy

    wait_until(is_done)
    store.write_index()


def write_step(store: MessageStore, until: int) -> bool:
    """Take a step of the index as a tick does, and again while RocksDB merges. True if it was the last one."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return store._state.write_some(until)
        except IndexBusy:
            assert time.monotonic() < deadline, "RocksDB takes nothing more"
            time.sleep(0.001)


def batch_of(*payloads: bytes, topic: bytes = b"t", flags: int = 0) -> RecordBatch:
    """One MESSAGE record for each payload."""
    batch = RecordBatch()
    for payload in payloads:
        batch.append(RecordType.MESSAGE, payload, topic=topic, flags=flags)
    return batch


def publish(store: MessageStore, topic: str, *payloads: bytes, retain: bool = False, properties: bytes = b"") -> int:
    """Store messages to one topic; the log_offset of the first."""
    batch = RecordBatch()
    flags = (RecordFlag.RETAIN if retain else 0) | (RecordFlag.EXPIRES if properties[:1] == b"\2" else 0)
    for payload in payloads:
        batch.append(RecordType.MESSAGE, payload, topic=topic.encode(), properties=properties, flags=flags)
    return store.append(batch)


def publish_delayed(
    store: MessageStore,
    topic: str,
    *payloads: bytes,
    due_ms: int,
    flags: int = 0,
    properties: bytes = b"",
    client_id: bytes = b"",
    attributes: bytes = b"",
) -> int:
    """Store messages that are due at a Unix time; the log_offset of the first."""
    batch = RecordBatch()
    attributes += encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))
    if properties[:1] == b"\2":
        flags |= RecordFlag.EXPIRES
    for payload in payloads:
        batch.append(
            RecordType.MESSAGE,
            payload,
            topic=topic.encode(),
            client_id=client_id,
            attributes=attributes,
            properties=properties,
            flags=flags | RecordFlag.DELAYED,
        )
    return store.append(batch)


def change(store: MessageStore, *changes: Change) -> int:
    batch = RecordBatch()
    for item in changes:
        record_type, payload = encode_change(item)
        batch.append(record_type, payload)
    return store.append(batch)


def read_all(store: MessageStore, queue: Queue, start: int = 0, at_once: int = 1_000_000) -> list[Record]:
    """Everything in a queue from queue_offset `start` on."""
    found: list[Record] = []
    while start < queue.next_offset:
        records = store.read(queue, start, at_once, 1 << 30)
        found += [Record._make(records[i]) for i in range(records.count)]
        assert records.next > start
        start = records.next
    return found


def payloads(store: MessageStore, topic_filter: str, start: int = 0) -> list[bytes]:
    """What the stored queue of a filter holds."""
    queue = store.queues.stored(topic_filter)
    assert queue is not None
    return [record.payload for record in read_all(store, queue, start)]


def retained_payloads(store: MessageStore) -> dict[bytes, bytes]:
    """Topic → payload of every retained message."""
    return {topic: store.record(at).payload for topic, at in store.retained.below(b"")}


def crash_copy(data: Path, to: Path) -> Path:
    """A copy of a folder in use, as a kill at this moment would leave it."""
    while True:
        shutil.rmtree(to, ignore_errors=True)
        try:
            before = _listing(data)
            shutil.copytree(data, to, ignore=SOCKETS)
            if _listing(data) == before:
                return to
        except (shutil.Error, FileNotFoundError):
            continue  # RocksDB deleted a file meanwhile


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    """Every file but RocksDB's own log, which it writes at any time."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            if name != "LOG":
                status = os.stat(os.path.join(parent, name))
                found.append((os.path.join(parent, name), status.st_size, status.st_mtime_ns))
    return sorted(found)


def indexed_keys(store: MessageStore) -> list[tuple[int, int]]:
    """(log_offset, hash) of each message with a key that is kept, as RocksDB has them."""
    found = []
    for prefix, following in ((b"k", b"l"), (b"l", b"m")):
        for key, items in store.index.scan(prefix, following):
            first = int.from_bytes(key[1:9], "big")
            start = (first if prefix == b"k" else first >> PART_BITS) << PART_BITS
            for at in range(0, len(items), 8):
                item = int.from_bytes(items[at : at + 8], "little")
                found.append((start + (item & 0xFFFFFFFF), item >> 32))
    assert len(found) == len(set(found))
    return sorted(each for each in found if each[0] >= store.log.first)


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes((byte[0] ^ 0x55,)))


def put_another_record(segment: Path) -> None:
    """Put another valid record in the place of a message of a sealed segment."""
    base = int(segment.stem)
    data = memoryview(segment.read_bytes())[HEADER_BYTES:]
    record = list(read_records(data[: verify(data, base + HEADER_BYTES)[0]]))[3]
    fd = os.open(segment, os.O_RDWR)
    try:
        other = batch_of(b"x" * len(record.payload), topic=record.topic)
        LogMemory(1).write_batch(other, fd, record.log_offset, record.timestamp_ms, base)
    finally:
        os.close(fd)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.001)


def subscribe(store: MessageStore, client_id: str, topic_filters: list[str], expiry_s: int = 3600) -> None:
    """Open a durable session that subscribes at QoS 1."""
    subscriptions = [SubscriptionState(topic_filter, 1) for topic_filter in topic_filters]
    change(store, SessionOpened(client_id, True, expiry_s), Subscribed(client_id, subscriptions))
