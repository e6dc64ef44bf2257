"""Requests of readers of the log itself, and the store's answers; as store.wire.messages.

They get its bytes as they lie there, verified, and decode them on their own.
"""

from typing import Annotated

from msgspec import Meta

from store.settings import MOST_RESTORED_FROM
from store.state.changes import WhenBehind
from store.wire.base import Count, Items, LogOffset, Name, Positive, QueueOffset, TopicFilter, WireMessage

LogIdentity = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Segments(WireMessage, frozen=True):
    """The files of the log whose bases are at or after `start`."""

    start: LogOffset


class SegmentsFound(WireMessage, frozen=True):
    """(base log_offset, Unix time in ms when it was made) of each, oldest first; `more`: there are others after them.

    The log begins at log_offset `log_base` and can be read up to `log_end`; what stands before `on_disk` is on the
    disk (0: an older store does not say).
    """

    segments: Annotated[list[tuple[LogOffset, Count]], Items]
    more: bool
    log_base: LogOffset
    log_end: LogOffset
    on_disk: LogOffset = 0


class ReadLog(WireMessage, frozen=True):
    """Records of all types from log_offset `start` on, where one begins or a file ends, about `max_bytes` of them.

    `on_disk`: only those that are on the disk, which a loss of power does not replace.
    """

    start: LogOffset
    max_bytes: Positive
    on_disk: bool = False


class LogRead(WireMessage, frozen=True):
    """Whole records that stand from log_offset `start` on follow, as they lie there; none if the log ends there.

    It is not the one asked for where a file ended there, or where a batch record is longer than a frame: then those
    within it follow. The log begins at log_offset `log_base` and can be read up to `log_end`; `on_disk` as in
    SegmentsFound.
    """

    start: LogOffset
    log_base: LogOffset
    log_end: LogOffset
    on_disk: LogOffset = 0


class SeekLog(WireMessage, frozen=True):
    """The first record at or after a log_offset, or stored at a time or later if that is not 0; a Sought answers.

    `start`: the log_offset that a Sought which is not `found` has told; 0 at first.
    """

    log_offset: LogOffset
    timestamp_ms: Count
    start: LogOffset


MOST_TOPICS = 500
"""Of a QueueOffsets, which is judged and answered in steps."""


class QueueOffsets(WireMessage, frozen=True):
    """Ask for the number of messages of each topic before log_offset `before`, dropped ones included."""

    before: LogOffset
    topics: Annotated[list[Name], Items]


class QueueOffsetsFound(WireMessage, frozen=True):
    """The queue_offset for each topic, in their order."""

    queue_offsets: Annotated[list[QueueOffset], Items]


class ReaderAt(WireMessage, frozen=True):
    """A reader of the log reports the log_offset that it has reached. For people to see; nothing depends on it."""

    reader: Annotated[str, Meta(min_length=1, max_length=256)]
    log_offset: LogOffset


class ReaderNoted(WireMessage, frozen=True):
    """`lag_bytes`: of the log after that place."""

    lag_bytes: Count


ReaderName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+\Z")]


class HoldLog(WireMessage, frozen=True):
    """A reader is done with all before `log_offset`, for good: retention keeps the log for it from there on.

    None: the place where it stands; a new reader stands at the log's beginning. It may go back to what is kept. If it
    is more than `most_behind_bytes` behind (0, or more than store.most_behind_bytes: as many as that says), retention
    drops what it has not read, or the store refuses messages.
    """

    reader: ReaderName
    log_offset: LogOffset | None = None
    most_behind_bytes: Count = 0
    when_behind: WhenBehind = "drop"


class LogHeld(WireMessage, frozen=True):
    """The log is kept from `log_offset` on, as safe as the flush policy promises. It begins at `log_base`; if that is
    after `log_offset`, what stands between the two is lost.

    What stands before `on_disk` survives a loss of power: a reader goes no further. `lost_bytes`: of the log, in all,
    that were dropped before the reader had read them. `restored_from`: the logs that this one has the beginning of,
    newest first: identity in hexadecimal, and the log_offset from which on the next of them had records of its own.
    """

    log_offset: LogOffset
    log_base: LogOffset
    on_disk: LogOffset
    lost_bytes: Count
    restored_from: Annotated[list[tuple[LogIdentity, LogOffset]], Meta(max_length=MOST_RESTORED_FROM)]


class LocateTable(WireMessage, frozen=True):
    """Ask for the place of the tier's table, to read its files directly."""


class TableLocated(WireMessage, frozen=True):
    """A folder, or a URL without credentials; empty: the store has no tier."""

    url: Name


class Topics(WireMessage, frozen=True):
    """Topics that a filter matches, in their order, after the topic `after` (empty: from the first on)."""

    topic_filter: TopicFilter
    after: Name


class TopicsFound(WireMessage, frozen=True):
    """Some of the topics; ask for the others `after` the topic `next` (empty: that was all).

    `looked_at`: how many topics, those included that do not match. A message of a topic that is not found stands at
    log_offset `known_until` or after it, or is not kept any more.
    """

    topics: Annotated[list[Name], Items]
    next: Name
    looked_at: Count
    known_until: LogOffset
