"""Opens a log: of a data folder, or of a running store. Both kinds have the same methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from penstock.spark.folder import LogFolder
from penstock.spark.options import AS_STORE_SAYS, Request, place_of_tier
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


def with_tier(request: Request) -> Request:
    """The request with the place of the tier's table, if the store is to say it. Raises TierUnreadable."""
    if request.tier != AS_STORE_SAYS:
        return request
    with opened(request) as log:
        assert isinstance(log, RemoteLog)
        url = log.table_url()
    return replace(request, tier=place_of_tier(url) if url else None)


@contextmanager
def counted_from(log: Log, start: int) -> Iterator[TopicCounter | None]:
    """Queue positions at `start`, or at a place before it from which to count. None: unknown."""
    if isinstance(log, RemoteLog):
        yield TopicCounter(start, lambda topics: log.queue_offsets(start, topics))
        return
    with queue_offsets(log, start) as offsets:
        yield offsets
