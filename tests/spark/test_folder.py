"""The log as a reader from outside sees it: nothing half, nothing damaged, whatever state the files are in."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.spark.columns import record_batch
from penstock.spark.errors import DataLost, FolderUnreadable, LogDamaged
from penstock.spark.folder import LogFolder
from penstock.spark.options import parse_options
from penstock.spark.reading import wanted_messages
from store.files.segment import segment_paths
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch
from store.records.records import RecordType
from tests.support.stores import batch_of, small

PAYLOAD = bytes(20_000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """A log of several segments, open for writing."""
    (tmp_path / "log").mkdir()
    log = CommitLog(tmp_path / "log", small(tmp_path))
    for _ in range(8):
        log.append(batch_of(PAYLOAD))
    yield log
    log.close()


def folder_of(log: CommitLog) -> LogFolder:
    return LogFolder(str(log.folder.parent))


def count(folder: LogFolder, start: int = 0) -> int:
    return sum(len(messages) for messages in folder.messages(start, folder.end()))


def record_at(log: CommitLog, log_offset: int) -> bytes:
    """A batch record of three messages, as it would stand there."""
    batch = RecordBatch()
    batch.begin_atomic()
    for _ in range(3):
        batch.append(RecordType.MESSAGE, PAYLOAD[:1000], topic=b"batched")
    batch.end_atomic()
    start = log.append(batch)
    assert start == log_offset
    path = segment_paths(log.folder)[-1]
    return path.read_bytes()[start - int(path.stem) : log.end - int(path.stem)]


def test_a_record_counts_once_all_of_it_is_written(log: CommitLog, tmp_path: Path) -> None:
    folder = folder_of(log)
    before, end = count(folder), log.end
    whole = record_at(log, end)
    path = segment_paths(log.folder)[-1]
    at = end - int(path.stem)
    with path.open("r+b") as file:
        for written in (0, 4, 39, 40, 80, 1100, len(whole) - 8, len(whole) - 1):
            file.seek(at)
            file.write(whole[:written] + bytes(len(whole) - written))
            file.flush()
            fresh = folder_of(log)
            # The last byte may be one of the zeros at the end: then it is whole.
            if whole[:written] + bytes(len(whole) - written) != whole:
                assert (fresh.end(), count(fresh)) == (end, before)
        file.seek(at)
        file.write(whole)
    assert (folder_of(log).end(), count(folder_of(log))) == (log.end, before + 3)


def test_the_end_is_looked_for_from_a_record_that_an_index_knows(log: CommitLog) -> None:
    """But never found where it is not: the index may be of a log whose end was lost, or of another one."""
    known = log.append(batch_of(b"known"))
    log.append(batch_of(b"newest"))
    at = known - log.segments[-1].base
    for log_offset, reaches in (
        (known, log.end),
        (known, log.end + 64),
        (known + 8, log.end),
        (log.end, log.end + 64),
        (log.end + 800, log.end + 1600),
        (64, log.end),
    ):
        folder = folder_of(log)
        folder.look_from(log_offset, reaches)
        assert folder.end() == log.end
    with segment_paths(log.folder)[-1].open("r+b") as file:
        file.seek(at + 8)
        file.write(bytes(8))
    folder = folder_of(log)
    folder.look_from(known, log.end)
    assert folder.end() == known


def test_a_segment_that_is_only_being_made(log: CommitLog) -> None:
    folder = folder_of(log)
    expected = count(folder), log.end
    made = log.folder / f"{log.end:020}.log"
    made.write_bytes(bytes(65536))
    assert (count(folder_of(log)), folder_of(log).end()) == expected
    made.unlink()


def test_damage_is_named(log: CommitLog) -> None:
    first = segment_paths(log.folder)[0]
    content = first.read_bytes()
    first.write_bytes(content[:30_000] + b"!" + content[30_001:])
    with pytest.raises(LogDamaged, match=r"00\.log: damaged at log_offset 20\d+ \(checksum mismatch\)"):
        count(folder_of(log))
    assert count(folder_of(log), log.segments[1].base) > 0
    first.write_bytes(b"x" + content[1:])
    with pytest.raises(LogDamaged, match="wrong magic"):
        folder_of(log).end()
    first.write_bytes(content)


def test_segments_dropped_while_they_are_read(log: CommitLog) -> None:
    for skips in (False, True):
        pieces = folder_of(log).pieces(log.base, log.end, skips)
        next(pieces)
        log.pop_first().remove()
        log.pop_first().remove()
        if not skips:
            with pytest.raises(DataLost, match="is not kept any more"):
                list(pieces)
            for _ in range(8):
                log.append(batch_of(PAYLOAD))
        else:
            assert list(pieces)[-1].end == log.end
    with pytest.raises(DataLost, match=r"log_offset 0 to .* is not kept any more"):
        list(folder_of(log).pieces(0, log.end))


def test_a_time_is_found_across_segments(log: CommitLog) -> None:
    folder = folder_of(log)
    columns = [messages.column("timestamp") for messages in folder.messages(0, log.end)]
    times_ms = [int(time.timestamp() * 1000 + 0.5) for column in columns for time in column.to_pylist()]
    for time_ms in (0, *times_ms, times_ms[-1] + 1):
        assert count(folder, folder.position_at(time_ms)) == sum(stored >= time_ms for stored in times_ms)


def test_the_nearest_message_to_each_message_is_itself(log: CommitLog) -> None:
    folder = folder_of(log)
    starts = [start for messages in folder.messages(0, log.end) for start in messages.places()[0].tolist()]
    assert [folder.nearest(start) for start in starts] == starts


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read(log: CommitLog) -> None:
    path = segment_paths(log.folder)[-1]
    path.chmod(0)
    with pytest.raises(FolderUnreadable, match="Permission denied"):
        count(folder_of(log))


def test_readers_are_told_of_what_recovery_took_out(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    log = CommitLog(tmp_path / "log", small(tmp_path))
    places = [log.append(batch_of(b"%d" % number)) for number in range(5)]
    log.close()
    with segment_paths(tmp_path / "log")[0].open("r+b") as file:
        file.seek(places[2] + 20)
        file.write(b"damaged")
    log = CommitLog(tmp_path / "log", small(tmp_path))
    end = log.end
    log.close()
    folder = LogFolder(str(tmp_path))
    strict = parse_options({"path": str(tmp_path)})
    with pytest.raises(DataLost, match=f"log_offset {places[2]} was damaged .* failOnDataLoss"):
        list(wanted_messages(folder, strict, 0, end))
    assert sum(map(len, wanted_messages(folder, strict, 0, places[2]))) == 2
    assert sum(map(len, wanted_messages(folder, strict, places[3], end))) == 2
    lenient = parse_options({"path": str(tmp_path), "failOnDataLoss": "false"})
    assert sum(map(len, wanted_messages(folder, lenient, 0, end))) == 4
    # And where the index says where each stands.
    at, sizes = np.array(places, np.int64), np.diff([*places, end]).astype(np.int32)
    with pytest.raises(DataLost, match=f"log_offset {places[2]} was damaged .* failOnDataLoss"):
        folder.messages_at(at, sizes)
    messages, kept = folder.messages_at(at, sizes, skips_lost=True)
    assert kept.tolist() == [True, True, False, True, True]
    found = record_batch(messages, pa.schema([("payload", pa.binary())])).to_pylist()
    assert [row["payload"] for row in found] == [b"0", b"1", b"3", b"4"]
