"""What a gateway knows of the store in its own process, for the process that replaces both.

Stored queues and groups are in the data folder, so their names lead to them there. What a LIVE queue had was in memory
only; the log has it, and the readers that lacked it read it there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lightqueue.queues._queues import Queue
from lightqueue.queues.table import filter_of
from notify.api import GroupConsumer, LeasedMessages
from notify.handed import HandedConsumer, HandedPart, HandedQueue
from notify.local.group_consumer import LocalConsumer
from notify.local.store import LocalStore
from store.state.group_settings import LATEST
from store.wire.group_messages import GroupOpen


class HandedLocalStore(HandedPart):
    """The queues that sessions read, and the consumers that they are."""

    queues: list[HandedQueue] = msgspec.field(default_factory=list)
    consumers: list[HandedConsumer] = msgspec.field(default_factory=list)


class LeavingStore:
    """The old process: numbers the queues and consumers of its sessions."""

    def __init__(self) -> None:
        self._refs: dict[Queue, int] = {}
        self._places: dict[LocalConsumer, int] = {}

    def ref_of(self, queue: Queue) -> int:
        return self._refs.setdefault(queue, len(self._refs))

    def place_of(self, consumer: GroupConsumer) -> int:
        assert isinstance(consumer, LocalConsumer)
        return self._places.setdefault(consumer, len(self._places))

    def handed(self) -> HandedLocalStore:
        """All that were numbered."""
        return HandedLocalStore(
            queues=[_handed_queue(queue, ref) for queue, ref in self._refs.items()],
            consumers=[_handed_consumer(consumer, place) for consumer, place in self._places.items()],
        )


def _handed_queue(queue: Queue, ref: int) -> HandedQueue:
    return HandedQueue(
        ref=ref,
        kind=queue.kind,
        topic_filter=filter_of(queue),
        history=False,
        spills=bool(queue.spills),
        followed=1,
        next_offset=queue.next_offset,
        floor=queue.floor,
    )


def _handed_consumer(consumer: LocalConsumer, place: int) -> HandedConsumer:
    request = GroupOpen(*consumer.group, consumer.name, None, LATEST)
    return HandedConsumer(ref=place, request=request, settings=consumer.settings)


class EnteredStore:
    """The new process: finds them in a store that it has opened."""

    def __init__(self, store: LocalStore, handed: HandedLocalStore) -> None:
        self._store = store
        self._queues = {each.ref: each for each in handed.queues}
        self._consumers = handed.consumers
        self.lost: dict[Queue, None] = {}
        """Queues that lack what they had in the old process's memory."""

    def queue_of(self, ref: int) -> Queue:
        """Follow a queue, for one reader. Raises KeyError."""
        handed = self._queues[ref]
        queue, is_whole = self._store.queues.follow_again(handed)
        if not is_whole:
            self.lost[queue] = None
        return queue

    def seat_of(self, place: int, handed_to: Callable[[LeasedMessages], None]) -> GroupConsumer:
        """Be a consumer again; it has what it had. Raises ValueError if its group is not to be had."""
        found = self._store.groups.take_over(self._consumers[place], handed_to)
        if isinstance(found, str):
            raise ValueError(found)
        return found
