"""Damage where the index, or its checkpoint, stood at a kill: a start goes on behind it and serves the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.mending.inspect import inspect_folder
from lightqueue.mending.repairing import repair_folder
from lightqueue.message_store import MessageStore
from store.files.segment import segment_paths
from store.log.index import Index
from store.mending.foresight import foresee
from tests.support.injuries import zero
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    commit_log,
    crash_copy,
    fill,
    publish,
    read_all,
    run_upkeep,
    subscribe,
)

TOPIC = "plant/7"
Injury = Callable[[Path, int], object]  # of a data folder, where the index stood


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", index_write_buffer_bytes=64 << 10)
    yield stores
    stores.close()


def newest(data: Path) -> Path:
    return segment_paths(data / "log")[-1]


INJURIES: dict[str, Injury] = {
    "a zeroed sector": lambda data, at: zero(newest(data), at - int(newest(data).stem) - 512, 1024),
    "the newest segment cut short": lambda data, at: os.truncate(newest(data), at - int(newest(data).stem) - 600),
    "the newest segment deleted": lambda data, at: newest(data).unlink(),
}
INDEXES = ("index", "index-checkpoint")


def publish_some(store: MessageStore, number: int) -> dict[int, bytes]:
    payloads = [b"%06d " % i + bytes((i % 251 + 1,)) * 1000 for i in range(number)]
    return {publish(store, TOPIC, payload): payload for payload in payloads}


def killed(stores: Stores, which: str, to: Path) -> tuple[dict[int, bytes], int]:
    """A folder whose process was killed after a sync; its messages, and where the index stood that a start finds."""
    store = stores(retention_bytes=KEPT_BYTES if which == "index-checkpoint" else None)
    subscribe(store, "archive", ["plant/#"])
    fill(store, 6)
    ledger = publish_some(store, 20)
    if which == "index-checkpoint":
        run_upkeep(store)
        assert store.log.base > 0
    store.write_index()
    store.index.flush()
    ledger |= publish_some(store, 12)
    commit_log(store).flusher.flush_now()
    crash_copy(store.settings.data, to)
    stores.stop(store)
    if which == "index-checkpoint":
        shutil.rmtree(to / "index")
    index = Index(to / which, 1 << 20)
    at = index.applied_offset
    index.close()
    assert int(newest(to).stem) + 1000 < at < max(ledger)
    return ledger, at


def served(store: MessageStore) -> dict[int, bytes]:
    found = read_all(store, store.queues.topic_queue(TOPIC.encode()))
    return {record.log_offset: record.payload for record in found}


@pytest.mark.parametrize("with_repair", [False, True])
@pytest.mark.parametrize("injury", INJURIES.values(), ids=INJURIES)
@pytest.mark.parametrize("which", INDEXES)
def test_a_start_serves_all_that_is_intact(
    stores: Stores, tmp_path: Path, which: str, injury: Injury, with_repair: bool
) -> None:
    ledger, at = killed(stores, which, tmp_path / "killed")
    injury(tmp_path / "killed", at)
    report = check_folder(tmp_path / "killed")
    assert report.verdict == CheckResult.LOSS
    assert {each.what for each in report.damage} == {"log"} | ({"index"} if which == "index-checkpoint" else set())
    foreseen = foresee(tmp_path / "killed" / "log").findings
    if with_repair:
        repaired = repair_folder(tmp_path / "killed")
        assert repaired.is_index_whole
        assert sorted(map(repr, repaired.repaired.findings)) == sorted(map(repr, foreseen))
        assert check_folder(tmp_path / "killed").verdict == CheckResult.INTACT
        assert inspect_folder(tmp_path / "killed")["sessions"][0]["client_id"] == "archive"
    store = stores(tmp_path / "killed")
    if not with_repair:
        assert sorted(map(repr, commit_log(store).findings)) == sorted(map(repr, foreseen))
    lost = [each for each in foreseen if each.is_loss]
    intact = {at: each for at, each in ledger.items() if not any(loss.start <= at < loss.end for loss in lost)}
    assert served(store) == intact
    assert len(intact) < len(ledger)
    state = store.sessions.get("archive")
    assert state is not None
    assert [*state.subscriptions] == ["plant/#"]
    assert state.gap  # what was lost may have been its
    ledger[publish(store, TOPIC, b"later")] = intact[store.log.end - 64] = b"later"
    stores.stop(store)
    again = stores(tmp_path / "killed")
    assert (commit_log(again).findings, again.replayed_bytes) == ([], 0)
    assert [*served(again).values()] == [*intact.values()]
    assert check_folder(tmp_path / "killed").verdict == CheckResult.INTACT


def test_index_built_from_the_checkpoint_has_the_records_after_a_gap(stores: Stores, tmp_path: Path) -> None:
    """`repair --index`, and `inspect`, begin there as a start does."""
    ledger, at = killed(stores, "index-checkpoint", tmp_path / "killed")
    INJURIES["a zeroed sector"](tmp_path / "killed", at)
    repaired = repair_folder(tmp_path / "killed", with_index=True)
    assert repaired.index == "was built again"
    (loss,) = [each for each in repaired.repaired.findings if each.is_loss]
    assert loss.start < at < loss.end
    shown = inspect_folder(tmp_path / "killed")
    (row,) = [row for row in shown["queues"] if (row["name"], row["kind"]) == (TOPIC, "topic")]
    store = stores(tmp_path / "killed")
    assert store.replayed_bytes == 0
    assert served(store) == {at: each for at, each in ledger.items() if not loss.start <= at < loss.end}
    assert store.queues.topic_queue(TOPIC.encode()).next_offset == row["next_queue_offset"]


def test_sessions_in_the_lost_part_of_the_log_are_told_though_the_index_knew_some_of_it(
    stores: Stores, tmp_path: Path
) -> None:
    """The entries of the index end before the gap, what it knows of sessions ends in its middle."""
    store = stores()
    subscribe(store, "archive", ["plant/#"])
    first = publish(store, TOPIC, b"1")
    store.write_index()
    store._state._state_offset = store.end  # as after a step that wrote sessions, and not all entries
    publish(store, TOPIC, b"2" * 600)
    store._state.sessions.stage()
    store.index.write(first, store.end)
    store.index.flush()
    subscribe(store, "other", ["plant/#"])
    behind = publish(store, TOPIC, b"3")
    commit_log(store).flusher.flush_now()
    crash_copy(store.settings.data, tmp_path / "killed")
    zero(newest(tmp_path / "killed"), first + 72, behind - first - 72)
    again = stores(tmp_path / "killed")
    assert [*served(again)] == [first, behind]
    state = again.sessions.get("archive")
    assert state is not None
    assert state.gap


def test_an_index_that_stands_in_the_middle_of_a_message_is_of_another_log(stores: Stores, tmp_path: Path) -> None:
    ledger, at = killed(stores, "index", tmp_path / "killed")
    index = Index(tmp_path / "killed" / "index", 1 << 20)
    index.write(at + 8, at + 8)
    index.flush()
    index.close()
    (damage,) = check_folder(tmp_path / "killed").damage
    assert (damage.what, damage.verdict) == ("index", CheckResult.MENDS_ITSELF)
    assert damage.reason == f"stands at log_offset {at + 8}, in the middle of a record"
    store = stores(tmp_path / "killed")
    assert served(store) == ledger
    assert store.sessions.get("archive") is not None
