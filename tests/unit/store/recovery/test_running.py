"""The messages of a start after the machine went down while the log was open."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from lightqueue.message_store import MessageStore
from store.log.commitlog import CommitLog
from store.mending.foresight import foresee
from store.recovery.running import RUNNING, boot_id
from tests.support.stores import batch_of, small

Flush = Literal["sync", "async", "buffered"]


def end_by_power_cut(folder: Path, flush: Flush) -> None:
    """As a process leaves it that was killed, in another boot of the machine."""
    CommitLog(folder, replace(small(folder), flush=flush)).append(batch_of(b"x"))  # never closed
    path = folder / RUNNING
    assert path.read_text() == f"{boot_id()} {flush}\n"
    path.write_text(path.read_text().replace(boot_id(), "another-boot"))


@pytest.mark.parametrize("flush", ["async", "buffered"])
def test_start_after_a_power_cut_reports_the_possible_loss_once(
    tmp_path: Path, flush: Flush, caplog: pytest.LogCaptureFixture
) -> None:
    end_by_power_cut(tmp_path, flush)
    with caplog.at_level(logging.WARNING, "penstock.store"):
        log = CommitLog(tmp_path, small(tmp_path))
    assert f"ran with flush={flush}" in log.power_cut_note
    assert f"behind log_offset {log.end}" in log.power_cut_note
    assert log.power_cut_note in caplog.text
    log.close()
    assert not (tmp_path / RUNNING).exists()
    again = CommitLog(tmp_path, small(tmp_path))
    assert again.power_cut_note == ""
    again.close()


@pytest.mark.parametrize(("flush", "kind"), [("async", "unsynced"), ("buffered", "unsynced"), ("sync", "torn")])
def test_bytes_cut_off_after_a_power_cut_are_named_by_kind(tmp_path: Path, flush: Flush, kind: str) -> None:
    (tmp_path / "log").mkdir()
    end_by_power_cut(tmp_path / "log", flush)
    segment = next((tmp_path / "log").glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(4096)
        file.write(b"half an append")
    assert [each.kind for each in foresee(tmp_path / "log").findings] == [kind]
    log = CommitLog(tmp_path / "log", small(tmp_path))
    assert [each.kind for each in log.findings] == [kind]
    assert log.lost_bytes == {"damaged": 0, "missing": 0, "unconfirmed": 0}
    log.close()


def test_start_after_a_power_cut_under_sync_reports_no_loss(tmp_path: Path) -> None:
    end_by_power_cut(tmp_path, "sync")
    log = CommitLog(tmp_path, small(tmp_path))
    assert log.power_cut_note == ""
    log.close()


def test_a_kill_is_no_power_cut(tmp_path: Path) -> None:
    CommitLog(tmp_path, replace(small(tmp_path), flush="async")).append(batch_of(b"x"))  # never closed
    log = CommitLog(tmp_path, small(tmp_path))
    assert log.power_cut_note == ""
    log.close()


@pytest.mark.parametrize("text", ["", "another-boot", "\xff\n", "another-boot \n"])
def test_a_file_that_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / RUNNING).write_text(text, encoding="latin-1")
    log = CommitLog(tmp_path, small(tmp_path))
    assert log.power_cut_note == ""
    log.close()


def test_health_tells_of_it(tmp_path: Path) -> None:
    settings = replace(small(tmp_path), flush="async")
    MessageStore(settings).close()
    (tmp_path / "log" / RUNNING).write_text("another-boot async\n")
    store = MessageStore(settings)
    assert "the machine went down" in store.health()
    store.close()
