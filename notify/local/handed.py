"""A gateway's knowledge of the store in its own process, for the process that replaces both.

Stored queues and groups are in the data folder, so their names lead to them there. What a LIVE queue had was in memory
only; the log has it, and the readers that lacked it read it there.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from lightqueue.queues._queues import Queue
from lightqueue.queues.table import filter_of
from notify.api import GatewayListener, GroupConsumer, LeasedMessages
from notify.handed import HandedConsumer, HandedPart, HandedQueue
from notify.local.group_consumer import LocalConsumer
from notify.local.hub import Hub
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

    def __init__(self, hub: Hub, store: LocalStore, handed: HandedLocalStore) -> None:
        """`store`: of the member of `hub` that goes on."""
        self._hub, self._store = hub, store
        self._queues = {each.ref: each for each in handed.queues}
        self._consumers = handed.consumers
        self._lost: dict[Queue, None] = {}  # what these had was in the old process's memory

    def queue_of(self, ref: int) -> Queue:
        """Follow a queue, for one reader. Raises KeyError."""
        handed = self._queues[ref]
        queue, is_whole = self._store.queues.follow_again(handed)
        if not is_whole:
            self._lost[queue] = None
        return queue

    def seat_of(self, place: int, handed_to: Callable[[LeasedMessages], None]) -> GroupConsumer:
        """Be a consumer again; it has what it had. Raises ValueError if its group is not to be had."""
        found = self._store.groups.take_over(self._consumers[place], handed_to)
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def go_on(self, gateway: GatewayListener, connected: Container[str], known_to: int) -> None:
        """The clients are here from now on. Call this before anything is delivered.

        `gateway` has them; `connected`: their client_ids; `known_to`: log_offset at which the old process's log ended.
        """
        store, claims, member = self._store, self._hub.claims, self._store.member
        for client_id, user in gateway.unlogged():
            claims.hold_again(member, client_id, user)
        for queue in self._lost:
            gateway.lost_entries(queue, queue.next_offset, store.queues.end, known_to)
        gone = [client_id for client_id in claims.held_by(member) if client_id not in connected]
        if gone:
            claims.close_left(member, gone)
