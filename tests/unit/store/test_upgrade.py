"""Data folders that earlier versions made open, with all that is in them (tests/data/make_folder.py)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.message_store import MessageStore
from store.mending.backup import backup
from store.mending.restore import restore
from tests.support.server_process import ROOT
from tests.support.stores import payloads, publish, read_all, retained_payloads, small

FOLDERS = sorted((ROOT / "tests" / "data").glob("*.tar.gz"))
PAYLOADS = [b"%d " % number + bytes(2000) for number in range(60)]


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        if hasattr(tarfile, "data_filter"):  # Debian 12 has Python 3.11.2, and that has none
            archive.extractall(tmp_path / "data", filter="data")
        else:
            archive.extractall(tmp_path / "data")
    return tmp_path / "data"


def holds_all(store: MessageStore, *more: bytes) -> None:
    store.write_index()
    for number in range(3):
        records = read_all(store, store.queues.stored_topic(b"plant/%d" % number))
        expected = [payload for payload in PAYLOADS if int(payload.split()[0]) % 3 == number]
        own = {1: [b"on"], 2: [b"last", *more]}.get(number, [])
        assert sorted(record.payload for record in records) == sorted(expected + own)
    assert len(payloads(store, "plant/+")) == len(PAYLOADS) + 2 + len(more)
    assert retained_payloads(store) == {b"plant/1": b"on"}
    assert [session.client_id for session in store.sessions] == ["pump"]
    assert [(group.name, group.topic_filter) for group in store._state.groups] == [("billing", "plant/+")]
    assert len(store.delayed) == 1


def test_there_are_folders() -> None:
    assert len(FOLDERS) >= 3


def test_all_that_is_in_it_is_there(data: Path) -> None:
    report = check_folder(data)
    assert report.verdict in (CheckResult.INTACT, CheckResult.MENDS_ITSELF)
    assert {each.kind for each in report.damage} <= {"index", "mended"}
    store = MessageStore(small(data))
    holds_all(store)
    publish(store, "plant/2", b"more")
    store.close()
    store = MessageStore(small(data))
    holds_all(store, b"more")
    store.close()
    assert check_folder(data).verdict == CheckResult.INTACT


def test_once_started_it_can_be_backed_up(data: Path, tmp_path: Path) -> None:
    """Its first segments say nothing of whose log they are of."""
    MessageStore(small(data)).close()
    backup(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new", skip_bytes=0)
    store = MessageStore(small(tmp_path / "new"))
    holds_all(store)
    store.close()
