"""A small disk that can be full or slow: a file system in a file, or else in memory, which is never slow."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from loadtest.chaos.isolation import is_own
from loadtest.errors import LoadTestError

CGROUPS = Path("/sys/fs/cgroup")
RESERVE = 0.05
"""Share of a file system that the store keeps free of messages."""
TOOLS = "/usr/sbin:/sbin:/usr/bin:/bin"


class SmallDisk:
    """A file system mounted on a folder, in a mount namespace of its own; it goes with the namespace."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self.size_bytes = size_bytes
        self.is_mounted = False
        self.device = ""
        """major:minor; empty for memory."""
        self._filler = folder / "somebody-elses"
        self._cgroup = Path()
        folder.mkdir()

    def mount(self) -> str:
        """Mount it. Returns the reason why not; empty on success."""
        if not is_own():
            return "no namespace of its own is permitted here"
        image = self.folder.with_name("disk.img")
        with image.open("wb") as file:
            file.truncate(self.size_bytes)
        if not _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image)) and not _run(
            "mount", "-o", "loop", str(image), str(self.folder)
        ):
            status = self.folder.stat()
            self.device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
        elif fault := _run("mount", "-t", "tmpfs", "-o", f"size={self.size_bytes}", "penstock-chaos", str(self.folder)):
            return fault
        self.is_mounted = True
        return ""

    @property
    def kind(self) -> str:
        return "ext4 on a loop device" if self.device else "tmpfs" if self.is_mounted else "the folder's own"

    def close(self) -> None:
        self.mend()
        if self.is_mounted:
            _run("umount", str(self.folder))
            self.folder.with_name("disk.img").unlink(missing_ok=True)
        if self._cgroup.name:
            self._cgroup.rmdir()

    def keep(self, destination: Path) -> None:
        """Copy the disk's content to a folder outside the namespace."""
        if self.is_mounted:
            shutil.copytree(
                self.folder, destination, ignore=shutil.ignore_patterns("lost+found", "*.sock", self._filler.name)
            )

    # --- full

    def fill(self, percent: int) -> None:
        """Fill the disk, except `percent` of the store's reserve."""
        status = os.statvfs(self.folder)
        leave = int(percent / 100 * RESERVE * status.f_blocks * status.f_frsize)
        with self._filler.open("wb") as file:
            taken = max(status.f_bavail * status.f_frsize - leave, 1)
            with suppress(OSError):  # the free room is already taken, so the disk is as full as can be
                os.posix_fallocate(file.fileno(), 0, taken)

    # --- slow

    def why_never_slow(self) -> str:
        """Why writes cannot be throttled here; empty if they can."""
        if not self.device:
            return "needs a loop device of its own"
        for hierarchy, limit in (("blkio", "blkio.throttle.write_bps_device"), ("", "io.max")):
            self._cgroup = CGROUPS / hierarchy / f"penstock-chaos-{os.getpid()}"
            self._limit = self._cgroup / limit
            try:
                self._cgroup.mkdir()
            except OSError:
                continue
            if self._limit.exists():
                return ""
            self._cgroup.rmdir()
        self._cgroup = Path()
        return "no cgroup may throttle writes here"

    def slow(self, pid: int, kib_per_s: int) -> None:
        """Throttle the writes of one process. If another fault has just killed it, nothing is slow. Raises
        LoadTestError.
        """
        bytes_per_s = kib_per_s << 10
        text = f"{bytes_per_s}" if self._limit.name.startswith("blkio") else f"wbps={bytes_per_s}"
        try:
            with suppress(ProcessLookupError):
                (self._cgroup / "cgroup.procs").write_text(str(pid))
            self._limit.write_text(f"{self.device} {text}")
        except OSError as error:
            raise LoadTestError(f"{self._limit}: {error.strerror}") from None

    def mend(self) -> None:
        """End both faults."""
        self._filler.unlink(missing_ok=True)
        if self._cgroup.name:
            self._limit.write_text(f"{self.device} " + ("0" if self._limit.name.startswith("blkio") else "wbps=max"))


def _run(*command: str) -> str:
    """Run a program. Returns its error output; empty on success."""
    program = shutil.which(command[0], path=TOOLS)
    if program is None:
        return f"{command[0]} is missing"
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    return " ".join(done.stderr.split())[:200] or f"{command[0]} failed" if done.returncode else ""
