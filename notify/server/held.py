"""Requests that come while a large Publish or Append is applied: reads are answered, changes wait in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from lightqueue.upkeep.applying import Applying
from store.wire import messages as wire
from store.wire import pace_messages as of_pace
from store.wire.messages import WireMessage

NEVER_HELD: frozenset[type[WireMessage]] = frozenset(
    {
        *(wire.Ping, wire.Pong, wire.Goodbye, wire.Judged, of_pace.Behind),
        *(wire.Read, wire.ReadAt, wire.Enough, wire.Floors),
        *(wire.Scan, wire.Seek, wire.Get, wire.Find),
    }
)


class HeldRequests:
    """Owner of what one connection has to wait with."""

    def __init__(self, applying: Applying, wake: Callable[[], None]) -> None:
        """`wake`: have go_on() called soon."""
        self._applying = applying
        self._wake = wake
        self._waiting: deque[Callable[[], object]] = deque()
        self.waiting: Collection[object] = self._waiting  # true if something waits, as this is

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_applying(self) -> bool:
        return self._applying.left_bytes > 0

    @property
    def is_blocked(self) -> bool:
        """Whether something waits and cannot be done yet."""
        return bool(self._waiting) and self.is_applying

    def do(self, action: Callable[[], object]) -> None:
        """At once if nothing is being applied, else afterwards, in the order of these calls."""
        if self._waiting or self.is_applying:
            self._waiting.append(action)
            self.wake_later()
        else:
            action()

    def behind(self, action: Callable[[], None]) -> None:
        """Behind what was begun just now, and in front of what waits: at once if all of that is applied.

        The owner asks to be woken in its next turn, so others who wait are woken first: a peer that never pauses cannot
        keep them waiting for ever.
        """
        if self.is_applying:
            self._waiting.appendleft(action)
        else:
            action()

    def wake_later(self) -> None:
        """Wake once nothing is being applied."""
        if self.is_applying:
            self._applying.then(self._wake)
        else:
            self._wake()

    def go_on(self) -> None:
        """Do what waited. Raises what that raises."""
        while self._waiting and not self.is_applying:
            self._waiting.popleft()()

    def clear(self) -> None:
        self._waiting.clear()
