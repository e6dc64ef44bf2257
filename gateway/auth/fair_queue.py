"""Work for clients, a few pieces at a time: in turn by network, by address there, by user there. No I/O, no clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.auth.sources import network_of

SLOW_SHARE = 4
"""While there is other work, one piece in so many is from the slow lane."""
BEGUN_AT_ONCE = 16
"""Then the loop's other business has its turn: jobs that are over as soon as they begin cost something too."""


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work that waits, or is being done."""

    source: str
    user: str
    begin: Callable[[], None]
    lane: Lane | None = None
    """Where it waits; None: it has begun, or was cancelled."""

    def cancel(self) -> None:
        """It is not wanted any more; what has begun goes on."""
        if self.lane is not None:
            self.lane.remove(self)


class Ring:
    """Jobs below a path of keys: the keys of each level have their turns.

    Of addresses, and of networks, those that have just come are first: a flood of others does not make them wait. Of
    users at one address they are last: whoever waits outlasts those who only try.
    """

    def __init__(self) -> None:
        self._parts: OrderedDict[object, Ring | None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, path: tuple[str, ...], job: Job) -> None:
        if not path:
            self._parts[job] = None
            return
        part = self._parts.get(path[0])
        if part is None:
            part = self._parts[path[0]] = Ring()
            if len(path) > 1:
                self._parts.move_to_end(path[0], last=False)
        part.add(path[1:], job)

    def remove(self, path: tuple[str, ...], job: Job) -> None:
        part = self._parts.get(path[0]) if path else None
        if part is not None:
            part.remove(path[1:], job)
        if not part:
            del self._parts[path[0] if path else job]

    def next(self) -> Job:
        """Whose turn it is; all the keys of its path come last then."""
        key, part = next(iter(self._parts.items()))
        self._parts.move_to_end(key)
        if part is not None:
            return part.next()
        assert isinstance(key, Job)
        return key


class Lane:
    """Jobs that wait. Networks have their turns, within each its sources, and within these their users."""

    def __init__(self) -> None:
        self._ring = Ring()
        self.waiting = 0

    def add(self, job: Job) -> None:
        self._ring.add(_path(job), job)
        job.lane = self
        self.waiting += 1

    def remove(self, job: Job) -> None:
        self._ring.remove(_path(job), job)
        job.lane = None
        self.waiting -= 1

    def next(self) -> Job:
        job = self._ring.next()
        self.remove(job)
        return job


def _path(job: Job) -> tuple[str, ...]:
    return network_of(job.source), job.source, job.user


class FairQueue:
    """Begins `slots` jobs at a time. Jobs of the slow lane have half of those slots at most, and few turns."""

    def __init__(self, slots: int, soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon` has something done in a later turn of the loop."""
        self._slots = self._free = slots
        self._slow_free = max(1, slots // 2)
        self._soon = soon
        self._lane, self._slow_lane = Lane(), Lane()
        self._turns = 0
        self._is_beginning = False  # or will

    @property
    def waiting(self) -> int:
        return self._lane.waiting + self._slow_lane.waiting

    @property
    def unfinished(self) -> int:
        """Jobs that wait, or have begun."""
        return self.waiting + self._slots - self._free

    def put(self, job: Job, slow: bool) -> None:
        """Have it begun, now or when it has its turn; done() is to be called once it is done."""
        (self._slow_lane if slow else self._lane).add(job)
        if not self._is_beginning:
            self._begin_some()

    def done(self, slow: bool) -> None:
        self._free += 1
        self._slow_free += slow
        if not self._is_beginning:
            self._begin_some()

    def _begin_some(self) -> None:
        self._is_beginning = True
        for _ in range(BEGUN_AT_ONCE):
            lane = self._next_lane()
            if lane is None:
                self._is_beginning = False
                return
            self._free -= 1
            self._slow_free -= lane is self._slow_lane
            lane.next().begin()
        self._soon(self._begin_some)

    def _next_lane(self) -> Lane | None:
        """Whose turn it is; None: nobody's, or there is no slot."""
        has_slow = self._slow_lane.waiting > 0 and self._slow_free > 0
        if not self._free or not (has_slow or self._lane.waiting):
            return None
        self._turns += 1
        if has_slow and (not self._lane.waiting or self._turns % SLOW_SHARE == 0):
            return self._slow_lane
        return self._lane
