"""Foresees what the next start would find in a log and do about it. Reads only.

It follows store.recovery step by step, by the same rules (placing, salvage, recovery_rules), but verifies every record
of every file, and changes nothing. tests/unit/lightqueue/mending/test_checking.py compares the two.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from store.files.marks import Slot, learned, read_marks
from store.files.medium import read_part
from store.files.segment import HEADER_BYTES, Sealed, read_records
from store.files.sums import Sums, read_sums
from store.log.index import foreseen_marks
from store.records._records import LogMemory, census
from store.records.records import RecordType
from store.recovery.placing import File, is_blank, stray_below, would_place
from store.recovery.quarantine import Finding, Kind
from store.recovery.recovery_rules import Decision, Extent, decide
from store.recovery.running import cut_kind, is_sync_cut
from store.recovery.salvage import Hole, resumed, salvage

Progress = Callable[[str, float], None]
"""The file in work, and the part that is done (0 to 1)."""


def silent(what: str, done: float) -> None:
    pass


@dataclass
class Foreseen:
    """A log as the next start would leave it. It serves as the log of a Projection that reads no message."""

    slot: Slot | None
    files: list[File] = field(default_factory=list)  # files that the start would serve, oldest first
    extents: list[Extent] = field(default_factory=list)  # of each file
    decision: Decision = field(default_factory=lambda: Decision(0))
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Hole] = field(default_factory=list)  # ranges that earlier starts lost: they hold GAP records
    sums: Sums = field(default_factory=Sums)
    changed: list[Sealed] = field(default_factory=list)  # segments with valid records but another sum
    unknown_types: set[int] = field(default_factory=set)
    records: int = 0
    identity: bytes = b""  # of the log, where a segment bears it
    adopted: bytes | None = None  # the segments' identity, if the marks have another
    cut_kind: Kind = "torn"  # of the bytes that a start cuts off at the end
    memory: LogMemory = field(default_factory=lambda: LogMemory(1))

    @property
    def base(self) -> int:
        return self.files[0].base if self.files else max(self._begin, self._flushed or 0)

    @property
    def first(self) -> int:
        """log_offset of the oldest record kept."""
        return self.base + HEADER_BYTES

    @property
    def end(self) -> int:
        return self.decision.end

    @property
    def _begin(self) -> int:
        return self.slot.begin if self.slot and self.adopted is None else 0

    @property
    def _flushed(self) -> int | None:
        return self.slot.flushed if self.slot and self.adopted is None else None

    @property
    def lost_ranges(self) -> list[tuple[int, int]]:
        """Empty: a Projection that reads no message does not need them."""
        return []

    def runs(self, number: int) -> Iterator[tuple[int, int]]:
        """The ranges [start, end) of log_offsets with valid records of a file that would be served."""
        extent, at = self.extents[number], self.files[number].base + HEADER_BYTES
        for hole in extent.holes:
            if at < self.decision.end:
                yield at, min(hole.start, self.decision.end)
            at = hole.end
        cut = next((loss.start for kind, _, loss in self.decision.losses if kind == "unconfirmed"), self.decision.end)
        if at < min(extent.end, cut):
            yield at, min(extent.end, cut)

    def resumes_at(self, log_offset: int) -> int | None:
        """See CommitLog.resumes_at(); in a damaged range, which a start would make a gap, there. Raises OSError."""
        for number, file in enumerate(self.files):
            for start, end in self.runs(number):
                if start < log_offset < end:
                    return resumed(file.path, file.base, start, end, log_offset)
        return log_offset

    def pieces(self, start: int) -> Iterator[tuple[int, bytes]]:
        """(log_offset, verified records) from `start` on; damaged ranges are left out.

        `start`: where a record begins, or a damaged range.
        """
        for number, file in enumerate(self.files):
            if self.extents[number].end <= start:
                continue
            fd = os.open(file.path, os.O_RDONLY)
            try:
                for at, end in self.runs(number):
                    at = max(at, start)
                    while at < end:
                        data, _, _ = read_records(fd, file.base, at, end)
                        if not data:
                            break  # `start` is in the middle of a record
                        yield at, data
                        at += len(data)
            finally:
                os.close(fd)


def foresee(folder: Path, sealed_only: bool = False, on_progress: Progress = silent) -> Foreseen:
    """Look through a log's folder. `sealed_only`: leave out the newest file, which a process may be writing.

    Raises UnknownFormat, OSError; FileNotFoundError if retention has dropped a file meanwhile.
    """
    placing = would_place(folder)
    log = Foreseen(read_marks(folder), placing.files, identity=placing.identity, adopted=placing.adopted)
    if not sealed_only:
        _learn(log, folder)
    log.cut_kind = cut_kind(folder)
    sums = read_sums(folder)
    if sums is not None and sums.identity == (log.adopted or (log.slot.identity if log.slot else log.identity)):
        log.sums = sums
    while len(log.files) > 1 and log.files[1].base <= log._begin:
        file = log.files.pop(0)  # retention was about to drop it
        if file.fault:
            log.findings.append(stray_below(file))
    end = None
    if sealed_only and log.files:
        end = log.files.pop().base
    _look_through(log, end, on_progress)
    _without_stillborn(log)
    if end is not None and log.extents:
        log.decision = decide([*log.extents, Extent(end, end, (), end, end)], end)
    elif log.extents:
        log.decision = decide(log.extents, log._flushed, is_sync_cut(folder))
    else:
        log.decision = Decision(log.base)
    kept = log.files[: log.decision.kept]
    log.findings += placing.others
    log.findings += placing.mended
    if not sealed_only or log.files:
        log.findings += _lost_before(log)
    log.findings += _headers(kept)
    for kind, base, hole in log.decision.losses:
        log.findings.append(Finding(kind, f"{base:020}", hole.start, hole.end, hole.reason))
    log.findings += _ends(log, kept)
    log.files, log.extents = kept, log.extents[: len(kept)]
    log.gaps = joined(log.gaps)
    return log


def _learn(log: Foreseen, folder: Path) -> None:
    """Use the marks that the index remembers if they are further on, as a start does."""
    remembered = foreseen_marks(folder.parent)
    marks = log.slot if log.adopted is None else None
    identity = log.adopted or (marks.identity if marks is not None else log.identity)
    if remembered is not None:
        found = learned(marks, identity, remembered, log.files[0].base if log.files else None)
        if found is not None and found != marks:
            log.slot, log.adopted = found, None


def _look_through(log: Foreseen, end: int | None, on_progress: Progress) -> None:
    whole = sum(file.limit - file.base for file in log.files) or 1
    done = 0
    ends = [*(file.base for file in log.files[1:]), end]
    for file, following in zip(log.files, ends, strict=False):
        on_progress(file.path.name, done / whole)
        log.extents.append(_extent(log, file, following, _part(on_progress, file.path.name, done, whole)))
        done += file.limit - file.base


def _part(on_progress: Progress, name: str, done: int, whole: int) -> Callable[[int], None]:
    return lambda size: on_progress(name, (done + size) / whole)


def _extent(log: Foreseen, file: File, end: int | None, on_read: Callable[[int], None]) -> Extent:
    known = log.sums.of(file.base, end)
    digest = hashlib.sha256()

    def note(log_offset: int, data: bytes) -> None:
        if known is not None:
            digest.update(data)
        types = census(data)
        log.records += sum(types.values())
        log.unknown_types |= types.keys() - set(RecordType)
        if RecordType.GAP in types:
            log.gaps += _gaps(log_offset, data)
        on_read(log_offset - file.base)

    fd = os.open(file.path, os.O_RDONLY)
    try:
        digest.update(read_part(fd, HEADER_BYTES, 0))
        found = salvage(fd, file.base, end, log._flushed, note)
        limit = file.base + os.fstat(fd).st_size
    finally:
        os.close(fd)
    is_whole = found.end == end and not found.holes and not file.fault
    if known is not None and is_whole and known.differs(digest.digest()):
        log.changed.append(Sealed(file.path, file.base, known.end))
    return Extent(file.base, limit, tuple(found.holes), found.end, found.written, found.reason)


def _gaps(log_offset: int, data: bytes) -> list[Hole]:
    """The ranges of GAP records, neighbouring ones joined."""
    gaps = [
        Hole(at, at + length, "lost before")
        for at, length, record_type in headers(log_offset, data)
        if record_type == RecordType.GAP
    ]
    return joined(gaps)


def headers(log_offset: int, data: bytes) -> Iterator[tuple[int, int, int]]:
    """(log_offset, length, type) of each verified record; batches are not opened."""
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "little")
        yield log_offset + position, length, data[position + 24]
        position += length


def joined(holes: list[Hole]) -> list[Hole]:
    """Holes in order, neighbouring ones as one."""
    found: list[Hole] = []
    for hole in holes:
        if found and found[-1].end == hole.start:
            found[-1] = Hole(found[-1].start, hole.end, hole.reason)
        else:
            found.append(hole)
    return found


def _without_stillborn(log: Foreseen) -> None:
    """Leave out last files whose header a crash left unwritten: nothing was ever appended to them."""
    confirmed = log._flushed or 0
    while log.extents and log.files[-1].fault and not log.extents[-1].has_records and log.files[-1].base >= confirmed:
        file, extent = log.files.pop(), log.extents.pop()
        if not is_blank(file, extent.written):
            log.findings.append(Finding(log.cut_kind, f"{file.base:020}", file.base, file.limit, "behind that end"))


def _lost_before(log: Foreseen) -> list[Finding]:
    if log.slot is None or log.adopted is not None or log._begin >= log.base:
        return []
    return [Finding("missing", f"{log._begin:020}", log._begin, log.base, "the log began here")]


def _headers(files: list[File]) -> list[Finding]:
    return [
        Finding("mended", f"{file.base:020}", file.base, file.base + HEADER_BYTES, f"header: {file.fault}")
        for file in files
        if file.fault
    ]


def _ends(log: Foreseen, kept: list[File]) -> list[Finding]:
    """Findings for bytes that would be cut off the last file that stays, and for files that would go."""
    found = []
    torn = log.decision.torn
    if torn is not None and torn.end > torn.start:
        found.append(Finding(log.cut_kind, f"{kept[-1].base:020}", torn.start, torn.end, torn.reason))
    for file, extent in zip(log.files[len(kept) :], log.extents[len(kept) :], strict=True):
        if log.decision.puts_aside and extent.has_records:
            found.append(Finding("unconfirmed", f"{file.base:020}", file.base, file.limit, "behind a fault"))
        elif not is_blank(file, extent.written):
            found.append(Finding(log.cut_kind, f"{file.base:020}", file.base, file.limit, "behind that end"))
    return found
