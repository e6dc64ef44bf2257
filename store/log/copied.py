"""A copy of another store's log that becomes this store's own: a kill at any moment leaves the one or the other.

    copying/   being filled; nothing in it counts
    copied/    complete and durable: log/, the index's checkpoint if the log's beginning is gone, and the mark

The next start moves what is in `copied` to the data folder, before it opens anything there. What was there is deleted,
or moved to the folder that the file `copied/keep` names. The log is moved first, so a start that finds it in `copied`
knows that all beside it is still the old one's.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from store.errors import unusable
from store.files.folder import CHECKPOINT, INDEX, LOG, clear
from store.files.segment import sync_folder
from store.log.mark_file import MARK_FILE

log = logging.getLogger("penstock.store")

COPYING = "copying"
COPIED = "copied"
KEEP = "keep"


def is_of_cluster(data: Path) -> bool:
    """Whether the log of a data folder follows a topic, or will once a copy is in place."""
    return (data / MARK_FILE).exists() or (data / COPIED).exists()


def commit_copy(data: Path, keep: str = "") -> None:
    """All in `copying` is durable: the next start takes it. `keep`: folder for what was there. Raises OSError."""
    copying = data / COPYING
    if keep:
        with (copying / KEEP).open("w") as file:
            file.write(keep)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(copying)
    copying.rename(data / COPIED)
    sync_folder(data)


def discard_copying(data: Path) -> None:
    """Delete what an earlier process has copied."""
    with suppress(OSError):
        clear(data / COPYING)


def finish_copy(data: Path) -> bool:
    """Whether a copy was there, which is now this store's. The folder is locked. Raises FolderUnusable, StoreFull."""
    copied = data / COPIED
    if not copied.is_dir():
        return False
    try:
        _finish(data, copied)
    except OSError as error:
        raise unusable(data, error) from error
    log.warning("%s: goes on with the copy of another store's log", data)
    return True


def _finish(data: Path, copied: Path) -> None:
    if (copied / LOG).exists():
        keep = _kept_in(data, copied)
        for path in (data / MARK_FILE, *sorted(data.glob(f"{INDEX}*")), data / LOG):
            _put_away(path, keep)
        sync_folder(data)
        (copied / LOG).rename(data / LOG)
        sync_folder(data)
    for name in (CHECKPOINT, MARK_FILE):
        if (copied / name).exists():
            (copied / name).rename(data / name)
    sync_folder(data)
    clear(copied)


def _kept_in(data: Path, copied: Path) -> Path | None:
    if not (copied / KEEP).exists():
        return None
    keep = data / Path((copied / KEEP).read_text()).name
    keep.mkdir(mode=0o700, exist_ok=True)
    return keep


def _put_away(path: Path, keep: Path | None) -> None:
    """An empty folder in the place of one that is put away already is deleted."""
    if keep is None or (keep / path.name).exists():
        clear(path)
    elif path.exists():
        path.rename(keep / path.name)
