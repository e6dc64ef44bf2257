"""Backups of a folder in use, segment by segment, and restoring them: whole, up to a point, and after a kill."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.mending.repairing import repair_folder
from lightqueue.message_store import MessageStore
from store.errors import BackupUnusable, FolderUnusable, NotOfThisLog
from store.files.folder import LOG
from store.files.segment import segment_paths
from store.mending.backup import backup, read_manifest
from store.mending.restore import restore
from tests.support.injuries import record_at, segment
from tests.support.kills import Killed, kill_at
from tests.support.server_process import ROOT
from tests.support.store_workload import Workload, state_of
from tests.support.stores import (
    KEPT_BYTES,
    Stores,
    commit_log,
    fill,
    flip,
    publish,
    put_another_record,
    read_all,
    run_upkeep,
    subscribe,
    wait_until,
)

SKIP = 1 << 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def open_store(data: Path) -> Iterator[Stores]:
    stores = Stores(data)
    yield stores
    stores.close()


@pytest.fixture
def without_its_beginning(open_store: Stores) -> MessageStore:
    """A store of whose log retention has dropped the first segments."""
    store = open_store(retention_bytes=KEPT_BYTES)
    fill(store, 3)
    run_upkeep(store)
    return store


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "penstock", "store", *map(str, arguments)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def flushed(store: MessageStore) -> None:
    commit_log(store).flusher.flush_now()


def without_applied(store: MessageStore) -> dict[str, Any]:
    return state_of(store) | {"applied": None}


def messages(store: MessageStore, topic: str) -> list[tuple[int, bytes]]:
    store.write_index()
    records = read_all(store, store.queues.stored_topic(topic.encode()))
    return [(record.log_offset, record.payload) for record in records]


def test_a_folder_in_use_comes_back_as_it_was(open_store: Stores, target: Path, tmp_path: Path) -> None:
    store = open_store()
    Workload(3).run(store, 300)
    flushed(store)
    done = backup(store.settings.data, target)
    end, expected = store.end, without_applied(store)
    publish(store, "since", b"not in it")
    restored = restore(target, tmp_path / "same", skip_bytes=0)
    assert (restored.end, restored.next, restored.damaged) == (end, end, [])
    again = open_store(tmp_path / "same")
    assert without_applied(again) == expected
    assert commit_log(again).findings == []
    assert commit_log(again).marks.identity == restored.identity != commit_log(store).marks.identity
    assert done.copied + done.linked == len(commit_log(store).segments)


def test_no_log_offset_is_used_twice(open_store: Stores, data: Path, target: Path, tmp_path: Path) -> None:
    store = open_store()
    first = publish(store, "t", b"first")
    flushed(store)
    backup(data, target)
    publish(store, "t", b"seen by clients")
    restored = restore(target, tmp_path / "new", skip_bytes=SKIP)
    again = open_store(tmp_path / "new")
    second = publish(again, "t", b"second")
    assert second >= restored.next > store.end
    assert messages(again, "t") == [(first, b"first"), (second, b"second")]
    report = check_folder(tmp_path / "new")
    assert (report.verdict, report.earlier[0][1]) == (CheckResult.INTACT, restored.next)
    assert len(restore(target, tmp_path / "far").identity) == 16
    assert sum(path.stat().st_blocks for path in segment_paths(tmp_path / "far" / "log")) << 9 < 100 << 20


def test_only_what_is_new_is_taken(open_store: Stores, data: Path, target: Path, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 3)
    flushed(store)
    first = backup(data, target)
    assert (first.linked, first.copied, first.kept) == (3, 1, 0)
    assert segment(target, 0).stat().st_ino == segment(data, 0).stat().st_ino
    assert segment(target, -1).stat().st_ino != segment(data, -1).stat().st_ino
    fill(store, 2)
    flushed(store)
    second = backup(data, target)
    assert (second.linked, second.copied, second.kept) == (2, 1, 3)
    restore(target, tmp_path / "new", skip_bytes=SKIP)
    assert messages(open_store(tmp_path / "new"), "filler") == messages(store, "filler")


def test_on_another_file_system_it_copies(
    open_store: Stores, data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "on another device")

    monkeypatch.setattr(os, "link", refuse)
    store = open_store()
    fill(store, 2)
    flushed(store)
    done = backup(data, target)
    assert (done.linked, done.copied) == (0, 3)
    assert segment(target, 0).read_bytes() == segment(data, 0).read_bytes()


def test_up_to_a_point(open_store: Stores, data: Path, target: Path, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 1)
    before = publish(store, "t", b"before")
    time.sleep(0.005)  # the clock stamps records
    at_ms = store.now_ms()
    time.sleep(0.005)
    point = publish(store, "t", b"behind")
    fill(store, 2)
    flushed(store)
    backup(data, target)
    restored = restore(target, tmp_path / "new", to=point, skip_bytes=SKIP)
    assert restored.end == point
    assert restored.next >= store.end + SKIP
    assert messages(open_store(tmp_path / "new"), "t") == [(before, b"before")]
    assert restore(target, tmp_path / "one", to=point + 1, skip_bytes=SKIP).end == point
    assert restore(target, tmp_path / "two", at_ms=at_ms, skip_bytes=SKIP).end == point
    for number, path in enumerate(segment_paths(target / LOG)):
        restored = restore(target, tmp_path / f"{number}", to=int(path.stem) + 64 if number else point, skip_bytes=SKIP)
        open_store.stop(open_store(tmp_path / f"{number}"))
        assert check_folder(tmp_path / f"{number}").verdict == CheckResult.INTACT
    for wrong in (store.end + 8, 10):
        with pytest.raises(BackupUnusable):
            restore(target, tmp_path / "wrong", to=wrong)
    with pytest.raises(BackupUnusable):
        restore(target, tmp_path / "wrong", at_ms=1)


def known(store: MessageStore) -> tuple[int, list[str], dict[bytes, int]]:
    sessions = sorted(session.client_id for session in store.sessions)
    return store.queues.stored_topic(b"filler").next_offset, sessions, dict(store.retained.below(b""))


def test_backup_knows_what_retention_dropped(open_store: Stores, data: Path, target: Path, tmp_path: Path) -> None:
    store = open_store(retention_bytes=KEPT_BYTES)
    subscribe(store, "pump", ["t/+"])
    publish(store, "t/1", b"on", retain=True)
    fill(store, 6)
    run_upkeep(store)
    publish(store, "t/1", b"off")
    flushed(store)
    assert store.log.base > 0
    backup(data, target)
    queue = store.queues.stored_topic(b"filler")
    expected = (
        queue.next_offset,
        sorted(session.client_id for session in store.sessions),
        dict(store.retained.below(b"")),
    )
    restore(target, tmp_path / "new", skip_bytes=SKIP)
    again = open_store(tmp_path / "new")
    queue = again.queues.stored_topic(b"filler")
    found = (
        queue.next_offset,
        sorted(session.client_id for session in again.sessions),
        dict(again.retained.below(b"")),
    )
    assert found == expected
    with pytest.raises(BackupUnusable, match="earliest point"):
        restore(target, tmp_path / "early", to=store.log.first + 20_000)
    fill(store, 6)
    run_upkeep(store)
    backup(data, target)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.base < store.log.base
    backup(data, target, prune=True)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.base == store.log.base
    assert [path.name for path in target.glob("index-checkpoint-*")] == [manifest.checkpoint]
    restore(target, tmp_path / "pruned", skip_bytes=SKIP)
    assert len(open_store(tmp_path / "pruned").sessions) == 1


def test_backup_reports_what_retention_dropped_between_two_backups(
    open_store: Stores, data: Path, target: Path, tmp_path: Path
) -> None:
    store = open_store(retention_bytes=KEPT_BYTES)
    subscribe(store, "pump", ["t/+"])
    publish(store, "t/1", b"first")
    flushed(store)
    early = backup(data, target).manifest
    while store.log.base <= early.end:
        fill(store, 6)
        run_upkeep(store)
    publish(store, "t/1", b"last")
    flushed(store)
    missing = backup(data, target).manifest.missing
    assert missing == [(early.end, store.log.base)]
    words = f"has no log_offset {early.end} to {store.log.base}: retention dropped it"
    assert words in command("backup", data, target).stderr
    done = command("restore", target, tmp_path / "new", "--skip-bytes", "0")
    assert (done.returncode, words in done.stderr) == (0, True)
    new = open_store(tmp_path / "new")
    assert [payload for _, payload in messages(new, "t/1")] == [b"first", b"last"]
    assert any(finding.start <= early.end and finding.end >= missing[0][1] for finding in commit_log(new).findings)
    assert restore(target, tmp_path / "early", to=early.end, skip_bytes=SKIP).missing == []


def test_restore_names_the_tier(
    open_store: Stores, data: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is taken over. Settings that are wrong are no obstacle, unless they were asked for."""
    store = open_store()
    publish(store, "t", b"one")
    flushed(store)
    backup(data, target)
    words = "a start with tier.url s3://bucket/fleet takes the table there over"
    config = tmp_path / "penstock.toml"
    config.write_text('[tier]\nurl = "s3://bucket/fleet"\n')
    assert command("restore", target, tmp_path / "1").stderr == ""
    done = command("restore", target, tmp_path / "2", "--config", config)
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (0, True, 1)
    monkeypatch.setenv("PENSTOCK_TIER__URL", "s3://bucket/fleet")
    assert words in command("restore", target, tmp_path / "3", "--json").stderr
    monkeypatch.setenv("PENSTOCK_STORE__FLUSH", "now and then")
    assert command("restore", target, tmp_path / "4").returncode == 0
    refused = command("restore", target, tmp_path / "5", "--config", config)
    assert (refused.returncode, "store.flush" in refused.stderr) == (2, True)
    assert not (tmp_path / "5").exists()


def test_damage_does_not_get_into_a_backup_that_was_intact(open_store: Stores, data: Path, target: Path) -> None:
    store = open_store()
    fill(store, 1)
    publish(store, "t", b"x" * 5000)
    publish(store, "t", b"y" * 5000)
    flushed(store)
    backup(data, target)
    flip(segment(data, 1), 300)
    fill(store, 1)
    flushed(store)
    assert backup(data, target).damaged == []
    fill(store, 1)
    flip(segment(data, 2), 50_000)
    flushed(store)
    shown = command("backup", data, target)
    assert (shown.returncode, "damaged at log_offset" in shown.stderr) == (1, True)


def test_other_records_do_not_get_into_a_backup_unseen(open_store: Stores, data: Path, target: Path) -> None:
    store = open_store(scrub_interval_s=1)
    fill(store, 3)
    wait_until(lambda: len(commit_log(store).sealed()) == 3)
    store.log.scrubber.start()
    wait_until(lambda: store.log.scrubber.passes > 0)
    path = commit_log(store).sealed()[1].path
    whole = path.read_bytes()
    put_another_record(path)
    start, end = commit_log(store).sealed()[1][1:]
    assert backup(data, target).damaged == [(start, end)]
    path.unlink()  # the backup has a link to it
    path.write_bytes(whole)
    assert backup(data, target).damaged == []
    assert (target / LOG / path.name).read_bytes() == whole


def test_a_backup_repairs_its_folder(
    open_store: Stores, data: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.mending.backup._link", lambda source, target: False)
    store = open_store()
    fill(store, 3)
    open_store.stop(store)
    backup(data, target)
    segment(data, 1).unlink()
    flip(segment(data, 0), record_at(segment(data, 0), 5) + 60)
    assert repair_folder(data, [target]).repaired.lost == []
    assert check_folder(data).verdict == CheckResult.INTACT


def test_backup_and_restore_refuse_wrong_folders(open_store: Stores, data: Path, target: Path, tmp_path: Path) -> None:
    open_store.stop(open_store())
    open_store.stop(open_store(tmp_path / "other"))
    backup(data, target)
    with pytest.raises(NotOfThisLog):
        backup(tmp_path / "other", target)
    with pytest.raises(BackupUnusable):
        backup(data, tmp_path / "other")
    with pytest.raises(FolderUnusable):
        restore(target, tmp_path / "other")
    with pytest.raises(BackupUnusable):
        restore(tmp_path / "other", tmp_path / "new")
    assert command("backup", data, data / "in-it").returncode == 2
    assert command("backup", tmp_path / "none", target).returncode == 2
    assert command("restore", target, tmp_path / "new", "--at", "yesterday").returncode == 2


def test_a_kill_at_every_step(
    open_store: Stores,
    without_its_beginning: MessageStore,
    data: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a backup that adds to one, and of a restore: the backup before stays good, and there is no half folder."""
    store = without_its_beginning
    backup(data, target)
    earlier = tmp_path / "earlier"
    shutil.copytree(target, earlier)
    old = messages(store, "filler")
    fill(store, 2)
    run_upkeep(store)
    flushed(store)
    new = messages(store, "filler")
    works: list[Callable[[], object]] = [
        lambda: backup(data, target),
        lambda: restore(target, tmp_path / "new", skip_bytes=SKIP),
    ]
    for work in works:
        step = 0
        while True:
            for folder in (tmp_path / "new", tmp_path / "checked"):
                shutil.rmtree(folder, ignore_errors=True)
            if step % 2 == 0:
                shutil.rmtree(target)
                shutil.copytree(earlier, target)
            with monkeypatch.context() as patched:
                kill_at(patched, step, (os, "fsync"), (Path, "mkdir"))
                with suppress(Killed):
                    work()
                    break
            assert not (tmp_path / "new").exists() or (tmp_path / "new" / "log" / "marks").exists()
            restore(target, tmp_path / "checked", skip_bytes=SKIP)
            again = open_store(tmp_path / "checked")
            assert {*old} <= {*messages(again, "filler"), *old}
            assert {*messages(again, "filler")} <= {*old, *new}
            assert commit_log(again).findings == []
            open_store.stop(again)
            step += 3
        assert step > 20


def test_a_first_backup_that_was_killed_is_gone_on_with(
    open_store: Stores,
    without_its_beginning: MessageStore,
    data: Path,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed(without_its_beginning)
    expected = messages(without_its_beginning, "filler")
    step = 0
    while True:
        shutil.rmtree(target, ignore_errors=True)
        with monkeypatch.context() as patched:
            kill_at(patched, step, (os, "fsync"), (Path, "mkdir"))
            with suppress(Killed):
                backup(data, target)
                break
        backup(data, target)
        step += 3
    assert step > 20
    restore(target, tmp_path / "new", skip_bytes=SKIP)
    assert messages(open_store(tmp_path / "new"), "filler") == expected
