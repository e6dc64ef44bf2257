"""Requests of clients, and of no gateway, to a store, and its answers; as store.wire.messages."""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta

from store.wire.base import Count, Items, LogOffset, Name, Positive, QueueOffset, TopicFilter, WireMessage


class Wait(IntEnum):
    """When a Publish is answered: once its records are as safe as `flush` promises, in the page cache, on the disk."""

    POLICY = 0
    STORED = 1
    FLUSHED = 2


class Publish(WireMessage, frozen=True):
    """Like Append, but the answer says where the messages are, also when the Publish was sent again."""

    sequence: Positive
    wait: Wait


class Published(WireMessage, frozen=True):
    """The first record stands at log_offset `log_offset`, the others after it without a gap.

    `queue_offsets`: of each run of records with one topic, that of the first in its topic's queue; -1 if it is in none.
    """

    log_offset: LogOffset
    queue_offsets: Annotated[list[Annotated[int, Meta(ge=-1, le=2**63 - 1)]], Items]


class Scan(WireMessage, frozen=True):
    """Messages that match a filter and stand from log_offset `start` on and before `stop`, in the log's order.

    `tag`: those alone that have it; empty: all.
    """

    topic_filter: TopicFilter
    start: LogOffset
    stop: LogOffset
    max_bytes: Positive
    tag: Name = ""


class Scanned(WireMessage, frozen=True):
    """`count` messages follow; look for the next from log_offset `next` on.

    `queue_offset`: of the first, if the filter is a topic and there was no tag; else -1. Nothing is left where `next`
    is at or after `stop`, or after the log's end `log_end`.
    """

    next: LogOffset
    log_end: LogOffset
    queue_offset: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    count: Count


class Seek(WireMessage, frozen=True):
    """Find where a Scan begins: `earliest`, `now`, a time (`-1h`, RFC 3339), or a queue_offset (`@7`) of a topic.

    `start`: the log_offset that a Sought which is not `found` has told; 0 at first.
    """

    topic_filter: TopicFilter
    where: Name
    start: LogOffset


class Sought(WireMessage, frozen=True):
    """A log_offset; if it is not `found` so far, the one to ask from again."""

    log_offset: LogOffset
    found: bool


class Get(WireMessage, frozen=True):
    """The message at a log_offset."""

    log_offset: LogOffset


class Got(WireMessage, frozen=True):
    """Answer to Get: the record follows; it is at `queue_offset` of its topic's queue."""

    queue_offset: QueueOffset


class Find(WireMessage, frozen=True):
    """Messages with a key, newest first: up to `limit` that stand before log_offset `before`.

    `topic_filter`: a topic or filter, empty for any; `since` and `until`: `earliest`, `now`, `-1h` or RFC 3339.
    """

    key: Name
    topic_filter: Name
    since: Name
    until: Name
    before: LogOffset
    limit: Positive


class Found(WireMessage, frozen=True):
    """`count` messages follow, newest first; look for more before log_offset `before` (0: that was all)."""

    before: LogOffset
    count: Count
