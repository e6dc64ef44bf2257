"""A full disk, for real: a small tmpfs. Appends are refused whole, reads go on, and freed room is used again."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.mending.inspect import inspect_folder
from lightqueue.message_store import MessageStore
from store.errors import StoreError, StoreFull
from tests.support.stores import Stores, change, commit_log, payloads, publish, publish_delayed, subscribe, wait_until

DISK_BYTES = 24 << 20
MESSAGE_BYTES = 20_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root (CI has it)")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock-test", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def open_store(disk: Path) -> Iterator[Stores]:
    stores = Stores(disk / "data", segment_bytes=1 << 20, reserve_bytes=64 << 20, index_write_buffer_bytes=128 << 10)
    yield stores
    stores.close()


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def take(disk: Path, leave_bytes: int) -> Path:
    """Somebody else's file that leaves only so much room."""
    path = disk / "somebody-elses"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(disk) - leave_bytes)
    return path


def fill(store: MessageStore, size: int = MESSAGE_BYTES) -> list[bytes]:
    """Publish until the store refuses: what it took."""
    taken: list[bytes] = []
    while True:
        payload = b"%08d" % len(taken) + os.urandom(size)
        end = store.end
        try:
            publish(store, "t/x", payload)
        except StoreError:
            assert store.end == end
            return taken
        taken.append(payload)
        store.tick()


@pytest.mark.parametrize("flush", ["sync", "async", "buffered"])
def test_a_full_disk(open_store: Stores, disk: Path, flush: str) -> None:
    other = take(disk, 16 << 20)
    store = open_store(flush=flush)
    subscribe(store, "client", ["+/x"])
    taken = fill(store)
    assert len(taken) > 300
    with pytest.raises(StoreFull, match=r"no space left on the device; free some or set retention_bytes"):
        publish(store, "t/x", bytes(MESSAGE_BYTES))
    assert free_bytes(disk) > 0.04 * DISK_BYTES  # what is kept for the index
    for topic_filter in ("t/x", "t/#", "+/x"):
        assert payloads(store, topic_filter) == taken
    for _ in range(3):
        store.write_index()
        store.index.flush()
    assert payloads(store, "+/x") == taken

    other.unlink()
    more = fill(store)
    assert len(more) > 50
    assert payloads(store, "+/x") == taken + more

    open_store.stop(store)
    assert inspect_folder(disk / "data")["corruption"] == []
    again = open_store(flush=flush)
    assert payloads(again, "+/x") == taken + more
    assert [session.client_id for session in again.sessions] == ["client"]


def test_a_refused_batch_is_refused_whole(open_store: Stores, disk: Path) -> None:
    take(disk, 10 << 20)
    store = open_store()
    taken = fill(store)
    end = store.end
    for size in (MESSAGE_BYTES, 900_000):
        with pytest.raises(StoreFull):
            publish(store, "t/x", *[bytes(size // 10)] * 10)
    assert store.end == end
    assert payloads(store, "t/x") == taken
    open_store.stop(store)
    assert payloads(open_store(), "t/x") == taken


def test_appends_that_free_room_may_use_the_reserve(open_store: Stores, disk: Path) -> None:
    """Retention has to append what it carries before it can delete anything."""
    take(disk, 8 << 20)
    store = open_store(flush="sync")
    publish(store, "state", b"kept", retain=True)
    taken = fill(store, 50_000)
    assert len(taken) > 20
    open_store.stop(store)
    store = open_store(flush="sync", retention_bytes=2 << 20)
    with pytest.raises(StoreFull):
        publish(store, "t/x", bytes(MESSAGE_BYTES))

    def is_done() -> bool:
        store.tick()
        return store.log.base > 0 and not store.upkeep.busy

    wait_until(is_done)
    at = store.retained.get(b"state")
    assert at is not None
    assert store.record(at).payload == b"kept"
    publish(store, "t/x", bytes(MESSAGE_BYTES))


def test_when_the_index_cannot_be_written(open_store: Stores, disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else takes the last byte, reserve and all: RocksDB fails, and comes back once there is room.

    The log goes on meanwhile, until what the index lacks is too much.
    """
    store = open_store(segment_bytes=4 << 20, index_flush_entries=1_000)
    publish(store, "t/x", b"first")
    other = take(disk, 0)
    taken = [b"first"]
    refused = ""
    while not refused and len(taken) < 20_000:  # the log has set room aside; RocksDB has not
        topic = f"t/{len(taken)}"
        try:
            publish(store, topic, b"%d" % len(taken))
        except StoreError as error:
            refused = str(error)
        else:
            taken.append(b"%d" % len(taken))
        store._next_index_write = 0
        store.tick()
    assert "No space left on device" in refused
    assert store.queues.dispatcher.pending > 1_000
    assert "No space left on device" in str(store.fault())
    assert "it is tried again" in store.health()
    assert payloads(store, "t/#") == taken
    assert payloads(store, "t/7") == [b"7"]
    other.unlink()

    def is_back() -> bool:
        store._next_index_write = 0
        store.tick()
        return store.fault() is None and not store.health()

    wait_until(is_back, timeout_s=20)
    taken.append(b"back")
    publish(store, "t/x", b"back")
    assert payloads(store, "t/#") == taken
    open_store.stop(store)
    again = open_store(segment_bytes=4 << 20)
    assert payloads(again, "t/#") == taken
    assert "No space left on device" in caplog.text


def test_a_store_is_opened_and_closed_on_a_full_disk(open_store: Stores, disk: Path) -> None:
    take(disk, 10 << 20)
    store = open_store()
    taken = fill(store)
    open_store.stop(store)
    (disk / "somebody-elses").unlink()
    take(disk, 64 << 10)
    store = open_store()
    assert payloads(store, "t/x") == taken
    change(store)
    open_store.stop(store)


def test_delayed_messages_wait_for_room(open_store: Stores, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = take(disk, 12 << 20)
    store = open_store()
    due_ms = store.now_ms() + 200
    monkeypatch.setattr(MessageStore, "now_ms", lambda _: due_ms - 1)  # until the disk is full, however long that takes
    publish_delayed(store, "later", b"x" * MESSAGE_BYTES, due_ms=due_ms)
    fill(store)
    fill(store, 1)
    monkeypatch.setattr(MessageStore, "now_ms", lambda _: due_ms)
    store.tick()
    assert payloads(store, "later") == []
    other.unlink()

    def is_dispatched() -> bool:
        store.tick()
        return payloads(store, "later") == [b"x" * MESSAGE_BYTES]

    wait_until(is_dispatched, timeout_s=20)


def test_a_new_store_on_a_full_disk_says_so(open_store: Stores, disk: Path) -> None:
    take(disk, 0)
    with pytest.raises(StoreError, match=r"(?i)no space left on"):
        open_store()


def test_full_disk_is_reported_before_the_allocated_segment_is_full(open_store: Stores, disk: Path) -> None:
    """The active segment has its room; the next one, to which a larger append goes, would not get any."""
    store = open_store(flush="async")
    publish(store, "t/x", bytes(100_000))  # allocates all of the segment, which is 1 MiB
    active = commit_log(store).segments[-1]
    assert active.unallocated(active.limit) == 0
    assert store.fault() is None
    take(disk, 1 << 20)  # the reserve is more than that
    assert isinstance(store.fault(), StoreFull)
    with pytest.raises(StoreFull):
        publish(store, "t/x", bytes(1_000_000))
