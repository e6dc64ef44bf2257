"""The checkpoint of the index: a copy to rebuild the index from when the log's beginning is gone.

Sessions, queue ids and queue offsets come from records that retention drops with their segments. So before a segment is
dropped, `index-checkpoint` becomes a copy of an index that has applied it. The new copy gets its name in two renames;
at any moment of a crash, one usable copy has the name or is on its way to it:

    index-checkpoint.new   being written, or complete and waiting for the log to be safe that far
    index-checkpoint.old   the previous one, for the moment between the renames

RocksDB can make such a copy, but rocksdict stops all threads for it, for 20 to 50 ms. So the files are hard-linked:
RocksDB syncs a table before its manifest names it, and deletes a table only after its manifest has dropped it. So the
links made while the manifest stays the same are a complete index, with perhaps a few tables that nothing names yet.
"""

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from store.errors import DamagedInCluster, IndexDamaged, IndexFailed, NotRebuildable, StoreError
from store.files.folder import CHECKPOINT, INDEX, DataFolder, clear, copy_folder
from store.files.segment import sync_folder
from store.log.api import Log
from store.log.index import DAMAGED, FORMAT, IDENTITY_KEY, Index, IndexedLog
from store.settings import StoreSettings

log = logging.getLogger("penstock.store")

CURRENT = "CURRENT"  # names the manifest
BESIDE_TABLES = ("IDENTITY", "rocksdict-config.json")
LINK_ATTEMPTS = 100
DAMAGED_INDEX, OTHER_VERSION, OF_ANOTHER_LOG = "damaged or missing", "of another version", "of another log"


def _new(folder: DataFolder) -> Path:
    return folder.checkpoint.with_name(folder.checkpoint.name + ".new")


def _old(folder: DataFolder) -> Path:
    return folder.checkpoint.with_name(folder.checkpoint.name + ".old")


def write_checkpoint(folder: DataFolder) -> None:
    """Copy the index as it was last flushed. The copy becomes the checkpoint by publish_checkpoint().

    Call this in a thread of its own: it blocks. Raises IndexFailed.
    """
    try:
        copy_flushed(folder.index, _new(folder))
    except OSError as error:
        raise IndexFailed(folder.index, f"cannot be copied: {error}") from error


def copy_flushed(index: Path, copy: Path) -> None:
    """Make `copy` a durable copy of an index in use, as last flushed; its tables are hard links. Raises OSError."""
    for _ in range(LINK_ATTEMPTS):
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        manifest = _manifest(index)
        for path in index.glob("*.sst"):
            with suppress(FileNotFoundError):  # compacted away: if it was still needed, the manifest has changed
                (copy / path.name).hardlink_to(path)
        if _manifest(index) == manifest:
            break
    else:
        raise OSError(f"it changed {LINK_ATTEMPTS} times meanwhile")
    name, tables = manifest
    _write_durably(copy / name, tables)
    _write_durably(copy / CURRENT, f"{name}\n".encode())
    for name in BESIDE_TABLES:
        _write_durably(copy / name, (index / name).read_bytes())
    sync_folder(copy)


def _manifest(index: Path) -> tuple[str, bytes]:
    """Name and content of RocksDB's manifest, the list of tables; each change of the index's tables appends to it."""
    name = (index / CURRENT).read_text().strip()
    return name, (index / name).read_bytes()


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def publish_checkpoint(folder: DataFolder) -> None:
    """Put the new copy in the old one's place. Call it once the log is on disk as far as the copy has applied it."""
    if folder.checkpoint.exists():
        folder.checkpoint.rename(_old(folder))
    _new(folder).rename(folder.checkpoint)
    sync_folder(folder.path)
    shutil.rmtree(_old(folder), ignore_errors=True)


def open_index(folder: DataFolder, log_: Log, settings: StoreSettings, distrusted: int = 0) -> Index:
    """Open the index of a log as it is, else restore it from its checkpoint, else make an empty one to rebuild.

    `distrusted`: how many of the two (index, checkpoint) proved damaged when they were read. Raises IndexFailed;
    NotRebuildable if the records before the log's beginning would be missing and `store.on_damage` is `refuse`.
    """
    _settle(folder)
    of = IndexedLog(log_.put_aside_from, log_.identity, log_.remembered)
    open_ = partial(Index, write_buffer_bytes=settings.index_write_buffer_bytes, of=of)
    return _found_index(folder, log_, open_, settings.on_damage, distrusted)


def _found_index(
    folder: DataFolder, log_: Log, open_: Callable[[Path], Index], on_damage: str, distrusted: int
) -> Index:
    found = DAMAGED_INDEX if distrusted else _usable(folder.index, log_, open_)
    if isinstance(found, Index):
        return found
    faults = [found]
    if log_.base and folder.checkpoint.is_dir() and distrusted < 2:
        log.warning("%s: is rebuilt from %s", folder.index, folder.checkpoint)
        _restore(folder)
        found = _usable(folder.index, log_, open_)
        if isinstance(found, Index):
            return found
        faults.append(found)
    if log_.base:
        if log_.kept is not None and OTHER_VERSION not in faults:
            raise DamagedInCluster(folder.path, f"{INDEX} and {CHECKPOINT} are missing or damaged")
        if on_damage == "refuse" or OTHER_VERSION in faults:  # an operator can undo an upgrade
            raise NotRebuildable(folder.index, folder.checkpoint, log_.base)
        log.error(
            "%s and %s are missing or damaged: an index is built from log_offset %d on; sessions, groups and queue "
            "offsets from before are lost, and clients with a session begin a new one",
            *(folder.index, folder.checkpoint, log_.first),
        )
    clear(folder.index)
    return open_(folder.index)


def _settle(folder: DataFolder) -> None:
    """Finish or undo the renames that a crash interrupted."""
    if not folder.checkpoint.exists() and _old(folder).exists():
        _old(folder).rename(folder.checkpoint)
    for leftover in (_old(folder), _new(folder), _restoring(folder)):
        with suppress(OSError):
            clear(leftover)


def _usable(path: Path, log_: Log, open_: Callable[[Path], Index]) -> Index | str:
    """The index in a folder if it can be brought up to date with this log, else the reason why not."""
    if not path.exists():
        return open_(path) if log_.base == 0 else DAMAGED_INDEX
    if not path.is_dir():
        log.warning("%s: is no folder; it is rebuilt", path)
        return DAMAGED_INDEX
    if (path / DAMAGED).exists():
        log.warning("%s: was found damaged; it is rebuilt", path)
        return DAMAGED_INDEX
    try:
        index = open_(path)
    except IndexDamaged as error:
        log.warning("%s: does not open, and is rebuilt (%s)", path, error.__cause__)
        return DAMAGED_INDEX
    try:
        if index.fits(log_.base, log_.end, log_.resumes_at, log_.put_aside_from, log_.identity):
            return index
    except (StoreError, OSError):  # of the log: the start verifies it, and opens the index again
        index.close()
        raise
    fault = OTHER_VERSION if index.format != FORMAT else OF_ANOTHER_LOG
    if fault == OTHER_VERSION:
        log.warning("%s: has format %d, and this version needs %d; it is rebuilt", path, index.format, FORMAT)
    else:
        claims = (index.applied_offset, index.state_offset, log_.base, log_.end)
        log.warning("%s: stands for log_offset %d to %d, but the log is %d to %d", path, *claims)
        if index.get(IDENTITY_KEY) == log_.identity:
            log_.miss(index.state_offset)
    index.close()
    return fault


def _restoring(folder: DataFolder) -> Path:
    return folder.index.with_name(folder.index.name + ".new")


def _restore(folder: DataFolder) -> None:
    clear(folder.index)
    copy_folder(folder.checkpoint, _restoring(folder))
    _restoring(folder).rename(folder.index)
    sync_folder(folder.path)
