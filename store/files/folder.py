"""The data folder: its layout, the modes of its files, and the lock that keeps a second process out."""

import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from store.errors import FolderInUse, FolderUnusable
from store.files.segment import sync_folder

LOG = "log"
INDEX = "index"
CHECKPOINT = "index-checkpoint"
LOCK = "LOCK"
QUARANTINE = "quarantine"

log = logging.getLogger("penstock.store")


def umask_for(group_access: bool) -> int:
    """The umask for writing a data folder: no access for other users, read access for the group at most."""
    return 0o027 if group_access else 0o077


class DataFolder:
    """A data folder held by this process. The lock ends with the process, however the process ends."""

    def __init__(self, path: Path, group_access: bool = False) -> None:
        """Create or open, and lock. `group_access`: the folder's group may read its files. Raises FolderUnusable,
        FolderInUse.
        """
        self.path = path
        mode = 0o777 & ~umask_for(group_access)
        try:
            is_ours = _is_missing_or_empty(path) or (path / LOCK).exists()
            made = missing_above(path)
            path.mkdir(mode, parents=True, exist_ok=True)
            (path / LOG).mkdir(mode, exist_ok=True)
            self._lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666 & mode)
            sync_folder(path)
            with suppress(PermissionError):  # without it a power cut could remove the whole folder
                sync_names(path, made)
        except OSError as error:
            raise FolderUnusable(Path(error.filename or path), error.strerror or str(error)) from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(self._lock_fd, 64).decode(errors="replace").strip()
            os.close(self._lock_fd)
            raise FolderInUse(path, owner) from error
        with suppress(OSError):  # the pid is for people only, and the disk may be full
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, f"pid {os.getpid()}\n".encode(), 0)
        self._set_modes(is_ours, group_access)

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

    @property
    def quarantine(self) -> Path:
        """The folder for copies of damaged bytes that recovery took out of the log."""
        return self.path / QUARANTINE

    def close(self) -> None:
        os.close(self._lock_fd)

    def _set_modes(self, is_ours: bool, group_access: bool) -> None:
        """Give files left by an earlier version, a backup or an operator the modes that new files get.

        A folder that is not Penstock's alone keeps its own mode; the folders in it are closed in any case.
        """
        narrowed, widened, failed = 0, 0, ""
        for path in self._contents(is_ours):
            try:
                narrower, wider = _set_mode(path, group_access)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = failed or f"{path}: {error.strerror}"
                continue
            narrowed += narrower
            widened += wider
        if failed:
            log.warning("%s: its mode cannot be changed, so other users may read messages; chmod it by hand", failed)
        if narrowed:
            whose = "the owner and the group" if group_access else "the owner alone"
            log.warning(
                "%s: other users could open %d files or folders in it, which now are for %s (store.group_access)",
                *(self.path, narrowed, whose),
            )
        if widened:
            log.info("%s: the group may now read %d files or folders in it (store.group_access)", self.path, widened)

    def _contents(self, is_ours: bool) -> Iterator[Path]:
        """The folder itself, if it may be changed, and Penstock's files in it; symbolic links are left out."""
        if is_ours and not self.path.stat().st_mode & stat.S_ISVTX:
            yield self.path
        yield self.path / LOCK
        for folder in (self.log, self.quarantine, *self.path.glob(f"{INDEX}*")):
            yield folder
            with suppress(OSError), os.scandir(folder) as entries:
                yield from (Path(entry) for entry in entries if not entry.is_symlink())


def clear(path: Path) -> None:
    """Delete a folder, or whatever lies there in its place, if anything does. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder of files, durably but for its name. Raises OSError."""
    shutil.copytree(source, target)
    sync_contents(target)


def sync_contents(folder: Path) -> None:
    """Make all files of a folder durable, and their names. Raises OSError."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    sync_folder(folder)


def sync_names(path: Path, made: Sequence[Path]) -> None:
    """Make the name of a folder durable, and those of the folders above it that were made with it. Raises OSError."""
    for each in (path, *made):
        sync_folder(each.absolute().parent)


def missing_above(path: Path) -> list[Path]:
    """The folders above a path that are not there yet, the nearest first."""
    return [each for each in path.absolute().parents if not each.exists()]


def _is_missing_or_empty(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True


def _set_mode(path: Path, group_access: bool) -> tuple[bool, bool]:
    """Set a file's mode. Returns whether other users lost access, and whether the group gained it. Raises OSError."""
    old = path.stat().st_mode
    new = old & ~umask_for(group_access)
    if group_access:
        new |= 0o050 if stat.S_ISDIR(old) else 0o040
    if new != old:
        path.chmod(stat.S_IMODE(new))
    return bool(old & ~new), bool(new & ~old)
