"""The marks of a log: its identity, where it begins, and how far the disk has confirmed it.

The file `marks` has two slots of 64 bytes, 512 bytes apart so that no sector holds both. They are written in turn, and
the one with the greater number counts, so a torn write leaves the other one valid (docs/formats.md).

A restored log is another log. The file `restored-from` beside the marks names those that it has the beginning of.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from store.files.segment import IDENTITY_BYTES, sync_folder
from store.records._records import crc32c
from store.settings import MOST_RESTORED_FROM

MARKS = "marks"
RESTORED_FROM = "restored-from"
MAGIC = b"PENMARKS"
SLOT_SPACING = 512
_SLOT = struct.Struct("<8sQQQ16s12x")
_RESTORED_FROM = re.compile(f"([0-9a-f]{{{2 * IDENTITY_BYTES}}}) ([0-9]{{1,18}})")


class Slot(NamedTuple):
    number: int
    begin: int  # log_offset at which the oldest segment begins
    flushed: int  # every byte before this log_offset was confirmed by fdatasync
    identity: bytes


def read_restored_from(folder: Path) -> list[tuple[str, int]]:
    """The logs that the log of a folder was restored from, newest first.

    Each by its identity in hexadecimal, and the log_offset from which on the next of them had records of its own. A
    damaged line is left out. Raises OSError.
    """
    try:
        lines = (folder / RESTORED_FROM).read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return []
    found = [(match[1], int(match[2])) for line in lines if (match := _RESTORED_FROM.fullmatch(line))]
    return found[:MOST_RESTORED_FROM]


def write_restored_from(folder: Path, logs: list[tuple[str, int]]) -> None:
    """Say so durably; the folder itself is synced by the caller. Raises OSError."""
    with (folder / RESTORED_FROM).open("x") as file:
        file.writelines(f"{name} {log_offset}\n" for name, log_offset in logs[:MOST_RESTORED_FROM])
        file.flush()
        os.fdatasync(file.fileno())


class Marks:
    """Owner of the file. The flusher's thread writes how far the log is flushed, the log's thread where it begins."""

    def __init__(self, folder: Path, identity: bytes = b"") -> None:
        """Open the marks of a log's folder, or begin new ones, with a random identity or that one. Raises OSError."""
        path = folder / MARKS
        self.restored_from = read_restored_from(folder)
        self.is_new = not path.exists()
        self._writing = Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        found = _newest(self._fd)
        self.is_known = found is not None
        self._slot = found or Slot(0, 0, 0, identity or os.urandom(IDENTITY_BYTES))
        self._begin_synced = self._slot.begin
        if self.is_new:
            sync_folder(folder)

    @property
    def identity(self) -> bytes:
        """16 random bytes that all files of this log have in common."""
        return self._slot.identity

    @property
    def begin(self) -> int:
        return self._slot.begin

    @property
    def flushed(self) -> int | None:
        """Every byte before this log_offset was on disk once; None: unknown."""
        return self._slot.flushed if self.is_known else None

    @property
    def begin_is_safe(self) -> bool:
        """Whether the beginning is durable, so that a power cut cannot bring an earlier one back."""
        return self._begin_synced == self._slot.begin

    def adopt(self, identity: bytes) -> None:
        """Take the identity of the segments found; positions known so far belong to another log, or to none."""
        self.is_known = False
        self._slot = Slot(self._slot.number, 0, 0, identity)

    @property
    def slot(self) -> Slot:
        """The current values."""
        return self._slot

    def learn(self, other: Slot, first: int | None) -> None:
        """Take the marks that the index remembers: of the same log, the greater `flushed` counts.

        `first`: log_offset at which the oldest segment found begins; `begin` is never set after it.
        """
        known = learned(self._slot if self.is_known else None, self.identity, other, first)
        if known is not None:
            self._slot = self._slot._replace(begin=known.begin, flushed=known.flushed)
            self.is_known = True

    def start(self, begin: int, flushed: int) -> None:
        """Write the positions that recovery found, durably. Raises OSError."""
        self._write(begin=begin, flushed=flushed)
        self.is_known = True
        self.sync()

    def flushed_to(self, log_offset: int) -> None:
        """Note that a sync has confirmed everything before `log_offset`. Raises OSError."""
        self._write(flushed=log_offset)

    def begin_at(self, log_offset: int) -> None:
        """Note that the segments before `log_offset` are about to be dropped. Raises OSError."""
        self._write(begin=log_offset)

    def sync(self) -> None:
        """Make the marks durable. Raises OSError."""
        begin = self._slot.begin
        os.fsync(self._fd)
        self._begin_synced = begin

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, **changed: int | bytes) -> None:
        with self._writing:
            slot = self._slot._replace(number=self._slot.number + 1, **changed)  # type: ignore[arg-type]
            data = _SLOT.pack(MAGIC, *slot)
            os.pwrite(self._fd, data + crc32c(data).to_bytes(4, "little"), slot.number % 2 * SLOT_SPACING)
            self._slot = slot


def learned(slot: Slot | None, identity: bytes, other: Slot, first: int | None) -> Slot | None:
    """A log's slot from its marks (None: unreadable) and from what its index remembers; see Marks.learn()."""
    if other.identity != identity or (slot is not None and other.flushed <= slot.flushed):
        return slot
    if slot is not None:
        return slot._replace(flushed=other.flushed)
    return other._replace(begin=other.begin if first is None else min(other.begin, first))


def encode_remembered(slot: Slot) -> bytes:
    """The bytes by which the index remembers the marks."""
    return slot.identity + slot.begin.to_bytes(8, "big") + slot.flushed.to_bytes(8, "big")


def decode_remembered(data: bytes) -> Slot:
    begin, flushed = (int.from_bytes(data[at : at + 8], "big") for at in (IDENTITY_BYTES, IDENTITY_BYTES + 8))
    return Slot(0, begin, flushed, data[:IDENTITY_BYTES])


def read_marks(folder: Path) -> Slot | None:
    """The newest valid slot of a log's folder, or None if none can be read."""
    try:
        fd = os.open(folder / MARKS, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _newest(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def _newest(fd: int) -> Slot | None:
    slots = (decode_slot(os.pread(fd, _SLOT.size + 4, at)) for at in (0, SLOT_SPACING))
    return max((slot for slot in slots if slot is not None), default=None)


def decode_slot(data: bytes) -> Slot | None:
    """The slot in these bytes, or None if they are damaged."""
    if len(data) < _SLOT.size + 4 or crc32c(data[: _SLOT.size]) != int.from_bytes(data[_SLOT.size :], "little"):
        return None
    magic, *fields = _SLOT.unpack(data[: _SLOT.size])
    return Slot(*fields) if magic == MAGIC else None
