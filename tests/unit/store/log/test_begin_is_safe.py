"""Where the log begins is on disk before a start removes what retention was about to remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.files.marks import Marks
from tests.support.stores import commit_log, crash_copy, fill, small, wait_until

SEGMENTS = 4


def test_a_start_after_a_kill_between_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MessageStore(small(tmp_path / "data"))
    try:
        fill(store, SEGMENTS)
        wait_until(lambda: len(commit_log(store).sealed()) == SEGMENTS)
        old, kept = commit_log(store).sealed()[:2]
        commit_log(store).marks.begin_at(kept.base)
        copy = crash_copy(tmp_path / "data", tmp_path / "copy")
    finally:
        store.close()
    path = copy / old.path.relative_to(tmp_path / "data")
    was_there: list[bool] = []
    sync = Marks.sync

    def synced(marks: Marks) -> None:
        was_there.append(path.exists())
        sync(marks)

    monkeypatch.setattr(Marks, "sync", synced)
    again = MessageStore(small(copy))
    try:
        assert was_there[0]
        assert not path.exists()
        assert again.log.first == kept.base + 64
        assert not commit_log(again).findings
    finally:
        again.close()
