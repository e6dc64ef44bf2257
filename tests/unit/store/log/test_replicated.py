"""The logs of a cluster's stores: the same bytes, whoever leads, and nothing behind the mark after a start."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from lightqueue.mending.checking import CheckResult, check_folder
from lightqueue.mending.repairing import repair_folder
from store.errors import (
    DamagedInCluster,
    FolderUnusable,
    LogOfACluster,
    LogOfOneStore,
    NotLeading,
    PartitionUnusable,
)
from store.files.folder import DataFolder
from store.log.commitlog import CommitLog
from store.log.opening import open_log
from store.log.replicated import ReplicatedLog, replicated_in
from store.records._records import RecordBatch, walk
from store.records.records import Record, RecordType
from store.replication.judging import NOTHING_ACCEPTED, ReplicaMark
from store.settings import StoreSettings
from tests.support.stores import flip

SEGMENT_BYTES = 64 << 10
TOPIC = "FZ-3eS7bT52AbLBNFg2Q4A"


class Taken:
    """What a leader has given on, each append by itself."""

    def __init__(self) -> None:
        self.appends: list[bytes] = []

    def check(self) -> None:
        pass

    def take(self, data: bytes) -> None:
        self.appends.append(data)


@contextmanager
def opened(path: Path, topic: str = TOPIC) -> Iterator[ReplicatedLog]:
    settings = StoreSettings(data=path, segment_bytes=SEGMENT_BYTES)
    with closing(DataFolder(path, False)) as folder:
        log = replicated_in(topic)(folder, settings, lambda: None)
        assert isinstance(log, ReplicatedLog)
        try:
            yield log
        finally:
            log.close()


def lead(log: ReplicatedLog) -> Taken:
    log.taker = taken = Taken()
    if log.not_accepted():
        taken.take(log.not_accepted())
    return taken


def append(log: CommitLog, number: int, size: int) -> None:
    batch = RecordBatch()
    batch.append(RecordType.MESSAGE, bytes([number % 251]) * size, topic=b"t")
    log.append(batch)


def files(path: Path) -> dict[str, bytes]:
    """The segments, without the zeros at the end of the newest."""
    return {each.name: each.read_bytes().rstrip(b"\0") for each in sorted((path / "log").glob("*.log"))}


def mark(log: ReplicatedLog) -> ReplicaMark:
    return NOTHING_ACCEPTED._replace(offset=7, epoch=3, accepted=log.accepted)


def keep(log: ReplicatedLog) -> None:
    log.keep(mark(log))
    assert log.keeper.wait_kept(30)
    assert log.kept == log.accepted


def test_a_standby_has_the_leaders_bytes(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as standby:
        taken = lead(leader)
        for number in range(30):
            append(leader, number, 100 + 700 * number)  # several segments
        base = 0
        stamps: list[int] = []
        for each in taken.appends:
            for _, run in standby.write_accepted(base, each):
                stamps += [Record._make(fields).timestamp_ms for fields in walk(run)]
            base += len(each)
        assert base == leader.end == standby.end == standby.accepted
        assert len(leader.segments) > 2
        last = leader.segments[-1].first
        assert standby.record(last) == leader.record(last)
        assert stamps == sorted(stamps)
        assert len(stamps) == 30
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_frames_with_several_appends_and_a_header_in_the_middle(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as standby:
        taken = lead(leader)
        for number in range(20):
            append(leader, number, 10_000)
        standby.write_accepted(0, b"".join(taken.appends))
        assert standby.end == leader.end
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_start_cuts_off_what_is_behind_the_mark(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with opened(tmp_path / "a") as leader, opened(tmp_path / "b") as standby:
        taken = lead(leader)
        for number in range(10):
            append(leader, number, 10_000)
        data = b"".join(taken.appends)
        for log in (leader, standby):
            if log is standby:
                log.write_accepted(0, data)
            log.accepted = len(data)
            keep(log)
        for number in range(10):
            append(leader, number, 12_000)  # not accepted: some in the same segment, others in later ones
        later = len(leader.segments)
    assert later > len(files(tmp_path / "b"))
    with opened(tmp_path / "a") as behind, opened(tmp_path / "b") as leads:
        assert behind.end == behind.accepted == leads.end == len(data)
        taken = lead(leads)
        append(leads, 1, 500)  # into the segment that the other one had sealed
        append(leads, 2, 60_000)
        for each in taken.appends:
            behind.write_accepted(behind.accepted, each)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert not [each for each in caplog.records if "other users" not in each.message]  # nothing counts as lost


def test_a_cut_where_a_segment_ends(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as leader:
        taken = lead(leader)
        for number in range(6):
            append(leader, number, 10_000)
        sealed_end = leader.end
        leader.accepted = sealed_end
        keep(leader)
        append(leader, 7, 60_000)
        assert leader.segments[-1].base == sealed_end
    with opened(tmp_path / "a") as again:
        assert again.end == sealed_end
        assert again.segments[-1].base < sealed_end
        again.write_accepted(sealed_end, taken.appends[-1])
        assert again.segments[-1].base == sealed_end


def test_replicated_log_refuses_wrong_appends(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as log, opened(tmp_path / "b", topic="another") as other:
        with pytest.raises(NotLeading):
            append(log, 1, 10)
        header = lead(other).appends[0]
        with pytest.raises(PartitionUnusable, match="another log"):
            log.write_accepted(0, header)
        log.write_accepted(0, log.not_accepted())
        with pytest.raises(PartitionUnusable):
            log.write_accepted(log.accepted, bytes(64))
        keep(log)
    with (
        pytest.raises(FolderUnusable, match=r"follows the topic with the id .*another"),
        opened(tmp_path / "a", topic="another"),
    ):
        pass


def test_the_log_of_a_store_alone_is_not_touched(tmp_path: Path) -> None:
    with closing(DataFolder(tmp_path)) as folder:
        alone = CommitLog(folder.log, StoreSettings(segment_bytes=SEGMENT_BYTES))
        for number in range(20):
            append(alone, number, 10_000)
        alone.close()
    before = files(tmp_path)
    with pytest.raises(LogOfOneStore, match=r"penstock cluster create --from"), opened(tmp_path):
        pass
    assert files(tmp_path) == before
    assert not (tmp_path / "replica-mark").exists()


def test_a_store_alone_does_not_use_the_log_of_a_cluster(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        lead(log)
    with closing(DataFolder(tmp_path)) as folder, pytest.raises(LogOfACluster, match=r"set store\.replicated_log"):
        open_log(folder, StoreSettings(data=tmp_path), lambda: None)


def test_timestamps_do_not_decrease_where_another_clock_led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "a") as log:
        lead(log)
        append(log, 1, 10)
        newest_ms = log.timestamp_ms(log.segments[0].first)
        monkeypatch.setattr("store.log.replicated.time.time_ns", lambda: (newest_ms - 60_000) * 1_000_000)
        at = log.end
        append(log, 2, 10)
        assert log.timestamp_ms(at) == newest_ms


def test_the_mark_is_kept_although_more_is_accepted_all_the_time(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as log:
        lead(log)
        kept: set[int] = set()
        for number in range(100_000):
            append(log, number, 10)
            log.accepted = log.end
            log.keep(mark(log))
            kept.add(log.kept)
            if len(kept) > 2:
                break
        assert len(kept) > 2
        assert log.kept < log.accepted


def test_a_damaged_log_gets_no_gap(tmp_path: Path) -> None:
    """The other stores have no gap there: one of them gives the whole log."""
    with opened(tmp_path) as log:
        lead(log)
        for number in range(8):
            append(log, number, 20_000)
        log.accepted = log.end
        keep(log)
        append(log, 9, 1_000)  # not accepted
    flip(sorted((tmp_path / "log").glob("*.log"))[0], 30_000)
    before = files(tmp_path)
    remedy = rf"`penstock cluster recover {tmp_path}`"
    with pytest.raises(DamagedInCluster, match=remedy):
        repair_folder(tmp_path, with_index=True)
    assert files(tmp_path) == before
    report = check_folder(tmp_path)
    assert report.verdict == CheckResult.MENDS_ITSELF
    assert [(each.kind, remedy.strip("`") in each.do) for each in report.damage if each.what == "log"] == [
        ("damaged", True)
    ]
    whole = StoreSettings(data=tmp_path, segment_bytes=SEGMENT_BYTES, verify_at_start_bytes=1 << 30)
    with closing(DataFolder(tmp_path, False)) as folder, pytest.raises(DamagedInCluster, match=remedy):
        replicated_in(TOPIC)(folder, whole, lambda: None)
    assert not (tmp_path / "quarantine").exists()
