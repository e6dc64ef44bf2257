"""Messages of a group as a consumer gets them: it says of each what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.sdk.group_options import Duration, milliseconds, why_dead
from penstock.sdk.hands import ACK, Answer, Hand, SettledAs
from penstock.sdk.message import Batch, Message, RecordTuple
from penstock.sdk.message_id import StorePlace
from store.records.record_bytes import walk


class Settling:
    """The verdicts on one message, or on all messages of a batch that have none.

    It goes out at the end of this turn of the loop, with all that is said in it. Await the answer where it matters; it
    is True if the store did so and has it in its log.
    """

    __slots__ = ()

    def _say(self, verdict: SettledAs) -> Answer:
        raise NotImplementedError

    def ack(self) -> Answer:
        """Done with: once that is answered with True, it never comes again."""
        return self._say(ACK)

    def retry(self, after: Duration | None = None) -> Answer:
        """Deliver it again, to any consumer that is free: after a timedelta or seconds; None: as the group says."""
        return self._say(SettledAs(is_retry=True, delay_ms=None if after is None else milliseconds("after", after, 0)))

    def reject(self, why: str = "rejected") -> Answer:
        """It is of no use: a dead letter, published to `$dead/GROUP/TOPIC` with the reason."""
        return self._say(SettledAs(dead=why_dead(why)))

    def extend(self, invisible: Duration) -> Answer:
        """Keep it for this consumer for so long from now on: a timedelta, or seconds."""
        return self._say(SettledAs(invisible_ms=milliseconds("invisible", invisible)))


class Delivery(Settling, Message):
    """A message that was handed out to this consumer."""

    __slots__ = ("_at", "_hand")

    def __init__(self, record: RecordTuple, queue_offset: int | None, store: StorePlace, hand: Hand, at: int) -> None:
        super().__init__(record, queue_offset, store)
        self._hand = hand
        self._at = at  # queue_offset in the group's queue

    @property
    def group_offset(self) -> int:
        """Its place in the group's queue: a redelivered message has the same, until the group is reset."""
        return self._at

    @property
    def deliveries(self) -> int:
        """How often it has been handed out, this time included."""
        return self._hand.deliveries

    def _say(self, verdict: SettledAs) -> Answer:
        return self._hand.settle(self._at, verdict)


SayOfAll = Callable[[Sequence[Hand], SettledAs], Answer]


class Deliveries(Settling, Batch):
    """Messages that were handed out together; len() is known, and each is decoded when it is iterated over."""

    __slots__ = ("_has_offsets", "_say_of_all", "hands")

    def __init__(
        self, records: memoryview, hands: list[Hand], has_offsets: bool, store: StorePlace, say: SayOfAll
    ) -> None:
        """`has_offsets`: the group's queue is that of one topic."""
        super().__init__(records, sum(hand.number for hand in hands), -1, store)
        self.hands = hands
        self._has_offsets = has_offsets
        self._say_of_all = say

    def __iter__(self) -> Iterator[Delivery]:
        records = walk(self.records)
        has_offsets, store = self._has_offsets, self._store
        for hand in self.hands:
            for at, record in zip(range(hand.first, hand.first + hand.number), records):  # noqa: B905 records go on
                yield Delivery(record, at if has_offsets else None, store, hand, at)

    def _say(self, verdict: SettledAs) -> Answer:
        return self._say_of_all(self.hands, verdict)
