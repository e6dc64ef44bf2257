"""Frames that a leader sends: one produce request at a time; frames for the next one gather meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from store.errors import ReplicationBehind
from store.replication.frames import FRAME_HEADER_BYTES, MOST_FRAME_BYTES, FrameKind, LogFrame, in_parts


@dataclass(frozen=True)
class SendLimits:
    """Limits of frames, and of records that wait for them."""

    gather_bytes: int = 1 << 20
    """A frame takes appends up to so many bytes together; one append may have more."""
    record_bytes: int = 1_000_000
    """Largest value of a Kafka record: below the topic's max.message.bytes by what Kafka adds."""
    waiting_bytes: int = 64 << 20
    """An append is refused while more than this is not accepted."""

    def __post_init__(self) -> None:
        if self.gather_bytes < 1 or self.record_bytes <= FRAME_HEADER_BYTES:
            raise ValueError(f"records of {self.record_bytes} bytes hold no frames")

    @property
    def frame_bytes(self) -> int:
        """Bytes of the log that a frame holds at most."""
        return min(self.record_bytes - FRAME_HEADER_BYTES, MOST_FRAME_BYTES)


class SentFrame(NamedTuple):
    """A frame on its way, and when it was first sent."""

    frame: LogFrame
    value: bytes  # of the Kafka record
    sent_s: float


class LeaderFrames:
    """The frames of one epoch: what is sent and not accepted yet, and what is in no frame yet.

    What is in frames stays in the same ones for the whole epoch: a late copy of one may be accepted at any time.
    """

    def __init__(self, epoch: int, accepted: int, limits: SendLimits, appends: Sequence[bytes] = ()) -> None:
        """`appends`: what the leader has appended after `accepted`, in no frame of this epoch."""
        self.epoch = epoch
        self.limits = limits
        self.in_flight: deque[SentFrame] = deque()
        self._framed = accepted  # log_offset after all that is in a frame
        self._in_frames: deque[bytes] = deque()  # the appends that are in flight
        self._gathered = deque(appends)
        self._gathered_bytes = sum(map(len, appends))
        self._number = 0

    @property
    def end(self) -> int:
        """log_offset after the newest append."""
        return self._framed + self._gathered_bytes

    @property
    def is_empty(self) -> bool:
        return not self.in_flight and not self._gathered

    def appends(self) -> list[bytes]:
        """All appends that are not accepted."""
        return [*self._in_frames, *self._gathered]

    def append(self, data: bytes, accepted: int) -> None:
        """Take an append that goes to `end`, as a whole. Raises ReplicationBehind; then nothing was taken."""
        if self.end - accepted > self.limits.waiting_bytes:
            raise ReplicationBehind(self.end - accepted)
        self._gathered.append(data)
        self._gathered_bytes += len(data)

    def next_frames(self, now_s: float) -> list[SentFrame]:
        """The frames to send next, if nothing is in flight: one frame, or all parts of one append."""
        if self.in_flight or not self._gathered:
            return []
        taken = self._take()
        data = b"".join(taken) if len(taken) > 1 else taken[0]
        pieces = [data] if len(data) <= self.limits.frame_bytes else in_parts(data, self.limits.frame_bytes)
        for part, piece in enumerate(pieces):
            self._make(now_s, FrameKind.DATA, piece, part, is_last=part == len(pieces) - 1)
            self._framed += len(piece)
        self._gathered_bytes -= len(data)
        self._in_frames.extend(taken)
        return list(self.in_flight)

    def _take(self) -> list[bytes]:
        """Appends for one frame: as many as may be together, at least one."""
        most = min(self.limits.gather_bytes, self.limits.frame_bytes)
        taken = [self._gathered.popleft()]
        size = len(taken[0])
        while self._gathered and size + len(self._gathered[0]) <= most:
            size += len(self._gathered[0])
            taken.append(self._gathered.popleft())
        return taken

    def signal(self, kind: FrameKind, now_s: float) -> SentFrame:
        """A heartbeat (DATA) or STOP, if nothing is in flight."""
        return self._make(now_s, kind, b"", 0, is_last=True)

    def _make(self, now_s: float, kind: FrameKind, data: bytes, part: int, is_last: bool) -> SentFrame:
        self._number += 1
        frame = LogFrame(kind, self.epoch, self._framed, self._number, data, part, is_last)
        sent = SentFrame(frame, frame.encode(), now_s)
        self.in_flight.append(sent)
        return sent

    def sent(self, frame: LogFrame) -> SentFrame | None:
        """The frame as it was first sent; None: it is not in flight, or a heartbeat that was given up."""
        if frame.epoch != self.epoch:
            return None
        return next((sent for sent in self.in_flight if sent.frame.number == frame.number), None)

    def accepted(self, frame: LogFrame) -> None:
        """A frame was accepted, with all its parts: it and those before it are in flight no more."""
        while self.in_flight and self.in_flight[0].frame.number <= frame.number:
            self.in_flight.popleft()
        if frame.data:
            self._in_frames.clear()  # they are one frame, or one append

    def again(self, open_parts: int) -> list[SentFrame]:
        """The frames to send again after a lost answer: the same ones, without heartbeats and open parts."""
        self.in_flight = deque(sent for sent in self.in_flight if sent.frame.data or sent.frame.kind is FrameKind.STOP)
        return [sent for sent in self.in_flight if sent.frame.part >= open_parts]
