"""A fair queue of work for clients: in turn by network, by address in a network, by user at an address. No I/O, no
clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.auth.sources import network_of

SLOW_SHARE = 4
"""While there is other work, one job in so many is from the slow lane."""
BEGUN_AT_ONCE = 16
"""Jobs begun in one turn of the loop; jobs that end as soon as they begin take time, too."""


@dataclass(slots=True, eq=False)
class Job:
    """A job that waits or runs."""

    source: str
    user: str
    begin: Callable[[], None]
    lane: Lane | None = None
    """The lane in which the job waits; None: it has begun, or was cancelled."""

    def cancel(self) -> None:
        """Remove a waiting job; one that has begun goes on."""
        if self.lane is not None:
            self.lane.remove(self)


class Ring:
    """Jobs below a path of keys; the keys of each level take turns.

    A new network or address goes first, so that a flood from others does not delay it. A new user at an address goes
    last: a real user waits longer than an attacker that tries many names.
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
        """The next job; all keys of its path then go last."""
        key, part = next(iter(self._parts.items()))
        self._parts.move_to_end(key)
        if part is not None:
            return part.next()
        assert isinstance(key, Job)
        return key


class Lane:
    """Waiting jobs. Networks take turns, in each its sources, and in each of these its users."""

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
    """Runs up to `slots` jobs at a time. Jobs of the slow lane get half of the slots at most, and fewer turns."""

    def __init__(self, slots: int, soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon` runs a function in a later turn of the loop."""
        self._slots = self._free = slots
        self._slow_free = max(1, slots // 2)
        self._soon = soon
        self._lane, self._slow_lane = Lane(), Lane()
        self._turns = 0
        self._is_beginning = False  # it is beginning jobs, or will in a later turn

    @property
    def waiting(self) -> int:
        return self._lane.waiting + self._slow_lane.waiting

    @property
    def unfinished(self) -> int:
        """Jobs that wait or have begun."""
        return self.waiting + self._slots - self._free

    def put(self, job: Job, slow: bool) -> None:
        """Begin a job, now or when its turn comes; the caller calls done() when the job ends."""
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
        """The lane that is next; None: both are empty, or no slot is free."""
        has_slow = self._slow_lane.waiting > 0 and self._slow_free > 0
        if not self._free or not (has_slow or self._lane.waiting):
            return None
        self._turns += 1
        if has_slow and (not self._lane.waiting or self._turns % SLOW_SHARE == 0):
            return self._slow_lane
        return self._lane
