"""Who watches which queue: what a store looks up before it tells gateways that a queue grew. No I/O.

A store always knows who follows its queues, for they told it. A Lookup says of which gateways that is not enough: they
are told of every queue that grows (broadcast), and pick out by its name what concerns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from lightqueue.queues._queues import LEVEL, Queue
from lightqueue.queues.table import level_of

MOST_WATCHED = 1_000_000  # queues of one gateway; one that watches more is told of every queue
MOST_CHANGES = 10_000  # that wait to be written; with more of them everything is written anew
MOST_LEASE_MS = 60_000


def queue_named(topic_filter: str, kind: int, next_offset: int) -> Queue:
    """A queue of a store's as another process has it: under the name that it has there."""
    level = level_of(topic_filter) if kind == LEVEL else None
    return Queue((topic_filter if level is None else level).encode(), kind, 0, next_offset)


def name_of(queue: Queue) -> bytes:
    """What a queue is called between processes: its kind as a digit, and its name."""
    return b"%d%b" % (queue.kind, queue.name)


class Lookup(Protocol):
    """What a Hub asks, beyond who follows a queue."""

    def knows(self, gateway: str) -> bool:
        """Whether it is known what this gateway watches; if not, it is told of every queue."""

    def watchers(self, name: bytes) -> Iterable[str]:
        """Gateways that are known to watch a queue."""


class Broadcast:
    """A Lookup that knows nothing."""

    def knows(self, _: str) -> bool:
        return False

    def watchers(self, _: bytes) -> Iterable[str]:
        return ()


# --- a table that is kept elsewhere


class WatchChange(Struct, array_like=True, frozen=True):
    """What a gateway says of its entry: it holds for `lease_ms` more (0: it is gone), with these queues in and out."""

    gateway: Annotated[str, Meta(max_length=256)]
    lease_ms: Annotated[int, Meta(ge=0, le=MOST_LEASE_MS)]
    began: list[bytes] = []
    ended: list[bytes] = []


@dataclass(slots=True)
class _Entry:
    """What one gateway watches, and until when that may be trusted."""

    watched: set[bytes]
    until_s: float


class Table:
    """A Lookup: a store's copy of what gateways wrote elsewhere. What ran out, or was not read, is unknown."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def knows(self, gateway: str) -> bool:
        entry = self._entries.get(gateway)
        return entry is not None and entry.until_s > self._clock()

    def watchers(self, name: bytes) -> Iterable[str]:
        return [gateway for gateway, entry in self._entries.items() if name in entry.watched]

    def heard(self, change: WatchChange) -> bool:
        """Take what a gateway published. True if its entry is missing here: then read it and call add()."""
        if not change.lease_ms:
            self._entries.pop(change.gateway, None)
            return False
        entry = self._entries.get(change.gateway)
        if entry is None:
            return True
        entry.until_s = self._clock() + change.lease_ms / 1000
        entry.watched.difference_update(change.ended)
        entry.watched.update(change.began)
        if len(entry.watched) > MOST_WATCHED:
            del self._entries[change.gateway]
        return False

    def add(self, gateway: str, watched: set[bytes], lease_ms: int) -> None:
        self._entries[gateway] = _Entry(watched, self._clock() + lease_ms / 1000)

    def expire(self) -> None:
        """Forget what ran out."""
        now_s = self._clock()
        for gateway in [gateway for gateway, entry in self._entries.items() if entry.until_s <= now_s]:
            del self._entries[gateway]

    def clear(self) -> None:
        """Nothing is known: changes may have been missed."""
        self._entries.clear()


# --- what a gateway watches


class Watched:
    """The queues that a gateway follows, by name, and their changes where those are published."""

    def __init__(self, queues: Mapping[Queue, object]) -> None:
        """`queues`: those that are followed, now and later."""
        self._queues = queues
        self._by_name: dict[bytes, Queue] | None = (
            None  # made when it is first needed, which is never without broadcast
        )
        self.changed: Callable[[], None] | None = None  # to be called when there is something to be written down
        self.is_all_new = True  # more has changed than is kept here
        self._changes: dict[bytes, bool] = {}  # name → whether it is watched now

    def find(self, name: bytes) -> Queue | None:
        if self._by_name is None:
            self._by_name = {name_of(queue): queue for queue in self._queues}
        return self._by_name.get(name)

    def names(self) -> list[bytes]:
        """All there are: what changed before is in it."""
        self._changes.clear()
        self.is_all_new = False
        return [name_of(queue) for queue in self._queues]

    def take_changes(self) -> tuple[list[bytes], list[bytes]]:
        """What began to be watched since the last call, and what ended."""
        changes, self._changes = self._changes, {}
        began = [name for name, is_watched in changes.items() if is_watched]
        return began, [name for name, is_watched in changes.items() if not is_watched]

    def begin(self, queue: Queue) -> None:
        if self._by_name is not None:
            self._by_name[name_of(queue)] = queue
        self._note(queue, True)

    def end(self, queue: Queue) -> None:
        if self._by_name is not None:
            self._by_name.pop(name_of(queue), None)
        self._note(queue, False)

    def end_all(self) -> None:
        self._by_name = None
        self._begin_anew()

    def _note(self, queue: Queue, is_watched: bool) -> None:
        if self.changed is None or self.is_all_new:
            return
        self._changes[name_of(queue)] = is_watched
        if len(self._changes) > MOST_CHANGES:
            self._begin_anew()
        else:
            self.changed()

    def _begin_anew(self) -> None:
        self._changes.clear()
        self.is_all_new = True
        if self.changed is not None:
            self.changed()
