"""Tells whether the machine went down while a store had its log open: then unsynced bytes are gone.

The file `running` exists while a log is open: it has the boot id of the machine, and the flush policy. A killed process
leaves the file, but the page cache stays, too; so only another boot id means that the power was cut.
"""

from __future__ import annotations

import os
from pathlib import Path

from store.files.segment import sync_folder
from store.recovery.quarantine import Kind

RUNNING = "running"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux: proc_sys_kernel(5)


class Running:
    """Owner of the file, from the opening of a log to its end."""

    def __init__(self, folder: Path, flush: str) -> None:
        """Raises OSError."""
        self._path = folder / RUNNING
        self.flush_at_power_cut = power_cut_under(self._path)
        """The flush policy under which the machine went down; empty if it did not, or if that is unknown."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.pwrite(fd, f"{boot_id()} {flush}\n".encode(), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(folder)

    def end(self) -> None:
        """Delete the file: all of the log is on disk. Raises OSError."""
        self._path.unlink(missing_ok=True)


def power_cut_under(path: Path) -> str:
    """The flush policy in the file of an earlier boot; empty if there is none."""
    try:
        boot, _, flush = path.read_text().strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return ""
    return flush if boot_id() and boot and boot != boot_id() else ""


def is_sync_cut(folder: Path) -> bool:
    """Whether the machine went down under flush=sync: then no byte was acknowledged after one that is lost."""
    return power_cut_under(folder / RUNNING) == "sync"


def cut_kind(folder: Path) -> Kind:
    """Kind of a finding for bytes that end a log without a whole record; with flush=sync they are not acknowledged."""
    return "unsynced" if power_cut_under(folder / RUNNING) in ("async", "buffered") else "torn"


def gone_kind(flush: str) -> Kind:
    """Kind of the finding for records that only the index still knows, under a flush policy."""
    return "torn" if flush == "sync" else "unsynced"


def last_flush(folder: Path) -> str:
    """The flush policy of a process that had a log open and did not close it; empty if it was closed."""
    try:
        return (folder / RUNNING).read_text().strip().partition(" ")[2]
    except (OSError, UnicodeDecodeError):
        return ""


def boot_id() -> str:
    """The id of this boot of the machine; empty if the system has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
