"""Brings lost records back into a log, from its quarantine and from copies of the log.

First the log is recovered as by a start: damaged bytes go to the quarantine, and GAP records take their place. Then
intact records of the same log with the same log_offset, found elsewhere, take the place of GAP records. A file is
changed by writing a new one beside it; the old one stays in `repair-undo/` under its name. So a kill at any moment
leaves the log as good as before or better, and the next repair does the rest.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from store.errors import FolderUnusable, NotOfThisLog
from store.files.folder import DataFolder
from store.files.marks import Marks, read_marks
from store.files.medium import read_part
from store.files.segment import (
    HEADER_BYTES,
    READ_BYTES,
    SUFFIX,
    Sealed,
    read_header,
    read_records,
    segment_header,
    segment_path,
    sync_folder,
)
from store.files.sums import State, Sum, forget_sum, read_sums, write_sums
from store.log.commitlog import open_marks
from store.log.index import remembered_marks
from store.mending.foresight import Foreseen, Progress, foresee, headers, silent
from store.mending.sources import Source
from store.records.records import RECORD_HEADER_BYTES, Record, RecordType
from store.records.records import read_records as opened
from store.recovery.placing import would_place
from store.recovery.quarantine import Finding, Quarantine
from store.recovery.recovery import set_right
from store.recovery.rewriting import NEW, fill
from store.recovery.salvage import Hole
from store.settings import StoreSettings

UNDO = "repair-undo"
ALL = 1 << 62
SAMPLES = 1_000  # messages kept of those that came back, the last ones


@dataclass
class Repaired:
    """The result of a repair."""

    findings: list[Finding] = field(default_factory=list)  # of the recovery before it, as at a start
    got_back: list[tuple[int, int, str]] = field(default_factory=list)  # log_offsets [start, end), and the source
    lost: list[Hole] = field(default_factory=list)  # ranges that are still lost
    changed: list[Sealed] = field(default_factory=list)  # segments whose files still differ from their sums
    records: int = 0
    topics: Counter[str] = field(default_factory=Counter)  # messages that came back
    samples: deque[Record] = field(default_factory=lambda: deque(maxlen=SAMPLES))  # without payloads

    def note(self, at: int, data: bytes, source: str) -> None:
        end = at + len(data)
        if self.got_back and self.got_back[-1][1:] == (at, source):
            self.got_back[-1] = (self.got_back[-1][0], end, source)
        else:
            self.got_back.append((at, end, source))
        for record in opened(memoryview(data)):
            if record.type != RecordType.MESSAGE:
                continue
            self.topics[record.topic.decode(errors="replace")] += 1
            self.samples.append(record._replace(payload=b"", properties=b""))
        self.records += 1


def repair_log(
    folder: DataFolder, sources: Sequence[Source], on_progress: Progress = silent
) -> tuple[Repaired, Foreseen]:
    """Recover a log, and fill its gaps from the sources. Returns the result, and the log as it is then.

    Raises StoreError; then every file is as before, or already repaired.
    """
    settings = StoreSettings(data=folder.path, verify_at_start_bytes=ALL)
    quarantine = Quarantine(folder.quarantine)
    marks, remembered = open_marks(folder.log), remembered_marks(folder.path)
    try:
        repaired = Repaired(set_right(folder.log, settings, marks, quarantine, remembered))
        log = foresee(folder.log, on_progress=lambda what, done: on_progress(what, done / 2))
        usable = [source for source in sources if source.is_of(marks.identity)]
        _add_beginning(folder, log, marks, quarantine, usable, repaired)
        _fill_gaps(folder, log, usable, repaired, on_progress)
        log = foresee(folder.log)
        if put_back_changed(folder, log, usable, repaired):
            log = foresee(folder.log)
        repaired.lost = _missing_before(log, quarantine) + log.gaps
        _settle_quarantine(quarantine, log, repaired)
    except OSError as error:
        raise FolderUnusable(folder.path, str(error)) from error
    finally:
        marks.close()
    return repaired, log


def check_sources(log_folder: Path, sources: Sequence[Source]) -> None:
    """Raise NotOfThisLog if a source is a copy of another log."""
    placing, slot = would_place(log_folder), read_marks(log_folder)
    identity = placing.identity or (slot.identity if slot else b"")
    for source in sources:
        if not source.is_of(identity):
            raise NotOfThisLog(source.path, log_folder)


# --- gaps within the log


def _fill_gaps(
    folder: DataFolder, log: Foreseen, sources: Sequence[Source], repaired: Repaired, on_progress: Progress
) -> None:
    for number, file in enumerate(log.files):
        end = log.extents[number].end
        gaps = [gap for gap in log.gaps if file.base <= gap.start < end]
        bounds = _lost_bounds(gaps, sources)
        if not bounds and not any(next(source.records(gap), None) for source in sources for gap in gaps):
            continue
        on_progress(file.path.name, (1 + number / len(log.files)) / 2)
        new = _NewFile(folder, file.path, file.base, end)
        try:
            new.copy()
            for gap in _split(gaps, bounds):
                new.fill(gap, sources, repaired, gaps)
            new.put()
        finally:
            new.close()
        _divide(folder, file.path, bounds)


def _lost_bounds(gaps: Sequence[Hole], sources: Sequence[Source]) -> dict[int, int]:
    """base and created_ms of segments whose headers were lost too, so that their files can be made again."""
    return {
        base: created_ms
        for source in sources
        for base, created_ms in source.segments()
        if any(
            gap.start <= base and base + HEADER_BYTES <= gap.end and _is_room(base - gap.start)
            and _is_room(gap.end - base - HEADER_BYTES)
            for gap in gaps
        )
    }  # fmt: skip


def _split(gaps: Sequence[Hole], bounds: dict[int, int]) -> list[Hole]:
    cuts = sorted({*bounds, *(base + HEADER_BYTES for base in bounds)})
    found = []
    for gap in gaps:
        edges = [gap.start, *(cut for cut in cuts if gap.start < cut < gap.end), gap.end]
        found += [Hole(start, end, gap.reason) for start, end in pairwise(edges)]
    return found


def _is_room(size: int) -> bool:
    """Whether GAP records can fill a range of this size."""
    return size == 0 or size >= RECORD_HEADER_BYTES


def _divide(folder: DataFolder, path: Path, bounds: dict[int, int]) -> None:
    """Make files again for segments whose range recovery had added to the file before them; newest first.

    After a crash halfway, the next start cuts the extended file where the next one begins.
    """
    with path.open("rb") as file:
        header = read_header(file.read(HEADER_BYTES))
    assert header is not None
    for base in sorted((base for base in bounds if base > header.base), reverse=True):
        size = path.stat().st_size
        new = _NewFile(folder, segment_path(path.parent, base), base, header.base + size)
        try:
            new.take(path, base - header.base, header.identity, bounds[base])
            new.put()
        finally:
            new.close()
        os.truncate(path, base - header.base)


class _NewFile:
    """A new file that replaces a segment's file once it is complete."""

    def __init__(self, folder: DataFolder, path: Path, base: int, end: int) -> None:
        """`end`: log_offset after its last record."""
        self._folder = folder
        self._path = path
        self._base = base
        self._end = end
        self._new = path.with_name(path.name + NEW)
        self._fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
        self._changed: list[tuple[int, bytes, str]] = []

    def copy(self) -> None:
        """Begin with a copy of the old file."""
        self._copy(self._path, 0)

    def take(self, path: Path, position: int, identity: bytes, created_ms: int) -> None:
        """Begin with a header and the content of another file from `position` on."""
        self._copy(path, position)
        os.pwrite(self._fd, segment_header(self._base, identity, created_ms), 0)

    def _copy(self, path: Path, position: int) -> None:
        os.ftruncate(self._fd, path.stat().st_size - position)
        reading = os.open(path, os.O_RDONLY)
        try:
            at = 0
            while data := read_part(reading, READ_BYTES, position + at):
                if any(data):
                    os.pwrite(self._fd, data, at)
                at += len(data)
        finally:
            os.close(reading)

    def be(self, path: Path, size: int) -> None:
        """Take the first `size` bytes of another file."""
        self._copy(path, 0)
        os.ftruncate(self._fd, size)

    def begin(self, identity: bytes, created_ms: int) -> None:
        """Begin with a header and a gap."""
        os.ftruncate(self._fd, self._end - self._base)
        os.pwrite(self._fd, segment_header(self._base, identity, created_ms), 0)
        fill(self._fd, self._base, Hole(self._base + HEADER_BYTES, self._end, ""))

    def fill(self, gap: Hole, sources: Sequence[Source], repaired: Repaired, gaps: Sequence[Hole]) -> None:
        """Fill a gap with the sources' records, and the rest of it with GAP records."""
        left = [gap]
        for source in sources:
            still: list[Hole] = []
            for hole in left:
                at = hole.start
                for start, data in source.records(hole):
                    if self._fits(hole, at, start, data, gaps):
                        if start > at:
                            still.append(Hole(at, start, hole.reason))
                        os.pwrite(self._fd, data, start - self._base)
                        repaired.note(start, data, source.name)
                        at = start + len(data)
                if at < hole.end:
                    still.append(Hole(at, hole.end, hole.reason))
            left = still
        for hole in left:
            fill(self._fd, self._base, hole)

    def _fits(self, hole: Hole, at: int, start: int, data: bytes, gaps: Sequence[Hole]) -> bool:
        """Whether a record fits into a hole: GAP records must fit beside it, and no intact byte may change."""
        end = start + len(data)
        if start < at or not _is_room(start - at) or end > self._end:
            return False
        if end <= hole.end:
            return _is_room(hole.end - end)
        there = os.pread(self._fd, len(data), start - self._base)  # a batch of which only a part was lost
        lost = [(max(gap.start, start) - start, min(gap.end, end) - start) for gap in gaps if gap.start < end]
        mask = bytearray(data)
        for first, last in lost:
            if first < last:
                mask[first:last] = there[first:last]
        return bytes(mask) == there and not any(start < gap.start < end < gap.end for gap in gaps)

    def put(self) -> None:
        """Replace the old file, which goes to `repair-undo`."""
        os.fdatasync(self._fd)
        if self._path.exists():
            undo = self._folder.path / UNDO
            undo.mkdir(mode=0o700, exist_ok=True)
            number = 0
            while (kept := undo / f"{self._path.stem}{f'.{number}' if number else ''}{SUFFIX}").exists():
                number += 1
            os.link(self._path, kept)
            sync_folder(undo)
            sync_folder(self._folder.path)
        forget_sum(self._path.parent, self._base)
        self._new.rename(self._path)
        sync_folder(self._path.parent)

    def close(self) -> None:
        os.close(self._fd)
        self._new.unlink(missing_ok=True)


# --- segments whose records are valid, but not the original ones


def put_back_changed(folder: DataFolder, log: Foreseen, sources: Sequence[Source], repaired: Repaired) -> bool:
    """Restore files that differ from their sums, from a source with the original bytes. Returns whether there was one.

    Raises OSError.
    """
    for segment in log.changed:
        known = log.sums.entries[segment.base]
        found = next((found for source in sources if (found := source.whole(segment, known.digest))), None)
        if found is None:
            repaired.changed.append(segment)
            continue
        new = _NewFile(folder, segment.path, segment.base, segment.end)
        try:
            new.be(found, segment.end - segment.base)
            for at, data in _differences(found, segment):
                repaired.note(at, data, str(found))
            new.put()
        finally:
            new.close()
        _know_again(folder.log, known)
    return len(repaired.changed) < len(log.changed)


def _differences(path: Path, segment: Sealed) -> Iterator[tuple[int, bytes]]:
    """The records of a copy that differ from those in a segment's file."""
    ours, theirs = os.open(segment.path, os.O_RDONLY), os.open(path, os.O_RDONLY)
    try:
        at = segment.base + HEADER_BYTES
        while at < segment.end:
            data, _, _ = read_records(theirs, segment.base, at, segment.end)
            if not data:
                return
            there = os.pread(ours, len(data), at - segment.base)
            for found, length, _ in headers(at, data) if there != data else ():
                if there[found - at : found - at + length] != data[found - at : found - at + length]:
                    yield found, data[found - at : found - at + length]
            at += len(data)
    finally:
        os.close(ours)
        os.close(theirs)


def _know_again(log_folder: Path, known: Sum) -> None:
    """Mark a segment as intact again, so that the next scrub compares it with its old sum."""
    sums = read_sums(log_folder)
    if sums is not None:
        sums.put(known._replace(state=State.INTACT))
        write_sums(log_folder, sums)


# --- the log's beginning


def _missing_before(log: Foreseen, quarantine: Quarantine) -> list[Hole]:
    """The range before the oldest segment that was lost, and not dropped by retention."""
    found: list[Hole] = []
    first = log.base
    missing = [finding for finding in quarantine.findings() if finding.kind == "missing"]
    while loss := next((each for each in missing if each.end == first and each.start < first), None):
        found.insert(0, Hole(loss.start, loss.end, loss.reason))
        first = loss.start
    return found


def _add_beginning(
    folder: DataFolder,
    log: Foreseen,
    marks: Marks,
    quarantine: Quarantine,
    sources: Sequence[Source],
    repaired: Repaired,
) -> None:
    """Add the lost first segments again, newest first, as far as copies have them."""
    missing = _missing_before(log, quarantine)
    if not missing:
        return
    lost = Hole(missing[0].start, log.base, "")
    for source in sources:
        segments = [found for found in source.segments() if lost.start <= found[0] < lost.end]
        if not segments:
            continue
        # After a crash halfway, a start reports the missing rest; with the old marks it would drop what came back.
        marks.begin_at(segments[0][0])
        marks.sync()
        ends = [*(base for base, _ in segments[1:]), lost.end]
        for (base, created_ms), end in reversed(list(zip(segments, ends, strict=True))):
            new = _NewFile(folder, segment_path(folder.log, base), base, end)
            try:
                new.begin(marks.identity, created_ms)
                gap = Hole(base + HEADER_BYTES, end, "lost before")
                new.fill(gap, sources, repaired, [gap])
                new.put()
            finally:
                new.close()
        return


# --- the quarantine


def _settle_quarantine(quarantine: Quarantine, log: Foreseen, repaired: Repaired) -> None:
    """Mark findings whose bytes came back as repaired, and describe the rest of each by a finding of its own."""
    for finding in quarantine.findings():
        if not finding.is_loss or finding.end <= log.base:  # retention would have dropped it by now
            continue
        left = [
            Hole(max(hole.start, finding.start), min(hole.end, finding.end), "")
            for hole in repaired.lost
            if hole.start < finding.end and finding.start < hole.end
        ]
        if sum(hole.end - hole.start for hole in left) == finding.end - finding.start:
            continue
        for hole in left:
            quarantine.describe(Finding(finding.kind, finding.segment, hole.start, hole.end, finding.reason))
        quarantine.mark_repaired(finding)
