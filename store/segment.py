"""One file of the log.

Layout: a header of 64 bytes (magic 8, version 4, header size 4, base log_offset 8, epoch 8, created_ms 8, zeros,
CRC-32C of the first 60 bytes 4), then records, each 8-byte aligned, then zeros up to the file's fixed size. A file is
named by its base log_offset in 20 digits; log_offset = base + position in the file. Sealing cuts the zeros off.
"""

import errno
import mmap
import os
import struct
from contextlib import suppress
from pathlib import Path

from store._records import crc32c, verify, written_bytes
from store.errors import CorruptSegment

MAGIC = b"PENSTOCK"
VERSION = 1
HEADER_BYTES = 64
SUFFIX = ".log"
ALLOCATE_BYTES = 16 << 20
READ_BYTES = 8 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HEADER = struct.Struct("<8sIIQQQ20x")


class Segment:
    """An open segment file: mapped for reading, written through its descriptor."""

    def __init__(self, path: Path, size_bytes: int, writable: bool) -> None:
        self.path = path
        self.base = int(path.stem)
        self.size_bytes = size_bytes
        self.allocated_bytes = 0
        self.created_ms = 0
        self.last_ms: int | None = None  # timestamp of the last record, where it is known
        self.fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        self.map = mmap.mmap(self.fd, size_bytes, prot=mmap.PROT_READ)

    @classmethod
    def create(cls, folder: Path, base: int, size_bytes: int, epoch: int, created_ms: int) -> "Segment":
        """Make a file of its final size with nothing but a header. Raises OSError (ENOSPC: nothing is left behind)."""
        path = folder / f"{base:020}{SUFFIX}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)  # the umask may take more away
        try:
            os.ftruncate(fd, size_bytes)
            os.posix_fallocate(fd, 0, HEADER_BYTES)
            header = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, base, epoch, created_ms)
            os.pwrite(fd, header + crc32c(header).to_bytes(4, "little"), 0)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(fd)
        sync_folder(folder)
        segment = cls(path, size_bytes, writable=True)
        segment.created_ms = created_ms
        segment.allocated_bytes = HEADER_BYTES
        return segment

    @classmethod
    def open(cls, path: Path, writable: bool = False) -> "Segment":
        """Open an existing file. Raises CorruptSegment if its header is damaged."""
        size_bytes = path.stat().st_size
        if size_bytes < HEADER_BYTES:
            raise CorruptSegment(path, int(path.stem), "cut off in its header")
        segment = cls(path, size_bytes, writable)
        reason = header_fault(segment.map[:HEADER_BYTES], segment.base)
        if reason:
            segment.close()
            raise CorruptSegment(path, segment.base, reason)
        *_, segment.created_ms = _HEADER.unpack(segment.map[: _HEADER.size])
        return segment

    @property
    def first(self) -> int:
        """log_offset of the first record."""
        return self.base + HEADER_BYTES

    @property
    def limit(self) -> int:
        """log_offset that no record can reach past."""
        return self.base + self.size_bytes

    def view(self, start: int, end: int) -> memoryview:
        """The mapped bytes [start, end), as log_offsets."""
        return memoryview(self.map)[start - self.base : end - self.base]

    def verify(self, end: int) -> tuple[int, str | None]:
        """(log_offset where valid records end, what is wrong there if that is before `end`)."""
        with self.view(self.first, end) as data:
            valid, self.last_ms, reason = verify(data, self.first)
        return self.first + valid, reason

    def find_end(self) -> tuple[int, str | None]:
        """The same for a segment that may end anywhere; the reason is None if nothing but zeros follows.

        Not by the mapping: looking at a hole in it takes room on a tmpfs, and is fatal where there is none.
        """
        end = self.first
        while True:
            data, last_ms, reason = read_records(self.fd, self.base, end)
            if not data:
                return end, reason if written_from(self.fd, end - self.base) else None
            self.last_ms = last_ms
            end += len(data)

    def unallocated(self, end: int) -> int:
        """Bytes up to log_offset `end` that the file system has not set aside yet."""
        return max(0, end - self.base - self.allocated_bytes)

    def allocate(self, end: int, ahead_bytes: int) -> None:
        """Have the file system set aside room up to `end`, and some more if it can. Raises OSError if it cannot."""
        for ahead in (min(ahead_bytes, ALLOCATE_BYTES), 0):
            target = min(self.size_bytes, end - self.base + ahead)
            try:
                os.posix_fallocate(self.fd, self.allocated_bytes, target - self.allocated_bytes)
            except OSError as error:
                if error.errno not in NO_ROOM or not ahead:
                    raise
            else:
                self.allocated_bytes = target
                return

    def seal(self, end: int) -> None:
        """Give back what lies behind the last record."""
        os.truncate(self.path, end - self.base)
        self.size_bytes = end - self.base

    def erase_after(self, end: int) -> None:
        """Turn everything from log_offset `end` on into zeros: what a torn append left."""
        os.ftruncate(self.fd, end - self.base)
        os.ftruncate(self.fd, self.size_bytes)
        self.allocated_bytes = end - self.base

    def forget_pages(self) -> None:
        """Give mapped pages back to the page cache, so that they do not count as this process's memory."""
        self.map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        os.close(self.fd)
        # Somebody may still look at a range of it; then the mapping goes when that view does.
        with suppress(BufferError):
            self.map.close()


def header_fault(header: bytes, named_base: int) -> str | None:
    """Why these are not the first bytes of a segment that this version reads, or None."""
    if len(header) < HEADER_BYTES:
        return "cut off in its header"
    magic, version, _, base, _, _ = _HEADER.unpack(header[: _HEADER.size])
    if magic != MAGIC:
        return "not a segment: wrong magic"
    if crc32c(header[: _HEADER.size]) != int.from_bytes(header[_HEADER.size :], "little"):
        return "header checksum mismatch"
    if version != VERSION:
        return f"format version {version}; this program reads version {VERSION}"
    return None if base == named_base else f"its header says base {base}"


def read_records(fd: int, base: int, at: int, end: int | None = None) -> tuple[bytes, int, str | None]:
    """Some verified records of a segment's file from log_offset `at` on, and the last one's timestamp.

    If there are none: what is wrong there, or None at `end`.
    """
    room = (base + os.fstat(fd).st_size if end is None else end) - at
    size = min(room, READ_BYTES)
    while True:
        data = os.pread(fd, size, at - base)
        valid, last_ms, reason = verify(data, at)
        length = int.from_bytes(data[:4], "little")
        if valid or not size < length <= room:
            return data[:valid], last_ms, reason
        size = length  # a record larger than what was read


def written_from(fd: int, position: int) -> int:
    """Bytes of a file from a position on up to the last that is not zero."""
    found = 0
    at = position
    while data := os.pread(fd, READ_BYTES, at):
        written = written_bytes(data)
        if written:
            found = at + written - position
        at += len(data)
    return found


def segment_paths(folder: Path) -> list[Path]:
    """The segment files of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal() and len(path.stem) == 20)


def sync_folder(folder: Path) -> None:
    """Make the names of created files durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
