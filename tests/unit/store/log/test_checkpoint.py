"""The checkpoint of the index: it can be rebuilt whenever a kill comes, although the beginning of the log is gone."""

import random
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.upkeep import retention, trimming
from store.errors import NotRebuildable
from store.files.folder import DataFolder
from store.log import checkpoint
from store.log.index import Index
from tests.support.store_workload import Workload, state_of
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    commit_log,
    crash_copy,
    fill,
    publish,
    retained_payloads,
    run_upkeep,
    subscribe,
)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    yield stores
    stores.close()


def with_history(store: MessageStore, seed: int = 1) -> None:
    """State of every kind, most of it in segments that are about to go."""
    workload = Workload(seed)
    workload.run(store, 60)
    fill(store, 4)


def test_a_lost_index_is_rebuilt_from_the_checkpoint(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    with_history(store)
    run_upkeep(store)
    assert store.log.base > 0
    publish(store, "later", b"x", retain=True)
    subscribe(store, "late", ["+/late/#"])
    expected = state_of(store)
    open_store.stop(store)
    shutil.rmtree(tmp_path / "data" / "index")
    again = open_store(retention_bytes=None)
    assert again.replayed_bytes > 0
    assert state_of(again) == expected
    run_upkeep(again)
    assert state_of(again) == expected


def test_without_index_and_checkpoint_it_refuses(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    with_history(store)
    run_upkeep(store)
    open_store.stop(store)
    data = tmp_path / "data"
    shutil.rmtree(data / "index")
    (data / "index-checkpoint").rename(data / "elsewhere")
    with pytest.raises(NotRebuildable) as caught:
        open_store(on_damage="refuse")
    assert str(data / "index") in str(caught.value)
    assert "put one of the two back from a copy" in str(caught.value)
    assert not (data / "index").exists()
    (data / "elsewhere").rename(data / "index-checkpoint")
    open_store()


def test_an_index_from_before_the_log_begins_is_not_used(open_store: Stores, tmp_path: Path) -> None:
    """Somebody put an old copy of the index back."""
    store = open_store()
    with_history(store)
    store.write_index()
    store.index.flush()
    checkpoint.copy_flushed(store.index.folder, tmp_path / "old")
    fill(store, 4)
    run_upkeep(store)
    expected = state_of(store)
    open_store.stop(store)
    shutil.rmtree(tmp_path / "data" / "index")
    (tmp_path / "old").rename(tmp_path / "data" / "index")
    assert state_of(open_store()) == expected


def test_a_log_that_is_whole_needs_no_checkpoint(open_store: Stores, tmp_path: Path) -> None:
    store = open_store(retention_bytes=None)
    with_history(store)
    expected = state_of(store)
    open_store.stop(store)
    shutil.rmtree(tmp_path / "data" / "index")
    assert state_of(open_store(retention_bytes=None)) == expected


def test_a_kill_at_every_step(open_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def check_killed(store: MessageStore, to: Path, open_store: Stores) -> None:
    data = crash_copy(store.settings.data, to)
    reopened = open_store(data)
    state = state_of(reopened)
    messages = retained_payloads(reopened)
    first = reopened.log.first  # a start drops what retention was about to
    open_store.stop(reopened)
    assert state == state_of(store, first)
    assert messages == retained_payloads(store)
    shutil.rmtree(data / "index")
    if store.log.base == 0 or (data / "index-checkpoint").exists():
        reopened = open_store(data)
        assert state_of(reopened) == state
        open_store.stop(reopened)
    shutil.rmtree(data)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("kill_after", ["copied", "old renamed", "new renamed"])
def test_a_kill_while_the_checkpoint_is_replaced(
    open_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_after: str, existing: bool
) -> None:
    store = open_store()
    with_history(store)
    if existing:
        run_upkeep(store)
        with_history(store, seed=2)
    data = tmp_path / "data"
    store.write_index()
    store.index.flush()
    checkpoint.write_checkpoint(store.folder)
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


def test_a_copy_while_the_index_changes(tmp_path: Path) -> None:
    """Each copy is whole, and has at least what had been flushed before it was begun."""
    index = Index(tmp_path / "index", 1 << 20)
    number = flushed = at_least = copies = 0
    copying: Future[None] | None = None
    with ThreadPoolExecutor(1) as worker:
        while copies < 10:
            if copying is None:
                at_least = flushed
                copying = worker.submit(checkpoint.copy_flushed, index.folder, tmp_path / "copy")
            number += 1
            index.put(b"k%d" % number, random.randbytes(4_000))
            index.write(number, number)
            if number % 20 == 0:
                index.flush()  # every eighth begins a merge
                flushed = number
            if copying.done():
                copying.result()
                check_copy(tmp_path / "copy", at_least)
                copies += 1
                copying = None
    index.close()


def check_copy(folder: Path, at_least: int) -> None:
    copy = Index(folder, 1 << 20)
    newest = copy.applied_offset
    assert newest >= at_least
    assert [number for number in range(1, newest + 2) if copy.get(b"k%d" % number) is None] == [newest + 1]
    copy.close()


def test_an_index_that_changes_all_the_time_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(tmp_path / "index", 1 << 20)
    numbers = iter(range(1, 1_000))
    link = Path.hardlink_to

    def link_and_change(path: Path, target: Path) -> None:
        link(path, target)
        flush_one(index, next(numbers))

    flush_one(index, next(numbers))
    monkeypatch.setattr(Path, "hardlink_to", link_and_change)
    monkeypatch.setattr(checkpoint, "LINK_ATTEMPTS", 5)
    with pytest.raises(OSError, match="it changed 5 times"):
        checkpoint.copy_flushed(index.folder, tmp_path / "copy")
    index.close()


def flush_one(index: Index, number: int) -> None:
    index.put(b"k%d" % number, b"x")
    index.write(number, number)
    index.flush()


def test_the_checkpoint_waits_until_the_log_is_on_disk(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else power could fail with a checkpoint that is ahead of the log."""
    store = open_store(flush_interval_ms=10**6, flush_deadline_ms=10**6)
    with_history(store)
    published: list[tuple[int, int]] = []

    def publish_checked(folder: DataFolder) -> None:
        published.append((commit_log(store).flusher.flushed, store.index.applied_offset))
        checkpoint.publish_checkpoint(folder)

    monkeypatch.setattr(retention, "publish_checkpoint", publish_checked)
    run_upkeep(store)
    ((flushed, applied),) = published
    assert flushed >= applied > store.log.base > 0
