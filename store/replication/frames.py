"""Frames: what one record of the replicated partition holds.

A data frame has bytes of the log exactly as they lie in its segments, headers of segments included. An EPOCH frame
says who leads from there on, and a STOP frame that the leader stops on purpose. Layout: docs/formats.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from store.errors import FrameDamaged
from store.records._records import crc32c

MAGIC = b"PENFRAME"
VERSION = 1
_HEADER = struct.Struct("<8sIHBBIIQQQ")
FRAME_HEADER_BYTES = _HEADER.size
_CHECKED_FROM = 12  # the checksum covers all after it
MOST_FRAME_BYTES = 64 << 20
MOST_PARTS = 1 << 16
PROCESS_BYTES = 16
MOST_ADDRESS_BYTES = 255
_MOST_LOG_OFFSET = 1 << 62


class FrameKind(IntEnum):
    """The purpose of a frame."""

    DATA = 0  # without bytes: a heartbeat
    EPOCH = 1
    STOP = 2  # the leader stops on purpose


class Leader(NamedTuple):
    """The leader that appended an EPOCH frame."""

    address: str  # where gateways reach that store
    process: bytes  # 16 random bytes of that process: a store that starts again is another leader


@dataclass(frozen=True, slots=True)
class LogFrame:
    """One frame. Raises ValueError if it cannot be one."""

    kind: FrameKind
    epoch: int  # from 1 on
    base: int  # log_offset of the first byte; of other kinds, how far their sender has accepted the log
    number: int  # counts what a leader sends in an epoch, from 1 on; 0 of an EPOCH frame
    data: bytes = b""
    part: int = 0
    is_last: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.epoch < _MOST_LOG_OFFSET or not 0 <= self.number < _MOST_LOG_OFFSET:
            raise ValueError(f"epoch {self.epoch}, number {self.number}")
        if not 0 <= self.base <= _MOST_LOG_OFFSET - len(self.data) or len(self.data) > MOST_FRAME_BYTES:
            raise ValueError(f"{len(self.data)} bytes at log_offset {self.base}")
        is_part = self.part > 0 or not self.is_last
        if not 0 <= self.part < MOST_PARTS or (is_part and not (self.kind is FrameKind.DATA and self.data)):
            raise ValueError(f"part {self.part} of a {self.kind.name} frame of {len(self.data)} bytes")
        if self.kind is FrameKind.STOP and self.data:
            raise ValueError("a STOP frame has no bytes")
        if self.kind is FrameKind.EPOCH:
            _decode_leader(self.data)

    @property
    def end(self) -> int:
        """log_offset after the bytes of a data frame."""
        return self.base + len(self.data)

    @property
    def leader(self) -> Leader:
        """The leader that an EPOCH frame names. Raises ValueError for other frames."""
        return _decode_leader(self.data)

    def encode(self) -> bytes:
        """The value of a Kafka record."""
        length = len(self.data)
        fields = (VERSION, self.kind, self.is_last, self.part, length, self.epoch, self.base, self.number)
        checked = _HEADER.pack(MAGIC, 0, *fields)[_CHECKED_FROM:] + self.data
        return b"".join((MAGIC, crc32c(checked).to_bytes(4, "little"), checked))


class ReadFrame(NamedTuple):
    """A frame, and its checksum, by which it is known again."""

    frame: LogFrame
    checksum: int


def known_frame(frame: LogFrame, encoded: bytes) -> ReadFrame:
    """What decode_frame() makes of the bytes that a frame was encoded to."""
    return ReadFrame(frame, int.from_bytes(encoded[8:_CHECKED_FROM], "little"))


def decode_frame(data: bytes) -> ReadFrame:
    """Decode the value of a Kafka record. Raises FrameDamaged for whatever is not a frame of this version, as a whole.

    Two readers that judged such a record differently would have two logs.
    """
    if len(data) < FRAME_HEADER_BYTES or data[:8] != MAGIC:
        raise FrameDamaged("it is no frame of a log")
    _, checksum, version, kind, is_last, part, length, epoch, base, number = _HEADER.unpack_from(data)
    if version != VERSION:
        raise FrameDamaged(f"its version is {version}, and this store knows version {VERSION}")
    if length != len(data) - FRAME_HEADER_BYTES:
        raise FrameDamaged(f"it says that it has {length} bytes, and has {len(data) - FRAME_HEADER_BYTES}")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise FrameDamaged("its checksum is another one")
    if is_last > 1:
        raise FrameDamaged(f"a flag is {is_last}")
    try:
        frame = LogFrame(FrameKind(kind), epoch, base, number, data[FRAME_HEADER_BYTES:], part, bool(is_last))
    except ValueError as error:
        raise FrameDamaged(str(error)) from error
    return ReadFrame(frame, checksum)


def epoch_frame(epoch: int, base: int, leader: Leader) -> LogFrame:
    """The frame by which a store asks to lead. Raises ValueError for an address that is empty or too long."""
    return LogFrame(FrameKind.EPOCH, epoch, base, 0, leader.process + leader.address.encode())


def in_parts(data: bytes, largest: int) -> Sequence[bytes]:
    """Cut the bytes of one append into parts of at most `largest` bytes each."""
    view = memoryview(data)
    return [bytes(view[at : at + largest]) for at in range(0, len(data), largest)]


def _decode_leader(data: bytes) -> Leader:
    if not PROCESS_BYTES < len(data) <= PROCESS_BYTES + MOST_ADDRESS_BYTES:
        raise ValueError(f"an EPOCH frame of {len(data)} bytes")
    return Leader(data[PROCESS_BYTES:].decode(), data[:PROCESS_BYTES])  # UnicodeDecodeError is a ValueError
