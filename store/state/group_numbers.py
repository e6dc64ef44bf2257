"""Translation of a consumer group's queue_offsets if messages of its queue are lost: rules without I/O.

A record names messages by queue_offset. A queue that is built again from a log with gaps has fewer entries, and what
follows a gap lies lower than the records say. How much is told by a record that says where the queue ended then.
"""

from __future__ import annotations

import msgspec


class Numbers(msgspec.Struct, array_like=True):
    """The gaps in one group's queue, by the queue_offsets that it has now."""

    first_gap: int  # what lies before it is where the records say
    last_gap: int
    shift: int | None = None  # so many are lost of it altogether, as of the newest record; None: unknown

    def cross(self, at: int) -> None:
        """Add a gap."""
        self.last_gap = at
        self.shift = None

    def learn(self, said: int, end: int) -> None:
        """A record says that its queue ended at `said`, and it ends at `end`."""
        self.shift = said - end

    def lowest(self, queue_offset: int) -> int:
        """The present queue_offset of a message that a record names; if it is not sure, one before it."""
        if self.shift is not None and self.shift < 0:  # the queue was begun anew, and that is lost
            return queue_offset - self.shift
        if queue_offset <= self.first_gap:
            return queue_offset
        return self.first_gap if self.shift is None else max(self.first_gap, queue_offset - self.shift)

    def is_sure(self, queue_offset: int) -> bool:
        """Whether lowest() is the very place, also of all that follow."""
        return self.shift is not None and (self.shift <= 0 or queue_offset - self.shift >= self.last_gap)
