"""The one function that says what counts: leaders and followers judge every record of the partition by it, in order.

All that read the same records accept the same bytes, whoever sent them and however late they came.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from store.errors import HistoryElsewhere, PartitionUnusable
from store.replication.frames import FrameKind, Leader, LogFrame, ReadFrame

MOST_APPEND_BYTES = 2 << 30
"""One append fits a segment, and a segment is no larger."""


class Verdict(Enum):
    """The effect of a frame."""

    IGNORED = auto()
    OPEN = auto()  # a part of an append that is not complete yet
    ACCEPTED = auto()  # a heartbeat is accepted as well
    BEGINS = auto()  # an EPOCH frame: its leader leads from here on
    STOPS = auto()  # the leader stops on purpose


class JudgedFrame(NamedTuple):
    """The verdict, and the bytes that are accepted with it."""

    verdict: Verdict
    base: int = 0
    data: bytes = b""


class ReplicaMark(NamedTuple):
    """A store's position in the partition: the state after its last accepted frame.

    A store keeps it beside its log, once the bytes before `accepted` are on the disk, and goes on after it.
    """

    offset: int  # of the last accepted frame in the partition; -1: of none
    checksum: int  # of that frame: another one at that offset means that it is another partition
    epoch: int
    accepted: int  # log_offset
    leader: Leader | None  # of the epoch


NOTHING_ACCEPTED = ReplicaMark(-1, 0, 0, 0, None)


class FrameJudge:
    """Judges the frames of a partition from a mark on."""

    def __init__(self, mark: ReplicaMark = NOTHING_ACCEPTED) -> None:
        self.mark = mark
        self.position = mark.offset + 1
        """Offset in the partition of what is to be judged next."""
        self.epoch = mark.epoch
        self.accepted = mark.accepted
        self.leader = mark.leader
        self._parts: list[bytes] = []  # of an append that is not complete
        self._parts_bytes = 0

    @property
    def open_parts(self) -> int:
        """The number of parts that have come of an incomplete append."""
        return len(self._parts)

    def judge(self, offset: int, read: ReadFrame) -> JudgedFrame:
        """Judge the frame at an offset of the partition. Raises PartitionUnusable, and ValueError out of order."""
        if offset < self.position:
            raise ValueError(f"offset {offset} was judged before, up to {self.position}")
        judged = self._judge(offset, read.frame)
        self.position = offset + 1
        if judged.verdict not in (Verdict.IGNORED, Verdict.OPEN):
            self.mark = ReplicaMark(offset, read.checksum, self.epoch, self.accepted, self.leader)
        return judged

    def _judge(self, offset: int, frame: LogFrame) -> JudgedFrame:
        if frame.kind is FrameKind.EPOCH:
            self._check_beginning(offset, frame)
            return self._begin(frame) if self._is_next_epoch(frame) else JudgedFrame(Verdict.IGNORED)
        if not self._is_next(frame):
            return JudgedFrame(Verdict.IGNORED)
        if frame.kind is FrameKind.STOP:
            return JudgedFrame(Verdict.STOPS, frame.base)
        return self._accept(offset, frame)

    def _check_beginning(self, offset: int, frame: LogFrame) -> None:
        """The first frame of all says where the log in the partition begins. Raises HistoryElsewhere."""
        is_first = self.mark.offset < 0
        if is_first and not (self._is_next_epoch(frame) and frame.base == self.accepted):
            raise HistoryElsewhere(offset, frame.base, self.accepted)

    def _is_next_epoch(self, frame: LogFrame) -> bool:
        return frame.epoch == self.epoch + 1

    def _is_next(self, frame: LogFrame) -> bool:
        is_current = frame.epoch == self.epoch
        return is_current and frame.base == self.accepted + self._parts_bytes and frame.part == len(self._parts)

    def _begin(self, frame: LogFrame) -> JudgedFrame:
        self._discard_parts()
        self.epoch, self.leader = frame.epoch, frame.leader
        return JudgedFrame(Verdict.BEGINS, self.accepted)

    def _accept(self, offset: int, frame: LogFrame) -> JudgedFrame:
        if frame.end - self.accepted > MOST_APPEND_BYTES:
            raise PartitionUnusable(offset, f"an append of more than {MOST_APPEND_BYTES} bytes")
        if not frame.is_last:
            self._parts.append(frame.data)
            self._parts_bytes += len(frame.data)
            return JudgedFrame(Verdict.OPEN)
        base, data = self.accepted, b"".join((*self._parts, frame.data)) if self._parts else frame.data
        self._discard_parts()
        self.accepted = base + len(data)
        return JudgedFrame(Verdict.ACCEPTED, base, data)

    def _discard_parts(self) -> None:
        self._parts.clear()
        self._parts_bytes = 0
