"""Whether the machine went down while a store had its log open: then what was not synced is gone from the page cache.

The file `running` is there while a log is open: the boot of the machine that it was opened in, and the flush policy. A
process that is killed leaves it, and the page cache as well; so only another boot says that the power was cut.
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
        """The flush policy under which the machine went down; empty if it did not, or nobody knows."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            os.pwrite(fd, f"{boot_id()} {flush}\n".encode(), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(folder)

    def end(self) -> None:
        """All of the log is on disk. Raises OSError."""
        self._path.unlink(missing_ok=True)


def power_cut_under(path: Path) -> str:
    """The flush policy that a file of another boot names; empty without one."""
    try:
        boot, _, flush = path.read_text().strip().partition(" ")
    except (OSError, UnicodeDecodeError):
        return ""
    return flush if boot_id() and boot and boot != boot_id() else ""


def cut_kind(folder: Path) -> Kind:
    """What the bytes are that end a log and are no whole append: with flush=sync nobody was told of them."""
    return "unsynced" if power_cut_under(folder / RUNNING) in ("async", "buffered") else "torn"


def gone_kind(flush: str) -> Kind:
    """What records are that only the index still knows, under a flush policy; empty: nobody knows it."""
    return "torn" if flush == "sync" else "unsynced"


def last_flush(folder: Path) -> str:
    """The flush policy of the process that had a log open and did not close it; empty where it did."""
    try:
        return (folder / RUNNING).read_text().strip().partition(" ")[2]
    except (OSError, UnicodeDecodeError):
        return ""


def boot_id() -> str:
    """Of this boot of the machine; empty where the system does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
