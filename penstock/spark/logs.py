"""Opens a log: of a data folder, or of a running store. Both kinds have the same methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from penstock.spark.folder import LogFolder
from penstock.spark.options import Request
from penstock.spark.queue_offsets import TopicCounter, queue_offsets
from penstock.spark.remote import RemoteLog

Log: TypeAlias = LogFolder | RemoteLog


def open_log(request: Request) -> Log:
    """Raises FolderUnreadable; a store is connected to with the first request."""
    return LogFolder(request.path) if request.store is None else RemoteLog(request.store)


@contextmanager
def opened(request: Request) -> Iterator[Log]:
    """The log, closed at the end of the block."""
    log = open_log(request)
    try:
        yield log
    finally:
        if isinstance(log, RemoteLog):
            log.close()


@contextmanager
def counted_from(log: Log, start: int) -> Iterator[TopicCounter | None]:
    """Queue positions at `start`, or at a place before it from which to count. None: unknown."""
    if isinstance(log, RemoteLog):
        yield TopicCounter(start, lambda topics: log.queue_offsets(start, topics))
        return
    with queue_offsets(log, start) as offsets:
        yield offsets
