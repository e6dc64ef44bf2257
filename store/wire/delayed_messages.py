"""Requests of clients and operators about delayed messages."""

from typing import Annotated

from store.wire.base import Count, Items, LogOffset, Name, Positive, WireMessage


class ListDelayed(WireMessage, frozen=True):
    """Up to `limit` messages that are pending, those due first before others, after (due_ms, log_offset) `after`."""

    after: tuple[Count, LogOffset]
    limit: Positive


class DelayedFound(WireMessage, frozen=True):
    """log_offset, due_ms, topic and key (or empty) of each message. `next`: the next request's `after`; None: no more.

    The log_offset is the one that Appended gave, wherever the message is by now.
    """

    messages: Annotated[list[tuple[LogOffset, Count, Name, bytes]], Items]
    next: tuple[Count, LogOffset] | None


class GetDelayed(WireMessage, frozen=True):
    """The pending message that Appended gave this log_offset and that is due at `due_ms`, as it would be published now.

    The answer is Got, with 0 as its queue_offset: a pending message is in no queue.
    """

    log_offset: LogOffset
    due_ms: Count


class CancelDelayed(WireMessage, frozen=True):
    """Take back the message that Appended gave this log_offset and that is due at `due_ms`."""

    log_offset: LogOffset
    due_ms: Count


class DelayedCancelled(WireMessage, frozen=True):
    """`was_pending`: it was, and is not any more; if not, it was dispatched or cancelled before, or never there."""

    was_pending: bool
