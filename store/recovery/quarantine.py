"""The quarantine: for each range that recovery takes out of a log, a copy of the bytes and a JSON file with the reason.

    quarantine/00000000000000000000-4096-8192.json     {"kind": "damaged", "start": 4096, ...}
    quarantine/00000000000000000000-4096-8192.bytes    the bytes; no file if there were none

Only an operator deletes anything here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec

from store.files.medium import read_part
from store.files.segment import READ_BYTES, sync_folder

Kind = Literal["damaged", "missing", "unconfirmed", "torn", "unsynced", "foreign", "mended"]
LOSSES: tuple[Kind, ...] = ("damaged", "missing", "unconfirmed")
MEANINGS: dict[Kind, str] = {
    "damaged": "acknowledged, and no longer readable",
    "missing": "acknowledged, and no longer there",
    "unconfirmed": "behind what the disk had confirmed; it may have been acknowledged, and is not served",
    "torn": "an append that a kill or a power cut ended halfway; it was not acknowledged",
    "unsynced": "not on the disk yet when power or disk failed, without flush=sync; it may have been acknowledged",
    "foreign": "not of this log",
    "mended": "nothing is lost",
}


@dataclass(frozen=True)
class Finding:
    """Bytes [start, end), as log_offsets, that a log cannot serve any more, or should never have had."""

    kind: Kind
    segment: str  # name of the file without its suffix
    start: int
    end: int
    reason: str

    @property
    def is_loss(self) -> bool:
        """Whether acknowledged bytes may be among them."""
        return self.kind in LOSSES

    @property
    def is_file(self) -> bool:
        """Whether the finding is a whole segment file with its header."""
        return self.segment == f"{self.start:020}"

    def __str__(self) -> str:
        where = f"segment {self.segment}, log_offset {self.start} to {self.end} ({self.end - self.start} bytes)"
        return f"{where}: {self.reason}; {MEANINGS[self.kind]}"


class Quarantine:
    """The folder `quarantine`; created with the first finding."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, finding: Finding, path: Path) -> None:
        """Keep a finding and its bytes from the segment's file, durably. Raises OSError."""
        base = int(path.stem)
        kept = _copy(path, self._path(finding, "bytes"), finding.start - base, finding.end - base)
        self.describe(finding, kept)

    def keep_file(self, finding: Finding, path: Path) -> None:
        """Move a whole file that does not belong to the log into the quarantine. Raises OSError."""
        self.describe(finding, path.stat().st_size)
        path.rename(self._path(finding, "bytes"))
        sync_folder(self.folder)
        sync_folder(path.parent)

    def _path(self, finding: Finding, suffix: str) -> Path:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return self.folder / f"{finding.segment}-{finding.start}-{finding.end}.{suffix}"

    def describe(self, finding: Finding, kept: int = 0) -> None:
        """Write the description of a finding, of which `kept` bytes are here, durably. Raises OSError."""
        about = asdict(finding) | {"bytes": kept, "found_ms": time.time_ns() // 1_000_000}
        text = msgspec.json.format(msgspec.json.encode(about), indent=2)
        _write(self._path(finding, "json"), text + b"\n")
        sync_folder(self.folder)
        sync_folder(self.folder.parent)

    def mark_repaired(self, finding: Finding) -> None:
        """Mark a finding as repaired: its bytes came back, or other findings describe the rest. Raises OSError."""
        path = self._path(finding, "json")
        path.rename(path.with_suffix(".repaired"))
        sync_folder(self.folder)

    def findings(self) -> list[Finding]:
        """All findings in the quarantine, by place; unreadable descriptions are left out."""
        found = []
        for path in self.folder.glob("*.json"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Finding))
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
        return sorted(found, key=lambda finding: (finding.start, finding.end))

    def put_aside_from(self) -> int:
        """log_offset from which the last recovery that did so put unconfirmed records aside; 0: none did."""
        return put_aside_from(self.findings())

    def lost_bytes(self) -> dict[Kind, int]:
        """Bytes of the log that were ever lost, by kind. A byte of two findings counts once, for the first of them."""
        return lost_bytes(self.findings())

    def lost_ranges(self) -> list[tuple[int, int]]:
        """Ranges [start, end) of the log that were lost and did not come back, in order; no two of them touch."""
        return lost_ranges(self.findings())


def put_aside_from(findings: Iterable[Finding]) -> int:
    """log_offset from which the last recovery that did so put unconfirmed records aside; 0: none did.

    Whole files put aside with them lay after it.
    """
    return max((each.start for each in findings if each.kind == "unconfirmed" and not each.is_file), default=0)


def lost_bytes(findings: Iterable[Finding]) -> dict[Kind, int]:
    """Bytes lost by these findings, which are in order, by kind; each byte counts once."""
    lost = dict.fromkeys(LOSSES, 0)
    counted = 0
    for finding in findings:
        if finding.is_loss and finding.end > counted:
            lost[finding.kind] += finding.end - max(finding.start, counted)
            counted = finding.end
    return lost


def lost_ranges(findings: Iterable[Finding]) -> list[tuple[int, int]]:
    """Ranges [start, end) lost by these findings, which are in order; no two ranges touch."""
    found: list[tuple[int, int]] = []
    for finding in findings:
        if not finding.is_loss:
            continue
        if found and finding.start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], finding.end)
        else:
            found.append((finding.start, finding.end))
    return found


def _copy(source: Path, target: Path, start: int, end: int) -> int:
    """Copy bytes [start, end) of a file, zeros where it has none. Returns the size without trailing zeros."""
    try:
        reading = os.open(source, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    kept = 0
    writing = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        at = start
        while at < end and (data := read_part(reading, min(READ_BYTES, end - at), at)):
            if any(data):
                os.pwrite(writing, data, at - start)
                kept = at - start + len(data.rstrip(b"\0"))
            at += len(data)
        os.ftruncate(writing, end - start)  # a record may end with zeros
        os.fdatasync(writing)
    finally:
        os.close(writing)
        os.close(reading)
    if not kept:
        target.unlink()
    return kept


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(fd, data)
        os.fdatasync(fd)
    finally:
        os.close(fd)
