"""The rules of recovery without I/O: what happens to a log whose files have holes.

`flushed` is the log_offset up to which the disk has confirmed the log. A hole before it is damage: it is filled, and
the log goes on after it. The first hole after it ends the log. If nothing valid follows that hole, it is a torn
append, which was not acknowledged; otherwise (normal with `async` after a power cut) the bytes after it may have been
acknowledged, and are put aside. After a power cut under `sync` they were not: an acknowledgement waits for a sync of
everything before it, so a hole that the power cut made is after all that was acknowledged, whatever follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from store.files.segment import HEADER_BYTES
from store.recovery.quarantine import Finding, Kind
from store.recovery.salvage import Hole

LEAST_RECORD_BYTES = 40


@dataclass(frozen=True)
class Extent:
    """Contents of one segment's file; positions are log_offsets."""

    base: int
    limit: int  # where the file ends
    holes: tuple[Hole, ...]  # a valid record follows each
    end: int  # after the last valid record
    written: int  # after the last byte that is not zero
    reason: str = ""  # the fault at `end`

    @property
    def has_records(self) -> bool:
        return self.end > self.base + HEADER_BYTES


@dataclass
class Decision:
    """The log as recovery leaves it."""

    end: int  # log_offset of the next append
    kept: int = 0  # number of files that stay
    fills: dict[int, list[Hole]] = field(default_factory=dict)  # holes to fill with GAP records, by the file's base
    losses: list[tuple[Kind, int, Hole]] = field(default_factory=list)  # with the file's base
    torn: Hole | None = None  # bytes to cut off the last file that stays

    @property
    def puts_aside(self) -> bool:
        """Whether bytes after the end may have been acknowledged."""
        return any(kind == "unconfirmed" for kind, _, _ in self.losses)

    def fill(self, kind: Kind, base: int, hole: Hole) -> None:
        self.fills.setdefault(base, []).append(hole)
        self.losses.append((kind, base, hole))


def decide(extents: list[Extent], flushed: int | None, is_sync_cut: bool = False) -> Decision:
    """Decide what happens to the files of a log, oldest first; at least one.

    `flushed` None: unknown; then all valid records are served. `is_sync_cut`: the power was cut under flush=sync.
    """
    last = extents[-1]
    decision = Decision(last.end, len(extents))
    for number, extent, hole in _holes(extents):
        if flushed is not None and hole.start >= flushed:
            _end_early(decision, extents[number:], hole, is_sync_cut)
            decision.kept = number + 1
            return decision
        if flushed is None and not _is_followed(extents[number:], hole):
            _end_early(decision, extents[number:], hole, is_sync_cut)
            decision.kept = number + 1
            return decision
        decision.fill(_kind(extent, hole), extent.base, hole)
    if flushed is not None and last.end < flushed:
        decision.end = max(flushed, _aligned(last.written), last.end + LEAST_RECORD_BYTES)
        hole = Hole(last.end, decision.end, last.reason or "the log went on here")
        decision.fill(_kind(last, hole), last.base, hole)
    elif last.written > last.end:
        decision.torn = Hole(last.end, last.written, last.reason)
    return decision


def _holes(extents: list[Extent]) -> list[tuple[int, Extent, Hole]]:
    """Every hole with more of the log after it, its file, and the file's number."""
    found: list[tuple[int, Extent, Hole]] = []
    for number, extent in enumerate(extents):
        found += [(number, extent, hole) for hole in extent.holes]
        if number + 1 < len(extents) and extent.end < (following := extents[number + 1].base):
            reason = extent.reason or f"cut off, but the log goes on at {following}"
            found.append((number, extent, Hole(extent.end, following, reason)))
    return found


def _is_followed(extents: list[Extent], hole: Hole) -> bool:
    """Whether a valid record lies after a hole of the first of these files."""
    return hole.end < extents[0].end or any(extent.has_records for extent in extents[1:])


def _end_early(decision: Decision, extents: list[Extent], hole: Hole, is_sync_cut: bool) -> None:
    """End the log at a hole of the first of these files."""
    if not is_sync_cut and _is_followed(extents, hole):
        decision.end = max(max(extent.end, _aligned(extent.written)) for extent in extents)
        decision.fill("unconfirmed", extents[0].base, Hole(hole.start, decision.end, hole.reason))
    else:
        decision.end = hole.start
        decision.torn = Hole(hole.start, max(hole.start, extents[0].written), hole.reason)


def _kind(extent: Extent, hole: Hole) -> Kind:
    return "damaged" if extent.written > hole.start else "missing"


def _aligned(log_offset: int) -> int:
    return (log_offset + 7) & ~7


def only_index_knows(kind: Kind, base: int, end: int, findings: Iterable[Finding], known: int) -> Finding | None:
    """A finding for records that the index had applied up to log_offset `known`, if neither log nor findings have them.

    `base`: of the log's last segment; `end`: of the log. The disk had confirmed none of these records.
    """
    start = max([end, *(finding.end for finding in findings)])
    if known - start < LEAST_RECORD_BYTES:  # a finding may leave out the zeros at a record's end
        return None
    return Finding(kind, f"{base:020}", start, known, "the index has applied it, and the log does not have it")
