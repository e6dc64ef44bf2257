"""Pieces of a leader's log for another store that is to follow: of segments, and of the checkpoint.

Nothing is kept for who copies, but Kafka's records after the mark that it was given. What is accepted never changes,
so a segment is read as it is by now. A checkpoint has a name by which one that was replaced meanwhile is known; what is
gone is told by NoSuchCopy.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from store.errors import FolderUnusable, NoSuchCopy, NotReplicated
from store.files.folder import DataFolder
from store.log.api import Log
from store.log.checkpoint import CURRENT
from store.log.replicated import ReplicatedLog
from store.replication.judging import ReplicaMark

NOT_COPIED = ("LOCK", "LOG")
"""How the names begin of the files that RocksDB makes for itself."""

BASE = attrgetter("base")


class GivenCheckpoint(NamedTuple):
    """A checkpoint's name, and (name, size in bytes) of its files."""

    name: str
    files: list[tuple[str, int]]


class GivenLog(NamedTuple):
    """A log that can be copied: the segments with these bases, up to `mark.accepted`. `identity`: the log's.

    `more`: segments follow that the answer had no room for.
    """

    topic_id: str
    identity: bytes
    mark: ReplicaMark
    base: int
    segments: list[int]
    more: bool
    checkpoint: GivenCheckpoint


def replicated(log: Log) -> ReplicatedLog:
    """Raises NotReplicated."""
    if not isinstance(log, ReplicatedLog):
        raise NotReplicated
    return log


def given_log(log: ReplicatedLog, folder: DataFolder, start: int, most: int) -> GivenLog:
    """Segments whose bases are at or after `start`, at most so many. Raises NoSuchCopy, FolderUnusable."""
    mark = log.keeper.newest
    log.gives(mark)
    place = bisect_left(log.segments, start, key=BASE)
    bases = [each.base for each in log.segments[place : place + most + 1] if each.base < mark.accepted]
    checkpoint = _checkpoint(folder.checkpoint) if log.base else GivenCheckpoint("", [])
    return GivenLog(log.topic_id, log.marks.identity, mark, log.base, bases[:most], len(bases) > most, checkpoint)


def read_segment(log: ReplicatedLog, base: int, at: int, size: int) -> bytes:
    """Bytes of the segment's file from `at` on, up to what is accepted. Raises NoSuchCopy, FolderUnusable."""
    place = bisect_left(log.segments, base, key=BASE)
    found = log.segments[place : place + 2]
    if not found or found[0].base != base:
        raise NoSuchCopy(f"segment {base} is not kept any more")
    mark = log.keeper.newest
    log.gives(mark)
    end = min([*map(BASE, found[1:]), mark.accepted]) - base
    return _read(found[0].path, None, at, max(0, min(size, end - at)))


def read_checkpoint(folder: DataFolder, name: str, file: str, at: int, size: int) -> bytes:
    """Bytes of one of its files from `at` on. Raises NoSuchCopy, FolderUnusable."""
    opened = _open_folder(folder.checkpoint)
    try:
        if _name_of(opened, folder.checkpoint) != name or not _is_copied(file) or file not in os.listdir(opened):
            raise NoSuchCopy(f"the index's checkpoint {name} is replaced, or has no file {file}")
        return _read(Path(file), opened, at, size)
    finally:
        os.close(opened)


def _checkpoint(folder: Path) -> GivenCheckpoint:
    opened = _open_folder(folder)
    try:
        names = sorted(name for name in os.listdir(opened) if _is_copied(name))
        files = [(name, os.stat(name, dir_fd=opened).st_size) for name in names]
        return GivenCheckpoint(_name_of(opened, folder), files)
    except OSError as error:
        raise FolderUnusable(folder, str(error)) from error
    finally:
        os.close(opened)


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        raise NoSuchCopy("the log's beginning is gone, and there is no checkpoint of the index") from None
    except OSError as error:
        raise FolderUnusable(folder, str(error)) from error


def _name_of(opened: int, folder: Path) -> str:
    """The name of the checkpoint in an open folder, from its file CURRENT, which is written once."""
    try:
        found = os.stat(CURRENT, dir_fd=opened)
    except OSError as error:
        raise FolderUnusable(folder, str(error)) from error
    return blake2b(f"{found.st_ino} {found.st_mtime_ns} {found.st_size}".encode(), digest_size=8).hexdigest()


def _is_copied(name: str) -> bool:
    return not name.startswith(NOT_COPIED) and "/" not in name


def _read(path: Path, folder: int | None, at: int, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=folder)
        try:
            return os.pread(fd, size, at)
        finally:
            os.close(fd)
    except OSError as error:
        raise FolderUnusable(path, str(error)) from error
