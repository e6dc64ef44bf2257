"""Files that hold secrets, or decide who may do what: other users of the machine may not read, or change, them."""

from __future__ import annotations

import stat
from pathlib import Path

from penstock.errors import PenstockError

OF_CONTAINERS = Path("/run/secrets")
_are_open_files_taken = False


def take_open_files(are_taken: bool) -> None:
    """Whether such files are taken as they are, by this process (`allow_open_files`)."""
    global _are_open_files_taken
    _are_open_files_taken = are_taken


def check_secret(file: Path) -> None:
    """Raises PenstockError if others may read the file, or write to it."""
    _check(file, stat.S_IROTH | stat.S_IWOTH, "go=")


def check_unchanged_by_others(file: Path) -> None:
    """Raises PenstockError if others may write to the file."""
    _check(file, stat.S_IWOTH, "o-w")


def _check(file: Path, forbidden: int, mode: str) -> None:
    """In a container nobody else is there: files that its orchestrator mounts have modes of its choosing."""
    if _are_open_files_taken or (file.parent / "..data").exists() or OF_CONTAINERS in file.absolute().parents:
        return
    try:
        found = file.stat()
    except OSError:
        return  # who reads it says so
    open_to = found.st_mode & forbidden
    if open_to and stat.S_ISREG(found.st_mode):
        what = "write to" if open_to & stat.S_IWOTH else "read"
        raise PenstockError(
            f"{file}: every user of this machine can {what} it; chmod {mode} {file}, or set allow_open_files = true"
        )
