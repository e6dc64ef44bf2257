"""Reads a log that another process may be writing: verifies every checksum, changes nothing, maps nothing.

(A server truncates a segment when it seals it; a reader of a mapping past the file's end would be killed by SIGBUS.)
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from store.files.marks import read_marks
from store.files.medium import read_part
from store.files.segment import HEADER_BYTES, header_fault, read_records, segment_paths
from store.records._records import LogMemory, census
from store.recovery.quarantine import Finding
from store.recovery.recovery_rules import Decision, Extent, decide
from store.recovery.running import is_sync_cut
from store.recovery.salvage import resumed, salvage

TORN_ATTEMPTS = 3
TORN_WAIT_S = 0.05


@dataclass
class SegmentScan:
    """The contents of one segment."""

    path: Path
    extent: Extent
    records: Counter[int] = field(default_factory=Counter)  # by type, batches opened
    corruption: str | None = None

    @property
    def base(self) -> int:
        return self.extent.base

    @property
    def end(self) -> int:
        """log_offset after the last valid record."""
        return self.extent.end

    def runs(self) -> Iterator[tuple[int, int]]:
        """The ranges [start, end) of log_offsets with valid records."""
        at = self.base + HEADER_BYTES
        for hole in self.extent.holes:
            yield at, hole.start
            at = hole.end
        yield at, self.end


class LogScan:
    """A log as it was a moment ago. It serves as the log of a Projection that reads no message."""

    def __init__(self, folder: Path) -> None:
        self.memory = LogMemory(1)
        self.lost_ranges: list[tuple[int, int]] = []  # a Projection that reads no message does not need them
        self.segments: list[SegmentScan] = []
        marks = read_marks(folder)
        self._flushed = marks.flushed if marks else None
        self._is_sync_cut = is_sync_cut(folder)
        paths = segment_paths(folder)
        for path, following in zip(paths, [*paths[1:], None], strict=False):
            try:
                self.segments.append(self._scan(path, int(following.stem) if following else None))
            except FileNotFoundError:
                continue  # retention has just dropped it
        while self.segments and _is_stillborn(self.segments[-1]):
            self.segments.pop()
        decision = self._decided()
        self.torn_tail_bytes = decision.torn.end - decision.torn.start if decision.torn else 0
        if decision.torn and self.segments:
            self._cut(decision.torn.start, decision.kept)
        for kind, base, hole in decision.losses:
            segment = next(segment for segment in self.segments if segment.base == base)
            finding = Finding(kind, segment.path.stem, hole.start, hole.end, hole.reason)
            segment.corruption = segment.corruption or f"{segment.path}: {finding}"

    @property
    def base(self) -> int:
        return self.segments[0].base if self.segments else 0

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""
        return self.base + HEADER_BYTES

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else self.first

    def resumes_at(self, log_offset: int) -> int | None:
        """See CommitLog.resumes_at(); in a damaged range, which a start would make a gap, there. Raises OSError."""
        for segment in self.segments:
            for start, end in segment.runs():
                if start < log_offset < end:
                    return resumed(segment.path, segment.base, start, end, log_offset)
        return log_offset

    def pieces(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(log_offset, verified records) from `start` up to `end`; damaged ranges are left out.

        `start`: where a record begins, or a damaged range.
        """
        for segment in self.segments:
            if start >= segment.end:
                continue
            with segment.path.open("rb") as file:
                for at, end in segment.runs():
                    at = max(at, start)
                    while at < end:
                        data, _, _ = read_records(file.fileno(), segment.base, at, end)
                        if not data:
                            break  # `start` is in the middle of a record
                        yield at, data
                        at += len(data)

    def _cut(self, end: int, kept: int) -> None:
        """End the log there, in the last of so many segments, as a start does."""
        del self.segments[kept:]
        extent = self.segments[-1].extent
        holes = tuple(hole for hole in extent.holes if hole.start < end)
        self.segments[-1].extent = replace(extent, holes=holes, end=end)

    def _scan(self, path: Path, end: int | None) -> SegmentScan:
        base, records = int(path.stem), Counter[int]()
        fd = os.open(path, os.O_RDONLY)
        try:
            fault = header_fault(read_part(fd, HEADER_BYTES, 0), base)
            found = salvage(fd, base, end, self._flushed, lambda _, data: records.update(census(data)))
            limit = base + os.fstat(fd).st_size
        finally:
            os.close(fd)
        extent = Extent(base, limit, tuple(found.holes), found.end, found.written, found.reason)
        return SegmentScan(path, extent, records, f"{path}: {fault}" if fault else None)

    def _decided(self) -> Decision:
        """The decision that a start would take. A fault at the end may be an append under way, so it is read again."""
        if not self.segments:
            return Decision(self.first)
        for _ in range(TORN_ATTEMPTS):
            decision = decide([segment.extent for segment in self.segments], self._flushed, self._is_sync_cut)
            if decision.torn is None and not self.segments[-1].extent.holes:
                break
            time.sleep(TORN_WAIT_S)
            self.segments[-1] = self._scan(self.segments[-1].path, None)
        return decide([segment.extent for segment in self.segments], self._flushed, self._is_sync_cut)


def _is_stillborn(segment: SegmentScan) -> bool:
    """True if nothing was ever appended to a segment."""
    return segment.corruption is not None and segment.extent.written <= segment.base + HEADER_BYTES
