"""The index is a function of the log: after any kill it equals one that is built from the whole log anew."""

import shutil
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from lightqueue.queues import table
from store.files.marks import Marks
from store.files.segment import segment_paths
from store.state import delayed, retained
from tests.support.store_workload import Workload, state_of
from tests.support.stores import crash_copy, small

OPTIONS = {"segment_bytes": 256 << 10, "index_write_buffer_bytes": 64 << 10, "cached_topics": 15}


@pytest.mark.parametrize(("step_cost", "keys_per_step"), [(6, 2), (100, 1)])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.catalogue("C10", "E16")
def test_the_index_equals_a_fresh_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, step_cost: int, keys_per_step: int
) -> None:
    """Its writes fall behind: they take few queues and pointers at a time, and long queues in pieces."""
    monkeypatch.setattr(table, "STEP_COST", step_cost)
    monkeypatch.setattr(table, "ENTRIES_PER_COST", 2)
    monkeypatch.setattr(retained, "KEYS_PER_STEP", keys_per_step)
    monkeypatch.setattr(delayed, "KEYS_PER_STEP", keys_per_step)
    workload = Workload(seed)
    data = tmp_path / "data-0"
    for kill in range(1, 4):
        store = MessageStore(small(data, **OPTIONS))
        workload.run(store, workload.randomly.randrange(20, 300))
        killed = crash_copy(data, tmp_path / f"data-{kill}")
        fresh = crash_copy(data, tmp_path / f"fresh-{kill}")
        live = state_of(store)
        store.close()
        assert reopened(killed) == live
        shutil.rmtree(fresh / "index")
        assert reopened(fresh) == live
        data = killed


def reopened(data: Path) -> object:
    store = MessageStore(small(data, **OPTIONS))
    found = state_of(store)
    store.close()
    return found


def test_an_index_ahead_of_the_log_is_built_again(tmp_path: Path) -> None:
    """Power fails with flush=async: RocksDB has on disk what the log has not."""
    workload = Workload(100)
    data = tmp_path / "data"
    store = MessageStore(small(data, **OPTIONS))
    workload.run(store, 50)
    cut_at = store.end
    expected = state_of(store)
    workload.publish(store)
    store.close()
    last = segment_paths(data / "log")[-1]
    with last.open("r+b") as file:
        file.truncate(cut_at - int(last.stem))
    marks = Marks(data / "log")
    marks.start(marks.begin, cut_at)
    marks.close()
    store = MessageStore(small(data, **OPTIONS))
    found = state_of(store)
    assert found.pop("applied") == (store.end, store.end)
    expected.pop("applied")
    assert found == expected
    store.close()


def test_a_damaged_index_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MessageStore(small(tmp_path / "data", **OPTIONS))
    Workload(101).run(store, 50)
    expected = state_of(store)
    store.close()
    for manifest in (tmp_path / "data" / "index").glob("MANIFEST-*"):
        manifest.write_bytes(b"garbage" * 10)
    assert reopened(tmp_path / "data") == expected
    assert "is rebuilt" in caplog.text


def test_an_index_folder_without_a_log_is_not_believed(tmp_path: Path) -> None:
    store = MessageStore(small(tmp_path / "data", **OPTIONS))
    Workload(102).run(store, 50)
    store.close()
    shutil.rmtree(tmp_path / "data" / "log")
    store = MessageStore(small(tmp_path / "data", **OPTIONS))
    assert (list(store.sessions), list(store.retained.below(b"")), list(store.queues.stored_queues())) == ([], [], [])
    store.close()
