"""Opens the segments of a folder after a crash or damage: tells damage from a torn end, and lets the log go on.

All bytes taken out of the log go to the quarantine first, and GAP records take their place in a new file. So no
log_offset is used twice, and every reader finds a sequence of valid records.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import DamageFound, unusable
from store.files.marks import Marks, Slot
from store.files.segment import HEADER_BYTES, READ_BYTES, Segment, sync_folder
from store.files.sums import State, forget_sum, read_sums
from store.recovery.placing import File, is_blank, placed, stray_below
from store.recovery.quarantine import Finding, Kind, Quarantine
from store.recovery.recovery_rules import Decision, Extent, decide
from store.recovery.rewriting import NEW, rewrite
from store.recovery.running import cut_kind, is_sync_cut
from store.recovery.salvage import Hole, salvage
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")


@dataclass
class Opened:
    """A log's segments, the last of them writable."""

    segments: list[Segment]
    end: int  # log_offset at which the next append goes
    findings: list[Finding] = field(default_factory=list)


def open_segments(
    folder: Path, settings: StoreSettings, marks: Marks, quarantine: Quarantine, remembered: Slot | None = None
) -> Opened:
    """Recover the log of a folder, and open its segments.

    Raises DamageFound if `store.on_damage` is `refuse`, UnknownFormat, FolderUnusable or, without room, StoreFull.
    """
    segments: list[Segment] = []
    recovery = _Recovery(folder, settings, marks, quarantine, remembered)
    try:
        end = recovery.run()
        for file in recovery.files:
            segments.append(Segment.open(file.path, writable=file is recovery.files[-1]))
            segments[-1].last_ms = recovery.last_ms.get(file.base)
            _sync(segments[-1], end, marks.flushed)
            if file is not recovery.files[-1]:
                segments[-1].give_back()  # there may be more of them than descriptors
        segments, end = _with_active(segments, end, folder, settings, marks.identity)
        sync_folder(folder)  # a kill may have left a file's name not durable: its appends would be lost with it
        marks.start(segments[0].base, end)
    except OSError as error:
        for segment in segments:
            segment.close()
        raise unusable(folder, error) from error
    return Opened(segments, end, recovery.findings)


def set_right(
    folder: Path, settings: StoreSettings, marks: Marks, quarantine: Quarantine, remembered: Slot | None = None
) -> list[Finding]:
    """Recover the files of a log as open_segments() does, without opening it; returns the findings.

    Raises UnknownFormat, OSError.
    """
    recovery = _Recovery(folder, settings, marks, quarantine, remembered)
    end = recovery.run()
    for file in recovery.files:
        segment = Segment.open(file.path)
        try:
            _sync(segment, end, marks.flushed)
        finally:
            segment.close()
    if recovery.files:
        sync_folder(folder)
        marks.start(recovery.files[0].base, end)
    return recovery.findings


def _sync(segment: Segment, end: int, flushed: int | None) -> None:
    """Make a segment durable: bytes of a killed process may be in the page cache only. Raises OSError.

    Bytes that no sync has confirmed are written again: after a failed sync the kernel may have marked their pages
    clean.
    """
    at = max(segment.base, flushed or 0)
    stop = min(end, segment.limit)
    if at < stop and flushed is not None:
        fd = os.open(segment.path, os.O_RDWR)
        try:
            while at < stop:
                data = os.pread(fd, min(READ_BYTES, stop - at), at - segment.base)
                os.pwrite(fd, data, at - segment.base)
                at += len(data)
        finally:
            os.close(fd)
    os.fdatasync(segment.fd)


def _with_active(
    segments: list[Segment], end: int, folder: Path, settings: StoreSettings, identity: bytes
) -> tuple[list[Segment], int]:
    """Add a segment if the last one cannot be appended to."""
    if segments:
        segments[-1].allocated_bytes = end - segments[-1].base
        if segments[-1].size_bytes >= settings.segment_bytes:
            return segments, end
    segment = Segment.create(folder, end, settings.segment_bytes, identity, time.time_ns() // 1_000_000)
    if segments:  # it was sealed already, or segment_bytes grew
        segment.last_ms = segments[-1].last_ms
        segments[-1].seal(end)
    return [*segments, segment], segment.first


class _Recovery:
    """One recovery of the files of a folder."""

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        marks: Marks,
        quarantine: Quarantine,
        remembered: Slot | None = None,
    ) -> None:
        self._folder = folder
        self._remembered = remembered
        self._settings = settings
        self._marks = marks
        self._quarantine = quarantine
        self.files: list[File] = []
        self.findings: list[Finding] = []
        self._suspects = _suspects(folder)
        self._cut_kind = cut_kind(folder)  # kind of the finding for bytes that are cut off at the end
        self.last_ms: dict[int, int | None] = {}  # timestamp of each file's last record, by base

    def run(self) -> int:
        """Recover the files; returns the log's end. Raises DamageFound, UnknownFormat, OSError."""
        for leftover in self._folder.glob(f"*{NEW}"):
            if not leftover.is_dir():
                leftover.unlink()
        placing = placed(self._folder, self._marks)
        if self._remembered is not None:
            self._marks.learn(self._remembered, placing.files[0].base if placing.files else None)
        self.files = placing.files
        if len(self.files) > 1 and self.files[1].base <= self._marks.begin:
            self._marks.sync()  # a kill may have come before it: after a power cut the dropped ones would look lost
        while len(self.files) > 1 and self.files[1].base <= self._marks.begin:
            file = self.files.pop(0)
            if file.fault:
                placing.foreign.append((stray_below(file), file.path))
            else:
                file.path.unlink()  # retention was about to drop it
        extents = [self._extent(number) for number in range(len(self.files))]
        self._without_stillborn(extents)
        decision = (
            decide(extents, self._marks.flushed, is_sync_cut(self._folder))
            if extents
            else Decision(self._end_of_nothing())
        )
        lost_before = self._lost_before()
        lost = [_finding(*loss) for loss in decision.losses]
        self._refuse_if_told([*lost_before, *lost, *placing.mended, *placing.others])
        for finding, path in placing.foreign:
            self._put_aside(finding, path)
        for finding, path in placing.tails:
            self._quarantine.keep(finding, path)
            self._tell(finding)
        for finding in (*placing.mended, *lost_before):
            self._quarantine.describe(finding)
        for finding in (*placing.mended, *lost_before, *lost):
            self._tell(finding)
        self._apply(extents, decision)
        return decision.end

    # --- what there is

    def _extent(self, number: int) -> Extent:
        """Contents of a file. An old file of the right size is trusted; its faults show when it is read."""
        file, end = self.files[number], None
        if number + 1 < len(self.files):
            end = self.files[number + 1].base
            is_new = end > self.files[-1].base - self._settings.verify_at_start_bytes
            if not is_new and file.base not in self._suspects and file.limit == end and not file.fault:
                return Extent(file.base, file.limit, (), end, end)
        fd = os.open(file.path, os.O_RDONLY)
        try:
            found = salvage(fd, file.base, end, self._marks.flushed)
        finally:
            os.close(fd)
        self.last_ms[file.base] = found.last_ms
        return Extent(file.base, file.limit, tuple(found.holes), found.end, found.written, found.reason)

    def _without_stillborn(self, extents: list[Extent]) -> None:
        """Drop last files whose header a crash left unwritten: nothing was ever appended to them."""
        confirmed = self._marks.flushed or 0
        while extents and self.files[-1].fault and not extents[-1].has_records and self.files[-1].base >= confirmed:
            self._drop(self.files.pop(), extents.pop(), is_loss=False)

    def _lost_before(self) -> list[Finding]:
        """A finding for the beginning of the log if the marks name it and no file has it."""
        first = self.files[0].base if self.files else self._end_of_nothing()
        if not self._marks.is_known or self._marks.begin >= first:
            return []
        return [Finding("missing", f"{self._marks.begin:020}", self._marks.begin, first, "the log began here")]

    def _end_of_nothing(self) -> int:
        return max(self._marks.begin, self._marks.flushed or 0)

    def _refuse_if_told(self, findings: list[Finding]) -> None:
        header_faults = [f"{file.path}: {file.fault}" for file in self.files if file.fault]
        serious = [str(finding) for finding in findings] + header_faults
        if serious and self._settings.on_damage == "refuse":
            raise DamageFound(self._folder, serious)

    # --- what becomes of it

    def _apply(self, extents: list[Extent], decision: Decision) -> None:
        """Carry out a decision. Holes are filled first: after a crash halfway the next start decides the same."""
        kept = self.files[: decision.kept]
        for file, following in zip(kept, [*kept[1:], None], strict=False):
            if following is not None:
                self._set_right(file, decision, following.base - file.base)
            else:
                self._set_right(file, decision, max(file.limit, decision.end) - file.base)
                self._cut(file, decision)
        for file, extent in zip(self.files[decision.kept :], extents[decision.kept :], strict=True):
            self._drop(file, extent, is_loss=decision.puts_aside)
        self.files = kept

    def _set_right(self, file: File, decision: Decision, size_bytes: int) -> None:
        """Give a file a valid header, fill its holes, and set its size."""
        losses = [loss for loss in decision.losses if loss[1] == file.base]
        for loss in losses:
            self._quarantine.keep(_finding(*loss), file.path)
        if file.fault:
            mended = Finding("mended", file.path.stem, file.base, file.base + HEADER_BYTES, f"header: {file.fault}")
            self._quarantine.keep(mended, file.path)
            self._tell(mended)
        if losses or file.fault:
            holes = [hole for _, _, hole in losses]
            rewrite(file.path, self._marks.identity, file.created_ms, holes, size_bytes)
        elif size_bytes < file.limit - file.base:  # a crash came between creating the next file and sealing this one
            os.truncate(file.path, size_bytes)

    def _cut(self, file: File, decision: Decision) -> None:
        """Cut a torn append off the last file."""
        torn = decision.torn
        if torn is None:
            return
        if torn.end > torn.start:
            finding = Finding(self._cut_kind, file.path.stem, torn.start, torn.end, torn.reason)
            self._quarantine.keep(finding, file.path)
            self._tell(finding)
        size_bytes = file.path.stat().st_size
        forget_sum(self._folder, file.base)
        os.truncate(file.path, decision.end - file.base)
        os.truncate(file.path, size_bytes)

    def _drop(self, file: File, extent: Extent, is_loss: bool) -> None:
        """Remove a file that lies after the end of the log."""
        if is_loss and extent.has_records:
            self._put_aside(Finding("unconfirmed", file.path.stem, file.base, file.limit, "behind a fault"), file.path)
        elif is_blank(file, extent.written):
            file.path.unlink()
        else:
            self._put_aside(
                Finding(self._cut_kind, file.path.stem, file.base, file.limit, "behind that end"), file.path
            )

    def _put_aside(self, finding: Finding, path: Path) -> None:
        self._quarantine.keep_file(finding, path)
        self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        self.findings.append(finding)
        level = logging.ERROR if finding.is_loss else logging.WARNING
        log.log(level, "%s; see %s", finding, self._quarantine.folder)


def _suspects(folder: Path) -> set[int]:
    """Bases of the segments that the scrubber found damaged."""
    sums = read_sums(folder)
    return {each.base for each in sums.entries.values() if each.state == State.DAMAGED} if sums else set()


def _finding(kind: Kind, base: int, hole: Hole) -> Finding:
    return Finding(kind, f"{base:020}", hole.start, hole.end, hole.reason)
