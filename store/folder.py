"""The data folder: its layout, and the lock that keeps a second process out of it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from store.errors import FolderInUse, FolderUnusable

LOG = "log"
INDEX = "index"
CHECKPOINT = "index-checkpoint"
LOCK = "LOCK"


class DataFolder:
    """A data folder held by this process. The lock goes with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            (path / LOG).mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            raise FolderUnusable(path, error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock_fd, 64).decode(errors="replace").strip()
            os.close(self._lock_fd)
            raise FolderInUse(path, owner) from error
        with suppress(OSError):  # it is only for people to read, and the disk may be full
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"pid {os.getpid()}\n".encode(), 0)

    @property
    def log(self) -> Path:
        return self.path / LOG

    @property
    def index(self) -> Path:
        return self.path / INDEX

    @property
    def checkpoint(self) -> Path:
        """A copy of the index from which it can be rebuilt although the beginning of the log is gone."""
        return self.path / CHECKPOINT

    def close(self) -> None:
        os.close(self._lock_fd)
