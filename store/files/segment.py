"""One file of the log.

Layout: a header of 64 bytes (magic 8, version 4, header size 4, base log_offset 8, epoch 8, created_ms 8, identity of
the log 16, zeros 4, CRC-32C of the first 60 bytes 4), then records, each 8-byte aligned, then zeros up to the file's
fixed size. A file is named by its base log_offset in 20 digits; log_offset = base + position in the file. Sealing cuts
the zeros off.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from store.errors import NO_ROOM, CorruptSegment
from store.files._mapping import MappedFile
from store.files.medium import data_from, read_part
from store.records._records import crc32c, verify, written_bytes

MAGIC = b"PENSTOCK"
VERSION = 1
HEADER_BYTES = 64
SUFFIX = ".log"
SPARE = "spare.new"
DIGITS = 20  # of a segment's name
MOST_LOG_OFFSET = 1 << 63
ALLOCATE_BYTES = 16 << 20
READ_BYTES = 8 << 20
IDENTITY_BYTES = 16
_HEADER = struct.Struct("<8sIIQQQ16s4x")


class Header(NamedTuple):
    """The fields of a segment's header. A file of an earlier version has an identity of zeros."""

    version: int
    base: int
    created_ms: int
    identity: bytes


class Sealed(NamedTuple):
    """A segment that is complete; positions are log_offsets."""

    path: Path
    base: int
    end: int


class Segment:
    """An open segment file: mapped for reading, written through its descriptor."""

    def __init__(self, path: Path, base: int, fd: int, mapped: MappedFile) -> None:
        self.path = path
        self.base = base
        self.size_bytes = len(mapped)
        self.allocated_bytes = 0
        self.created_ms = 0
        self.identity = bytes(IDENTITY_BYTES)  # of the log; zeros: the file is older than identities
        self.last_ms: int | None = None  # timestamp of the last record, where it is known
        self.fd = fd
        self.map = mapped

    @classmethod
    def create(cls, folder: Path, base: int, size_bytes: int, identity: bytes, created_ms: int) -> "Segment":
        """Create a file of its final size with only a header, durably. Raises OSError; then nothing is left behind.

        `identity`: the 16 bytes that all files of this log have in common.
        """
        spare = Spare(folder, size_bytes)
        try:
            segment = spare.become(base, identity, created_ms)
        except OSError:
            spare.remove()
            raise
        os.close(spare.sync_fd)
        sync_folder(folder)
        return segment

    @classmethod
    def open(cls, path: Path, writable: bool = False) -> "Segment":
        """Open an existing file. Raises CorruptSegment if its header is damaged."""
        base = int(path.stem)
        fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            head = os.pread(fd, HEADER_BYTES, 0)
            reason = header_fault(head, base)
            if reason:
                raise CorruptSegment(path, base, reason)
            segment = cls(path, base, fd, MappedFile(fd, os.fstat(fd).st_size))
        except BaseException:
            os.close(fd)
            raise
        header = read_header(head)
        assert header is not None
        segment.created_ms = header.created_ms
        segment.identity = header.identity
        return segment

    @property
    def first(self) -> int:
        """log_offset of the first record."""
        return self.base + HEADER_BYTES

    @property
    def limit(self) -> int:
        """log_offset after the last byte a record may have."""
        return self.base + self.size_bytes

    def view(self, start: int, end: int) -> memoryview:
        """The mapped bytes [start, end), as log_offsets."""
        return memoryview(self.map)[start - self.base : end - self.base]

    def unallocated(self, end: int) -> int:
        """Bytes up to log_offset `end` that the file system has not allocated yet."""
        return max(0, end - self.base - self.allocated_bytes)

    def allocate(self, end: int, ahead_bytes: int) -> None:
        """Allocate room up to `end`, and `ahead_bytes` more if the disk has them. Raises OSError."""
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
        """Cut off the zeros after the last record, at log_offset `end`. Raises OSError: the next start does it."""
        self.size_bytes = end - self.base
        try:
            os.ftruncate(self.fd, self.size_bytes)
        finally:
            self.give_back()

    def erase_after(self, end: int) -> None:
        """Turn everything from log_offset `end` on into zeros, such as the bytes of a torn append."""
        os.ftruncate(self.fd, end - self.base)
        os.ftruncate(self.fd, self.size_bytes)
        self.allocated_bytes = end - self.base

    def forget_pages(self) -> None:
        """Give mapped pages back to the page cache, so that they do not count as this process's memory."""
        self.map.forget_pages()

    def remove(self) -> None:
        """Delete the file; 256 MiB take about 100 ms. Raises OSError."""
        self.path.unlink()
        self.close()

    def give_back(self) -> None:
        """Close its descriptor: nothing is written to it any more, and the mapping needs none."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        self.give_back()
        # A memoryview of the mapping may still be in use; then the mapping goes with that view.
        with suppress(BufferError):
            self.map.close()


class Spare:
    """The next segment, made ahead of need: it lacks its header and its name, which need no room and no descriptor.

    A start deletes a spare that it finds (docs/formats.md).
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Raises OSError; then nothing is left behind."""
        self._path = folder / SPARE
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)  # the umask may take more away
        self.sync_fd = -1
        """Another descriptor of the file, for the flusher's thread."""
        try:
            os.ftruncate(self._fd, size_bytes)
            os.posix_fallocate(self._fd, 0, HEADER_BYTES)
            self._map = MappedFile(self._fd, size_bytes)
            self.sync_fd = os.dup(self._fd)
        except OSError:
            os.close(self._fd)
            self._path.unlink()
            raise

    def become(self, base: int, identity: bytes, created_ms: int) -> Segment:
        """Turn it into the segment that begins at log_offset `base`. Raises OSError; then it is a spare as before.

        Its name is durable once the folder is synced, its header once the file is.
        """
        path = segment_path(self._path.parent, base)
        os.pwrite(self._fd, segment_header(base, identity, created_ms), 0)
        self._path.rename(path)
        segment = Segment(path, base, self._fd, self._map)
        segment.created_ms = created_ms
        segment.identity = identity
        segment.allocated_bytes = HEADER_BYTES
        return segment

    def remove(self) -> None:
        """Delete the file. Raises OSError."""
        self._map.close()
        os.close(self._fd)
        os.close(self.sync_fd)
        self._path.unlink()


def segment_header(base: int, identity: bytes, created_ms: int) -> bytes:
    """The first 64 bytes of a segment."""
    header = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, base, 0, created_ms, identity)
    return header + crc32c(header).to_bytes(4, "little")


def read_header(data: bytes) -> Header | None:
    """The header in the first 64 bytes of a segment, of any version; None if they are damaged."""
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        return None
    if crc32c(data[: _HEADER.size]) != int.from_bytes(data[_HEADER.size : HEADER_BYTES], "little"):
        return None
    _, version, _, base, _, created_ms, identity = _HEADER.unpack(data[: _HEADER.size])
    return Header(version, base, created_ms, identity)


def header_fault(data: bytes, named_base: int) -> str | None:
    """The reason why these are not the first bytes of a segment that this version reads, or None."""
    if len(data) < HEADER_BYTES:
        return "cut off in its header"
    if data[: len(MAGIC)] != MAGIC:
        return "not a segment: wrong magic"
    header = read_header(data)
    if header is None:
        return "header checksum mismatch"
    if header.version != VERSION:
        return f"format version {header.version}; this program reads version {VERSION}"
    return None if header.base == named_base else f"its header says base {header.base}"


def read_records(fd: int, base: int, at: int, end: int | None = None) -> tuple[bytes, int, str | None]:
    """Verified records of a segment's file from log_offset `at` on, the last one's timestamp, and the fault after
    them.

    If there are none: the fault at `at`, or None at `end`.
    """
    room = (base + os.fstat(fd).st_size if end is None else end) - at
    size = min(room, READ_BYTES)
    while True:
        data = read_part(fd, size, at - base)
        valid, last_ms, reason = verify(data, at)
        length = int.from_bytes(data[:4], "little")
        if valid or not size < length <= room:
            return data[:valid], last_ms, reason
        size = length  # a record larger than the piece that was read


def written_from(fd: int, position: int, sparse_from: int | None = None) -> int:
    """Bytes from a position up to the last non-zero byte of a file. From `sparse_from` on holes are skipped."""
    found = 0
    at = position
    while True:
        if sparse_from is not None and at >= sparse_from:
            at = data_from(fd, at)
        data = read_part(fd, READ_BYTES, at)
        if not data:
            return found
        written = written_bytes(data)
        if written:
            found = at + written - position
        at += len(data)


def segment_path(folder: Path, base: int) -> Path:
    """The file of the segment that begins at log_offset `base`."""
    return folder / f"{base:020}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """The segment files of a folder, oldest first. Files whose names are no log_offset, and folders, are none."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if _is_base(path.stem) and path.is_file())


def _is_base(name: str) -> bool:
    """Whether a segment can have this name, without its suffix."""
    if not name.isascii() or not name.isdecimal() or len(name) != DIGITS:
        return False
    return int(name) < MOST_LOG_OFFSET and not int(name) & 7


def sync_folder(folder: Path) -> None:
    """Make the names of created files durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
