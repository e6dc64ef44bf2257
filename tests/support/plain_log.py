"""A second log, as plain as can be: files of records without a header, marks, or a thread. It shows that whatever
stands on a log needs no more than store/log/api.py says.

It trusts the page cache: what it is given is `safe` at once. It knows no damage.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from store.errors import CorruptSegment, RecordTooLarge, StoreError
from store.files.folder import DataFolder
from store.log.api import Elsewhere, LogPart, LogPiece
from store.log.durations import Durations
from store.records._records import LogMemory, RecordBatch, verify
from store.records.records import RECORD_HEADER_BYTES, Record, RecordType
from store.recovery.quarantine import Kind
from store.settings import StoreSettings

START = 64  # of the first record: 0 is no position
TYPE = 24  # of a record, in its header


class PlainPart:
    """A file of `size` bytes, mapped; records from log_offset `base` on."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.base = path, int(path.stem)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        self.view = memoryview(self.map).toreadonly()
        self.end = self.base + verify(self.view, self.base)[0]
        first_ms = int.from_bytes(self.view[16:24], "little")
        self.created_ms = first_ms or time.time_ns() // 1_000_000

    def close(self) -> None:
        self.view.release()
        self.map.close()
        os.close(self.fd)


class NoScrubber:
    passes = read_bytes = 0

    def start(self) -> None: ...

    def found_bytes(self) -> dict[str, int]:
        return {}


class PlainLog:
    """A Log (store/log/api.py) in a folder."""

    put_aside_from = syncs = 0
    kept: int | None = None
    sync_error = ""
    identity = name = b"a plain log 1234"
    restored_from: tuple[tuple[str, int], ...] = ()
    disk_free_bytes = 1 << 40

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.largest_append_bytes = settings.segment_bytes
        self.memory = LogMemory()
        self.scrubber = NoScrubber()
        self.sync_times = Durations()
        self.lost_ranges: list[tuple[int, int]] = []
        self.lost_bytes: dict[Kind, int] = {}
        self.appends = 0
        self._parts: list[PlainPart] = []
        for path in sorted(folder.glob("*.plain")) or [folder / f"{START:020}.plain"]:
            self._adopt(path)
        self.end = self.committed = self._parts[-1].end
        self.memory.start(self.end)

    def _adopt(self, path: Path) -> None:
        part = PlainPart(path, self.largest_append_bytes)
        self._parts.append(part)
        self.memory.map(part.base, part.view)

    # --- records and places

    @property
    def base(self) -> int:
        return self.first if self.first > START else 0

    @property
    def first(self) -> int:
        return self._parts[0].base

    def record(self, log_offset: int) -> Record:
        return Record._make(self.memory.record(log_offset))

    def timestamp_ms(self, log_offset: int) -> int:
        return self.memory.timestamp_ms(log_offset)

    def ranges(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        for part in list(self._parts):
            at = max(start, part.base)
            while at < part.end:
                data = part.view[at - part.base : part.end - part.base]
                size, _, reason = verify(data, at, limit_bytes)
                if not size:
                    raise CorruptSegment(part.path, at, reason or "cut off")
                with data[:size] as chunk:
                    yield at, chunk
                at += size

    def ranges_passing(self, start: int, limit_bytes: int) -> Iterator[tuple[int, memoryview, bool]]:
        return ((at, chunk, False) for at, chunk in self.ranges(start, limit_bytes))

    def look_at(self, log_offset: int) -> None: ...

    def read(self, start: int, limit_bytes: int) -> LogPiece:
        for at, chunk in self.ranges(start, 1):
            if len(chunk) <= limit_bytes:
                return LogPiece(at, bytes(chunk))
            if chunk[TYPE] != RecordType.BATCH:
                raise RecordTooLarge(len(chunk), limit_bytes)
            return self.read(at + RECORD_HEADER_BYTES, limit_bytes)
        return LogPiece(self.end, b"")

    def resumes_at(self, log_offset: int) -> int | None:
        return log_offset if log_offset <= self.end else None

    def begins_before(self, log_offset: int) -> int:
        return max((part.base for part in self._parts if part.base <= log_offset), default=self.first)

    def before_time(self, at_ms: int) -> int:
        return max((part.base for part in self._parts if part.created_ms < at_ms), default=self.first)

    def behind_time(self, at_ms: int) -> int:
        return min((part.base for part in self._parts if part.created_ms > at_ms), default=self.end)

    def parts_from(self, start: int, most: int) -> tuple[list[tuple[int, int]], bool]:
        found = [(part.base, part.created_ms) for part in self._parts if part.base >= start]
        return found[:most], len(found) > most

    # --- the way in, and out

    @property
    def safe(self) -> int:
        return self.end

    @property
    def on_disk(self) -> int:
        return self.end

    def append(self, batch: RecordBatch, from_reserve: bool = False, is_awaited: bool = True) -> int:
        if batch.size > self.largest_append_bytes:
            raise RecordTooLarge(batch.size, self.largest_append_bytes)
        if self.end + batch.size > self._parts[-1].base + self.largest_append_bytes:
            self._adopt(self._folder / f"{self.end:020}.plain")
        start, part = self.end, self._parts[-1]
        self.memory.write_batch(batch, part.fd, start, time.time_ns() // 1_000_000, part.base)
        self.end = self.committed = part.end = start + batch.size
        self.appends += 1
        return start

    def commit(self) -> None: ...

    def catch_up(self) -> None: ...

    def hurry(self) -> None: ...

    def tick(self, now_s: float) -> None: ...

    def synced(self, end: int) -> Iterator[None]:
        return iter(())

    def parts(self) -> list[LogPart]:
        following = self._parts[1:]
        return [LogPart(a.base, b.base, b.created_ms) for a, b in zip(self._parts, following, strict=False)]

    def drop_before(self, boundary: int, elsewhere: Elsewhere) -> Iterator[None]:
        while self._parts[0].base < boundary:
            part = self._parts.pop(0)
            self.memory.unmap(part.base)
            part.close()
            yield from elsewhere(part.path.unlink)

    def close(self) -> None:
        for part in self._parts:
            self.memory.unmap(part.base)
            part.close()

    # --- its state

    @property
    def file_count(self) -> int:
        return len(self._parts)

    def remembered(self) -> bytes:
        return b""

    def miss(self, end: int) -> None:
        raise AssertionError(f"the index knows log_offset {end}, and the log ends at {self.end}")

    def fault(self) -> StoreError | None:
        return None

    def failed_for_good(self) -> StoreError | None:
        return None

    def write_anew(self) -> bool:
        return True

    def notes(self) -> list[str]:
        return []

    def forget_pages(self) -> None: ...


def open_plain_log(folder: DataFolder, settings: StoreSettings, on_flushed: Callable[[], None]) -> PlainLog:
    """An OpenLog."""
    return PlainLog(folder.path / "plain", settings)
