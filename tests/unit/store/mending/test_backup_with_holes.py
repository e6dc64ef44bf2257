"""A backup that lost a file, or whose copy of the index is damaged: what is intact comes back, the rest is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.message_store import MessageStore
from store.files.segment import segment_paths
from store.mending.backup import backup, read_manifest
from store.mending.restore import restore
from tests.support.injuries import record_at
from tests.support.stores import KEPT_BYTES, Stores, commit_log, fill, flip, publish, read_all, run_upkeep, subscribe
from tests.unit.store.mending.test_backup import command

Ledger = dict[int, bytes]


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES, index_write_buffer_bytes=64 << 10)
    yield stores
    stores.close()


@pytest.fixture
def target(stores: Stores, tmp_path: Path) -> Path:
    """A backup of a log whose beginning retention has dropped."""
    store = stores()
    subscribe(store, "archive", ["#"])
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base > 0
    commit_log(store).flusher.flush_now()
    backup(store.settings.data, tmp_path / "backup")
    return tmp_path / "backup"


def messages(store: MessageStore) -> Ledger:
    queue = store.queues.stored_topic(b"filler")
    records = read_all(store, queue, store.queues.position_of(queue, store.log.first))
    return {record.log_offset: record.payload for record in records}


def damage(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        data = bytearray(path.read_bytes())
        for at in range(20, len(data), 512):
            data[at] ^= 1
        path.write_bytes(data)


BROKEN: dict[str, Callable[[Path], object]] = {
    "tables that do not read back": damage,
    "a table without bytes": lambda folder: max(folder.glob("*.sst")).write_bytes(b""),
    "no manifest": lambda folder: next(folder.glob("MANIFEST-*")).rename(folder / "LOST"),
    "gone": shutil.rmtree,
}


@pytest.mark.parametrize("breaks", BROKEN.values(), ids=BROKEN)
def test_a_damaged_copy_of_the_index(
    stores: Stores, target: Path, tmp_path: Path, breaks: Callable[[Path], object]
) -> None:
    breaks(target / "index-checkpoint-1")
    done = command("restore", target, tmp_path / "new", "--skip-bytes", 0)
    manifest = read_manifest(target)
    assert manifest is not None
    assert done.returncode == 3
    assert "its copy of the index, index-checkpoint-1, does not read back" in done.stderr
    assert f"sessions, groups and queue offsets from before log_offset {manifest.base + 64} are lost" in done.stderr
    assert not (tmp_path / "new" / "index-checkpoint").exists()
    assert check_folder(tmp_path / "new").verdict == CheckResult.LOSS
    store = stores(tmp_path / "new", retention_bytes=None)
    assert len(messages(store)) > 10
    assert commit_log(store).findings == []
    assert restore(target, tmp_path / "again").without_index


def test_a_whole_log_needs_no_copy_of_the_index(stores: Stores, tmp_path: Path) -> None:
    store = stores(retention_bytes=None)
    subscribe(store, "archive", ["#"])
    fill(store, 2)
    commit_log(store).flusher.flush_now()
    backup(store.settings.data, tmp_path / "backup")
    assert command("restore", tmp_path / "backup", tmp_path / "new").returncode == 0
    assert stores(tmp_path / "new").sessions.get("archive") is not None


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("skip_bytes", [0, 1 << 20])
def test_restore_of_a_backup_without_one_segment(
    stores: Stores, target: Path, tmp_path: Path, which: int, skip_bytes: int
) -> None:
    restore(target, tmp_path / "whole")
    ledger = messages(stores(tmp_path / "whole", retention_bytes=None))
    manifest = read_manifest(target)
    assert manifest is not None
    gone = manifest.segments[which]
    (target / "log" / f"{gone.base:020}.log").unlink()
    done = command("restore", target, tmp_path / "new", "--skip-bytes", skip_bytes)
    assert done.returncode == 3
    assert f"the files of log_offset {gone.base} to {gone.end} are missing" in done.stderr
    assert "another backup of this log may have it" in done.stderr
    assert {each.what for each in check_folder(tmp_path / "new").damage} == {"index"}  # the first start builds it
    new = stores(tmp_path / "new", retention_bytes=None)
    found = messages(new)
    assert found == {at: each for at, each in ledger.items() if not gone.base <= at < gone.end}
    assert new.sessions.get("archive") is not None
    assert new.log.lost_bytes["missing"] == gone.end - gone.base - 64
    later = publish(new, "filler", b"later")
    assert later > max(ledger)
    stores.stop(new)
    again = stores(tmp_path / "new", retention_bytes=None)
    assert commit_log(again).findings == []
    assert messages(again) == found | {later: b"later"}


def test_up_to_a_point_that_is_missing(stores: Stores, tmp_path: Path) -> None:
    store = stores(retention_bytes=None)
    fill(store, 3)
    commit_log(store).flusher.flush_now()
    target = tmp_path / "backup"
    gone = backup(store.settings.data, target).manifest.segments[1]
    (target / "log" / f"{gone.base:020}.log").unlink()
    done = restore(target, tmp_path / "to", to=gone.base + 1000)
    assert (done.end, done.lost) == (gone.base, [])
    done = restore(target, tmp_path / "at", at_ms=1 << 50)
    assert (done.end, done.lost) == (store.end, [(gone.base, gone.end)])


def test_a_damaged_segment_has_the_same_exit_code(stores: Stores, target: Path, tmp_path: Path) -> None:
    path = segment_paths(target / "log")[1]
    flip(path, record_at(path, 1) + 60)
    done = command("restore", target, tmp_path / "new")
    assert (done.returncode, "is not whole: damaged at log_offset" in done.stderr) == (3, True)
    store = stores(tmp_path / "new", retention_bytes=None)
    assert store.sessions.get("archive") is not None


def test_a_damaged_checkpoint_does_not_get_into_a_backup(stores: Stores, target: Path, tmp_path: Path) -> None:
    store = stores(tmp_path / "data-2")
    subscribe(store, "archive", ["#"])
    fill(store, 6)
    run_upkeep(store)
    stores.stop(store)
    damage(tmp_path / "data-2" / "index-checkpoint")
    done = command("backup", tmp_path / "data-2", tmp_path / "first")
    assert (done.returncode, "does not read back" in done.stderr, "has none" in done.stderr) == (1, True, True)
    assert command("restore", tmp_path / "first", tmp_path / "new").returncode == 3
    assert "it has no copy of the index" in command("restore", tmp_path / "first", tmp_path / "new-2").stderr


def test_an_intact_copy_of_the_index_stays_with_its_segments(stores: Stores, target: Path, tmp_path: Path) -> None:
    store = stores.newest
    fill(store, 6)
    run_upkeep(store)
    commit_log(store).flusher.flush_now()
    data = store.settings.data
    damage(data / "index-checkpoint")
    done = command("backup", data, target, "--prune")
    assert (done.returncode, "the backup keeps its index-checkpoint-1" in done.stderr) == (1, True)
    assert command("restore", target, tmp_path / "new").returncode == 0
    assert stores(tmp_path / "new", retention_bytes=None).sessions.get("archive") is not None
