"""A segment's file with holes: where nothing was confirmed they are not read, and what lies behind them is found."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lightqueue.message_store import MessageStore
from store.files.segment import HEADER_BYTES, segment_paths
from store.records._records import LogMemory
from store.recovery.salvage import Salvage, salvage
from tests.support.stores import batch_of, commit_log, flip, publish, read_all, small

SIZE = 160 << 20
FAR = 80 << 20
FIRST_END = HEADER_BYTES + 64


@pytest.fixture(params=["holes are known", "holes are not known"])
def knows_holes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the file system says where holes are."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    is_known: bool = request.param == "holes are known"
    if not is_known:
        monkeypatch.setattr(os, "lseek", refuse)
    return is_known


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """One record of 64 bytes behind the header, another one far behind it, and holes."""
    path = tmp_path / "segment"
    with path.open("w+b") as file:
        for place in (HEADER_BYTES, FAR):
            memory = LogMemory()
            memory.start(place)
            assert memory.append(batch_of(bytes(range(1, 24))), place, 1)
            memory.write(file.fileno(), place, place + 64, 0)
        file.truncate(SIZE)
    return path


def salvaged(path: Path, flushed: int | None, monkeypatch: pytest.MonkeyPatch) -> tuple[Salvage, int]:
    """What is found, and how many bytes were read for it."""
    read_bytes = 0
    pread = os.pread

    def counted(fd: int, size: int, position: int) -> bytes:
        nonlocal read_bytes
        data = pread(fd, size, position)
        read_bytes += len(data)
        return data

    fd = os.open(path, os.O_RDONLY)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", counted)
        found = salvage(fd, 0, None, flushed)
    os.close(fd)
    return found, read_bytes


@pytest.mark.parametrize("flushed", [None, FIRST_END, FAR, FAR + 64, SIZE])
def test_a_record_behind_a_hole_is_found(
    segment: Path, flushed: int | None, knows_holes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read_bytes = salvaged(segment, flushed, monkeypatch)
    assert [(hole.start, hole.end) for hole in found.holes] == [(FIRST_END, FAR)]
    assert found.end == found.written == FAR + 64
    is_sparse = knows_holes and flushed == FIRST_END
    assert (read_bytes < 2 * FAR) is is_sparse


@pytest.mark.parametrize("flushed", [None, FIRST_END, FAR + 64])
@pytest.mark.usefixtures("knows_holes")
def test_bytes_behind_a_hole_that_are_no_record_are_written(
    segment: Path, flushed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(segment, FAR + 41)
    found, _ = salvaged(segment, flushed, monkeypatch)
    assert (found.holes, found.end, found.written) == ([], FIRST_END, FAR + 64)


@pytest.mark.usefixtures("knows_holes")
def test_a_start_after_a_kill_with_a_sparse_segment(tmp_path: Path) -> None:
    """The newest segment has its full size from the beginning, and nothing was written to most of it."""
    settings = small(tmp_path, segment_bytes=SIZE, flush="sync")
    store = MessageStore(settings)
    for number in range(10):
        publish(store, "t", b"%d" % number)
    end = store.end
    store.close()
    (path,) = segment_paths(commit_log(store).folder)
    assert path.stat().st_size == SIZE
    with path.open("r+b") as file:
        file.seek(end + (16 << 20))
        file.write(b"what a torn write left")
    again = MessageStore(settings)
    assert again.end == end
    assert [record.payload for record in read_all(again, again.queues.topic_queue(b"t"))] == [
        b"%d" % number for number in range(10)
    ]
    (finding,) = commit_log(again).findings
    assert (finding.kind, finding.start) == ("torn", end)
    again.close()
    third = MessageStore(settings)
    assert commit_log(third).findings == []
    third.close()
