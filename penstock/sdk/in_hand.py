"""The messages that a consumer of a group has in hand: those that the program has taken, and those that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from penstock.sdk.delivery import Deliveries, Delivery, SayOfAll
from penstock.sdk.hands import GIVE_BACK, Hand, Place


class MessagesInHand:
    """Owner of the messages that came from the store and have no last verdict."""

    def __init__(self, say_of_all: SayOfAll) -> None:
        """`say_of_all`: gives the store one verdict on what is not settled of some hands."""
        self.unsettled = 0
        self.buffered = 0
        """So many wait in batches of which the program has taken none."""
        self._say_of_all = say_of_all
        self._buffer: deque[Deliveries] = deque()
        self._rest: deque[Delivery] = deque()  # of the batch that is being iterated over, perhaps by another thread
        self._hands: dict[Hand, None] = {}

    @property
    def has_rest(self) -> bool:
        """Whether messages of the batch that is being iterated over are not taken."""
        return bool(self._rest)

    @property
    def has_untaken(self) -> bool:
        """Whether any message waits for the program."""
        return bool(self._rest or self._buffer)

    def came(self, batch: Deliveries) -> None:
        """Count messages that came from the store. They are buffered, or given back."""
        self._hands.update(dict.fromkeys(batch.hands))
        self.unsettled += len(batch)

    def buffer(self, batch: Deliveries) -> None:
        """Keep messages until the program takes them."""
        self._buffer.append(batch)
        self.buffered += len(batch)

    def next_batch(self, now_s: float) -> Deliveries | None:
        """The next batch for the program; None: there is none. What waited here for too long is given back."""
        while self._buffer:
            batch = self._buffer.popleft()
            self.buffered -= len(batch)
            if now_s < until_s(batch):
                return batch
            self._say_of_all(batch.hands, GIVE_BACK)
        return None

    def begin(self, batch: Deliveries) -> None:
        """Have rest() give the messages of a batch one by one."""
        self._rest.extend(batch)

    def rest(self) -> Iterator[Delivery]:
        """The messages of the batch that was begun, each once, whoever iterates."""
        take = self._rest.popleft
        with suppress(IndexError):
            while True:
                yield take()

    def give_back(self) -> None:
        """Give messages that the program has not taken to other consumers. This delivery of them does not count."""
        for delivery in self.rest():
            delivery._say(GIVE_BACK)
        for batch in self._buffer:
            self._say_of_all(batch.hands, GIVE_BACK)
        self._buffer.clear()
        self.buffered = 0

    def settled(self, hand: Hand, places: Sequence[Place]) -> bool:
        """Messages of a hand have their last verdict. False: the hand was forgotten, so nothing changes."""
        if hand not in self._hands:
            return False
        self.unsettled -= sum(number for _, _, number in places)
        if not hand.left:
            del self._hands[hand]
        return True

    def forget_late(self, now_s: float) -> None:
        """Forget messages that are no longer this consumer's: no verdict on them will come."""
        for hand in [hand for hand in self._hands if hand.until_s <= now_s]:
            del self._hands[hand]
            self.unsettled -= hand.left


def until_s(batch: Deliveries) -> float:
    """Until when all messages of a batch are this consumer's, monotonic."""
    return min(hand.until_s for hand in batch.hands)
