"""What a consumer group is made of: messages that were handed out together, who has them, how far a lane was dealt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Hand:
    """Messages that were handed out together, or wait together for a retry (`serial` 0)."""

    __slots__ = ("consumer", "deliveries", "due_ms", "is_ready", "left", "offsets", "partition", "serial")

    def __init__(self, offsets: Sequence[int], partition: int, serial: int, deliveries: int, due_ms: int) -> None:
        self.offsets = offsets  # those that are another Hand's by now, or settled, among them
        self.left = len(offsets)
        self.partition = partition
        self.serial = serial
        self.deliveries = deliveries
        self.due_ms = due_ms
        self.is_ready = False  # to be handed out again
        self.consumer: Consumer | None = None


class Consumer:
    """Somebody who is given messages."""

    def __init__(self) -> None:
        self.hands: dict[Hand, None] = {}
        self.partitions: list[int] = []

    @property
    def in_flight(self) -> int:
        """How many messages it has."""
        return sum(hand.left for hand in self.hands)


class Lane:
    """How far the queue was looked through for one partition, and what was found but not handed out so far."""

    def __init__(self, next_offset: int) -> None:
        self.next = next_offset
        self.parked: deque[int] = deque()
        self.out: int | None = None  # of an ordered group: what has to be settled first

    @property
    def position(self) -> int:
        """Everything of this partition before it was handed out."""
        return self.parked[0] if self.parked else self.next
