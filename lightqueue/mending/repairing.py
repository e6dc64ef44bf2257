"""Repairs a data folder: the log from its quarantine and from copies, and the index."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightqueue.mending.checking import index_fault
from lightqueue.mending.inspect import copy_of
from lightqueue.queues.projection import Projection
from store.errors import DamagedInCluster, IndexFailed, NotRebuildable
from store.files.folder import CHECKPOINT, INDEX, LOG, DataFolder, clear, copy_folder, sync_contents
from store.files.segment import sync_folder
from store.log.copied import is_of_cluster
from store.log.index import Index, IndexedLog
from store.mending.foresight import Foreseen, Progress, foresee, silent
from store.mending.repair import UNDO, Repaired, check_sources, repair_log
from store.mending.sources import CopyOfLog, PutAside, Source
from store.records.records import Record, RecordFlag, decode_attributes
from store.recovery.quarantine import Quarantine
from store.settings import StoreSettings
from store.state.delayed import due_of

LOG_SHARE = 0.7  # part of the progress; the index is the rest
TOPICS_NAMED = 20


@dataclass
class RepairReport:
    """The result of a repair."""

    repaired: Repaired
    index: str  # result for the index
    is_index_whole: bool  # its queues have all records that came back
    undo: Path | None  # folder with the replaced files

    @property
    def lost_bytes(self) -> int:
        return sum(hole.end - hole.start for hole in self.repaired.lost)

    def as_json(self) -> dict[str, Any]:
        repaired = self.repaired
        return {
            "set_right": [str(finding) for finding in repaired.findings],
            "got_back": [{"start": start, "end": end, "from": name} for start, end, name in repaired.got_back],
            "records": repaired.records,
            "topics": dict(repaired.topics.most_common(TOPICS_NAMED)),
            "lost": [{"start": hole.start, "end": hole.end} for hole in repaired.lost],
            "lost_bytes": self.lost_bytes,
            "changed": [segment.path.name for segment in repaired.changed],
            "index": self.index,
            "undo": str(self.undo) if self.undo else None,
        }


def repair_folder(
    path: Path,
    copies: Sequence[Path] = (),
    with_unconfirmed: bool = False,
    with_index: bool = False,
    on_progress: Progress = silent,
) -> RepairReport:
    """Repair a data folder as far as the sources allow. Raises StoreError, OSError; DamagedInCluster if its log is one
    of a cluster, where no store may have a gap that the others have not.
    """
    sources: list[Source] = [CopyOfLog(copy) for copy in copies]
    folder = DataFolder(path, _is_group_access(path))
    try:
        if is_of_cluster(path):
            raise DamagedInCluster(path, "a repair could leave a gap, so it is left as it is")
        check_sources(folder.log, sources)
        identity = foresee(folder.log).identity if with_unconfirmed or folder.quarantine.exists() else b""
        sources.insert(0, PutAside(path, with_unconfirmed, identity))
        repaired, log = repair_log(folder, sources, lambda what, done: on_progress(what, done * LOG_SHARE))
        on_progress("index", LOG_SHARE)
        said, is_whole = _repair_index(folder, log, repaired, with_index, on_progress)
    finally:
        folder.close()
    undo = path / UNDO
    return RepairReport(repaired, said, is_whole, undo if undo.exists() else None)


def _is_group_access(path: Path) -> bool:
    """Whether the folder's group may read; a repair keeps that."""
    return bool((path / LOG).stat().st_mode & 0o040)


def _repair_index(
    folder: DataFolder, log: Foreseen, repaired: Repaired, is_wanted: bool, on_progress: Progress
) -> tuple[str, bool]:
    if not is_wanted and _is_sound(folder, log) and (not repaired.got_back or knows(folder.index, log, repaired)):
        return "stays as it is", True
    try:
        build_index(folder, log, min((start for start, _, _ in repaired.got_back), default=None), on_progress)
    except NotRebuildable as error:
        if is_wanted:
            raise
        return f"is damaged, or does not have what came back in its queues, and cannot be built again ({error})", False
    return "was built again", True


def _is_sound(folder: DataFolder, log: Foreseen) -> bool:
    with copy_of(folder.index) as index:
        return index_fault(folder.path, INDEX, index, log) is None


def knows(index: Path, log: Foreseen, repaired: Repaired) -> bool:
    """Whether an index has entries for the records that came back, in the right places."""
    with copy_of(index) as known:
        if known is None or not repaired.samples or not known.fits(log.base, log.end, log.resumes_at, 0, log.identity):
            return False
        try:
            state = Projection(log, known, StoreSettings())
            return all(_knows_message(state, record) for record in repaired.samples)
        except (IndexFailed, LookupError):
            return False


def _knows_message(state: Projection, record: Record) -> bool:
    """Whether an index has a message where it belongs. Raises IndexFailed, LookupError."""
    if record.flags & RecordFlag.DELAYED:
        return state.delayed.place(*due_of(record, decode_attributes(record.attributes))) == record.log_offset
    if record.flags & RecordFlag.CARRIED:  # a retained one: it stands here again, or another one has replaced it
        return (state.retained.get(record.topic) or 0) >= record.log_offset
    if record.flags & RecordFlag.LIVE_ONLY:
        return True
    queue = state.queues.stored_topic(record.topic)
    at = state.queues.position_of(queue, record.log_offset)
    return at < queue.next_offset and state.queues.log_offset_at(queue, at) == record.log_offset


def build_index(folder: DataFolder, log: Foreseen, changed_from: int | None, on_progress: Progress = silent) -> None:
    """Build the index again beside the old one, and replace the old one.

    `changed_from`: log_offset from which on a checkpoint does not fit the repaired log; None: it fits. Raises
    NotRebuildable, IndexFailed.
    """
    new = folder.index.with_name(INDEX + ".new")
    shutil.rmtree(new, ignore_errors=True)
    with ExitStack() as closing:
        if log.base:
            _begin_with_checkpoint(folder, new, log, changed_from)
        of = IndexedLog(Quarantine(folder.quarantine).put_aside_from(), log.identity)
        index = Index(new, StoreSettings().index_write_buffer_bytes, of)
        closing.callback(index.close)
        state = Projection(log, index, StoreSettings())
        start = log.resumes_at(state.position) or state.position
        for at, data in log.pieces(start):
            state.replay(at, data)
            on_progress("index", LOG_SHARE + (1 - LOG_SHARE) * (at - start) / max(1, log.end - start))
        state.position = log.end
        state.write()
        index.flush()
    sync_contents(new)
    clear(folder.index)
    new.rename(folder.index)
    sync_folder(folder.path)


def _begin_with_checkpoint(folder: DataFolder, new: Path, log: Foreseen, changed_from: int | None) -> None:
    put_aside_from = Quarantine(folder.quarantine).put_aside_from()
    with copy_of(folder.checkpoint) as known:
        is_usable = known is not None and known.fits(log.base, log.end, log.resumes_at, put_aside_from, log.identity)
        if known is None or not is_usable or (changed_from is not None and known.state_offset > changed_from):
            raise NotRebuildable(folder.index, folder.path / CHECKPOINT, log.base)
    copy_folder(folder.checkpoint, new)
