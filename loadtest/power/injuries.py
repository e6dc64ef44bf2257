"""Injuries to a store's files: flipped bits, zeroed sectors, and a disk that fails to sync or lies about it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple

from loadtest.power.volume import SECTOR_BYTES
from store.files.folder import CHECKPOINT, INDEX, LOG
from store.files.marks import MARKS
from store.files.segment import HEADER_BYTES, segment_paths, written_from

KINDS = ("flip", "zero", "failed sync", "lying sync")
SHARES = (0.5, 0.25, 0.1, 0.15)
PLACES = (LOG, LOG, LOG, LOG, INDEX, INDEX, CHECKPOINT, MARKS)


class Injury(NamedTuple):
    """A fault and the bytes of the file that it hits; no file for faults of syncs."""

    kind: str
    path: Path | None = None
    at: int = 0
    bit: int = 0

    def __str__(self) -> str:
        if self.path is None:
            return self.kind
        place = f"{self.path.parent.name}/{self.path.name}"
        return f"{self.kind} {place} at {self.at}" + (f", bit {self.bit}" if self.kind == "flip" else "")

    def inflict(self) -> None:
        """Injure the file, also while a server uses it. Does nothing if the file is gone."""
        if self.path is None:
            return
        try:
            fd = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:  # RocksDB has just deleted it
            return
        try:
            if self.kind == "flip":
                byte = os.pread(fd, 1, self.at)
                os.pwrite(fd, bytes(value ^ 1 << self.bit for value in byte), self.at)
            else:
                size = min(SECTOR_BYTES, os.fstat(fd).st_size - self.at)
                os.pwrite(fd, bytes(max(0, size)), self.at)
        finally:
            os.close(fd)


def chosen(kind: str, data: Path, rng: random.Random) -> Injury:
    """A bit flip or a zeroed sector at a random written place of a data folder."""
    while True:
        place = rng.choice(PLACES)
        path = data / LOG / MARKS if place == MARKS else _some_file(data / place, place == LOG, rng)
        written = _written(path) if path is not None else 0
        if path is None or not written:
            continue
        at = rng.randrange(min(written, HEADER_BYTES) if rng.random() < 0.05 else written)
        return Injury(kind, path, at if kind == "flip" else at // SECTOR_BYTES * SECTOR_BYTES, rng.randrange(8))


def lost_by_a_lie(data: Path, since: int, rng: random.Random) -> list[Injury]:
    """Zeroed sectors of the log from a log_offset on, all or some: they never reached the disk."""
    share = rng.choice((1.0, 1.0, 0.5, 0.1))
    found: list[Injury] = []
    for path in segment_paths(data / LOG):
        base = int(path.stem)
        first = max(HEADER_BYTES, since - base)
        # A sector that was synced before with other content holds at least that content.
        sectors = range((first + SECTOR_BYTES - 1) // SECTOR_BYTES, (_written(path) + SECTOR_BYTES - 1) // SECTOR_BYTES)
        found += [Injury("zero", path, sector * SECTOR_BYTES) for sector in sectors if rng.random() < share]
    return found


def _some_file(folder: Path, is_log: bool, rng: random.Random) -> Path | None:
    if is_log:
        paths = segment_paths(folder)
        return paths[-1] if paths and rng.random() < 0.3 else rng.choice(paths or [None])
    paths = sorted(path for path in folder.glob("*") if path.is_file() and path.name not in ("LOCK", "DAMAGED"))
    return rng.choice(paths or [None])


def _written(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        return written_from(fd, 0)
    finally:
        os.close(fd)
