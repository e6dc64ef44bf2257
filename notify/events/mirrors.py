"""Mirrors: queues of a store in another process that are followed here, and which to check with it next. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lightqueue.queues._queues import Queue
from notify.events.lookup import Watched, queue_named
from store.wire import messages as wire

EVERY_S = 3.0  # a pass begins at least so long after the one before
PAGE = 1_000  # queues in one question; at most one question in 50 ms, so 100,000 queues take 5 s


@dataclass(slots=True, eq=False)
class Mirror:
    """A queue of the store that is followed here."""

    queue: Queue
    topic_filter: str
    history: bool
    spills: bool
    readers: int = 0  # here
    followed: int = 0  # number of Follows for it to the store
    floor: int = 0


class Mirrors:
    """Owner of all mirrors, by queue and by the store's ref."""

    def __init__(self) -> None:
        self.by_ref: dict[int, Mirror] = {}
        self.by_queue: dict[Queue, Mirror] = {}
        self.refs: dict[Queue, int] = {}  # without queues that are being followed again
        self.watched = Watched(self.by_queue)

    @property
    def are_all_followed(self) -> bool:
        """Whether the store knows all of them; a restarted store does not until they are followed again."""
        return len(self.refs) == len(self.by_queue)

    def follow(self, info: wire.QueueInfo, topic_filter: str, history: bool, spills: bool) -> Queue:
        """The store lets a reader here follow a queue."""
        mirror = self.by_ref.get(info.ref)
        if mirror is None:
            queue = queue_named(topic_filter, info.kind, info.next_offset)
            mirror = self.by_ref[info.ref] = Mirror(queue, topic_filter, history, spills, floor=info.position)
            self.refs[queue] = info.ref
            self.by_queue[queue] = mirror
            self.watched.begin(queue)
        mirror.readers += 1
        mirror.followed += 1
        mirror.spills = mirror.spills or spills
        return mirror.queue

    def take_over(self, ref: int, mirror: Mirror) -> None:
        """Take over a queue that another process followed; it has no reader here yet."""
        self.by_ref[ref] = mirror
        self.refs[mirror.queue] = ref
        self.by_queue[mirror.queue] = mirror
        self.watched.begin(mirror.queue)

    def unread(self) -> list[Queue]:
        """The queues that have no reader."""
        return [queue for queue, mirror in self.by_queue.items() if not mirror.readers]

    def unfollow(self, queue: Queue) -> list[int] | None:
        """Remove a reader. After the last one: the refs to tell the store, one for each follow request.

        None also of a queue that is not followed: the store has given us up, and forgot what we followed.
        """
        mirror = self.by_queue.get(queue)
        if mirror is None:
            return None
        mirror.readers -= 1
        if mirror.readers:
            return None
        del self.by_queue[queue]
        self.watched.end(queue)
        ref = self.refs.pop(queue, None)
        if ref is None:
            return []
        del self.by_ref[ref]
        return [ref] * mirror.followed

    def moved(self, floors: Iterable[tuple[Queue, int]]) -> list[tuple[int, int]]:
        """(ref, floor) of queues with a new floor."""
        moved = []
        for queue, floor in floors:
            mirror, ref = self.by_queue[queue], self.refs.get(queue)
            if floor > mirror.floor and ref is not None:
                mirror.floor = floor
                moved.append((ref, floor))
        return moved

    def follow_again(self) -> list[Mirror]:
        """All mirrors that a restarted store has to be asked for again: it has other refs now, or none."""
        mirrors = list(self.by_ref.values())
        self.by_ref.clear()
        self.refs.clear()
        return mirrors

    def followed_again(self, mirror: Mirror, ref: int) -> None:
        mirror.followed = 1
        self.by_ref[ref] = mirror
        self.refs[mirror.queue] = ref

    def clear(self) -> None:
        self.by_ref.clear()
        self.refs.clear()
        self.by_queue.clear()
        self.watched.end_all()


class Recheck:
    """Chooses what to check next: passes over all followed queues, page by page, each after the answer to the last.

    A connection loses no event unless it ends. So a check finds something only if a look-up table was wrong.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._next_s = clock() + EVERY_S
        self._left: list[int] = []
        self._is_asked = False

    def page(self, refs: Iterable[int]) -> list[int]:
        """The refs to ask about now; empty if it is not time. `refs`: all followed queues."""
        if self._is_asked:
            return []
        if not self._left:
            now_s = self._clock()
            if now_s < self._next_s:
                return []
            self._next_s = now_s + EVERY_S
            self._left = list(refs)
        page = self._left[-PAGE:]
        del self._left[-PAGE:]
        self._is_asked = bool(page)
        return page

    def answered(self) -> None:
        self._is_asked = False

    def begin_anew(self) -> None:
        """Begin again: the open question will not be answered, and the refs have changed."""
        self._is_asked = False
        self._next_s = self._clock()
        self._left.clear()
