"""Events as lines of JSON (NDJSON) at the end of a file, on the disk before they are acknowledged."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.flows.definition import Flow
from penstock.flows.errors import FlowError, SinkAway
from penstock.flows.events import EventWriter, FlowEvent
from penstock.sdk.subscription import Subscription

MOST_LINES: Final = 1_000  # before each fdatasync
LOOK_BYTES: Final = 64 << 10


class FileSink:
    """Owner of one file. What a kill has left of a line is taken away by the next start."""

    most = MOST_LINES

    def __init__(self, flow: Flow, writer: EventWriter) -> None:
        """Raises FlowError."""
        parts = urlsplit(flow.said.to)
        self._path = Path(unquote(parts.path))
        if parts.netloc or not self._path.is_absolute() or flow.said.to.endswith("/"):
            raise FlowError(
                flow.name, "to", f"{flow.said.to!r} names no file of this machine", "say file:///PATH/NAME.ndjson"
            )
        if flow.said.format not in ("cloudevents", "raw"):
            raise FlowError(flow.name, "format", f"a file has no {flow.said.format}", "say cloudevents or raw")
        self._writer = writer
        self._most_bytes = flow.said.rotate_bytes
        self._file = -1
        self._size_bytes = 0

    async def open(self, _: Subscription) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size_bytes = _whole_lines(self._file)
            os.ftruncate(self._file, self._size_bytes)
            _sync_folder(self._path.parent)
        except OSError as error:
            self._close()
            raise SinkAway(f"{self._path}: {_why(error)}") from None

    async def send(self, events: Sequence[FlowEvent]) -> None:
        lines = b"".join([self._writer.line(event) + b"\n" for event in events])
        await asyncio.to_thread(self._append, lines)

    def _append(self, lines: bytes) -> None:
        if self._file < 0:
            self._open()
        try:
            if self._size_bytes and self._size_bytes + len(lines) > self._most_bytes:
                self._rotate()
            written = 0
            while written < len(lines):
                written += os.write(self._file, memoryview(lines)[written:])
            os.fdatasync(self._file)
        except OSError as error:
            self._close()  # the next try takes away what is not whole
            raise SinkAway(f"{self._path}: {_why(error)}") from None
        self._size_bytes += len(lines)

    def _rotate(self) -> None:
        """Go on in a new file. The full one gets the time after its name."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._path.rename(self._path.with_name(f"{self._path.stem}-{now}{self._path.suffix}"))
        self._close()
        self._open()

    async def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _whole_lines(file: int) -> int:
    """How many bytes a file has up to the end of its last whole line."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - LOOK_BYTES)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(error: OSError) -> str:
    if error.errno in (errno.EAGAIN, errno.EACCES) and isinstance(error, BlockingIOError):
        return "another process writes to it; give each flow a file of its own"
    return os.strerror(error.errno) if error.errno else str(error)
