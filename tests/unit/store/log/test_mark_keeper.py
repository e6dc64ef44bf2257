"""The thread that keeps the mark of a replicated log."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from store.log.mark_file import MarkFile
from store.log.mark_keeper import MarkKeeper
from store.replication.judging import ReplicaMark

MARKS = 200


def mark(number: int) -> ReplicaMark:
    return ReplicaMark(number, number, 1, 8 * number, None)


def test_the_newest_of_many_marks_is_kept_and_few_of_them_are_written(tmp_path: Path) -> None:
    file = MarkFile(tmp_path, "topic-1")
    keeper = MarkKeeper(file, lambda: 8 * MARKS, lambda: None)
    try:
        for number in range(1, MARKS + 1):
            keeper.keep(mark(number))
        assert keeper.wait_kept(30.0)
        assert keeper.kept == mark(MARKS)
        assert file._number < MARKS / 2
    finally:
        keeper.close()


def test_the_thread_is_not_woken_for_marks_that_it_finds_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken for each mark, it takes turns with the loop, which is about to answer what the mark tells of."""
    asked = threading.Event()
    on_disk = 0
    keeper = MarkKeeper(MarkFile(tmp_path, "topic-1"), lambda: on_disk, asked.set)
    woken: list[None] = []
    try:
        keeper.keep(mark(1))
        assert asked.wait(30.0)  # the thread waits for the disk
        monkeypatch.setattr(keeper._changed, "notify_all", lambda: woken.append(None))
        for number in range(2, MARKS):
            keeper.keep(mark(number))
        assert woken == []
        monkeypatch.undo()
        on_disk = 8 * MARKS
        keeper.flushed()
        assert keeper.wait_kept(30.0)
        assert keeper.kept == mark(MARKS - 1)
    finally:
        keeper.close()
