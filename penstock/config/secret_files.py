"""Files with secrets or permissions. Other users of the machine must not be able to read, or change, them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from penstock.errors import PenstockError

OF_CONTAINERS = Path("/run/secrets")
MOST_FILE_BYTES = 256 << 20
"""Largest file, in bytes: a million users in a password file take 150 MiB."""
MOST_PIPE_BYTES = 64 << 10
"""Largest token, in bytes, from a file or a pipe."""
_are_open_files_taken = False


def take_open_files(are_taken: bool) -> None:
    """Whether this process accepts such files with any mode (`allow_open_files`)."""
    global _are_open_files_taken
    _are_open_files_taken = are_taken


def read_file(file: Path, setting: str, takes_pipes: bool = False) -> bytes:
    """The contents of a file. Pipes and devices, which may never end, are refused unless `takes_pipes`.

    Raises PenstockError.
    """
    most = MOST_FILE_BYTES
    try:
        with open(file, "rb", opener=_without_waiting) as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                if not takes_pipes:
                    raise PenstockError(f"{file}: not a regular file; name one with {setting}")
                os.set_blocking(opened.fileno(), True)
                most = MOST_PIPE_BYTES
            found = opened.read(most + 1)
    except OSError as error:
        raise PenstockError(f"{file}: {error.strerror}; name a readable file with {setting}") from None
    if len(found) > most:
        raise PenstockError(f"{file}: larger than {most} bytes; see {setting}")
    return found


def _without_waiting(path: str, flags: int) -> int:
    """For a writer, as to open a pipe does."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_secret(file: Path) -> None:
    """Raises PenstockError if others may read the file, or write to it."""
    _check(file, stat.S_IROTH | stat.S_IWOTH, "go=")


def check_unchanged_by_others(file: Path) -> None:
    """Raises PenstockError if others may write to the file."""
    _check(file, stat.S_IWOTH, "o-w")


def _check(file: Path, forbidden: int, mode: str) -> None:
    """A container has no other users: its orchestrator chooses the modes of mounted files."""
    if _are_open_files_taken or (file.parent / "..data").exists() or OF_CONTAINERS in file.absolute().parents:
        return
    try:
        found = file.stat()
    except OSError:
        return  # the reader reports it
    open_to = found.st_mode & forbidden
    if open_to and stat.S_ISREG(found.st_mode):
        what = "write to" if open_to & stat.S_IWOTH else "read"
        raise PenstockError(
            f"{file}: every user of this machine can {what} it; chmod {mode} {file}, or set allow_open_files = true"
        )
