"""The index of a log and its checkpoint: a copy to rebuild the index from although the log's beginning is gone.

Sessions, queue ids and queue offsets come from records that retention drops with their segments. So before a segment
goes, `index-checkpoint` becomes a copy of an index that has applied it. The new copy gets its name in two renames;
whatever moment a crash chooses, one usable copy has the name or is on its way to it:

    index-checkpoint.new   being written, or complete and waiting for the log to be safe that far
    index-checkpoint.old   the previous one, for the moment between the renames
"""

import logging
import shutil
from pathlib import Path

from store.commitlog import CommitLog
from store.errors import IndexFailed, NotRebuildable
from store.folder import DataFolder
from store.index import FORMAT, Index
from store.segment import sync_folder

log = logging.getLogger("penstock.store")


def _new(folder: DataFolder) -> Path:
    return folder.checkpoint.with_name(folder.checkpoint.name + ".new")


def _old(folder: DataFolder) -> Path:
    return folder.checkpoint.with_name(folder.checkpoint.name + ".old")


def write_checkpoint(index: Index, folder: DataFolder) -> None:
    """Copy the index as it was last written. It is not the checkpoint before publish_checkpoint()."""
    shutil.rmtree(_new(folder), ignore_errors=True)
    index.checkpoint(_new(folder))


def publish_checkpoint(folder: DataFolder) -> None:
    """Put the new copy in the old one's place. Only once the log is on disk as far as the copy knows it."""
    if folder.checkpoint.exists():
        folder.checkpoint.rename(_old(folder))
    _new(folder).rename(folder.checkpoint)
    sync_folder(folder.path)
    shutil.rmtree(_old(folder), ignore_errors=True)


def open_index(folder: DataFolder, log_: CommitLog, write_buffer_bytes: int) -> Index:
    """The index of a log: as it stands, else from its checkpoint, else empty if the whole log is there to be replayed.

    Raises NotRebuildable, or IndexFailed.
    """
    _settle(folder)
    index = _usable(folder.index, log_, write_buffer_bytes)
    if index is not None:
        return index
    shutil.rmtree(folder.index, ignore_errors=True)
    if log_.base == 0:
        return Index(folder.index, write_buffer_bytes)
    if folder.checkpoint.exists():
        log.warning("%s: is built again from %s", folder.index, folder.checkpoint)
        _restore(folder)
        index = _usable(folder.index, log_, write_buffer_bytes)
    if index is None:
        raise NotRebuildable(folder.index, folder.checkpoint, log_.base)
    return index


def _settle(folder: DataFolder) -> None:
    """Finish, or take back, what a crash interrupted."""
    if not folder.checkpoint.exists() and _old(folder).exists():
        _old(folder).rename(folder.checkpoint)
    for leftover in (_old(folder), _new(folder), _restoring(folder)):
        shutil.rmtree(leftover, ignore_errors=True)


def _usable(path: Path, log_: CommitLog, write_buffer_bytes: int) -> Index | None:
    """The index in a folder if it can be brought up to date with this log."""
    if log_.base and not path.exists():
        return None
    try:
        index = Index(path, write_buffer_bytes)
    except IndexFailed as error:
        if "Corruption:" not in str(error):
            raise
        log.warning("%s; it is built again", error)
        return None
    if index.fits(log_.base, log_.end):
        return index
    if index.format != FORMAT:
        log.warning("%s: has format %d, and this version needs %d; it is built again", path, index.format, FORMAT)
        index.close()
        return None
    claims = (index.applied_offset, index.state_offset, log_.base, log_.end)
    log.warning("%s: stands for log_offset %d to %d, but the log is %d to %d", path, *claims)
    index.close()
    return None


def _restoring(folder: DataFolder) -> Path:
    return folder.index.with_name(folder.index.name + ".new")


def _restore(folder: DataFolder) -> None:
    shutil.copytree(folder.checkpoint, _restoring(folder))
    _restoring(folder).rename(folder.index)
