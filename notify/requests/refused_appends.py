"""Refused Appends of a peer, remembered as long as the peer may not know of the refusal."""

from __future__ import annotations

from collections.abc import Iterable

from store.wire.messages import FailureCode

MOST_RANGES = 64
REFUSED_BY_DISK = (FailureCode.STORE_FULL, FailureCode.UNAVAILABLE)


class RefusedAppends:
    """Ranges of refused sequences, in order, and whether later Appends are refused as well.

    A gateway sends on before it learns that the disk is full. If one of these Appends were stored because there is room
    again, a publisher's later messages would come before those that it sends again, and a session's changes would lack
    earlier ones.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.ranges = tuple(ranges)
        """(first, last)."""
        self.stops_from = 0
        """Not 0: the sender of the next Appends may not know that this sequence was refused."""

    def has(self, sequence: int, stops: bool = False) -> bool:
        """Whether a sequence was refused, and so is again; `stops` as in add()."""
        found = bool(self.ranges) and any(first <= sequence <= last for first, last in self.ranges)
        if found and stops and not self.stops_from:
            self.stops_from = sequence
        return found

    def add(self, sequence: int, stops: bool = False) -> None:
        """Note a refused sequence; `stops`: refuse all later ones until the peer knows."""
        if stops and not self.stops_from:
            self.stops_from = sequence
        if self.ranges and self.ranges[-1][1] == sequence - 1:
            self.ranges = (*self.ranges[:-1], (self.ranges[-1][0], sequence))
        else:
            self.ranges = (*self.ranges, (sequence, sequence))

    def known(self, sequence: int) -> None:
        """Forget refusals up to this sequence, which the peer knows."""
        self.ranges = tuple((max(first, sequence + 1), last) for first, last in self.ranges if last > sequence)
        if self.stops_from <= sequence:
            self.stops_from = 0

    def lost_line(self) -> None:
        """Accept again: on the next connection the peer repeats every Append without an answer, from the first refusal
        on.
        """
        self.stops_from = 0
