"""The queues that a subscription reads, and the position to begin at: now, a log_offset, a time, the beginning."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from lightqueue.errors import NoSuchPosition
from lightqueue.queues._queues import Queue
from store.moments import ago_ms

if TYPE_CHECKING:  # a gateway without a store in its process does not import it
    from lightqueue.message_store import MessageStore

FROM_NOW = -1


class Followed(NamedTuple):
    """A queue with a filter's messages, and the queue_offset to begin at."""

    queue: Queue
    position: int
    only_live: bool = False  # read only the messages that no stored queue has
    begins: int = 0  # log_offset from which on it has what was wanted: what stands before is in the tier; 0: all of it


def follow(store: MessageStore, topic_filter: str, start: int, history: bool, spills: bool) -> list[Followed]:
    """Watch the matches of a filter from log_offset `start` on (FROM_NOW: new ones only). Returns one queue, or two.

    No stored queue has live-only messages. So if some matches are live-only, and earlier messages are wanted as well
    (`history`), a second queue takes the live-only ones from now on. `spills`: no message may be lost to a slow reader.
    """
    stored = store.queues.watch_stored(topic_filter) if history else None
    live = store.queues.watch(topic_filter)
    for queue in (live, stored):
        if queue is not None and spills:
            store.queues.spill(queue)
    if stored is None:
        return [Followed(live, _position(store, live, start))]
    return [
        Followed(stored, _position(store, stored, start)),
        Followed(live, _position(store, live, FROM_NOW), only_live=True),
    ]


def _position(store: MessageStore, queue: Queue, start: int) -> int:
    behind = FROM_NOW < start < store.end and queue.next_offset
    return store.queues.position_of(queue, start) if behind else queue.next_offset


def locate(store: MessageStore, topic_filter: str, where: str) -> int:
    """queue_offset of `earliest`, `-1h`, an RFC 3339 time, a number, or of the message at `=LOG_OFFSET`.

    Raises NoSuchPosition, also if no stored queue has the filter's messages.
    """
    queue = store.queues.stored(topic_filter)
    if queue is None:
        raise NoSuchPosition(topic_filter)
    if where.startswith("="):
        return _standing_at(store, queue, where)
    if where == "earliest":
        return store.queues.position_of(queue, store.log.first)
    if re.fullmatch(r"@?\d{1,19}", where):
        return min(max(int(where.lstrip("@")), store.queues.first_offset(queue)), queue.next_offset)
    return store.queues.position_at(queue, time_ms(where))


def _standing_at(store: MessageStore, queue: Queue, where: str) -> int:
    """queue_offset of the message at log_offset `=4096`. Searches the tail first, because the message is
    usually new.
    """
    if not re.fullmatch(r"=\d{1,19}", where):
        raise NoSuchPosition(where)
    log_offset = int(where[1:])
    newest = queue.entry(queue.tail_first_offset)
    low = queue.tail_first_offset if newest is not None and newest <= log_offset else 0
    position = store.queues.position_of(queue, log_offset, low)
    if position >= queue.next_offset or store.queues.log_offset_at(queue, position) != log_offset:
        raise NoSuchPosition(where)
    return position


def time_ms(text: str) -> int:
    """Unix time in ms of `-1h` or an RFC 3339 time. Raises NoSuchPosition."""
    ago = ago_ms(text)
    if ago is not None:
        return ago
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise NoSuchPosition(text) from None
