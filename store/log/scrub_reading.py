"""Reading a sealed segment for the scrubber: slowly, and without a trace in the page cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from store.files.segment import HEADER_BYTES, Sealed, header_fault
from store.records._records import find_record, verify
from store.records.records import RECORD_HEADER_BYTES
from store.recovery.salvage import Hole, next_record

CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 64 << 10


class ColdReader:
    """Reads a file by a descriptor of its own, and leaves the page cache as it was.

    It reads a block at a time without readahead (POSIX_FADV_RANDOM). RWF_NOWAIT says how much of a block is in the page
    cache; the part that comes from the disk is dropped again after the read (POSIX_FADV_DONTNEED). On a file system
    without RWF_NOWAIT the blocks stay in the cache.
    """

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._can_tell = True

    def read(self, position: int, size: int) -> bytes:
        """Less than `size` where the file ends. Raises OSError."""
        blocks = []
        end = position + size
        while position < end:
            wanted = min(BLOCK_BYTES - position % BLOCK_BYTES, end - position)
            block = self._block(position, wanted)
            blocks.append(block)
            position += len(block)
            if len(block) < wanted:
                break
        return b"".join(blocks)

    def _block(self, position: int, size: int) -> bytes:
        buffer = bytearray(size)
        resident = self._read_resident(buffer, position)
        if resident == size:
            return bytes(buffer)
        data = os.pread(self.fd, size, position)
        if self._can_tell:
            os.posix_fadvise(self.fd, position + resident, size - resident, os.POSIX_FADV_DONTNEED)
        return data

    def _read_resident(self, buffer: bytearray, position: int) -> int:
        """Read from the page cache alone; the number of bytes read from the front."""
        if not self._can_tell:
            return 0
        try:
            return os.preadv(self.fd, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # EOPNOTSUPP; a disk error comes again at the next read, and is reported then
            self._can_tell = False
            return 0

    def close(self) -> None:
        os.close(self.fd)


class Look:
    """One pass over a segment: its byte ranges without valid records, and the SHA-256 of the whole file."""

    def __init__(self, reader: ColdReader, segment: Sealed, passed: Callable[[int], bool]) -> None:
        """`passed(size)` is called after each read, waits as long as the pace demands, and returns whether to go on."""
        self._reader = reader
        self._segment = segment
        self._passed = passed
        self._hash = hashlib.sha256()
        self._buffer = bytearray()  # read and not examined yet; at most a chunk and one record
        self._at = segment.base  # log_offset of its first byte
        self._position = 0  # in the file, up to which it was read
        self._is_stopped = False
        self.holes: list[Hole] = []

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def run(self) -> bool:
        """Read all of the segment. False if it was stopped. Raises OSError."""
        if self._read_on():
            self._look_at_header()
        while self._at < self._segment.end and not self._is_stopped:
            valid, _, reason = verify(self._buffer, self._at)
            self._take(valid)
            if self._at < self._segment.end and not self._is_stopped:
                self._go_on(reason or "cut off")
        return not self._is_stopped

    def _look_at_header(self) -> None:
        base = self._segment.base
        fault = header_fault(bytes(self._buffer[:HEADER_BYTES]), base)
        if fault:
            self.holes.append(Hole(base, base + HEADER_BYTES, f"header: {fault}"))
        self._take(HEADER_BYTES)

    def _go_on(self, reason: str) -> None:
        """Read on if the buffer ends inside a record; else look for the next valid record."""
        if not self._has_begun():
            self._skip(reason)
        elif not self._read_on() and not self._is_stopped:
            self.holes.append(Hole(self._at, self._segment.end, "the file ends there"))
            self._at = self._segment.end

    def _has_begun(self) -> bool:
        """Whether the buffer may hold the front part of a valid record. Its length field alone proves nothing."""
        if self._at + len(self._buffer) >= self._segment.end:
            return False
        head = bytes(self._buffer[:RECORD_HEADER_BYTES])
        if len(head) < RECORD_HEADER_BYTES:
            return True
        is_likely = find_record(head, self._at, 0, self._segment.end) == 0
        return is_likely and int.from_bytes(head[:4], "little") > len(self._buffer)

    def _read_on(self) -> bool:
        """Read the next chunk into the buffer. False at the end of the file, or when the scrubber stops."""
        left = self._segment.end - self._segment.base - self._position
        data = self._reader.read(self._position, min(CHUNK_BYTES - self._position % BLOCK_BYTES, left))
        self._hash.update(data)
        self._buffer += data
        self._position += len(data)
        self._is_stopped = not self._passed(len(data))
        return bool(data)

    def _skip(self, reason: str) -> None:
        base, end = self._segment.base, self._segment.end
        following = next_record(self._reader.fd, base, self._at, end, opens_batches=True)
        behind = end if following is None else following
        self.holes.append(Hole(self._at, behind, reason))
        if behind <= self._at + len(self._buffer):
            self._take(behind - self._at)
            return
        searched = behind - base - self._position
        self._buffer.clear()
        self._at, self._position = behind, behind - base
        self._is_stopped = not self._passed(searched)

    def _take(self, size: int) -> None:
        del self._buffer[:size]
        self._at += size
