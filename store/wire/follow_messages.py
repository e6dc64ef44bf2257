"""Following queues, and being told that they grew; as store.wire.messages."""

from typing import Annotated

from msgspec import Meta, Struct

from store.wire.base import (
    Items,
    LogOffset,
    QueueName,
    QueueOffset,
    Ref,
    TopicFilter,
    WireMessage,
)


class QueueInfo(Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A queue that is now followed. `kind`: 0 topic, 1 first level, 2 filter, 3 live.

    It ends at queue_offset `next_offset`; `position` is the queue_offset to begin at.
    """

    ref: Ref
    kind: Annotated[int, Meta(ge=0, le=3)]
    next_offset: QueueOffset
    position: QueueOffset


class Follow(WireMessage, frozen=True):
    """Tell me when the queues that serve a topic filter grow.

    `history`: a stored queue is wanted, not only what comes from now on; `start`: the log_offset to begin at, -1 for
    the log's end; `spills`: a live queue goes to disk rather than forget what has not been read.
    """

    topic_filter: TopicFilter
    history: bool
    start: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    spills: bool


class Following(WireMessage, frozen=True):
    """The queues: one, or two where the second holds the filter's live-only messages. The log ends at `log_end`."""

    queues: Annotated[list[QueueInfo], Meta(min_length=1, max_length=2)]
    log_end: LogOffset


class FollowingPast(WireMessage, frozen=True):
    """Like Following, to a gateway of version 13 or later, if the first queue begins at log_offset `begins`: the tier
    has the earlier messages that were asked for."""

    queues: Annotated[list[QueueInfo], Meta(min_length=1, max_length=2)]
    log_end: LogOffset
    begins: LogOffset


class Unfollow(WireMessage, frozen=True):
    """Forget these refs."""

    refs: Annotated[list[Ref], Items]


class Grew(WireMessage, frozen=True):
    """(ref, queue_offset where it ends now) of queues that grew, and the log_offset where the log ends. Coalesced."""

    queues: Annotated[list[tuple[Ref, QueueOffset]], Items]
    log_end: LogOffset


class GrewNamed(WireMessage, frozen=True):
    """Like Grew, for queues that the receiver may not follow: (kind as a digit and name, queue_offset of its end).

    `others`: there were more of them than are kept for a peer, and of those that it follows Grew tells.
    """

    queues: Annotated[list[tuple[QueueName, QueueOffset]], Items]
    others: bool
    log_end: LogOffset
