"""Reads files that the disk returns only in part (EIO), and skips holes, for which the file system has no blocks."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

BLOCK_BYTES = 4096
PIECE_BYTES = 256 << 10
REASON = "cannot be read: input/output error"


def read_part(fd: int, size: int, position: int) -> bytes:
    """Like os.pread(), with zeros for the blocks that the disk cannot read (EIO). Raises OSError for all other errors.

    Zeros are no valid records, so recovery finds the intact ones around them as behind any other damage.
    """
    try:
        return os.pread(fd, size, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    end = min(position + size, max(position, os.fstat(fd).st_size))
    return b"".join(_piece(fd, min(PIECE_BYTES, end - at), at) for at in range(position, end, PIECE_BYTES))


def _piece(fd: int, size: int, position: int) -> bytes:
    """Read a part of a file, block by block if it cannot be read as a whole."""
    try:
        return os.pread(fd, size, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    if size <= BLOCK_BYTES:
        return bytes(size)
    first = BLOCK_BYTES - position % BLOCK_BYTES
    places = [position, *range(position + first, position + size, BLOCK_BYTES), position + size]
    return b"".join(_piece(fd, end - at, at) for at, end in pairwise(places))


def data_from(fd: int, position: int) -> int:
    """Position of a file's next data, at or after `position`; there is a hole up to it, which need not be read.

    The end of the file if there are no more data; `position` itself where the file system does not report holes.
    """
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        return max(position, os.fstat(fd).st_size) if error.errno == errno.ENXIO else position


def is_readable(fd: int, start: int, end: int) -> bool:
    """Whether the disk can read all bytes of a part of a file. Raises OSError for all errors but EIO."""
    at = start
    try:
        while at < end and (data := os.pread(fd, min(PIECE_BYTES, end - at), at)):
            at += len(data)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True
