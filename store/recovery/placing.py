"""Finds the segment files of a log in its folder, and the right name of each.

A segment's header has its base and the identity of its log. Swapped files get their names back; a second copy of a
segment, and a segment of another log, go to the quarantine.

A segment ends where the next one begins. So a file in the middle of another's records is a stray one, or what an
earlier version left of a roll that failed. The records count, whichever file has them; the rest goes to the quarantine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from store.errors import UnknownFormat
from store.files.marks import MARKS, Marks, read_marks
from store.files.medium import read_part
from store.files.segment import (
    HEADER_BYTES,
    IDENTITY_BYTES,
    SUFFIX,
    VERSION,
    Header,
    header_fault,
    read_header,
    segment_paths,
    sync_folder,
    written_from,
)
from store.recovery.quarantine import Finding
from store.recovery.salvage import salvage

MOVED = ".moved"


@dataclass(frozen=True)
class File:
    """A segment's file; positions are log_offsets."""

    path: Path
    base: int
    limit: int  # where the file ends
    created_ms: int
    fault: str | None = None  # of its header


@dataclass
class Placing:
    files: list[File] = field(default_factory=list)  # oldest first
    foreign: list[tuple[Finding, Path]] = field(default_factory=list)
    tails: list[tuple[Finding, Path]] = field(default_factory=list)  # bytes after the beginning of the next file
    mended: list[Finding] = field(default_factory=list)
    identity: bytes = b""  # of the log, where a segment bears it
    adopted: bytes | None = None  # the segments' identity, if the marks belong to another log

    @property
    def others(self) -> list[Finding]:
        """The findings that go to the quarantine and do not belong to the log."""
        return [finding for finding, _ in (*self.foreign, *self.tails)]


def placed(folder: Path, marks: Marks) -> Placing:
    """Read the headers and give files their right names. Raises UnknownFormat, OSError."""
    placing = _place(folder, marks.identity if marks.is_known else None, marks.is_new, changes=True)
    if placing.adopted is not None:
        marks.adopt(placing.adopted)
    return placing


def would_place(folder: Path) -> Placing:
    """The result that placed() would have, without a change: files keep the paths that they have now."""
    slot = read_marks(folder)
    return _place(folder, slot.identity if slot else None, not (folder / MARKS).exists(), changes=False)


def _place(folder: Path, identity: bytes | None, is_new: bool, changes: bool) -> Placing:
    """`identity`: the one in the marks; None: the marks cannot be read, or (`is_new`) there are none."""
    placing, names = Placing(), _Names(folder, changes)
    for name in names.moved():
        _put(names, name, name.removesuffix(MOVED), placing)
    _put_back(names, placing)
    headers = {name: _header(names.at[name], int(name[:20])) for name in names.segments()}
    if not is_new and identity is None:
        placing.mended.append(Finding("mended", MARKS, 0, 0, "no slot of it could be read"))
    identities = {header.identity for header in headers.values() if header} - {bytes(IDENTITY_BYTES)}
    # The marks belong to another log, or are missing: the segments' identity counts.
    if identities and identity not in identities:
        if identity is not None or is_new:
            reason = "it was of another log" if identity is not None else "it was missing"
            placing.mended.append(Finding("mended", MARKS, 0, 0, reason))
        newest = next(header for header in reversed(headers.values()) if header and header.identity in identities)
        identity = placing.adopted = newest.identity
    placing.identity = identity if identity is not None and identity in identities else b""
    for name, header in headers.items():
        path, base = names.at[name], int(name[:20])
        size = path.stat().st_size
        if header is not None and header.identity not in (identity, bytes(IDENTITY_BYTES)):
            finding = Finding("foreign", name[:20], base, base + size, "a segment of another log")
            placing.foreign.append((finding, path))
        else:
            fault = None if header is not None else _fault(path, base)
            _add(placing, File(path, base, base + size, header.created_ms if header else 0, fault))
    return placing


def _add(placing: Placing, file: File) -> None:
    """Add the next file of the log, unless the one before it has the records of that place. Raises OSError."""
    before = placing.files[-1] if placing.files else None
    tail = _tail(before, file.base) if before is not None and before.limit > file.base else None
    if before is not None and tail is not None:
        before_end, end = _end_of_records(before), _end_of_records(file)
        has_records = end > file.base + HEADER_BYTES
        if before_end > file.base and (not has_records or end <= before_end):
            reason = "a stray file: the segment before it has records there"
            placing.foreign.append((Finding("foreign", f"{file.base:020}", file.base, file.limit, reason), file.path))
            return
        placing.tails.append((tail, before.path))
    placing.files.append(file)


def is_blank(file: File, written: int) -> bool:
    """True if nothing was ever written to a file but its header, given the log_offset after its last byte that is not
    zero. Raises OSError.
    """
    return written <= file.base + HEADER_BYTES and not (file.fault and any(_first_bytes(file.path)))


def stray_below(file: File) -> Finding:
    """A finding for a file before the log's beginning that is no segment: retention did not leave it."""
    return Finding("foreign", f"{file.base:020}", file.base, file.limit, f"before the log begins: {file.fault}")


def _tail(file: File, following: int) -> Finding | None:
    """A finding for the bytes of a file after the next one's base, up to the zeros at its end; None: no such bytes."""
    position = following - file.base
    fd = os.open(file.path, os.O_RDONLY)
    try:
        size = written_from(fd, position, sparse_from=position)
    finally:
        os.close(fd)
    name, reason = f"{file.base:020}", "the next segment begins before it"
    return Finding("foreign", name, following, following + size, reason) if size else None


def _end_of_records(file: File) -> int:
    fd = os.open(file.path, os.O_RDONLY)
    try:
        return salvage(fd, file.base, None, None).end
    finally:
        os.close(fd)


class _Names:
    """The files of a folder by the names that they should have; with `changes` they are renamed on disk as well."""

    def __init__(self, folder: Path, changes: bool) -> None:
        self._folder = folder
        self._changes = changes
        self._is_changed = False
        self.at = {path.name: path for path in (*segment_paths(folder), *folder.glob(f"*{SUFFIX}{MOVED}"))}

    def segments(self) -> list[str]:
        return sorted(name for name in self.at if name.endswith(SUFFIX))

    def moved(self) -> list[str]:
        """Names of files that a crash left between their old name and their right one."""
        return sorted(name for name in self.at if name.endswith(MOVED))

    def rename(self, old: str, new: str) -> None:
        path = self.at.pop(old)
        self.at[new] = path.rename(self._folder / new) if self._changes else path
        self._is_changed = True

    def sync(self) -> None:
        if self._is_changed and self._changes:
            sync_folder(self._folder)


def _put_back(names: _Names, placing: Placing) -> None:
    """Rename files whose header has another base than their name."""
    moved = []
    for name in names.segments():
        header = _header(names.at[name], None)
        if header is not None and header.base != int(name[:20]):
            wanted = f"{header.base:020}{SUFFIX}{MOVED}"
            if wanted not in names.at:
                names.rename(name, wanted)
                moved.append(wanted)
    for name in moved:
        _put(names, name, name.removesuffix(MOVED), placing)
    names.sync()


def _put(names: _Names, name: str, wanted: str, placing: Placing) -> None:
    path, base = names.at[name], int(wanted[:20])
    if wanted in names.at:
        reason = "a second copy of a segment, under another name"
        placing.foreign.append((Finding("foreign", wanted[:20], base, base + path.stat().st_size, reason), path))
    else:
        names.rename(name, wanted)
        placing.mended.append(Finding("mended", wanted[:20], base, base, "it had the name of another segment"))


def _header(path: Path, base: int | None) -> Header | None:
    """A file's header; None if it is damaged, or has another base. Raises UnknownFormat."""
    header = read_header(_first_bytes(path))
    if header is None:
        return None
    if header.version != VERSION:
        raise UnknownFormat(path, header.version, VERSION)
    return header if base is None or header.base == base else None


def _fault(path: Path, base: int) -> str:
    return header_fault(_first_bytes(path), base) or "its header is damaged"


def _first_bytes(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_part(fd, HEADER_BYTES, 0)
    finally:
        os.close(fd)
