"""The file of the audit log: JSON lines, written by a thread of its own, so that a slow or full disk stops no loop."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.config.audit_settings import AuditSettings
from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.servers.logs import json_line
from store.audit import Audit, AuditEvent, AuditKey, Tally
from store.version import VERSION

log = logging.getLogger("penstock.audit")

FILE = "audit.jsonl"
MODE = 0o600
MOST_WINDOWS = 16
"""Windows that may wait for the disk; the events of further ones are counted as lost."""
SAY_EVERY_S = 60.0
CLOSE_S = 5.0

Window = Mapping[AuditKey, Tally]


class AuditFile:
    """Owner of the file. take() and reopen() are called in the loop; the thread does the rest."""

    def __init__(self, path: Path, settings: AuditSettings) -> None:
        """Raises PenstockError if the file cannot be opened."""
        self.path = path
        self._max_bytes = settings.max_file_bytes
        self._files = settings.files
        self._tasks: queue.SimpleQueue[Window | None] = queue.SimpleQueue()
        self._wants_reopening = False
        self._lost_waiting = 0  # events for which the queue had no room
        self._lost_writing = 0
        self._lost_told = 0  # of both, those that a line in the file reports
        self._said_s = -SAY_EVERY_S
        self._fd = -1
        self._size_bytes = 0
        self._is_torn = False  # the last line is incomplete
        try:
            self._open()
        except OSError as error:
            raise PenstockError(
                f"{path}: cannot be written ({error.strerror}); name another file with audit.file, or set "
                "audit.enabled = false"
            ) from error
        self._thread = threading.Thread(target=self._run, name="penstock-audit", daemon=True)
        self._thread.start()

    # --- on the loop

    @property
    def lost(self) -> int:
        return self._lost_waiting + self._lost_writing

    def take(self, window: Window) -> None:
        if self._tasks.qsize() >= MOST_WINDOWS:
            self._lost_waiting += _events_in(window)
        else:
            self._tasks.put(window)

    def reopen(self) -> None:
        """Begin a new file, because a log rotation moved the old one away."""
        self._wants_reopening = True
        self._tasks.put({})

    def close(self) -> None:
        """Write the waiting windows, but wait no longer than CLOSE_S for the disk."""
        self._tasks.put(None)
        self._thread.join(CLOSE_S)

    # --- in the thread

    def _run(self) -> None:
        while (window := self._tasks.get()) is not None:
            try:
                self._reopen_if_wanted()
                if window:
                    self._write(window)
            except OSError as error:
                self._failed(window, error)
        if self._fd >= 0:
            os.close(self._fd)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
        os.fchmod(self._fd, MODE)  # the file may exist with another mode
        self._size_bytes = os.fstat(self._fd).st_size
        self._is_torn = False
        if self._size_bytes:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                self._is_torn = file.read(1) != b"\n"

    def _reopen_if_wanted(self) -> None:
        if self._wants_reopening or self._fd < 0:
            self._wants_reopening = False
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            self._open()

    def _write(self, window: Window) -> None:
        lines = [line_of(key, tally) for key, tally in window.items()]
        lost = self.lost
        if lost > self._lost_told:
            now_ms = time.time_ns() // 1_000_000
            key = AuditKey(AuditEvent.LOST, "", "", "", "events before this could not be written")
            lines.insert(0, line_of(key, Tally(now_ms, now_ms, "", lost - self._lost_told)))
        if self._size_bytes >= self._max_bytes:
            self._rotate()
        self._write_all("".join(lines).encode())
        if lost > self._lost_told:
            log.info("audit log %s: is written again; %d events were lost", self.path, lost - self._lost_told)
            self._lost_told = lost

    def _write_all(self, data: bytes) -> None:
        if self._is_torn:
            data = b"\n" + data
        left = memoryview(data)
        while left:
            written = os.write(self._fd, left)
            self._is_torn = left[written - 1] != 10
            self._size_bytes += written
            left = left[written:]

    def _rotate(self) -> None:
        """Rename FILE to FILE.1, FILE.1 to FILE.2, and so on; `files` of them stay."""
        os.close(self._fd)
        self._fd = -1
        oldest = self._files - 1
        if oldest == 0:
            self.path.unlink(missing_ok=True)
        for number in range(oldest, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            with suppress(FileNotFoundError):
                older.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _failed(self, window: Window, error: OSError) -> None:
        self._lost_writing += _events_in(window)
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            what = "make room, or name another file with audit.file"
            log.error("audit log %s: %s; events are lost until it can be written: %s", self.path, error.strerror, what)


def _events_in(window: Window) -> int:
    return sum(tally.count for tally in window.values())


def line_of(key: AuditKey, tally: Tally) -> str:
    """One line with its newline. `address` has the port if the line is about one event."""
    line: dict[str, Any] = {"time": _time(tally.last_ms), "event": key.event.value}
    if key.user:
        line["user"] = key.user
    if key.client_id:
        line["client_id"] = key.client_id
    if key.address:
        line["address"] = tally.peer if tally.count == 1 and tally.peer else key.address
    if key.reason:
        line["reason"] = key.reason
    line |= {"count": tally.count, "first": _time(tally.first_ms), "last": _time(tally.last_ms)}
    return json_line(line) + "\n"


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds")


def open_audit(
    settings: Settings, closing: AsyncExitStack, name: str = "", has_data_folder: bool = True
) -> tuple[Audit, Callable[[], None]]:
    """The audit log of this process, closed with `closing`, and a function that reopens its file. Raises PenstockError.

    `name` distinguishes processes that share the setting.
    """
    path = settings.audit.file
    if path is None and has_data_folder:
        path = settings.store.data / FILE
    if not settings.audit.enabled or path is None:
        return Audit(), _nothing
    file = AuditFile(path.with_stem(f"{path.stem}-{name}") if name else path, settings.audit)
    closing.callback(file.close)
    audit = Audit(file, settings.audit.aggregate_s)
    closing.callback(audit.close)
    audit.note(AuditEvent.STARTED, reason=f"penstock {VERSION}, pid {os.getpid()}, {_access_settings(settings)}")
    closing.callback(audit.note, AuditEvent.STOPPED, reason=f"pid {os.getpid()}")
    return audit, file.reopen


def _nothing() -> None: ...


def _access_settings(settings: Settings) -> str:
    """The non-default settings of [auth] and [quota], for people. Texts are left out: they may be secrets."""
    shown = []
    for section in (settings.auth, settings.quota):
        for each in fields(section):
            value = getattr(section, each.name)
            if value != each.default:
                shown.append(f"{each.name}={json.dumps(value)}" if isinstance(value, bool | int) else each.name)
    return "set: " + (", ".join(shown) or "nothing of [auth] and [quota]")
