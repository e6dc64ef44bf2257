"""What Kafka's threads tell the store's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from store.replication.frames import LogFrame
from store.replication.judging import ReplicaMark


class FrameStands(NamedTuple):
    """A frame was written, to all replicas in sync."""

    frame: LogFrame
    offset: int


class FrameRefused(NamedTuple):
    """A frame was not written and never will be, as it is: it is too large for the topic now."""

    frame: LogFrame
    reason: str


class FrameUnanswered(NamedTuple):
    """Whether a frame was written is not known."""

    frame: LogFrame
    reason: str


class FetchPlace(NamedTuple):
    """From where to read, and the mark whose frame tells that it is the same partition."""

    position: int
    mark: ReplicaMark


class RecordsFetched(NamedTuple):
    """What stands from a position on. `is_end`: the partition had no more then."""

    records: Sequence[tuple[int, bytes]]
    is_end: bool


class FetchUnanswered(NamedTuple):
    """Kafka did not answer; it is asked again."""

    reason: str


class FetcherFailed(NamedTuple):
    """The thread that reads has ended by an error that nobody foresaw."""

    error: Exception


class PartitionLeft(NamedTuple):
    """The partition does not have what comes behind the store's mark any more: it was deleted there."""

    position: int
    first: int


class PartitionForeign(NamedTuple):
    """It is another partition than the one that the store has followed."""

    reason: str


KafkaAnswer = (
    FrameStands
    | FrameRefused
    | FrameUnanswered
    | RecordsFetched
    | FetchUnanswered
    | FetcherFailed
    | PartitionLeft
    | PartitionForeign
)
