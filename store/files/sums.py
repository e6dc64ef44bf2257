"""The file `sums`: a SHA-256 of each sealed segment's file as the scrubber first read it.

A sealed segment changes only by recovery and repair, which write a new file and remove the sum first. The file is
always written as a whole, under another name, and renamed, so it is never incomplete (docs/formats.md).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from store.files.segment import IDENTITY_BYTES, sync_folder
from store.records._records import crc32c

SUMS = "sums"
MAGIC = b"PENSSUMS"
VERSION = 1
NO_DIGEST = bytes(32)
_NEW = SUMS + ".new"  # a start deletes it
_HEADER = struct.Struct("<8sHH16sQ")
_ENTRY = struct.Struct("<QQ32sQB3x")
_CRC_BYTES = 4
_ENTRY_BYTES = _ENTRY.size + _CRC_BYTES


class State(IntEnum):
    """The scrubber's last result for a segment."""

    INTACT = 0
    DAMAGED = 1  # not all of its records are valid: a start verifies it, whatever its age
    CHANGED = 2  # all records are valid, and the SHA-256 differs


class Sum(NamedTuple):
    """The entry of the segment from log_offset `base` to `end`."""

    base: int
    end: int
    digest: bytes  # SHA-256 of the file; NO_DIGEST: it was never found intact
    scrubbed_ms: int  # Unix time
    state: State

    def differs(self, digest: bytes) -> bool:
        """Whether the file differs from the one that was found intact."""
        return self.digest not in (NO_DIGEST, digest)


@dataclass
class Sums:
    """The content of the file. While the log is served, only the scrubber writes it."""

    identity: bytes = bytes(IDENTITY_BYTES)  # of the log
    pass_ms: int = 0  # Unix time at which the scrubber's last pass began; 0: none did
    entries: dict[int, Sum] = field(default_factory=dict)
    _encoded: dict[int, bytes] = field(default_factory=dict)  # so that encoding many entries again is cheap

    def put(self, entry: Sum) -> None:
        data = _ENTRY.pack(*entry)
        self.entries[entry.base] = entry
        self._encoded[entry.base] = data + crc32c(data).to_bytes(_CRC_BYTES, "little")

    def of(self, base: int, end: int | None) -> Sum | None:
        """The entry of a segment; None also if the segment ended elsewhere then."""
        found = self.entries.get(base)
        return found if found is not None and found.end == end else None

    def drop(self, bases: Iterable[int]) -> None:
        for base in bases:
            self.entries.pop(base, None)
            self._encoded.pop(base, None)

    def encode(self) -> bytes:
        header = _HEADER.pack(MAGIC, VERSION, _ENTRY_BYTES, self.identity, self.pass_ms)
        return b"".join((header, crc32c(header).to_bytes(_CRC_BYTES, "little"), *self._encoded.values()))


def decode_sums(data: bytes) -> Sums | None:
    """Decode the file; None if its header is damaged or its version unknown. A damaged entry is left out."""
    at = _HEADER.size + _CRC_BYTES
    if len(data) < at or crc32c(data[: _HEADER.size]) != int.from_bytes(data[_HEADER.size : at], "little"):
        return None
    magic, version, entry_bytes, identity, pass_ms = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC or version != VERSION or entry_bytes < _ENTRY_BYTES:
        return None
    sums = Sums(identity, pass_ms)
    for start in range(at, len(data) - entry_bytes + 1, entry_bytes):
        entry = data[start : start + _ENTRY.size]
        crc = data[start + entry_bytes - _CRC_BYTES : start + entry_bytes]
        covered = data[start : start + entry_bytes - _CRC_BYTES]
        if crc32c(covered) == int.from_bytes(crc, "little"):
            base, end, digest, scrubbed_ms, state = _ENTRY.unpack(entry)
            sums.put(Sum(base, end, digest, scrubbed_ms, State(min(state, State.CHANGED))))
    return sums


def read_sums(folder: Path) -> Sums | None:
    """The sums of a log's folder, or None if they cannot be read."""
    try:
        return decode_sums((folder / SUMS).read_bytes())
    except OSError:
        return None


def write_sums(folder: Path, sums: Sums) -> None:
    """Replace the file durably. Raises OSError."""
    new = folder / _NEW
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(sums.encode())
            file.flush()
            os.fdatasync(file.fileno())
        new.rename(folder / SUMS)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def forget_sum(folder: Path, base: int) -> None:
    """Drop the entry of a segment that is about to be written anew. Raises OSError."""
    sums = read_sums(folder)
    if sums is not None and base in sums.entries:
        sums.drop([base])
        write_sums(folder, sums)
