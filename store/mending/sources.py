"""Sources of records that a log has lost: its quarantine, and copies of it. Reads only."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from store.files.folder import LOG, QUARANTINE
from store.files.marks import read_marks
from store.files.medium import read_part
from store.files.segment import HEADER_BYTES, IDENTITY_BYTES, READ_BYTES, Sealed, read_header, read_records
from store.mending.foresight import headers
from store.records.records import RecordType
from store.recovery.placing import would_place
from store.recovery.quarantine import Quarantine
from store.recovery.salvage import Hole, salvage


class Source(Protocol):
    """A place from which a repair takes records."""

    name: str
    path: Path

    def is_of(self, identity: bytes) -> bool:
        """Whether the source is of the log with this identity (empty: unknown)."""

    def segments(self) -> list[tuple[int, int]]:
        """(base, created_ms) of its segments, oldest first."""

    def whole(self, segment: Sealed, digest: bytes) -> Path | None:
        """A file that begins with the bytes of a segment, which have this SHA-256; None if there is none."""

    def records(self, hole: Hole) -> Iterator[tuple[int, bytes]]:
        """The intact records that begin in a range of the log, in order; an intact batch as one record."""


@dataclass(frozen=True)
class _Piece:
    """A file that holds bytes of a log."""

    path: Path
    base: int  # log_offset of its first byte
    first: int  # log_offset of the first record
    end: int | None  # log_offset at which the next piece begins
    created_ms: int = 0

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The ranges [start, end) of log_offsets with valid records."""
        runs: list[tuple[int, int]] = []

        def note(log_offset: int, data: bytes) -> None:
            end = log_offset + len(data)
            if runs and runs[-1][1] == log_offset:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((log_offset, end))

        fd = os.open(self.path, os.O_RDONLY)
        try:
            salvage(fd, self.base, self.end, None, note, first=self.first)
        finally:
            os.close(fd)
        return runs

    def records(self, hole: Hole) -> Iterator[tuple[int, bytes]]:
        fd = os.open(self.path, os.O_RDONLY)
        try:
            for start, end in self.runs:
                at = start
                if start < hole.start < end and read_records(fd, self.base, hole.start, end)[0]:
                    at = hole.start
                while at < min(end, hole.end):
                    data, _, _ = read_records(fd, self.base, at, end)
                    for found, length, kind in headers(at, data):
                        if hole.start <= found < hole.end and kind != RecordType.GAP:
                            yield found, data[found - at : found - at + length]
                    at += len(data)
        finally:
            os.close(fd)


class _Pieces:
    pieces: list[_Piece]

    def whole(self, segment: Sealed, digest: bytes) -> Path | None:
        for piece in self.pieces:
            if piece.base == segment.base and _digest(piece.path, segment.end - segment.base) == digest:
                return piece.path
        return None

    def records(self, hole: Hole) -> Iterator[tuple[int, bytes]]:
        for piece in self.pieces:
            if piece.base < hole.end and piece.base + piece.path.stat().st_size > hole.start:
                yield from piece.records(hole)


class CopyOfLog(_Pieces):
    """Another data folder, or a backup, of a log with the same identity; it may be older, damaged, or in use."""

    def __init__(self, path: Path) -> None:
        """Raises UnknownFormat, OSError."""
        self.name = str(path)
        self.path = path
        placing = would_place(path / LOG)
        slot = read_marks(path / LOG)
        self._identity = placing.identity or (slot.identity if slot else b"")
        ends = [*(file.base for file in placing.files[1:]), None]
        self.pieces = [
            _Piece(file.path, file.base, file.base + HEADER_BYTES, end, file.created_ms)
            for file, end in zip(placing.files, ends, strict=False)
        ]

    def is_of(self, identity: bytes) -> bool:
        return bool(identity) and self._identity == identity

    def segments(self) -> list[tuple[int, int]]:
        return [(piece.base, piece.created_ms) for piece in self.pieces]


class PutAside(_Pieces):
    """The quarantine of a log: bytes that prove valid after all, and second copies of segments."""

    def __init__(self, folder: Path, with_unconfirmed: bool, identity: bytes) -> None:
        """`with_unconfirmed`: also take bytes from after a hole that the disk had not confirmed."""
        self.name = QUARANTINE
        self.path = folder / QUARANTINE
        kinds = {"damaged", "foreign"} | ({"unconfirmed"} if with_unconfirmed else set())
        self.pieces = []
        for finding in Quarantine(self.path).findings():
            path = self.path / f"{finding.segment}-{finding.start}-{finding.end}.bytes"
            if finding.kind in kinds and path.exists() and (piece := _put_aside(path, finding.start, identity)):
                self.pieces.append(piece)
        self.pieces.sort(key=lambda piece: piece.base)

    def is_of(self, identity: bytes) -> bool:
        return True

    def segments(self) -> list[tuple[int, int]]:
        return [(piece.base, piece.created_ms) for piece in self.pieces if piece.first > piece.base]


def _digest(path: Path, size: int) -> bytes:
    """SHA-256 of the first `size` bytes of a file, or of the whole file if it is shorter."""
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < size and (data := read_part(fd, min(READ_BYTES, size - at), at)):
            digest.update(data)
            at += len(data)
    finally:
        os.close(fd)
    return digest.digest()


def _put_aside(path: Path, start: int, identity: bytes) -> _Piece | None:
    """The whole file of a segment of this log, or a part of one that begins at `start`; None if of another log."""
    with path.open("rb") as file:
        header = read_header(file.read(HEADER_BYTES))
    if header is None:
        return _Piece(path, start, start, None)
    if header.identity not in (identity, bytes(IDENTITY_BYTES)):
        return None
    return _Piece(path, header.base, header.base + HEADER_BYTES, None, header.created_ms)
