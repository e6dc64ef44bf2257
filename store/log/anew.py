"""After a failed sync, writes the doubtful segments to new files, syncs them, and renames them over the old ones.

After a failed fdatasync the kernel may mark its dirty pages clean, so neither the pages nor a later success prove
anything. Bytes that the disk had confirmed before are read from the old file and verified. All bytes after them come
from the log's memory, which holds at least the newest 4 MiB. If more than that is in doubt, the process ends, and
recovery at the next start decides.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass

from store.files.segment import Segment, read_records, segment_header, sync_folder
from store.files.sums import forget_sum
from store.records._records import LogMemory
from store.recovery.rewriting import NEW

log = logging.getLogger("penstock.store")


class NotInMemory(OSError):
    """More bytes are in doubt than the log's memory holds, or the confirmed part does not read back valid."""


@dataclass(frozen=True)
class Doubt:
    """The part of the log that a failed sync left in doubt."""

    segments: list[Segment]  # oldest first; the last one is written to
    flushed: int  # log_offset up to which the disk had confirmed it
    end: int  # log_offset after the last byte written to the files


class Anew:
    """Owner of the thread that writes the segments anew. Nothing is appended meanwhile, so its input is stable."""

    def __init__(self, doubt: Doubt, memory: LogMemory, identity: bytes) -> None:
        self.doubt = doubt
        self._memory = memory
        self._identity = identity
        self.error: OSError | None = None  # set when the thread has ended and failed
        self._thread = threading.Thread(target=self._run, name="penstock-anew", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        segments = self.doubt.segments
        try:
            for number, segment in enumerate(segments):
                following = segments[number + 1] if number + 1 < len(segments) else None
                end = following.base if following is not None else self.doubt.end
                self._write(segment, end)
        except OSError as error:
            self.error = error
        except IndexError as error:
            self.error = NotInMemory(str(error))

    def _write(self, segment: Segment, end: int) -> None:
        """Write one segment anew up to log_offset `end`. Raises OSError, IndexError; then the old file is still in
        place.
        """
        path = segment.path
        new = path.with_name(path.name + NEW)
        confirmed = max(segment.first, min(self.doubt.flushed, end))
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.ftruncate(fd, segment.size_bytes)
            os.pwrite(fd, segment_header(segment.base, self._identity, segment.created_ms), 0)
            _copy(segment, fd, confirmed)
            self._memory.write(fd, confirmed, end, segment.base)
            os.fdatasync(fd)
            forget_sum(path.parent, segment.base)
            new.rename(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        sync_folder(path.parent)
        log.warning("%s: written anew up to log_offset %d, and synced", path, end)


def _copy(segment: Segment, fd: int, end: int) -> None:
    """Copy the records up to log_offset `end`. Raises NotInMemory if one is invalid: recovery at a start handles it."""
    at = segment.first
    reading = os.open(segment.path, os.O_RDONLY)
    try:
        while at < end:
            data, _, reason = read_records(reading, segment.base, at, end)
            if not data:
                raise NotInMemory(f"{segment.path}: log_offset {at}: {reason}")
            os.pwrite(fd, data, at - segment.base)
            at += len(data)
    finally:
        os.close(reading)
