"""Where a log is read from: a data folder, or a store that runs. Both have the same methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from penstock.spark.folder import LogFolder
from penstock.spark.options import Request
from penstock.spark.queue_offsets import QueueOffsets, queue_offsets
from penstock.spark.remote import RemoteLog

Log: TypeAlias = LogFolder | RemoteLog


def open_log(request: Request) -> Log:
    """Raises FolderUnreadable; a store is only looked for once something is asked of it."""
    return LogFolder(request.path) if request.store is None else RemoteLog(request.store)


@contextmanager
def opened(request: Request) -> Iterator[Log]:
    """The same for a while."""
    log = open_log(request)
    try:
        yield log
    finally:
        if isinstance(log, RemoteLog):
            log.close()


@contextmanager
def counted_from(log: Log, start: int) -> Iterator[QueueOffsets | None]:
    """Where queues stand at `start`, or at a place before it up to which is yet to be counted. None: nobody knows."""
    if isinstance(log, RemoteLog):
        yield QueueOffsets(start, lambda topics: log.queue_offsets(start, topics))
        return
    with queue_offsets(log, start) as offsets:
        yield offsets
