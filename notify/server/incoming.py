"""Input of a peer that is not handled so far: thousands of frames in a read, of items in a frame.

And requests that come while a large Publish or Append is applied: reads are answered, changes wait in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator

from lightqueue.upkeep.applying import Applying
from store.wire import messages as wire
from store.wire import pace_messages as of_pace
from store.wire.credit import Credit
from store.wire.frames import Frame, FrameReader
from store.wire.messages import WireMessage

WORK_S = 0.001
"""For so long the frames of one peer are dealt with in one turn of the loop, in which it may be read many times."""
NEVER_HELD: frozenset[type[WireMessage]] = frozenset(
    {
        *(wire.Ping, wire.Pong, wire.Goodbye, wire.Judged, of_pace.Behind),
        *(wire.Read, wire.ReadAt, wire.Enough, wire.Floors),
        *(wire.Scan, wire.Seek, wire.Get, wire.Find),
    }
)


class Incoming:
    """Input, from which frames are read one after another. `data`: bytes that were not looked at so far; `work`: what
    is left to do of the last frame."""

    def __init__(self, reader: FrameReader, credit: Credit) -> None:
        self._reader = reader
        self._credit = credit
        self.data: deque[bytes] = deque()
        self.frames: Iterator[Frame] | None = None
        self.work: Iterator[object] | None = None
        self._began_s = self._ends_s = 0.0
        self.worked_s = 0.0  # in this turn of the loop: to be set to 0 when one begins
        self._is_first = True

    def begin(self) -> None:
        """Begin to handle frames, for what is left of WORK_S; at least one frame in a turn, or a part of one."""
        self._is_first = not self.worked_s
        self._began_s = time.perf_counter()
        self._ends_s = self._began_s + WORK_S - self.worked_s

    def end(self) -> None:
        """Stop handling frames for now."""
        self.worked_s += time.perf_counter() - self._began_s

    @property
    def has_more(self) -> bool:
        return self.frames is not None or self.work is not None or bool(self.data)

    def is_done(self) -> bool:
        """Go on with the work. Whether nothing is left of it: if not, the time is over, or a step yielded true as it
        waits for something."""
        if self.work is None:
            return True
        if not self._is_first and time.perf_counter() >= self._ends_s:
            return False
        self._is_first = False
        if any(waits or time.perf_counter() >= self._ends_s for waits in self.work):
            return False
        self.work = None
        return True

    def next_frame(self) -> Frame | None:
        """The next frame; None: no whole frame has come, or the time is over. Raises WireError."""
        if not self._is_first and time.perf_counter() >= self._ends_s:
            return None
        self._is_first = False
        while self.frames is not None or self.data:
            if self.frames is None:
                self.frames = self._reader.read(self.data.popleft())
            frame = next(self.frames, None)
            if frame is not None:
                if frame.request_id:
                    came = type(frame.message).__name__, self._ends_s - WORK_S
                    self._credit.take(frame.request_id, frame.size_bytes, came)
                return frame
            self.frames = None
        return None

    def clear(self) -> None:
        self.data.clear()
        self.frames = self.work = None


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
        """Do something at once, or if records are being applied then after that, in the order of these calls."""
        if self._waiting or self.is_applying:
            self._waiting.append(action)
            self.wake_later()
        else:
            action()

    def behind(self, action: Callable[[], None]) -> None:
        """After what was begun just now, and in front of what waits: at once if all of that is applied.

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
