"""The free room on the disk of a log, and how much of it an append may take."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

LEAST_INODES: Final = 16
RESERVE_SHARE: Final = 20
"""The reserve is at most 1 / RESERVE_SHARE of the file system."""
LOOK_AGAIN_S: Final = 1.0


class DiskRoom:
    """The room on the file system of a folder."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        """`reserve_bytes`: left to RocksDB, which handles a full disk worse than the log does."""
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._free_bytes = 0
        self._look_again_s = 0.0

    @property
    def free_bytes(self) -> int:
        """Room that this user may fill; at most a second old."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s, self._free_bytes = now_s + LOOK_AGAIN_S, _free_bytes(os.statvfs(self._folder))
        return self._free_bytes

    def spare_bytes(self, from_reserve: bool) -> int:
        """Room that an append may take now. `from_reserve`: the reserve as well."""
        disk = os.statvfs(self._folder)
        free = _free_bytes(disk)
        if from_reserve:
            return free
        return max(0, free - min(self._reserve_bytes, disk.f_blocks * disk.f_frsize // RESERVE_SHARE))

    def has_inodes(self) -> bool:
        """Whether files can be created: the next segment, and those of the index. Some file systems do not count
        inodes.
        """
        disk = os.statvfs(self._folder)
        return not disk.f_files or disk.f_favail >= LEAST_INODES


def _free_bytes(disk: os.statvfs_result) -> int:
    return disk.f_bavail * disk.f_frsize
