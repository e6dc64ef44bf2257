"""Faults of RocksDB while a store runs: it is slow, or does not write any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue import message_store
from store.errors import IndexBusy, IndexFailed, IndexStuck
from store.log.index import Index
from tests.support.stores import Stores, payloads, publish, wait_until


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", index_write_buffer_bytes=64 << 10, index_flush_ms=1)
    yield stores
    stores.close()


def test_writes_that_would_wait_are_refused_instead(tmp_path: Path) -> None:
    """With so many tables that are not merged RocksDB lets nobody write: a loop must not wait for that."""
    index = Index(tmp_path / "index", 64 << 10)
    index._db.set_options({"level0_file_num_compaction_trigger": "1000", "level0_stop_writes_trigger": "4"})
    for number in range(4):
        index.put(b"%d" % number, bytes(1_000))
        index.write(number, number)
        index.flush()
    index.put(b"one", b"more")
    with pytest.raises(IndexBusy):
        index.write(9, 9, may_wait=False)
    index._db.set_options({"level0_stop_writes_trigger": "1000"})
    index.put(b"last", b"one")
    index.write(1_000, 1_000)  # this one may wait
    assert index.applied_offset == 1_000
    index.close()


def test_an_index_that_does_not_write_any_more_is_given_up(
    open_store: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB does not get over a flush that fails for another reason than room, here a folder that is gone."""
    monkeypatch.setattr(message_store, "INDEX_PATIENCE_S", 0.5)
    store = open_store()
    folder = tmp_path / "data" / "index"
    publish(store, "t/x", b"1")
    folder.rename(folder.with_name("elsewhere"))
    folder.write_bytes(b"not a folder")
    taken = [b"1"]

    def is_given_up() -> bool:
        taken.append(b"%d" % (len(taken) + 1))
        publish(store, "t/x", taken[-1])  # to the log it goes all the same
        try:
            store.tick()
            store.index.flush(wait=False)
        except IndexStuck:
            return True
        except IndexFailed:
            pass
        return False

    wait_until(is_given_up, timeout_s=20)
    open_store.stop(store)
    folder.unlink()
    assert payloads(open_store(), "t/x") == taken
