"""A power cut damages records that no sync confirmed: the log has exactly those wholly before the damage."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.files.marks import Marks
from store.files.segment import HEADER_BYTES, segment_paths
from store.log.commitlog import CommitLog
from store.records._records import RecordBatch
from store.records.records import Record, RecordType, read_records
from tests.support.stores import batch_of, small


class Original:
    """A log of a few records, the last of them of all kinds, to be damaged in copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        commit_log = CommitLog(folder, small(folder))
        randomly = random.Random(3)
        for size in (0, 1, 500):
            commit_log.append(batch_of(randomly.randbytes(size)))
        self.damaged_from = commit_log.end
        commit_log.append(batch_of(randomly.randbytes(9), randomly.randbytes(30)))
        atomic = RecordBatch()
        atomic.begin_atomic()
        atomic.append(RecordType.MESSAGE, b"both", topic=b"will")
        atomic.append(RecordType.WILL_FIRED, b"or neither")
        atomic.end_atomic()
        commit_log.append(atomic)
        commit_log.append(batch_of(randomly.randbytes(60)))
        self.end = commit_log.end
        self.records = [record for _, data in commit_log.ranges(0, 1 << 20) for record in list(read_records(data))]
        self.identity = commit_log.marks.identity
        commit_log.close()
        self.name = segment_paths(folder)[0].name
        self.bytes = segment_paths(folder)[0].read_bytes()

    def kept(self, damaged_at: int) -> list[tuple[int, bytes]]:
        """What must be recovered when the first damaged byte is at a log_offset."""
        whole = [(record.log_offset, record.payload) for record in self.records if _end(record) <= damaged_at]
        fired = [record for record in self.records if record.type == RecordType.WILL_FIRED]
        if fired and _end(fired[0]) > damaged_at:  # the batch record's two stand or fall together
            whole = [item for item in whole if item[1] != b"both"]
        return whole


def _end(record: Record) -> int:
    return record.log_offset + record.length


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("cut") / "log")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("damaged")
    yield folder
    shutil.rmtree(folder)


def recovered(folder: Path, original: Original, data: bytes) -> list[tuple[int, bytes]]:
    """The records that a log opens with, checked to go on from there and to stay so."""
    (folder / original.name).write_bytes(data)
    marks = Marks(folder)
    marks.adopt(original.identity)
    marks.start(0, HEADER_BYTES)
    marks.close()
    commit_log = CommitLog(folder, small(folder))
    found = _records(commit_log)
    appended = commit_log.append(batch_of(b"next"))
    commit_log.close()
    again = CommitLog(folder, small(folder))
    assert _records(again) == [*found, (appended, b"next")]
    again.close()
    shutil.rmtree(folder)
    folder.mkdir()
    return found


def _records(commit_log: CommitLog) -> list[tuple[int, bytes]]:
    records = [record for _, data in commit_log.ranges(0, 1 << 20) for record in list(read_records(data))]
    return [(record.log_offset, record.payload) for record in records if record.type != RecordType.GAP]


def test_cut_at_every_byte_and_zeros_behind(original: Original, damaged: Path) -> None:
    for cut in range(original.damaged_from, original.end + 1):
        data = original.bytes[:cut] + bytes(len(original.bytes) - cut)
        # The cut may fall among zeros that belong to the record: then nothing is lost.
        first_lost = next((i for i in range(cut, original.end) if original.bytes[i]), original.end)
        assert recovered(damaged, original, data) == original.kept(first_lost), cut


def test_the_file_ends_at_every_byte(original: Original, damaged: Path) -> None:
    for cut in range(original.damaged_from, original.end + 1, 5):
        assert recovered(damaged, original, original.bytes[:cut]) == original.kept(cut), cut


@pytest.mark.catalogue("A1")
def test_garbage_at_every_byte(original: Original, damaged: Path) -> None:
    randomly = random.Random(4)
    for at in range(original.damaged_from, original.end):
        garbage = bytes((original.bytes[at] ^ randomly.randint(1, 255),)) + randomly.randbytes(
            randomly.choice((0, 3, 100))
        )
        data = original.bytes[:at] + garbage + original.bytes[at + len(garbage) :]
        assert recovered(damaged, original, data) == original.kept(at), at


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 700), garbage=st.binary(min_size=1, max_size=64), stale=st.booleans())
def test_any_garbage_anywhere(original: Original, damaged: Path, at: int, garbage: bytes, stale: bool) -> None:
    at += HEADER_BYTES
    if stale:  # what lies there may be records of the same log from elsewhere
        garbage = original.bytes[HEADER_BYTES : HEADER_BYTES + 8 * len(garbage)]
    data = original.bytes[:at] + garbage + original.bytes[at + len(garbage) :]
    first_changed = next((i for i in range(at, at + len(garbage)) if data[i] != original.bytes[i]), len(data))
    assert recovered(damaged, original, data) == original.kept(first_changed)
