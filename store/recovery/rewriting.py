"""Writes a new file in place of a damaged one: the same records at the same positions, GAP records over the holes.

The old file is not touched, so a hard link to it in a backup keeps its content. GAP records are mostly zeros, which
take no room on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from store.files.medium import read_part
from store.files.segment import HEADER_BYTES, READ_BYTES, segment_header, sync_folder
from store.files.sums import forget_sum
from store.records._records import LogMemory, RecordBatch
from store.records.records import RECORD_HEADER_BYTES, RecordType
from store.recovery.salvage import Hole

GAP_BYTES = 63 << 10  # of one GAP record, at most: the smallest segment has room for it, and so has an answer
NEW = ".new"


def rewrite(path: Path, identity: bytes, created_ms: int, holes: Sequence[Hole], size_bytes: int) -> None:
    """Replace a segment's file by one of `size_bytes` with a valid header and these holes, in order, filled.

    Raises OSError; then the old file is still in place.
    """
    base = int(path.stem)
    new = path.with_name(path.name + NEW)
    reading = os.open(path, os.O_RDONLY)
    writing = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
    try:
        os.ftruncate(writing, size_bytes)
        os.pwrite(writing, segment_header(base, identity, created_ms), 0)
        at = base + HEADER_BYTES
        for hole in holes:
            _copy(reading, writing, at - base, hole.start - base)
            fill(writing, base, hole)
            at = hole.end
        _copy(reading, writing, at - base, size_bytes)
        os.fdatasync(writing)
        forget_sum(path.parent, base)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(writing)
        os.close(reading)
    sync_folder(path.parent)


def fill(fd: int, base: int, hole: Hole) -> None:
    """Write GAP records over log_offsets [start, end), which are multiples of 8 and at least 40 apart."""
    memory = LogMemory(1)
    at = hole.start
    while at < hole.end:
        length = hole.end - at
        if length > GAP_BYTES:
            length = min(GAP_BYTES, length - RECORD_HEADER_BYTES)
        batch = RecordBatch()
        batch.append(RecordType.GAP, bytes(length - RECORD_HEADER_BYTES))
        memory.write_batch(batch, fd, at, 0, base)
        at += length


def _copy(reading: int, writing: int, start: int, end: int) -> None:
    """Copy a part of a file; zeros become holes of the new file."""
    while start < end and (data := read_part(reading, min(READ_BYTES, end - start), start)):
        if any(data):
            os.pwrite(writing, data, start)
        start += len(data)
