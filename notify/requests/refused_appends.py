"""Which Appends of a peer were refused, as long as the peer may not know of that."""

from __future__ import annotations

from collections.abc import Iterable

from store.wire.messages import FailureCode

MOST_RANGES = 64
REFUSED_BY_DISK = (FailureCode.STORE_FULL, FailureCode.UNAVAILABLE)


class RefusedAppends:
    """Ranges of sequences, in order; and whether what follows is refused as well.

    A gateway sends on before it hears that the disk is full. Were one of these Appends stored, because there is room
    again by then, then a publisher's later messages would stand before those that it sends again, and what is said of a
    session would be without what was said before.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)
        """(first, last)."""
        self.stops_from = 0
        """Not 0: what comes now was sent by a peer that may not have heard that this sequence was refused."""

    def has(self, sequence: int, stops: bool = False) -> bool:
        """Whether it was refused, and so is again; `stops` as in add()."""
        found = bool(self.ranges) and any(first <= sequence <= last for first, last in self.ranges)
        if found and stops and not self.stops_from:
            self.stops_from = sequence
        return found

    def add(self, sequence: int, stops: bool = False) -> None:
        """`stops`: until the peer knows of it, what follows is refused."""
        if stops and not self.stops_from:
            self.stops_from = sequence
        if self.ranges and self.ranges[-1][1] == sequence - 1:
            self.ranges = (*self.ranges[:-1], (self.ranges[-1][0], sequence))
        else:
            self.ranges = (*self.ranges, (sequence, sequence))

    def known(self, sequence: int) -> None:
        """The peer knows of every refusal up to this sequence."""
        self.ranges = tuple((max(first, sequence + 1), last) for first, last in self.ranges if last > sequence)
        if self.stops_from <= sequence:
            self.stops_from = 0

    def lost_line(self) -> None:
        """On the next one the peer sends again whatever it has no answer to, from the first refusal on."""
        self.stops_from = 0
