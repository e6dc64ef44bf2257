"""The look-up of watched queues, by which a store tells gateways that a queue grew. No I/O.

A store always knows the followers of its queues, because they told it. A Lookup says for which gateways that is not
enough: these are told of every queue that grows (broadcast), and select by name the queues that they follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from lightqueue.queues._queues import LEVEL, Queue
from lightqueue.queues.table import level_of

MOST_WATCHED = 1_000_000  # queues of one gateway; a gateway that watches more is told of every queue
MOST_CHANGES = 10_000  # that wait to be written; with more of them everything is written again
MOST_LEASE_MS = 60_000


def queue_named(topic_filter: str, kind: int, next_offset: int) -> Queue:
    """A queue of the store in another process, under its name there."""
    level = level_of(topic_filter) if kind == LEVEL else None
    return Queue((topic_filter if level is None else level).encode(), kind, 0, next_offset)


def name_of(queue: Queue) -> bytes:
    """The name of a queue between processes: its kind as a digit, and its name."""
    return b"%d%b" % (queue.kind, queue.name)


class Lookup(Protocol):
    """The look-up for a Hub, beyond the followers of a queue."""

    def knows(self, gateway: str) -> bool:
        """True if the queues that a gateway watches are known; otherwise it is told of every queue."""

    def watchers(self, name: bytes) -> Iterable[str]:
        """Gateways that are known to watch a queue."""


class Broadcast:
    """A Lookup without any knowledge."""

    def knows(self, _: str) -> bool:
        return False

    def watchers(self, _: bytes) -> Iterable[str]:
        return ()


# --- a table that is kept elsewhere


class WatchChange(Struct, array_like=True, frozen=True):
    """A gateway's change of its entry: the lease is `lease_ms` from now (0: the entry is gone), these queues in and
    out.
    """

    gateway: Annotated[str, Meta(max_length=256)]
    lease_ms: Annotated[int, Meta(ge=0, le=MOST_LEASE_MS)]
    began: list[bytes] = []
    ended: list[bytes] = []


@dataclass(slots=True)
class _Entry:
    """The queues that one gateway watches, and the end of its lease."""

    watched: set[bytes]
    until_s: float


class Table:
    """A Lookup: a store's copy of the entries that gateways wrote. Expired and unread entries are unknown."""

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
        """Forget expired entries."""
        now_s = self._clock()
        for gateway in [gateway for gateway, entry in self._entries.items() if entry.until_s <= now_s]:
            del self._entries[gateway]

    def clear(self) -> None:
        """Forget everything: changes may have been missed."""
        self._entries.clear()


# --- the queues of one gateway


class WatchWriter(Protocol):
    """The writer of the list of queues that a gateway watches."""

    def watches_changed(self) -> None:
        """Note that the watched queues have changed, so that the changes are written."""


class Watched:
    """The queues that a gateway follows, by name, and their changes where those are published."""

    def __init__(self, queues: Mapping[Queue, object]) -> None:
        """`queues`: the followed queues, now and later."""
        self._queues = queues
        self._by_name: dict[bytes, Queue] | None = None  # made when first needed: only with broadcast
        self._writer: WatchWriter | None = None
        self.is_all_new = True  # more has changed than is kept here
        self._changes: dict[bytes, bool] = {}  # name → whether it is watched now

    def written_by(self, writer: WatchWriter) -> None:
        """Set `writer`, which publishes all watched queues now, and their changes from now on."""
        self._writer = writer

    def find(self, name: bytes) -> Queue | None:
        if self._by_name is None:
            self._by_name = {name_of(queue): queue for queue in self._queues}
        return self._by_name.get(name)

    def names(self) -> list[bytes]:
        """All names; earlier changes are included."""
        self._changes.clear()
        self.is_all_new = False
        return [name_of(queue) for queue in self._queues]

    def collect_changes(self) -> tuple[list[bytes], list[bytes]]:
        """The names that were added and removed since the last call."""
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
        if self._writer is None or self.is_all_new:
            return
        self._changes[name_of(queue)] = is_watched
        if len(self._changes) > MOST_CHANGES:
            self._begin_anew()
        else:
            self._writer.watches_changed()

    def _begin_anew(self) -> None:
        self._changes.clear()
        self.is_all_new = True
        if self._writer is not None:
            self._writer.watches_changed()
