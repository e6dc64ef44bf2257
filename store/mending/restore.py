"""Restores a backup as a new data folder, as a whole or up to a point in the log.

Clients and Spark checkpoints have seen log_offsets after that point. So the restored log does not use them again: it
goes on `skip_bytes` after the end of the backup, and has a new identity (docs/adr/0044). The folder is built beside
its place and renamed once it is complete, so a killed restore leaves no data folder.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import BackupUnusable, FolderUnusable, IndexFailed
from store.files.folder import (
    CHECKPOINT,
    LOG,
    QUARANTINE,
    copy_folder,
    missing_above,
    sync_contents,
    sync_names,
)
from store.files.marks import Marks, write_restored_from
from store.files.medium import read_part
from store.files.segment import HEADER_BYTES, READ_BYTES, SUFFIX, read_header, segment_header, segment_path, sync_folder
from store.log.index import FORMAT, Index, IndexedLog, fault_of
from store.mending.backup import BackupManifest, Kept, read_manifest
from store.mending.foresight import Progress, headers, silent
from store.records._records import crc32c
from store.records.records import RECORD_HEADER_BYTES, RecordType
from store.recovery.quarantine import Finding, Quarantine
from store.recovery.rewriting import GAP_BYTES
from store.recovery.salvage import Hole, salvage
from store.settings import StoreSettings

RESTORING = ".restoring"
SKIP_BYTES = 1 << 30
LEAP_BYTES = 1 << 30  # of one segment, at most
_GAP = struct.Struct("<QQBBHHHII")


@dataclass
class Restored:
    """The result of a restore."""

    first: int  # log_offset of the oldest record
    end: int  # log_offset after the newest one
    next: int  # log_offset of the next record
    identity: bytes
    damaged: list[Hole] = field(default_factory=list)  # of the backup; the first start keeps the rest
    missing: list[tuple[int, int]] = field(default_factory=list)  # ranges of log_offsets that the backup never had
    lost: list[tuple[int, int]] = field(default_factory=list)  # ranges whose files are gone from the backup
    without_index: str = ""  # why the state from before the log's beginning is not restored


def restore(
    target: Path,
    data: Path,
    to: int | None = None,
    at_ms: int | None = None,
    skip_bytes: int = SKIP_BYTES,
    on_progress: Progress = silent,
) -> Restored:
    """Make a data folder from a backup.

    `to`: only records before this log_offset; `at_ms`: only records before the first that was stored after this Unix
    time (ms). `skip_bytes`: more than was ever stored behind the backup's end. `data` must not exist, or be empty. What
    the backup lacks by now is left out. Raises BackupUnusable, FolderUnusable.
    """
    manifest = read_manifest(target)
    if manifest is None or not manifest.segments:
        raise BackupUnusable(target, "holds no complete backup")
    if data.exists() and (not data.is_dir() or any(data.iterdir())):
        raise FolderUnusable(data, "is there already, and not empty")
    new = data.absolute().with_name(data.absolute().name + RESTORING)
    try:
        cut = _cut(target, manifest, to, at_ms)
        shutil.rmtree(new, ignore_errors=True)
        made = missing_above(new)
        (new / LOG).mkdir(mode=0o700, parents=True)
        restored = _fill(target, new, manifest, cut, skip_bytes, on_progress)
        new.rename(data)
        sync_names(data, made)
    except OSError as error:
        if str(error.filename or "").startswith(str(target)):
            raise BackupUnusable(target, f"cannot be read ({error})") from error
        raise FolderUnusable(data, str(error)) from error
    return restored


def _fill(
    target: Path, new: Path, manifest: BackupManifest, cut: int, skip_bytes: int, on_progress: Progress
) -> Restored:
    marks = Marks(new / LOG)
    try:
        restored = Restored(manifest.base + HEADER_BYTES, cut, 0, marks.identity)
        kept = [each for each in manifest.segments if each.base + HEADER_BYTES < cut]
        for number, each in enumerate(kept):
            on_progress(f"{each.base:020}", number / len(kept))
            if _path(target, each).is_file():
                restored.damaged += _copy(target / LOG, new / LOG, each, min(each.end, cut), marks.identity)
            else:
                restored.lost.append(_without(new, each, marks.identity))
        restored.missing = [(start, end) for start, end in manifest.missing if end < cut]
        restored.next = cut
        if skip_bytes or cut < manifest.end:
            restored.next = (manifest.end + max(skip_bytes, GAP_BYTES) + 7) & ~7
            _leap(new / LOG, cut, restored.next, marks.identity)
        write_restored_from(new / LOG, [(manifest.identity, restored.next), *manifest.restored_from])
        marks.start(manifest.base, restored.next)
    finally:
        marks.close()
    if manifest.base:
        restored.without_index = _restore_checkpoint(target, new, manifest, cut, restored.identity)
    sync_folder(new / LOG)
    sync_folder(new)
    return restored


def _path(target: Path, kept: Kept) -> Path:
    """The file of a segment in a backup."""
    return segment_path(target / LOG, kept.base)


def _without(new: Path, kept: Kept, identity: bytes) -> tuple[int, int]:
    """Put a gap in the place of a segment whose file is gone; returns its range of log_offsets."""
    name = f"{kept.base:020}"
    _write_gaps(new / LOG / f"{name}{SUFFIX}", kept.base, kept.end, identity)
    finding = Finding("missing", name, kept.base + HEADER_BYTES, kept.end, "the backup lacked its file")
    Quarantine(new / QUARANTINE).describe(finding)
    return kept.base, kept.end


def _copy(source: Path, target: Path, kept: Kept, end: int, identity: bytes) -> list[Hole]:
    """Copy a segment up to a log_offset, under the new identity; returns its damaged ranges."""
    name = f"{kept.base:020}{SUFFIX}"
    reading = os.open(source / name, os.O_RDONLY)
    writing = os.open(target / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(writing, end - kept.base)
        at = HEADER_BYTES
        while at < end - kept.base and (data := read_part(reading, min(READ_BYTES, end - kept.base - at), at)):
            if any(data):
                os.pwrite(writing, data, at)
            at += len(data)
        header = read_header(read_part(reading, HEADER_BYTES, 0))
        os.pwrite(writing, segment_header(kept.base, identity, header.created_ms if header else 0), 0)
        os.fdatasync(writing)
        found = salvage(writing, kept.base, end, None)
    finally:
        os.close(writing)
        os.close(reading)
    behind = [Hole(found.end, end, found.reason)] if found.end < end else []
    return found.holes + behind


def _leap(folder: Path, start: int, end: int, identity: bytes) -> None:
    """Write segments of GAP records from `start` to `end`, which take hardly any room on the disk."""
    while start < end:
        size = min(LEAP_BYTES, end - start)
        if 0 < end - start - size < 2 * HEADER_BYTES:
            size -= 2 * HEADER_BYTES
        _write_gaps(segment_path(folder, start), start, start + size, identity)
        start += size


def _write_gaps(path: Path, base: int, end: int, identity: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(fd, end - base)
        os.pwrite(fd, segment_header(base, identity, 0), 0)
        at = base + HEADER_BYTES
        while at < end:
            length = min(GAP_BYTES, end - at)
            if 0 < end - at - length < RECORD_HEADER_BYTES:
                length -= RECORD_HEADER_BYTES
            header = _GAP.pack(at, 0, RecordType.GAP, 0, 0, 0, 0, 0, length - RECORD_HEADER_BYTES)
            checksum = crc32c(header + bytes(length - RECORD_HEADER_BYTES))
            os.pwrite(fd, struct.pack("<II", length, checksum) + header, at - base)
            at += length
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _restore_checkpoint(target: Path, new: Path, manifest: BackupManifest, cut: int, identity: bytes) -> str:
    """Restore the index as of the log's beginning, whose segments were dropped. Returns why not; empty: it is restored.

    Raises BackupUnusable, OSError.
    """
    if not manifest.checkpoint:
        return "it has no copy of the index"
    if fault := fault_of(target / manifest.checkpoint):
        return f"its copy of the index, {manifest.checkpoint}, does not read back ({fault})"
    folder = new / CHECKPOINT
    copy_folder(target / manifest.checkpoint, folder)
    try:
        index = Index(folder, StoreSettings().index_write_buffer_bytes, IndexedLog(identity=identity))
        try:
            if index.format != FORMAT:
                raise BackupUnusable(target, f"its index has format {index.format}, and this version needs {FORMAT}")
            if index.state_offset > cut:
                reason = f"its log begins at {manifest.base}, and log_offset {index.state_offset} is the earliest point"
                raise BackupUnusable(target, reason)
            index.write(index.applied_offset, index.state_offset)
            index.flush()
        finally:
            index.close()
        sync_contents(folder)
    except IndexFailed as error:
        raise FolderUnusable(new, str(error.__cause__)) from error
    return ""


# --- where to end


def _cut(target: Path, manifest: BackupManifest, to: int | None, at_ms: int | None) -> int:
    """log_offset after the last record to restore. Raises BackupUnusable, OSError."""
    end = manifest.end
    if to is not None:
        kept = [each for each in manifest.segments if each.base <= to]
        if not kept or to > manifest.end:
            raise BackupUnusable(target, f"goes from log_offset {manifest.base} to {manifest.end}, without {to}")
        end = min(end, _end_in(target, kept[-1], lambda at, length, _: at + length > to))
    if at_ms is not None:
        end = min(end, _end_at(target, manifest, at_ms))
    if end <= manifest.base + HEADER_BYTES:
        raise BackupUnusable(target, "has no record in front of this point")
    return end


def _end_at(target: Path, manifest: BackupManifest, at_ms: int) -> int:
    """log_offset after the last record that was stored by a time; 0: none was. Raises OSError."""
    there = [each for each in manifest.segments if _path(target, each).is_file()]
    kept = [each for each in there if _created_ms(target, each) <= at_ms]
    if not kept:
        return 0
    end = _end_in(target, kept[-1], lambda _at, _length, ms: ms > at_ms)
    is_whole = end == kept[-1].end
    for each in manifest.segments[manifest.segments.index(kept[-1]) + 1 :] if is_whole else ():
        if each in there:
            break
        end = each.end  # its file is gone: that makes a gap, whenever it was written
    return end


def _created_ms(target: Path, kept: Kept) -> int:
    with _path(target, kept).open("rb") as file:
        header = read_header(file.read(HEADER_BYTES))
    return header.created_ms if header else 0


def _end_in(target: Path, kept: Kept, is_behind: Callable[[int, int, int], bool]) -> int:
    """log_offset of the first record of a segment for which `is_behind` is true; else the segment's end.

    Of a segment whose file is gone: its beginning.
    """
    if not _path(target, kept).is_file():
        return kept.base
    found: list[int] = []

    def look(start: int, data: bytes) -> None:
        for at, length, _ in headers(start, data) if not found else ():
            timestamp_ms = int.from_bytes(data[at - start + 16 : at - start + 24], "little")
            if is_behind(at, length, timestamp_ms):
                found.append(at)
                return

    fd = os.open(_path(target, kept), os.O_RDONLY)
    try:
        salvage(fd, kept.base, kept.end, None, look)
    finally:
        os.close(fd)
    end = found[0] if found else kept.end
    return kept.base if end == kept.base + HEADER_BYTES else end
