"""A hole behind the confirmed end after a power cut: under `sync` nothing behind it was acknowledged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lightqueue.mending.inspect import inspect_folder
from lightqueue.message_store import MessageStore
from store.files.segment import segment_paths
from store.log.commitlog import CommitLog
from store.mending.foresight import foresee
from store.recovery.running import RUNNING, boot_id
from tests.support.injuries import zero
from tests.support.kills import Killed, kill_at
from tests.support.stores import Stores, commit_log, crash_copy, fill, publish, read_all, small, subscribe

NEVER_MS = 1_000_000
OTHER_BOOT = "another-boot"


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", flush_interval_ms=NEVER_MS, flush_deadline_ms=NEVER_MS)
    yield stores
    stores.close()


def numbers(store: MessageStore) -> list[int]:
    return [int(record.payload.strip(b"\0")) for record in read_all(store, store.queues.topic_queue(b"t"))]


def ends_at(store: MessageStore) -> int:
    """Where the log ends; a new segment may begin there."""
    active = commit_log(store).segments[-1]
    return active.base if store.log.end == active.first else store.log.end


def with_a_hole(stores: Stores, to: Path, running: str, segments_behind: int = 0) -> int:
    """A folder with messages 0 to 9 confirmed, 10 to 19 not, of which 13 is lost; where that was."""
    store = stores()
    subscribe(store, "archive", ["#"])
    places = [publish(store, "t", b"%d" % number + bytes(600)) for number in range(10)]
    commit_log(store).flusher.flush_now()
    if segments_behind:  # nothing more is confirmed
        commit_log(store).flusher.rolled = lambda *_: None  # type: ignore[method-assign]
    places += [publish(store, "t", b"%d" % number + bytes(600)) for number in range(10, 20)]
    fill(store, segments_behind)
    crash_copy(store.settings.data, to)
    zero(segment_paths(to / "log")[0], places[13], 512)
    (to / "log" / RUNNING).write_text(running + "\n")
    return places[13]


@pytest.mark.parametrize("segments_behind", [0, 2])
@pytest.mark.parametrize(
    ("running", "kind"),
    [(f"{OTHER_BOOT} sync", "torn"), (f"{OTHER_BOOT} async", "unconfirmed"), (f"{boot_id()} sync", "unconfirmed")],
    ids=["sync", "async", "a kill"],
)
def test_records_after_a_hole_at_a_power_cut_under_sync(
    stores: Stores, tmp_path: Path, running: str, kind: str, segments_behind: int
) -> None:
    hole = with_a_hole(stores, tmp_path / "cut", running, segments_behind)
    foreseen = foresee(tmp_path / "cut" / "log").findings
    shown = inspect_folder(tmp_path / "cut")
    store = stores(tmp_path / "cut", flush="sync")
    assert sorted(map(repr, commit_log(store).findings)) == sorted(map(repr, foreseen))
    assert {finding.kind for finding in foreseen} == {kind}
    assert len(foreseen) == 1 + segments_behind
    assert numbers(store) == [*range(13)]
    state = store.sessions.get("archive")
    assert state is not None
    if kind == "torn":
        assert (ends_at(store), state.gap) == (hole, 0)
        assert store.log.lost_bytes == {"damaged": 0, "missing": 0, "unconfirmed": 0}
        assert (shown["end_log_offset"], shown["corruption"]) == (hole, [])
        assert store.health() == ""
    else:
        assert state.gap == hole
    publish(store, "t", b"13")
    stores.stop(store)
    again = stores(tmp_path / "cut")
    assert (numbers(again), commit_log(again).findings) == ([*range(14)], [])


def test_damage_in_front_of_the_confirmed_end_is_a_loss_all_the_same(stores: Stores, tmp_path: Path) -> None:
    with_a_hole(stores, tmp_path / "cut", f"{OTHER_BOOT} sync", 1)
    segment = segment_paths(tmp_path / "cut" / "log")[0]
    zero(segment, 2048, 512)
    foreseen = foresee(tmp_path / "cut" / "log").findings
    store = stores(tmp_path / "cut")
    assert sorted(map(repr, commit_log(store).findings)) == sorted(map(repr, foreseen))
    assert sorted(finding.kind for finding in foreseen) == ["damaged", "torn", "torn"]
    lost = {*range(13)} - {*numbers(store)}
    assert 0 < len(lost) < 3


def test_a_kill_at_every_step_of_the_start(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hole = with_a_hole(stores, tmp_path / "cut", f"{OTHER_BOOT} sync", 2)
    step, log = 0, None
    while log is None:
        copy = tmp_path / f"copy-{step}"
        shutil.copytree(tmp_path / "cut", copy)
        with monkeypatch.context() as patched:
            kill_at(patched, step)
            with suppress(Killed):
                log = CommitLog(copy / "log", small(copy), quarantine=copy / "quarantine")
        if log is not None:
            log.close()
        store = stores(copy)
        assert numbers(store) == [*range(13)], step
        assert {finding.kind for finding in commit_log(store).quarantine.findings()} == {"torn"}, step
        assert ends_at(store) == hole, step
        stores.stop(store)
        shutil.rmtree(copy)
        step += 1
    assert step > 10
