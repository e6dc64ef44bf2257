"""Reading a log that another process may be writing: every checksum verified, nothing changed, nothing mapped.

(A server cuts a segment when it seals it; whoever reads past the end of a mapping then is killed.)
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from store._records import LogMemory, census
from store.errors import CorruptSegment
from store.segment import HEADER_BYTES, header_fault, read_records, segment_paths, written_from

TORN_ATTEMPTS = 3
TORN_WAIT_S = 0.05


@dataclass
class SegmentScan:
    """What one segment turned out to hold."""

    path: Path
    end: int  # log_offset behind its last valid record
    records: Counter[int] = field(default_factory=Counter)  # by type, batches opened
    corruption: str | None = None

    @property
    def base(self) -> int:
        return int(self.path.stem)


class LogScan:
    """A log as it was a moment ago. Serves as the log of a Projection from which no message is read."""

    def __init__(self, folder: Path) -> None:
        self.memory = LogMemory(1)
        self.torn_tail_bytes = 0
        self.segments: list[SegmentScan] = []
        paths = segment_paths(folder)
        for path in paths:
            try:
                self._scan(path, is_last=path == paths[-1])
            except FileNotFoundError:
                continue  # retention has just dropped it
        self._check_joints()

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

    def pieces(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(log_offset, verified records) from `start` up to `end`; what is damaged is left out."""
        for segment in self.segments:
            at = max(start, segment.base + HEADER_BYTES)
            if at < segment.end:
                with segment.path.open("rb") as file:
                    while at < segment.end:
                        data, _, _ = read_records(file.fileno(), segment.base, at, segment.end)
                        yield at, data
                        at += len(data)

    def _scan(self, path: Path, is_last: bool) -> None:
        segment = SegmentScan(path, int(path.stem) + HEADER_BYTES)
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
            if is_last and not any(header):
                return  # stillborn: nothing was ever appended to it
            self.segments.append(segment)
            reason = header_fault(header, segment.base)
            if reason:
                segment.corruption = str(CorruptSegment(path, segment.base, reason))
                return
            reason, beyond = self._read_through(file.fileno(), segment)
            for _ in range(TORN_ATTEMPTS if is_last and beyond else 0):
                time.sleep(TORN_WAIT_S)  # perhaps it was only being written
                reason, beyond = self._read_through(file.fileno(), segment)
        if is_last:
            self.torn_tail_bytes = beyond
        elif beyond:
            segment.corruption = str(CorruptSegment(path, segment.end, reason or ""))

    def _read_through(self, fd: int, segment: SegmentScan) -> tuple[str | None, int]:
        """Go on from segment.end: (why it ends where it does, bytes behind that up to the last that is not zero)."""
        while True:
            data, _, reason = read_records(fd, segment.base, segment.end)
            if not data:
                return reason, written_from(fd, segment.end - segment.base)
            segment.records.update(census(data))
            segment.end += len(data)

    def _check_joints(self) -> None:
        """Each segment has to begin where the one before it ends."""
        for segment, following in pairwise(self.segments):
            if segment.end != following.base and not segment.corruption:
                reason = f"its records end here, but the log goes on at {following.base}"
                segment.corruption = str(CorruptSegment(segment.path, segment.end, reason))
