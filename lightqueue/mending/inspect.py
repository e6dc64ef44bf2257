"""Lists the contents of a data folder, for people and tests. Reads only, whether or not a server runs on the folder.

It reads the index in a copy that it brings up to date from the log, as a server does at its next start.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lightqueue.queues.projection import Projection
from lightqueue.queues.table import KIND_NAMES, QueueTable
from store.errors import FolderUnusable, IndexFailed, NotRebuildable, UnknownRecord
from store.files.folder import CHECKPOINT, INDEX, LOG
from store.log.index import Index, link_files
from store.records.records import RecordType
from store.recovery.logscan import LogScan, SegmentScan
from store.settings import StoreSettings

ATTEMPTS = 3
COPY_ATTEMPTS = 5


def inspect_folder(path: Path) -> dict[str, Any]:
    """A report of the folder, every checksum verified; `corruption` lists the damage. Raises FolderUnusable."""
    if not (path / LOG).is_dir():
        raise FolderUnusable(path, "holds no log")
    for attempt in range(1, ATTEMPTS + 1):  # damage stays the same, a server's changes do not
        try:
            report = _report(path)
        except OSError as error:
            if attempt == ATTEMPTS:
                raise FolderUnusable(path, str(error)) from error
            continue
        if not report["corruption"]:
            break
    return report


def _report(path: Path) -> dict[str, Any]:
    with ExitStack() as copies:
        # Take the copies first: so they are never ahead of the log that is read afterwards.
        indexes = [copies.enter_context(copy_of(path / name)) for name in (INDEX, CHECKPOINT)]
        log = LogScan(path / LOG)
        corruption = [segment.corruption for segment in log.segments if segment.corruption]
        index = next((index for index in indexes if index and index.fits(log.base, log.end, log.resumes_at)), None)
        if index is None and log.base == 0:
            index = copies.enter_context(_empty_index())
        state: dict[str, Any] = {name: [] for name in ("queues", "sessions", "groups", "readers")}
        state |= {"delayed_pending": 0, "applied_offset": 0}
        if index is None:
            corruption.append(str(NotRebuildable(path / INDEX, path / CHECKPOINT, log.base)))
        else:
            try:
                state = _state(log, index)
            except UnknownRecord as error:
                corruption.append(str(error))
        return _log_report(log) | state | {"corruption": corruption}


def _log_report(log: LogScan) -> dict[str, Any]:
    records: Counter[int] = Counter()
    for segment in log.segments:
        records.update(segment.records)
    return {
        "first_log_offset": log.first,
        "end_log_offset": log.end,
        "torn_tail_bytes": log.torn_tail_bytes,
        "segments": [_segment_row(segment) for segment in log.segments],
        "records": {_type_name(record_type): number for record_type, number in sorted(records.items())},
    }


def _segment_row(segment: SegmentScan) -> dict[str, Any]:
    return {
        "name": segment.path.stem,
        "base_log_offset": segment.base,
        "bytes": segment.end - segment.base,
        "records": segment.records.total(),
        "corruption": segment.corruption,
    }


def _type_name(record_type: int) -> str:
    known = record_type in RecordType.__members__.values()
    return RecordType(record_type).name.lower() if known else f"type_{record_type}"


def _state(log: LogScan, index: Index) -> dict[str, Any]:
    """The state as of the log's end; `applied_offset` is where the folder's own index stands."""
    applied = index.applied_offset
    state = Projection(log, index, StoreSettings())
    for start, data in log.pieces(log.resumes_at(applied) or applied):
        state.replay(start, data)
    sessions = [
        {
            "client_id": session.client_id,
            "acked_log_offset": session.acked,
            "subscriptions": sorted(session.subscriptions),
            "gap": session.gap,
        }
        for session in sorted(state.sessions, key=lambda session: session.client_id)
    ]
    groups = [
        {
            "name": group.name,
            "topic_filter": group.topic_filter,
            "queue_offset": min(group.positions),
            "held": len(group.entries),
            "dead_letters": group.dead_letters,
        }
        for group in sorted(state.groups, key=lambda group: group.key)
    ]
    readers = [
        {
            "name": reader.name,
            "log_offset": reader.log_offset,
            "behind_bytes": log.end - reader.log_offset,
            "when_behind": reader.when_behind,
            "lost_bytes": reader.lost_bytes,
        }
        for reader in sorted(state.log_readers, key=lambda reader: reader.name)
    ]
    queues = list(_queue_rows(log, state.queues))
    return {
        "queues": queues,
        "sessions": sessions,
        "groups": groups,
        "readers": readers,
        "delayed_pending": len(state.delayed),
        "applied_offset": applied,
    }


def _queue_rows(log: LogScan, queues: QueueTable) -> Iterator[dict[str, Any]]:
    for queue in queues.stored_queues():
        first = queues.first_offset(queue)
        if first < queue.next_offset and queues.log_offset_at(queue, first) < log.first:
            first = queues.position_of(queue, log.first, first)  # retention has not trimmed these entries yet
        yield {
            "name": queue.name.decode(errors="replace"),
            "kind": KIND_NAMES[queue.kind],
            "first_queue_offset": first,
            "next_queue_offset": queue.next_offset,
        }


@contextmanager
def _empty_index() -> Iterator[Index]:
    with tempfile.TemporaryDirectory(prefix="penstock-inspect-") as temporary:
        index = Index(Path(temporary) / INDEX, StoreSettings().index_write_buffer_bytes)
        try:
            yield index
        finally:
            index.close()


@contextmanager
def copy_of(folder: Path) -> Iterator[Index | None]:
    """A copy of an index that may be in use; None if there is no readable one."""
    with tempfile.TemporaryDirectory(prefix="penstock-inspect-") as temporary:
        index = _opened_copy(folder, Path(temporary) / INDEX) if folder.is_dir() else None
        try:
            yield index
        finally:
            if index is not None:
                index.close()


def _opened_copy(folder: Path, copy: Path) -> Index | None:
    for _ in range(COPY_ATTEMPTS):  # its owner may delete a file between listing and opening
        shutil.rmtree(copy, ignore_errors=True)
        try:
            link_files(folder, copy)
            return Index(copy, StoreSettings().index_write_buffer_bytes, is_copy=True)
        except (FileNotFoundError, IndexFailed):
            continue
    return None
