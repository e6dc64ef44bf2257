"""Where a new consumer group begins, and whether its queue has what was stored before that."""

from __future__ import annotations

import logging
import math
import re

from lightqueue.message_store import MessageStore
from lightqueue.reading.following import locate, time_ms
from lightqueue.reading.replay import ScanQuery, scan
from notify.errors import GroupRefused
from store.namespaces import namespace_of
from store.ratelimit import RateLimitedLog
from store.state.group_settings import LATEST

LOOK_BYTES = 64 << 10  # of the log, that are looked at for a message that the queue lacks: some 0.3 ms
FROM_NOW = "a group over %s begins now: only topics and level/# have queues of what was stored before; read() has it"
_PLACE = re.compile(r"[@=]?\d{1,19}")  # in the queue
_events = RateLimitedLog(logging.getLogger("penstock.store"))


class NoHistory(GroupRefused):
    """A group would begin with messages that the queue of its filter does not have."""

    def __init__(self, topic_filter: str, start: str) -> None:
        shown = namespace_of(topic_filter).plain_topic(topic_filter)
        super().__init__(
            f"start={start!r}: no queue has what was stored before of {shown}, only a topic and LEVEL/# have one "
            "that is whole; let the group begin with what comes (start='now'), or read the history without a group"
        )


def beginning(messages: MessageStore, topic_filter: str, start: str, or_refuse: bool) -> int:
    """queue_offset at which a group over a filter begins. Raises NoSuchPosition, or another StoreError.

    `or_refuse`: raises NoHistory where the filter's queue lacks messages from `start` on; else the group begins with
    those that the queue has.
    """
    queue = messages.queues.stored(topic_filter)
    if start == LATEST:
        return queue.next_offset if queue is not None else 0
    if or_refuse and _lacks(messages, topic_filter, start):
        raise NoHistory(topic_filter, start)
    if queue is not None:
        return locate(messages, topic_filter, start)
    if messages.log.end > messages.log.first:  # it begins to be kept now
        _events.warning("group", FROM_NOW, topic_filter)
    return 0


def _lacks(messages: MessageStore, topic_filter: str, start: str) -> bool:
    """Whether a filter's queue may lack messages from `start` on, since it began after they were stored."""
    log, kept_since = messages.log, messages.queues.kept_since(topic_filter)
    if kept_since is None:
        kept_since = messages.end
    elif _PLACE.fullmatch(start) or (start != "earliest" and _stored_at(messages, kept_since) <= time_ms(start)):
        return False
    if kept_since <= log.first:
        return False
    looked_at = min(kept_since, log.first + LOOK_BYTES)
    found = scan(messages, ScanQuery(topic_filter, log.first, looked_at), 1, LOOK_BYTES)
    return found.number > 0 or found.next < kept_since


def _stored_at(messages: MessageStore, log_offset: int) -> float:
    """Unix time in ms of a record; infinity if it is lost, 0 if retention dropped it."""
    try:
        return messages.log.timestamp_ms(log_offset) if log_offset >= messages.log.first else 0
    except LookupError:
        return math.inf
