"""Reads a store's log from its folder while the store may be writing it: no lock, no mapping, no change.

A segment with a successor ends where the successor begins. The last one ends after its last record with a valid
checksum, which is looked for at each end(). All bytes are verified before they are returned. Files are not mapped: a
store truncates segments, and a reader past the end of a mapping would be killed by SIGBUS.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.columns import Messages
from penstock.spark.errors import DataLost, FolderUnreadable, LogDamaged
from store.errors import CorruptSegment
from store.files.folder import LOG
from store.files.marks import read_marks
from store.files.segment import HEADER_BYTES, IDENTITY_BYTES, header_fault, segment_paths
from store.records._columns import read_parts, verify_each
from store.records._records import verify
from store.records.records import RecordType
from store.recovery.salvage import resumed

PIECE_BYTES = 2 << 20  # read at a time: some thousand records, which stay in the processor's cache
FIRST_BYTES = 64 << 10  # first read where the end is unknown; doubled each time
Array = NDArray[np.int64]
Sizes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Chosen = NDArray[np.bool_]
_CREATED_AT, _IDENTITY_AT = slice(32, 40), slice(40, 40 + IDENTITY_BYTES)  # of a segment's header
_TYPE_AT = 24  # of a record's header


class FolderPiece(NamedTuple):
    """Whole verified records; `data` begins at `log_offset`, and is overwritten by the next piece."""

    log_offset: int
    data: NDArray[np.uint8]
    last_ms: int  # timestamp of the last record

    @property
    def end(self) -> int:
        return self.log_offset + len(self.data)

    def messages(self) -> Messages:
        return Messages.find(self.data, self.log_offset)


@dataclass(frozen=True)
class SegmentFile:
    """One file of the log. `end` is the next one's base; None for the last."""

    path: Path
    base: int
    end: int | None
    created_ms: int
    identity: bytes

    @property
    def first(self) -> int:
        return self.base + HEADER_BYTES


class LogFolder:
    """The log of a data folder. Raises FolderUnreadable if there is none, LogDamaged if it does not read back valid."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._buffer = np.empty(PIECE_BYTES, np.uint8)
        self._headers: dict[Path, SegmentFile] = {}
        self._known_end = 0  # records end there, or after it
        if not self.path.is_dir():
            raise FolderUnreadable(self.path, "no such folder")
        if not (self.path / LOG).is_dir():
            raise FolderUnreadable(self.path, f"has no folder `{LOG}`")

    def segments(self) -> list[SegmentFile]:
        """The files as they are now, oldest first."""
        try:
            paths = segment_paths(self.path / LOG)
            found = [(path, self._headers.get(path) or _look_at(path)) for path in paths]
        except OSError as error:
            raise FolderUnreadable(Path(error.filename or self.path), error.strerror or str(error)) from error
        self._headers = {path: segment for path, segment in found if segment}
        segments = list(self._headers.values())
        ends = [*(following.base for following in segments[1:]), None]
        return [replace(segment, end=end) for segment, end in zip(segments, ends, strict=False)]

    def identity(self) -> str:
        """The log's identity in hexadecimal; empty if an early version wrote it, which gave it none."""
        said = next((found.identity for found in reversed(self.segments()) if any(found.identity)), b"")
        marks = None if said else read_marks(self.path / LOG)
        return said.hex() or (marks.identity.hex() if marks is not None else "")

    def base(self) -> int:
        """log_offset at which the oldest segment begins: no earlier record is kept."""
        return next((segment.base for segment in self.segments()), 0)

    def end(self) -> int:
        """log_offset after the last record that is complete now."""
        segments = self.segments()
        if not segments:
            return 0
        end = max(self._known_end, segments[-1].first)
        for piece in self._of_segment(segments[-1], end, None):
            end = piece.end
        self._known_end = end
        return end

    def tail_bytes(self) -> int:
        """Size of the last file: end() reads at most so much the first time."""
        segments = self.segments()
        try:
            return segments[-1].path.stat().st_size if segments else 0
        except FileNotFoundError:
            return 0

    def resumes_at(self, log_offset: int) -> int | None:
        """See CommitLog.resumes_at(): a copy of an index may stand in the middle of a gap until it is flushed again."""
        for segment in reversed(self.segments()):
            if segment.base > log_offset:
                continue
            end = segment.end or self.end()
            if not segment.first < log_offset < end:
                return log_offset
            try:
                return resumed(segment.path, segment.base, segment.first, end, log_offset)
            except CorruptSegment as error:
                raise LogDamaged(error.segment, error.log_offset, error.reason) from error
            except OSError as error:
                raise FolderUnreadable(segment.path, error.strerror or str(error)) from error
        return None

    def look_from(self, log_offset: int, reaches: int) -> None:
        """Begin the search for the end at a record that an index knows, if valid records go on from it to `reaches`.

        That saves reading the last file from its beginning.
        """
        segments = self.segments()
        if not segments or not max(self._known_end, segments[-1].first) < log_offset < reaches:
            return
        known, self._known_end = self._known_end, log_offset
        if self.end() < reaches:
            self._known_end = known

    def pieces(self, start: int, end: int, skips_lost: bool = False) -> Iterator[FolderPiece]:
        """All records that begin in [start, end); `end` existed before. A last batch may reach past it.

        `start` is the log_offset of a record, or lies between two segments. Records that retention has dropped raise
        DataLost, or are skipped.
        """
        segments = [segment for segment in self.segments() if segment.base < end]
        kept_from = segments[0].base if segments else self.base()
        if start < min(kept_from, end) and not skips_lost:
            raise DataLost(f"{self.path}: log_offset {start} to {min(kept_from, end)} is not kept any more")
        for segment in segments:
            if segment.end is None or segment.end > start:
                last = end if segment.end is None else min(end, segment.end)
                try:
                    yield from self._of_segment(segment, max(start, segment.first), last)
                except FileNotFoundError:  # retention was quicker
                    if not skips_lost:
                        raise DataLost(f"{segment.path}: is not kept any more") from None
                except OSError as error:
                    raise FolderUnreadable(segment.path, error.strerror or str(error)) from error

    def messages(self, start: int, end: int, skips_lost: bool = False) -> Iterator[Messages]:
        """The messages of history that begin in [start, end), by pieces: each is overwritten by the next."""
        for piece in self.pieces(start, end, skips_lost):
            yield piece.messages().before(end)

    def _of_segment(self, segment: SegmentFile, start: int, end: int | None) -> Iterator[FolderPiece]:
        """Records that begin in [start, end); without an end, as far as they are complete."""
        with segment.path.open("rb") as file:
            limit = segment.end or segment.base + os.fstat(file.fileno()).st_size
            at = start
            size = FIRST_BYTES if end is None else PIECE_BYTES
            while at < (limit if end is None else end):
                data, last_ms, reason = self._read(file.fileno(), segment.base, at, limit, size)
                size = min(PIECE_BYTES, 2 * size)
                if not len(data):
                    if end is None:
                        return
                    raise LogDamaged(segment.path, at, reason or "cut off")
                yield FolderPiece(at, data, last_ms)
                at += len(data)

    def _read(self, fd: int, base: int, at: int, limit: int, most: int) -> tuple[NDArray[np.uint8], int, str | None]:
        """Verified records from `at` on, at least one. If there are none: the fault."""
        size = min(most, limit - at)
        while True:
            if size > len(self._buffer):  # a record longer than a piece, such as a gateway's append
                self._buffer = np.empty(size, np.uint8)
            view = self._buffer.data[:size]
            view = view[: os.preadv(fd, [view], at - base)]
            valid, last_ms, reason = verify(view, at)
            length = int.from_bytes(view[:4], "little")
            if valid or not size < length <= limit - at:
                return self._buffer[:valid], last_ms, reason
            size = length

    def messages_at(self, log_offsets: Array, sizes: Sizes, skips_lost: bool = False) -> tuple[Messages, Chosen]:
        """The messages at these places, ascending, and which of them are kept: all, unless lost ones may be missing."""
        positions = np.cumsum(sizes, dtype=np.int64) - sizes
        data = np.empty(int(sizes.sum(dtype=np.int64)), np.uint8)
        kept = np.zeros(len(log_offsets), np.bool_)
        for segment in self.segments():
            first, last = np.searchsorted(
                log_offsets, (segment.base, 2**63 - 1 if segment.end is None else segment.end)
            )
            if first < last:
                kept[first:last] = self._fetch(
                    segment, log_offsets[first:last], sizes[first:last], data, positions[first], skips_lost
                )
        if not skips_lost and not kept.all():
            raise DataLost(f"{self.path}: log_offset {log_offsets[kept.argmin()]} is not kept any more")
        return Messages(data, 0, positions[kept]), kept

    def _fetch(
        self, segment: SegmentFile, log_offsets: Array, sizes: Sizes, data: Bytes, at: int, skips_lost: bool
    ) -> Chosen:
        """Read records of a segment, each from its place, into `data` from `at` on. Returns which of them are there.

        None is if the file is gone. A record that is damaged, or was and is in quarantine, raises LogDamaged or is
        skipped.
        """
        kept = np.ones(len(log_offsets), np.bool_)
        try:
            with segment.path.open("rb") as file:
                got = read_parts(file.fileno(), log_offsets - segment.base, sizes, data[at:])
        except FileNotFoundError:
            return ~kept
        except OSError as error:
            raise FolderUnreadable(segment.path, error.strerror or str(error)) from error
        first, end, starts = 0, at + got, at + np.cumsum(sizes, dtype=np.int64) - sizes
        while first < len(log_offsets):
            right, reason = verify_each(data[at:end], log_offsets[first:], sizes[first:])
            first += right
            if reason is None:
                break
            if not skips_lost:
                raise LogDamaged(segment.path, int(log_offsets[first]), reason)
            kept[first] = False
            at += int(sizes[first - right : first + 1].sum())
            first += 1
        return kept & ~self._are_gaps(data, log_offsets, starts, skips_lost)

    def _are_gaps(self, data: Bytes, log_offsets: Array, starts: Array, skips_lost: bool) -> Chosen:
        """Which records have been replaced by a GAP record of the same size. Raises DataLost unless data may
        be lost.
        """
        gaps: Chosen = data[starts + _TYPE_AT] == RecordType.GAP
        if gaps.any() and not skips_lost:
            raise DataLost.at_gap(self.path, int(log_offsets[gaps.argmax()]))
        return gaps

    # --- positions

    def is_record(self, log_offset: int) -> bool:
        """Whether a record, also inside a batch, begins at this log_offset; or a segment, or the log ends there."""
        for segment in self.segments():
            if segment.base <= log_offset and (segment.end is None or log_offset < segment.end):
                found = self._of_segment(segment, max(log_offset, segment.first), None)
                return log_offset in (segment.base, segment.first, self.end()) or next(found, None) is not None
        return False

    def position_at(self, timestamp_ms: int) -> int:
        """log_offset of the first message that was stored at this time or later; the log's end if there is none."""
        segments = [segment for segment in self.segments() if segment.created_ms < timestamp_ms]
        if not segments:
            return self.base()
        for piece in self._of_segment(segments[-1], segments[-1].first, segments[-1].end):
            if piece.last_ms >= timestamp_ms:
                return piece.messages().position_at(timestamp_ms)
        return segments[-1].end or self.end()

    def nearest(self, log_offset: int) -> int:
        """log_offset of the last message at or before this place; the oldest segment's base if there is none."""
        return self._message_near(log_offset, self.base(), self.segments())

    def split(self, start: int, end: int, parts: int) -> list[tuple[int, int]]:
        """[start, end) cut at messages into `parts` ranges of about the same size, or fewer."""
        segments = self.segments()
        part_bytes = (end - start) / parts
        cuts = {start, end}
        for i in range(1, parts):
            target = int(start + i * part_bytes)
            joint = min((segment.base for segment in segments), key=lambda base: abs(base - target), default=start)
            if abs(joint - target) > part_bytes / 4:  # a cut between segments costs nothing
                joint = self._message_near(target, start, segments)
            if start < joint < end:
                cuts.add(joint)
        return list(pairwise(sorted(cuts)))

    def _message_near(self, target: int, start: int, segments: list[SegmentFile]) -> int:
        """log_offset of the last message at or before `target` and after `start`; `start` if there is none."""
        home = next((segment for segment in reversed(segments) if segment.base <= target), None)
        if home is not None:
            for piece in self._of_segment(home, max(start, home.first), target + 1):
                if piece.end > target:
                    return piece.messages().nearest(target)
        return start


def _look_at(path: Path) -> SegmentFile | None:
    """A segment file by its header; None if it is being created, or if retention has just dropped it."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return None
    if not any(header):
        return None
    base = int(path.stem)
    reason = header_fault(header, base)
    if reason:
        raise LogDamaged(path, base, reason)
    return SegmentFile(path, base, None, int.from_bytes(header[_CREATED_AT], "little"), header[_IDENTITY_AT])
