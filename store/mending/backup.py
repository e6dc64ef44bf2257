"""Backups of a data folder: made while a server runs on it, a segment at a time, and restored to any point.

    TARGET/backup.json           contents of the backup (BackupManifest); written last
    TARGET/log/*.log             segments: sealed ones whole, the newest up to where the disk had confirmed it,
                                 of a cluster's store up to what was accepted
    TARGET/index-checkpoint-N/   the index as of the log's beginning, if retention dropped segments

A sealed segment never changes, so it is taken once, by a hard link on the same file system, else by a copy, and its
checksums are verified, with that of the whole file if the scrubber has one. Only the newest is copied again. The log
is append-only, so the manifest of an earlier run stays true while a later run adds to its files: a backup that is
killed leaves the earlier one usable.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec

from store.errors import BackupUnusable, FolderUnusable, NotOfThisLog
from store.files.folder import CHECKPOINT, LOG, missing_above, sync_names
from store.files.marks import Slot, read_marks, read_restored_from
from store.files.segment import HEADER_BYTES, READ_BYTES, SUFFIX, segment_path, sync_folder
from store.files.sums import Sum, read_sums
from store.log.index import fault_of
from store.log.mark_file import read_mark
from store.mending.foresight import Progress, silent
from store.recovery.placing import File, would_place
from store.recovery.salvage import salvage

MANIFEST = "backup.json"
FORMAT = 1
PART = ".part"
ATTEMPTS = 5  # retention may drop a segment, and replace the checkpoint, while they are copied


class Kept(msgspec.Struct, frozen=True):
    """A segment in a backup; positions are log_offsets."""

    base: int
    end: int  # after its last record
    is_sealed: bool


class BackupManifest(msgspec.Struct, frozen=True):
    """Contents of a backup."""

    format: int
    identity: str  # of the log, in hexadecimal
    end: int  # everything before this log_offset is in it
    made_ms: int  # Unix time
    segments: list[Kept]
    checkpoint: str  # folder of the index's checkpoint; empty: none is needed
    restored_from: list[tuple[str, int]] = []  # see store.files.marks

    @property
    def base(self) -> int:
        return self.segments[0].base if self.segments else self.end

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Ranges of log_offsets between the segments, which retention dropped between two backups."""
        return [(a.end, b.base) for a, b in pairwise(self.segments) if a.end < b.base]


@dataclass
class BackedUp:
    """The result of a backup."""

    manifest: BackupManifest
    linked: int = 0  # segments
    copied: int = 0
    copied_bytes: int = 0
    kept: int = 0  # segments that the backup had already
    damaged: list[tuple[int, int]] = field(default_factory=list)  # invalid ranges of log_offsets in copied segments
    checkpoint_fault: str = ""  # why the index's checkpoint was not taken


def backup(data: Path, target: Path, prune: bool = False, on_progress: Progress = silent) -> BackedUp:
    """Bring a backup up to date with a data folder, which may be in use.

    `prune`: also delete segments from the backup that retention dropped. Raises BackupUnusable, NotOfThisLog,
    FolderUnusable.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _backup(data, target, prune, on_progress)
        except FileNotFoundError as error:
            if attempt == ATTEMPTS:
                raise FolderUnusable(data, str(error)) from error
        except OSError as error:
            raise FolderUnusable(target, str(error)) from error
    raise AssertionError


def read_manifest(target: Path) -> BackupManifest | None:
    """The manifest of a backup; None if there is none. Raises BackupUnusable."""
    try:
        manifest = msgspec.json.decode((target / MANIFEST).read_bytes(), type=BackupManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupUnusable(target, str(error)) from error
    if manifest.format != FORMAT:
        raise BackupUnusable(target, f"format {manifest.format}; this program reads format {FORMAT}")
    return manifest


def _backup(data: Path, target: Path, prune: bool, on_progress: Progress) -> BackedUp:
    earlier = read_manifest(target)
    if earlier is None and target.exists() and not all(_is_of_backup(path.name) for path in target.iterdir()):
        raise BackupUnusable(target, "is neither empty nor a backup")
    slot = read_marks(data / LOG)
    if slot is None:
        raise FolderUnusable(data, "holds no log with marks; start the server on it once")
    if earlier is not None and earlier.identity != slot.identity.hex():
        raise NotOfThisLog(target, data)
    made = missing_above(target / LOG)
    (target / LOG).mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_names(target / LOG, made)
    # Take the checkpoint first, then the marks, then the files: so the marks cover all that the checkpoint has applied,
    # and the files cover all that the marks confirm.
    checkpoint = _Checkpoint(data / CHECKPOINT)
    try:
        name = checkpoint.take(target, earlier.checkpoint if earlier else "")
        slot = read_marks(data / LOG) or slot
        end = _confirmed(data, slot)
        done = BackedUp(BackupManifest(FORMAT, slot.identity.hex(), end, 0, [], name))
        done.checkpoint_fault = checkpoint.fault
        segments = {kept.base: kept for kept in earlier.segments} if earlier else {}
        files = would_place(data / LOG).files
        _take_segments(files, target, end, segments, done, on_progress)
        checkpoint.check()
    finally:
        checkpoint.close()
    oldest = files[0].base if prune and files and not done.checkpoint_fault else 0
    ordered = [segments[base] for base in sorted(segments) if base >= oldest]
    done.manifest = msgspec.structs.replace(
        done.manifest,
        made_ms=time.time_ns() // 1_000_000,
        segments=ordered,
        restored_from=read_restored_from(data / LOG),
    )
    _write_manifest(target, done.manifest)
    _clean(target, done.manifest)
    return done


def _confirmed(data: Path, slot: Slot) -> int:
    """log_offset up to which the disk has the log, and the cluster, if it is of one, has accepted it. Raises OSError.

    A leader's disk may have more; another store may put other bytes there.
    """
    known = read_mark(data)
    return slot.flushed if known is None else min(slot.flushed, known.mark.accepted)


def _is_of_backup(name: str) -> bool:
    """Whether a backup's first run makes a file or folder of this name; a killed one leaves no manifest."""
    return name in (LOG, MANIFEST + PART) or name.startswith(f"{CHECKPOINT}-")


def _take_segments(
    files: list[File], target: Path, flushed: int, segments: dict[int, Kept], done: BackedUp, on_progress: Progress
) -> None:
    wanted = [file for file in files if file.base < flushed]
    for number, file in enumerate(wanted):
        on_progress(file.path.name, number / len(wanted))
        known = segments.get(file.base)
        path = segment_path(target / LOG, file.base)
        if known is not None and known.is_sealed and path.exists() and path.stat().st_size == known.end - known.base:
            done.kept += 1
        else:
            segments[file.base] = _take(file, path, _sealed_end(files, file), flushed, known, done)


def _sealed_end(files: list[File], file: File) -> int | None:
    """log_offset at which a segment ends; None for the newest."""
    return next((each.base for each in files if each.base > file.base), None)


def _take(file: File, path: Path, following: int | None, flushed: int, known: Kept | None, done: BackedUp) -> Kept:
    """Take a segment into the backup, by a link if it is sealed and can be linked. A damaged one is taken again next
    time.
    """
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    is_sealed = following is not None and following <= flushed
    end = following if following is not None and is_sealed else flushed
    is_linked = is_sealed and file.path.stat().st_size == end - file.base and _link(file.path, part)
    if not is_linked:
        _copy(file.path, part, end - file.base)
    damaged = damage_of(part, file.base, end, _known_sum(file, end, done))
    if damaged and known is not None:  # the backup may have intact bytes of the damaged range
        part.unlink()
        _copy(file.path, part, end - file.base)
        _copy(path, part, known.end - known.base)
        damaged = damage_of(part, file.base, end, _known_sum(file, end, done))
        is_linked = False
    done.damaged += damaged
    done.linked += is_linked
    done.copied += not is_linked
    done.copied_bytes += 0 if is_linked else end - file.base
    part.rename(path)
    sync_folder(path.parent)
    return Kept(file.base, end, is_sealed and not damaged)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            return False
        raise
    return True


def _copy(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes of a file over those of another, durably."""
    reading = os.open(source, os.O_RDONLY)
    writing = os.open(target, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        at = 0
        os.ftruncate(writing, max(size, os.fstat(writing).st_size))
        while at < size and (data := os.pread(reading, min(READ_BYTES, size - at), at)):
            if any(data):
                os.pwrite(writing, data, at)
            at += len(data)
        os.fdatasync(writing)
    finally:
        os.close(writing)
        os.close(reading)


def _known_sum(file: File, end: int, done: BackedUp) -> Sum | None:
    """The scrubber's sum of a segment. Call it after the segment was taken: a rewrite drops the sum first."""
    sums = read_sums(file.path.parent)
    return sums.of(file.base, end) if sums is not None and sums.identity.hex() == done.manifest.identity else None


def damage_of(path: Path, base: int, end: int, known: Sum | None) -> list[tuple[int, int]]:
    """Ranges of log_offsets that are not valid; the whole segment if all records are valid but its sum differs."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY)
    try:
        digest.update(os.pread(fd, HEADER_BYTES, 0))
        found = salvage(fd, base, end, None, lambda _, data: digest.update(data))
    finally:
        os.close(fd)
    damaged = [(hole.start, hole.end) for hole in found.holes]
    if found.end < end:
        damaged.append((found.end, end))
    if not damaged and known is not None and known.differs(digest.digest()):
        damaged.append((base, end))
    return damaged


class _Checkpoint:
    """The index's checkpoint as it is now; a server replaces it before retention drops a segment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fault = ""  # why it was not taken
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if folder.is_dir() else -1

    def take(self, target: Path, earlier: str) -> str:
        """Copy it into the backup; returns its name there (the earlier one's if it is the same; empty: none).

        One that does not read back is not taken: the earlier one stays, and the segments from which it goes on.
        """
        if self._fd < 0:
            return earlier
        names = sorted(name for name in os.listdir(self._fd) if not name.startswith("LO"))
        if earlier and all(self._is_same(name, target / earlier / name) for name in names):
            return earlier
        taken = target / f"{CHECKPOINT}-{int(earlier.rpartition('-')[2]) + 1 if earlier else 1}"
        shutil.rmtree(taken, ignore_errors=True)
        taken.mkdir(mode=0o700)
        for name in names:
            with self._open(name) as source, (taken / name).open("wb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(taken)
        self.fault = fault_of(taken)
        if self.fault:
            shutil.rmtree(taken)
            return earlier
        return taken.name

    def _is_same(self, name: str, taken: Path) -> bool:
        """Whether a file is the same as in the backup. (An index does not use the number of a table again.)"""
        if not taken.exists() or os.stat(name, dir_fd=self._fd).st_size != taken.stat().st_size:
            return False
        with self._open(name) as source:
            return source.read() == taken.read_bytes()

    def _open(self, name: str) -> BinaryIO:
        return os.fdopen(os.open(name, os.O_RDONLY, dir_fd=self._fd), "rb")

    def check(self) -> None:
        """Raise FileNotFoundError if the checkpoint was replaced meanwhile: segments may have been dropped since."""
        is_there = self._folder.is_dir()
        if is_there != (self._fd >= 0) or (is_there and not os.path.samestat(os.fstat(self._fd), self._folder.stat())):
            raise FileNotFoundError(f"{self._folder}: was replaced meanwhile")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _write_manifest(target: Path, manifest: BackupManifest) -> None:
    part = target / (MANIFEST + PART)
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(target / MANIFEST)
    sync_folder(target)


def _clean(target: Path, manifest: BackupManifest) -> None:
    """Delete files and checkpoints that the manifest does not name."""
    bases = {kept.base for kept in manifest.segments}
    for path in (target / LOG).iterdir():
        if path.suffix == PART or (path.suffix == SUFFIX and path.stem.isdecimal() and int(path.stem) not in bases):
            path.unlink()
    for path in target.glob(f"{CHECKPOINT}-*"):
        if path.name != manifest.checkpoint:
            shutil.rmtree(path, ignore_errors=True)
