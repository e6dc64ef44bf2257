"""Readers of the log for which retention waits: how far, and what happens to one that is too far behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.mending.inspect import inspect_folder
from lightqueue.message_store import MessageStore
from notify.local import log_readers
from notify.local.hub import Hub
from notify.local.log_readers import REMEMBERED_S, LogReaders, NotHeld
from store.audit import Audit, AuditEvent
from store.errors import ReaderTooFarBehind, StoreFull
from store.state.changes import WhenBehind
from store.state.log_readers import MOST_READERS
from store.wire.log_messages import HoldLog
from tests.support.stores import KEPT_BYTES, SEGMENT_BYTES, Stores, commit_log, crash_copy, fill, publish, run_upkeep

FAR = 1 << 30


class Notes:
    """An audit log's sink that keeps the reasons of what is said of readers."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.lost = 0

    def take(self, window: object) -> None:
        assert isinstance(window, dict)
        self.reasons += [key.reason for key in window if key.event is AuditEvent.READER]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", retention_bytes=KEPT_BYTES)
    yield stores
    stores.close()


def readers_of(store: MessageStore) -> LogReaders:
    return LogReaders(store, Audit())


def hold(store: MessageStore, log_offset: int | None, most: int = FAR, when: WhenBehind = "drop") -> None:
    """A reader called `r` says how far it is, once that is on the disk."""
    store.log.commit()
    for _ in store.log.synced(store.log.end):
        pass
    readers_of(store).hold(HoldLog("r", log_offset, most, when))


def bases(store: MessageStore) -> list[int]:
    return [part.base for part in store.log.parts()]


# --- retention waits


def test_retention_waits_for_a_reader(open_store: Stores) -> None:
    store = open_store()
    hold(store, None)
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base == 0
    third = bases(store)[2]
    hold(store, third + 100)  # in the middle of the third file
    run_upkeep(store)
    assert store.log.base == third
    readers_of(store).forget("r", "a test")
    run_upkeep(store)
    assert store.end - store.log.base <= KEPT_BYTES


def test_retention_waits_for_a_reader_after_a_restart_or_a_kill(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    hold(store, None)
    fill(store, 5)
    second = bases(store)[1]
    hold(store, second)
    store.log.commit()
    killed = open_store(crash_copy(tmp_path / "data", tmp_path / "killed"))
    run_upkeep(killed)
    assert killed.log.base == second
    open_store.stop(store)
    store = open_store()
    run_upkeep(store)
    assert store.log.base == second
    run_upkeep(killed)  # the record that says so is in a file that has gone by now, the checkpoint has it
    fill(killed, 4)
    run_upkeep(killed)
    assert killed.log.base == second


def test_without_a_setting_the_log_stays_and_nobody_is_refused(open_store: Stores) -> None:
    """As while the whole of a long log is read for the first time."""
    store = open_store(retention_bytes=None)
    hold(store, None, most=1, when="refuse")
    fill(store, 4)
    run_upkeep(store)
    assert store.log.base == 0
    publish(store, "t", b"x")


# --- who is too far behind


def test_reader_too_far_behind_loses_messages_and_is_told(open_store: Stores) -> None:
    store = open_store()
    hold(store, None, most=4 * SEGMENT_BYTES)
    fill(store, 3)
    run_upkeep(store)
    assert store.log.base == 0
    fill(store, 4)
    run_upkeep(store)
    base = store.log.base
    assert base > 0
    assert store.end - base <= KEPT_BYTES
    readers = readers_of(store)
    held = readers.hold(HoldLog("r", None, 4 * SEGMENT_BYTES))
    assert (held.log_offset, held.log_base, held.lost_bytes) == (0, base, base)
    fill(store, 2)
    run_upkeep(store)
    assert store.log_readers.get("r") is not None
    assert store.log_readers.lost() == {"r": store.log.base}  # nothing is counted twice
    hold(store, store.log.base, most=4 * SEGMENT_BYTES)
    lost = store.log.base
    fill(store, 1)
    run_upkeep(store)
    assert store.log_readers.lost() == {"r": lost}


def test_losses_are_in_the_audit_log_once(open_store: Stores) -> None:
    store, notes = open_store(), Notes()
    audit = Audit(notes)
    hub = Hub(store, audit=audit)
    hub.readers.hold(HoldLog("r", None, 1))
    fill(store, 5)
    run_upkeep(store)
    for _ in range(3):
        hub.tick()
    audit.close()
    assert notes.reasons == ["r holds the log from log_offset 0 on", f"r lost {store.log.base} bytes of the log"]
    open_store.stop(store)
    again = Hub(open_store(), audit=audit)  # a start tells nothing anew
    again.tick()
    audit.close()
    assert len(notes.reasons) == 2


def test_messages_are_refused_for_one_that_may_lose_nothing(open_store: Stores) -> None:
    store = open_store()
    hold(store, None, most=SEGMENT_BYTES, when="refuse")
    fill(store, 5)
    run_upkeep(store)
    assert store.log.base == 0
    with pytest.raises(ReaderTooFarBehind, match="forget-reader r"):
        publish(store, "t", b"refused")
    assert isinstance(store.fault(), StoreFull)  # so clients are told as for a full disk
    hold(store, bases(store)[-1])  # the reader's own word is taken
    run_upkeep(store)
    assert store.fault() is None
    publish(store, "t", b"taken")
    assert store.log.base > 0


def test_the_store_says_how_far_at_most(open_store: Stores) -> None:
    """Whatever a reader asks for: the disk is the operator's."""
    store = open_store(most_behind_bytes=2 * SEGMENT_BYTES)
    hold(store, None, most=FAR)
    fill(store, 6)
    run_upkeep(store)
    assert store.log.base > 0


def test_a_full_disk_ends_the_waiting(open_store: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    hold(store, None)
    fill(store, 5)
    log = commit_log(store)
    run_upkeep(store)
    assert log.base == 0
    monkeypatch.setattr(type(log), "fault", lambda _: StoreFull(log.folder))
    run_upkeep(store)
    assert log.base > 0


# --- what a reader may say


def test_reader_position_is_not_ahead_of_the_disk(open_store: Stores) -> None:
    """A loss of power would put other records in the place of those that it has read."""
    store = open_store()
    readers = readers_of(store)
    publish(store, "t", b"x")
    with pytest.raises(NotHeld, match="not on the disk yet"):
        readers.hold(HoldLog("r", store.end + 1))
    assert list(readers) == []


def test_there_are_so_many_and_the_same_word_is_stored_once(
    open_store: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_readers, "MOST_READERS", 2)
    store = open_store()
    readers = readers_of(store)
    readers.hold(HoldLog("a"))
    readers.hold(HoldLog("b"))
    end = store.end
    readers.hold(HoldLog("b"))
    assert store.end == end
    with pytest.raises(NotHeld, match="2 readers hold the log already"):
        readers.hold(HoldLog("c"))
    assert readers.forget("a", "a test")
    assert not readers.forget("a", "a test")
    readers.hold(HoldLog("c"))
    assert [name for name, _ in readers] == ["b", "c"]


def test_readers_without_a_hold_are_listed_for_a_while(open_store: Stores) -> None:
    now_s = 0.0
    store = open_store()
    readers = LogReaders(store, Audit(), lambda: now_s)
    for i in range(MOST_READERS + 5):
        readers.note(f"r{i}", i)
    readers.note("r7", 100)
    assert len(list(readers)) == MOST_READERS
    now_s = REMEMBERED_S - 1
    readers.note("r50", 1)
    now_s += 2
    assert list(readers) == [("r50", 1)]
    readers.hold(HoldLog("r50"))
    assert list(readers) == [("r50", 0)]
    assert [(info.name, info.holds) for info in readers.infos()] == [("r50", True)]


def test_inspect_lists_them(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    readers_of(store).hold(HoldLog("tier", None, 0, "refuse"))
    end = store.end
    open_store.stop(store)
    assert inspect_folder(tmp_path / "data")["readers"] == [
        {"name": "tier", "log_offset": 0, "behind_bytes": end, "when_behind": "refuse", "lost_bytes": 0}
    ]
