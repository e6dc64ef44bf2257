"""Takes a copy of another store's log, from which this one goes on (store.log.copied says how it becomes its own).

    copying/log/BASE.log        a segment that is complete, as far as it was accepted then
    copying/log/BASE.log.part   one that is under way
    copying/index-checkpoint/   the index as of the log's beginning, if that is gone

What is accepted never changes, so a process that begins again goes on where a file ends, whichever store gives it. The
records of a segment are verified once all of it is there; if one is not valid, the segment is copied anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from store.errors import CopyDamaged, NoSuchCopy, unusable
from store.files.folder import CHECKPOINT, LOG, clear, sync_contents
from store.files.marks import Marks
from store.files.medium import read_part
from store.files.segment import (
    HEADER_BYTES,
    IDENTITY_BYTES,
    READ_BYTES,
    Header,
    read_header,
    segment_path,
    sync_folder,
)
from store.log.copied import COPYING, commit_copy
from store.log.giving import GivenLog
from store.log.index import fault_of
from store.log.mark_file import MARK_FILE, MarkFile
from store.mending.backup import PART, damage_of
from store.mending.foresight import Progress, silent

COMPARED_BYTES = 64 << 10
ATTEMPTS = 20  # retention of the other store may drop a segment, and replace the checkpoint, while they are copied


class GivesLog(Protocol):
    """The store that is copied. Each method raises NoSuchCopy for what is not there any more."""

    def given(self) -> GivenLog:
        """All segments, up to what is accepted now."""

    def segment(self, base: int, at: int) -> bytes:
        """Read some bytes of a segment's file from `at` on; none: it ends there for now."""

    def checkpoint(self, name: str, file: str, at: int) -> bytes:
        """Read some bytes of a file of the checkpoint from `at` on; none: it ends there."""


class OwnLog(NamedTuple):
    """This store's part of the same log: its bytes up to `accepted` are the same as the other store's."""

    folder: Path
    accepted: int


class CopyProgress(NamedTuple):
    """How much of a copy is there, of log and checkpoint. `leader`: address of the store that gives it, if known."""

    leader: str
    done_bytes: int
    of_bytes: int


class TakenLog(NamedTuple):
    """The result: what was given, and how many bytes of it came from the other store."""

    given: GivenLog
    copied_bytes: int


class LogCopy:
    """Owner of the folder `copying` of a data folder that this process has locked."""

    def __init__(self, data: Path, source: GivesLog, own: OwnLog | None = None) -> None:
        self._data = data
        self._copying = data / COPYING
        self._log = self._copying / LOG
        self._source = source
        self._own = own
        self._copied_bytes = 0
        self._leader = ""
        self._done_bytes = self._part_bytes = self._of_bytes = 0

    @property
    def progress(self) -> CopyProgress:
        """For any thread."""
        return CopyProgress(self._leader, self._done_bytes + self._part_bytes, self._of_bytes)

    def take(self, topic_id: str, on_progress: Progress = silent) -> TakenLog:
        """Fill `copying`; commit() is left to do. Raises CopyDamaged, NoSuchCopy, FolderUnusable, StoreFull."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return TakenLog(self._take(topic_id, on_progress), self._copied_bytes)
            except NoSuchCopy:
                if attempt == ATTEMPTS:
                    raise
            except OSError as error:
                raise unusable(self._copying, error) from error
        raise AssertionError

    def commit(self, keep: str = "") -> None:
        """The next start takes the copy. `keep`: folder for what was there. Raises FolderUnusable, StoreFull."""
        try:
            commit_copy(self._data, keep)
        except OSError as error:
            raise unusable(self._data, error) from error

    def _take(self, topic_id: str, on_progress: Progress) -> GivenLog:
        (self._copying / MARK_FILE).unlink(missing_ok=True)
        self._log.mkdir(mode=0o700, parents=True, exist_ok=True)
        given = self._source.given()
        if given.topic_id != topic_id:
            raise CopyDamaged("the topic's id", f"{given.topic_id}, and this store follows {topic_id}")
        if not given.segments:
            raise NoSuchCopy("the other store has accepted nothing yet")
        self._leader = given.mark.leader.address if given.mark.leader is not None else ""
        self._of_bytes = given.mark.accepted - given.base + sum(size for _, size in given.checkpoint.files)
        self._done_bytes = self._part_bytes = 0
        self._trust_own(given)
        self._take_checkpoint(given)  # it has applied nothing behind `given.mark`
        ends = [*given.segments[1:], given.mark.accepted]
        self._forget_others(given.segments)
        for number, (base, end) in enumerate(zip(given.segments, ends, strict=True)):
            on_progress(f"{base:020}", number / len(ends))
            self._take_segment(base, end, given.identity)
            self._done_bytes, self._part_bytes = self._done_bytes + end - base, 0
        self._write_marks(given)
        return given

    def _forget_others(self, bases: list[int]) -> None:
        """Delete copied segments that the other store has dropped since."""
        for path in self._log.iterdir():
            stem = path.name.partition(".")[0]
            if not stem.isdecimal() or int(stem) not in bases:
                path.unlink()

    # --- segments

    def _trust_own(self, given: GivenLog) -> None:
        """Use nothing of this store's own log if its newest bytes differ from the other store's."""
        own, self._own = self._own, None
        before = [base for base in given.segments if own is not None and base < own.accepted <= given.mark.accepted]
        if own is None or not before:
            return
        base = before[-1]
        at, end = max(0, own.accepted - base - COMPARED_BYTES), own.accepted - base
        with suppress(FileNotFoundError), segment_path(own.folder, base).open("rb") as file:
            while at < end:
                theirs = self._source.segment(base, at)[: end - at]
                if not theirs or read_part(file.fileno(), len(theirs), at) != theirs:
                    return
                at += len(theirs)
            self._own = own

    def _take_segment(self, base: int, end: int, identity: bytes) -> None:
        path = segment_path(self._log, base)
        part = path.with_name(path.name + PART)
        if path.exists():
            if path.stat().st_size == end - base:
                return
            path.rename(part)  # it was the newest one
        elif not part.exists() and self._link_own(base, end, path):
            return
        self._fill(part, base, end)
        header = _header_of(part)
        if header is None or header.base != base or header.identity not in (identity, bytes(IDENTITY_BYTES)):
            part.unlink()
            raise CopyDamaged(f"segment {base}", "its header is not one of this log")
        if damaged := damage_of(part, base, end, None):
            part.unlink()
            raise CopyDamaged(f"segment {base}", f"no valid record at log_offset {damaged[0][0]}")
        part.rename(path)

    def _link_own(self, base: int, end: int, path: Path) -> bool:
        """Link this store's own segment if it has the whole of it. Returns whether it has."""
        own = self._own
        if own is None or end > own.accepted:
            return False
        source = segment_path(own.folder, base)
        with suppress(OSError):
            if source.stat().st_size == end - base:
                os.link(source, path)
                return True
        return False

    def _fill(self, part: Path, base: int, end: int) -> None:
        size = end - base
        fd = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            at = min(os.fstat(fd).st_size, size)
            os.ftruncate(fd, at)
            at = self._fill_from_own(fd, base, at, size)
            while at < size:
                data = self._source.segment(base, at)[: size - at]
                if not data:
                    raise NoSuchCopy(f"segment {base} ends at {at}, before {size}")
                at += os.pwrite(fd, data, at)
                self._part_bytes = at
                self._copied_bytes += len(data)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _fill_from_own(self, fd: int, base: int, at: int, size: int) -> int:
        """Fill a segment from this store's own.

        Returns the position from which on the other store's bytes are needed.
        """
        own = self._own
        source = segment_path(own.folder, base) if own is not None else None
        if own is None or source is None or not source.exists():
            return at
        with source.open("rb") as file:
            size = min(size, own.accepted - base)
            while at < size and (data := read_part(file.fileno(), min(READ_BYTES, size - at), at)):
                at += os.pwrite(fd, data, at)
        return at

    # --- what stands beside them

    def _take_checkpoint(self, given: GivenLog) -> None:
        folder = self._copying / CHECKPOINT
        clear(folder)
        name, files = given.checkpoint
        if not given.base:
            return
        folder.mkdir(mode=0o700)
        for file, size in files:
            with (folder / Path(file).name).open("xb") as writing:
                while writing.tell() < size:
                    data = self._source.checkpoint(name, file, writing.tell())
                    if not data:
                        raise NoSuchCopy(f"file {file} of the index's checkpoint is shorter than it was")
                    writing.write(data)
                    self._copied_bytes += len(data)
                    self._done_bytes += len(data)
        sync_contents(folder)
        if fault := fault_of(folder):
            raise CopyDamaged("the index's checkpoint", fault)

    def _write_marks(self, given: GivenLog) -> None:
        sync_folder(self._log)
        marks = Marks(self._log, given.identity)
        try:
            marks.start(given.base, given.mark.accepted)
        finally:
            marks.close()
        mark = MarkFile(self._copying, given.topic_id)
        try:
            mark.write(given.mark)
        finally:
            mark.close()
        sync_folder(self._copying)


def _header_of(path: Path) -> Header | None:
    with path.open("rb") as file:
        return read_header(file.read(HEADER_BYTES))
