"""Injuries to the index: it is built again by itself, from the log or from its checkpoint, to the same state."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.message_store import MessageStore
from store.errors import IndexDamaged, NotRebuildable
from store.files.segment import segment_paths
from store.log.index import FORMAT_KEY, Index
from store.recovery.running import RUNNING, boot_id
from tests.support.store_workload import Workload, state_of
from tests.support.stores import KEPT_BYTES, Stores, commit_log, crash_copy, fill, publish, read_all, run_upkeep


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def open_store(data: Path) -> Iterator[Stores]:
    stores = Stores(data, index_write_buffer_bytes=64 << 10)
    yield stores
    stores.close()


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: (path.stat().st_size, path.name))


def flip_table(index: Path) -> None:
    path = newest(index, "*.sst")
    data = bytearray(path.read_bytes())
    for at in range(20, len(data), 512):
        data[at] ^= 1
    path.write_bytes(data)


def junk(path: Path) -> None:
    path.write_bytes(b"junk\n")


INJURIES: dict[str, Callable[[Path], object]] = {
    "a table's bytes": flip_table,
    "a table gone": lambda index: newest(index, "*.sst").unlink(),
    "a table cut off": lambda index: newest(index, "*.sst").write_bytes(b""),
    "no MANIFEST": lambda index: newest(index, "MANIFEST-*").unlink(),
    "a MANIFEST of junk": lambda index: junk(newest(index, "MANIFEST-*")),
    "no CURRENT": lambda index: (index / "CURRENT").unlink(),
    "a CURRENT of junk": lambda index: junk(index / "CURRENT"),
    "all gone": shutil.rmtree,
}


@pytest.mark.parametrize("injury", INJURIES.values(), ids=INJURIES)
def test_damaged_index_is_built_again_from_the_log(
    open_store: Stores, data: Path, injury: Callable[[Path], object]
) -> None:
    store = open_store()
    Workload(5).run(store, 300)
    expected = state_of(store)
    open_store.stop(store)
    injury(data / "index")
    assert state_of(read_through(open_store)) == expected


@pytest.mark.parametrize("injury", INJURIES.values(), ids=INJURIES)
def test_without_its_beginning_the_log_is_still_served(
    open_store: Stores, data: Path, injury: Callable[[Path], object]
) -> None:
    """Neither the index nor its checkpoint is any good, and retention has dropped the first records."""
    store = open_store(retention_bytes=KEPT_BYTES)
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base > 0
    queue = store.queues.stored_topic(b"filler")
    kept = queue.next_offset - store.queues.position_of(queue, store.log.first)
    open_store.stop(store)
    injury(data / "index")
    if (data / "index-checkpoint").exists():
        injury(data / "index-checkpoint")
    store = read_through(open_store)
    publish(store, "filler", b"new")
    store.write_index()
    queue = store.queues.stored_topic(b"filler")
    records = read_all(store, queue, store.queues.first_offset(queue))
    assert (len(records), records[-1].payload) == (kept + 1, b"new")


@pytest.mark.parametrize("bit", range(2, 8))
def test_a_manifest_with_a_record_of_another_type(open_store: Stores, data: Path, bit: int) -> None:
    """RocksDB reads such a one forever."""
    store = open_store()
    publish(store, "t", b"1")
    open_store.stop(store)
    (manifest,) = (data / "index").glob("MANIFEST-*")
    content = bytearray(manifest.read_bytes())
    second = 7 + int.from_bytes(content[4:6], "little")
    content[second + 6] ^= 1 << bit
    manifest.write_bytes(content)
    assert numbers_of(open_store()) == [b"1"]


def read_through(open_store: Stores) -> MessageStore:
    """An open store whose whole index was read. What turns out to be damaged then is mended by one more start."""
    for _ in range(3):
        store = open_store()
        try:
            for _ in store.index.scan(b"", b"\xff"):
                pass
        except IndexDamaged:
            with pytest.raises(IndexDamaged, match="a restart builds it again"):
                store.tick()
            open_store.stop(store)
            continue
        return store
    raise AssertionError("it does not heal")


def test_an_index_of_another_version_is_no_damage(open_store: Stores, data: Path) -> None:
    """What the log does not have any more is not given up for an upgrade."""
    store = open_store(retention_bytes=KEPT_BYTES)
    fill(store, 6)
    run_upkeep(store)
    open_store.stop(store)
    for name in ("index", "index-checkpoint"):
        index = Index(data / name, 1 << 20)
        index.put(FORMAT_KEY, (2).to_bytes(8, "big"))
        index._db.write(index._batch)
        index.flush()
        index.close()
    with pytest.raises(NotRebuildable):
        open_store()


def numbers(store: MessageStore) -> list[int]:
    return [int(record.payload) for record in read_all(store, store.queues.topic_queue(b"a/b"))]


def test_an_index_that_knows_what_was_put_aside_with_a_segment_behind_it(data: Path, tmp_path: Path) -> None:
    """The log ends in one segment, and another is put aside whole: where that began does not count for the index."""
    copy = tmp_path / "copy"
    stores = Stores(data, flush_interval_ms=1_000_000, flush_deadline_ms=1_000_000)
    store = stores()
    publish(store, "a/b", *(b"%d" % i for i in range(50)))
    commit_log(store).flusher.flush_now()
    lost = publish(store, "a/b", bytes(4_000))
    publish(store, "a/b", *(b"%d" % i for i in range(50, 100)))
    store.write_index()
    store.index.flush()
    commit_log(store).flusher.rolled = lambda active_fd: None  # type: ignore[method-assign]  # nothing more is synced
    fill(store, 1)
    publish(store, "a/b", b"behind it")
    assert commit_log(store).flusher.flushed <= lost
    shutil.copytree(data, copy)
    stores.close()
    segment, following = segment_paths(copy / "log")[-2:]
    with segment.open("r+b") as file:
        file.seek(lost - int(segment.stem))
        file.write(bytes(512))
    stores = Stores(copy)
    store = stores()
    assert {finding.kind for finding in commit_log(store).findings} == {"unconfirmed"}
    assert int(following.stem) in {finding.start for finding in commit_log(store).findings}
    assert numbers(store) == [*range(50)]
    publish(store, "a/b", b"50")
    assert numbers(store) == [*range(51)]
    stores.close()


@pytest.mark.parametrize(("flush", "kind"), [("async", "unsynced"), ("sync", "torn")])
def test_loss_that_only_the_index_knows_is_named(open_store: Stores, tmp_path: Path, flush: str, kind: str) -> None:
    """The log's last message, which no sync had confirmed, became zeros; nothing in the log tells of it."""
    store = open_store(flush="async", flush_interval_ms=10**6, flush_deadline_ms=10**6)
    at = [publish(store, "t", b"%d" % number) for number in range(3)]
    end = store.end
    store.write_index()
    store.index.flush()
    killed = crash_copy(store.settings.data, tmp_path / "killed")
    with segment_paths(killed / "log")[-1].open("r+b") as file:
        file.seek(at[2])
        file.write(bytes(end - at[2]))
    (killed / "log" / RUNNING).write_text(f"{boot_id()} {flush}\n")
    report = check_folder(killed)
    (foreseen,) = [each for each in report.damage if each.what == "log"]
    assert report.verdict == CheckResult.MENDS_ITSELF  # the index is built again
    again = open_store(killed, flush=flush)
    (finding,) = commit_log(again).quarantine.findings()
    assert (foreseen.kind, foreseen.start, foreseen.end) == (finding.kind, finding.start, finding.end)
    assert foreseen.reason.startswith(finding.reason)
    assert (finding.kind, finding.start, finding.end) == (kind, at[2], end)
    assert numbers_of(again) == [b"0", b"1"]
    publish(again, "t", b"later")
    assert numbers_of(again) == [b"0", b"1", b"later"]
    open_store.stop(again)
    assert commit_log(open_store(killed)).quarantine.findings() == [finding]


def numbers_of(store: MessageStore) -> list[bytes]:
    return [record.payload for record in read_all(store, store.queues.topic_queue(b"t"))]
