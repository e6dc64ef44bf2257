"""The index remembers what the disk had confirmed of the log, for when `log/marks` is gone, or is an old one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.files.marks import MARKS
from store.files.segment import segment_paths
from store.log.index import Index
from store.mending.foresight import foresee
from tests.support.injuries import zero
from tests.support.stores import KEPT_BYTES, SEGMENT_BYTES, Stores, commit_log, crash_copy, fill, publish, run_upkeep


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path / "data", flush="sync")
    yield stores
    stores.close()


def killed(store: MessageStore, tmp_path: Path) -> tuple[Path, int]:
    """A copy of the folder of a store that was killed, and how far its index knows the log to be confirmed."""
    commit_log(store).flusher.flush_now()
    store.write_index()
    store.index.flush()
    return crash_copy(store.folder.path, tmp_path / "killed"), store.end


@pytest.mark.parametrize("marks", ["gone", "old"])
def test_the_end_of_a_log_that_was_confirmed_is_no_torn_end(open_store: Stores, tmp_path: Path, marks: str) -> None:
    store = open_store()
    publish(store, "t", b"first")
    shutil.copyfile(store.folder.log / MARKS, tmp_path / "old")
    publish(store, "t", *(b"%d" % number for number in range(20)))
    data, end = killed(store, tmp_path)
    (data / "log" / MARKS).unlink()
    if marks == "old":
        shutil.copyfile(tmp_path / "old", data / "log" / MARKS)
    with segment_paths(data / "log")[-1].open("r+b") as file:
        file.truncate(end - 100)
        file.truncate(SEGMENT_BYTES)
    store = open_store(data)
    assert [finding.end for finding in commit_log(store).findings if finding.is_loss] == [end]
    assert publish(store, "t", b"new") >= end


def test_a_beginning_that_is_gone_with_the_marks(open_store: Stores, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 2)
    data, _ = killed(store, tmp_path)
    (data / "log" / MARKS).unlink()
    first, second, *_ = segment_paths(data / "log")
    first.unlink()
    store = open_store(data)
    assert [(each.start, each.end) for each in commit_log(store).findings if each.is_loss] == [(0, int(second.stem))]


@pytest.mark.parametrize("is_first_gone", [False, True])
def test_dropped_segments_do_not_count_as_lost_if_the_marks_are_zeros(
    open_store: Stores, tmp_path: Path, is_first_gone: bool
) -> None:
    """The index on the disk remembers where the log began before; its checkpoint tells what may be dropped."""
    store = open_store(retention_bytes=KEPT_BYTES)
    fill(store, 6)
    store.write_index()
    store.index.flush()
    run_upkeep(store)
    assert store.log.base > 0
    fill(store, 3)
    commit_log(store).flusher.flush_now()
    data = crash_copy(store.settings.data, tmp_path / "killed")
    zero(data / "log" / MARKS, 0, 576)
    checkpoint = Index(data / "index-checkpoint", 1 << 20)
    applied = checkpoint.applied_offset
    checkpoint.close()
    if is_first_gone:  # more than the checkpoint has
        for path in [each for each in segment_paths(data / "log") if int(each.stem) <= applied]:
            path.unlink()
    foreseen = [finding for finding in foresee(data / "log").findings if finding.is_loss]
    store = open_store(data, retention_bytes=None)
    losses = [finding for finding in commit_log(store).findings if finding.is_loss]
    assert losses == foreseen
    assert [(each.start, each.end) for each in losses] == ([(applied, store.log.base)] if is_first_gone else [])


def test_an_index_of_another_log_is_not_believed(open_store: Stores, tmp_path: Path) -> None:
    other = open_store(tmp_path / "other")
    fill(other, 1)
    data, _ = killed(other, tmp_path)
    store = open_store()
    publish(store, "t", b"first")
    open_store.stop(store)
    shutil.rmtree(tmp_path / "data" / "index")
    shutil.copytree(data / "index", tmp_path / "data" / "index")
    store = open_store()
    assert not [each for each in commit_log(store).findings if each.is_loss]
