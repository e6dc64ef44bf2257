"""A file system (FUSE) that shows a folder, and cannot give back parts of its files: page faults fail, as on a disk.

`python -m tests.support.unreadable_disk FOLDER MOUNT BAD` serves it; BAD is a file with lines `NAME START END` of bytes
that cannot be read. Libraries that change system calls cannot do this: a page fault is none.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import mfusepy
import psutil

from tests.support.stores import wait_until


class Mirror(mfusepy.Operations):  # type: ignore[misc]
    """Calls go to the same file of another folder."""

    use_ns = True

    def __init__(self, folder: str, bad: str) -> None:
        self._folder = folder
        self._bad = Path(bad)

    def _of(self, path: str) -> str:
        return self._folder + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.lstat(self._of(path))
        names = ("mode", "nlink", "uid", "gid", "size", "blocks")
        times = {f"st_{name}time": getattr(found, f"st_{name}time_ns") for name in "amc"}
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._of(path))]

    def create(self, path: str, mode: int, fi: object = None) -> int:
        return os.open(self._of(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._of(path), os.O_RDWR)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        for line in self._bad.read_text().splitlines():
            name, start, end = line.split()
            if path == f"/{name}" and offset < int(end) and int(start) < offset + size:
                raise mfusepy.FuseOSError(errno.EIO)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._of(path), length)
        return 0

    def rename(self, old: str, new: str) -> int:
        os.rename(self._of(old), self._of(new))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._of(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._of(path), mode)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._of(path))
        names = (
            "f_bavail",
            "f_bfree",
            "f_blocks",
            "f_bsize",
            "f_favail",
            "f_ffree",
            "f_files",
            "f_frsize",
            "f_namemax",
        )
        return {name: getattr(found, name) for name in names}

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


class UnreadableDisk:
    """Mounts a folder over itself until close(): what it had is there, and what cannot be read is up to the test."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder
        self._bad = scratch / "bad"
        self._bad.touch()
        self._behind = folder.with_name(folder.name + "-behind")
        folder.rename(self._behind)
        folder.mkdir()
        run = [sys.executable, "-m", "tests.support.unreadable_disk", str(self._behind), str(folder), str(self._bad)]
        self._process = subprocess.Popen(run)
        wait_until(lambda: os.path.ismount(folder))

    def cannot_read(self, path: Path, start: int, end: int) -> None:
        """From now on, also where the page cache had it."""
        with self._bad.open("a") as file:
            file.write(f"{path.name} {start} {end}\n")
        self.forget(path)

    @staticmethod
    def forget(path: Path) -> None:
        """Take a file out of the page cache, as far as no process has its pages mapped."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def close(self) -> None:
        subprocess.run(["fusermount3", "-u", "-z", str(self.folder)], check=False)
        try:
            self._process.wait(20)
        finally:
            if psutil.pid_exists(self._process.pid):
                self._process.kill()


if __name__ == "__main__":
    mfusepy.FUSE(
        Mirror(sys.argv[1], sys.argv[3]), sys.argv[2], foreground=True, nothreads=True, default_permissions=True
    )
