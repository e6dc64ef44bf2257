"""The judgement of frames: the partition's order decides what counts."""

import pytest

from store.errors import HistoryElsewhere, PartitionUnusable
from store.replication import judging
from store.replication.frames import FrameKind, Leader, LogFrame, decode_frame, epoch_frame
from store.replication.judging import NOTHING_ACCEPTED, FrameJudge, JudgedFrame, ReplicaMark, Verdict

A, B = Leader("a:7700", b"a" * 16), Leader("b:7700", b"b" * 16)


class Partition:
    """Judges frames one after another."""

    def __init__(self, mark: ReplicaMark = NOTHING_ACCEPTED) -> None:
        self.judge = FrameJudge(mark)

    def add(self, frame: LogFrame) -> JudgedFrame:
        return self.judge.judge(self.judge.position, decode_frame(frame.encode()))

    def begin(self, epoch: int, leader: Leader = A) -> Verdict:
        return self.add(epoch_frame(epoch, 0, leader)).verdict

    def data(self, epoch: int, base: int, data: bytes, part: int = 0, is_last: bool = True) -> JudgedFrame:
        return self.add(LogFrame(FrameKind.DATA, epoch, base, 1, data, part, is_last))


@pytest.fixture
def partition() -> Partition:
    partition = Partition()
    assert partition.begin(1) is Verdict.BEGINS
    return partition


def test_frames_before_an_epoch_are_ignored() -> None:
    partition = Partition()
    assert partition.data(1, 0, b"x").verdict is Verdict.IGNORED
    with pytest.raises(HistoryElsewhere):
        partition.begin(2)
    assert Partition().begin(1) is Verdict.BEGINS


def test_a_log_with_a_history_begins_where_that_ends() -> None:
    """A store that has it goes on; one with nothing, and one with another log, do not."""
    history = ReplicaMark(-1, 0, 4, 4096, None)
    first = epoch_frame(5, 4096, A)
    judge = Partition(history)
    assert judge.add(first).verdict is Verdict.BEGINS
    assert judge.data(5, 4096, b"x").verdict is Verdict.ACCEPTED
    for mark in (NOTHING_ACCEPTED, history._replace(accepted=4160), history._replace(epoch=3)):
        with pytest.raises(HistoryElsewhere, match="begins there with log_offset 4096"):
            Partition(mark).add(first)
    with pytest.raises(HistoryElsewhere):
        Partition(history).begin(1)


def test_frames_go_on_where_the_last_one_ended(partition: Partition) -> None:
    assert partition.data(1, 0, b"12345678") == JudgedFrame(Verdict.ACCEPTED, 0, b"12345678")
    assert partition.data(1, 0, b"12345678").verdict is Verdict.IGNORED  # twice
    assert partition.data(1, 16, b"x").verdict is Verdict.IGNORED
    assert partition.data(2, 8, b"x").verdict is Verdict.IGNORED
    assert partition.data(1, 8, b"abc") == JudgedFrame(Verdict.ACCEPTED, 8, b"abc")
    assert partition.data(1, 11, b"").verdict is Verdict.ACCEPTED  # a heartbeat
    assert partition.judge.accepted == 11


def test_of_two_candidates_the_first_one_wins(partition: Partition) -> None:
    assert partition.begin(2, B) is Verdict.BEGINS
    assert partition.begin(2, A) is Verdict.IGNORED
    assert partition.begin(4, A) is Verdict.IGNORED
    assert (partition.judge.epoch, partition.judge.leader) == (2, B)


def test_late_frames_of_an_old_leader_count_for_nothing(partition: Partition) -> None:
    partition.data(1, 0, b"1234")
    partition.begin(2, B)
    assert partition.data(1, 4, b"5678").verdict is Verdict.IGNORED
    assert partition.data(2, 4, b"abcd").verdict is Verdict.ACCEPTED


def test_parts_count_once_the_last_is_accepted(partition: Partition) -> None:
    assert partition.data(1, 0, b"12", 0, is_last=False).verdict is Verdict.OPEN
    assert partition.judge.accepted == 0
    assert partition.data(1, 0, b"12", 0, is_last=False).verdict is Verdict.IGNORED
    assert partition.data(1, 0, b"").verdict is Verdict.IGNORED
    assert partition.data(1, 2, b"56", 2).verdict is Verdict.IGNORED
    assert partition.data(1, 2, b"34", 1, is_last=False).verdict is Verdict.OPEN
    assert partition.data(1, 4, b"56", 2) == JudgedFrame(Verdict.ACCEPTED, 0, b"123456")
    assert partition.judge.open_parts == 0


def test_an_epoch_frame_discards_open_parts(partition: Partition) -> None:
    partition.data(1, 0, b"12", 0, is_last=False)
    partition.begin(2, B)
    assert partition.data(1, 2, b"34", 1).verdict is Verdict.IGNORED
    assert partition.data(2, 0, b"ab") == JudgedFrame(Verdict.ACCEPTED, 0, b"ab")


def test_a_leader_that_stops_says_so_behind_all_that_it_sent(partition: Partition) -> None:
    partition.data(1, 0, b"12")
    assert partition.add(LogFrame(FrameKind.STOP, 1, 0, 2)).verdict is Verdict.IGNORED
    assert partition.add(LogFrame(FrameKind.STOP, 1, 2, 2)).verdict is Verdict.STOPS


def test_a_mark_leads_to_where_another_reader_stands(partition: Partition) -> None:
    """Parts that are open are read again."""
    partition.data(1, 0, b"12345678")
    mark = partition.judge.mark
    partition.data(1, 8, b"ab", 0, is_last=False)
    partition.data(1, 90, b"ignored")
    assert partition.judge.mark == mark
    again = Partition(mark)
    assert again.judge.position == 2
    again.data(1, 8, b"ab", 0, is_last=False)
    assert again.data(1, 10, b"cd", 1) == partition.data(1, 10, b"cd", 1) == JudgedFrame(Verdict.ACCEPTED, 8, b"abcd")
    assert mark.checksum == decode_frame(LogFrame(FrameKind.DATA, 1, 0, 1, b"12345678").encode()).checksum
    assert mark.leader == A


def test_offsets_of_the_partition_may_have_holes_and_never_go_back(partition: Partition) -> None:
    read = decode_frame(LogFrame(FrameKind.DATA, 1, 0, 1, b"12").encode())
    assert partition.judge.judge(7, read).verdict is Verdict.ACCEPTED
    with pytest.raises(ValueError, match="offset 7 was judged before"):
        partition.judge.judge(7, read)


def test_parts_are_bounded(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST_APPEND_BYTES", 3)
    partition.data(1, 0, b"12", 0, is_last=False)
    with pytest.raises(PartitionUnusable, match="an append of more than 3 bytes"):
        partition.data(1, 2, b"34", 1, is_last=False)
