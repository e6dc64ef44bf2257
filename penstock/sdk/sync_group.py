"""A consumer of a group for programs without asyncio: its messages, and the verdicts on them. Every call waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from penstock.sdk.delivery import Deliveries as AsyncDeliveries
from penstock.sdk.delivery import Delivery as AsyncDelivery
from penstock.sdk.group_options import Duration
from penstock.sdk.hands import Answer
from penstock.sdk.loop_thread import LoopThread
from penstock.sdk.message import Message
from penstock.sdk.subscription import Subscription as AsyncSubscription


def _say(thread: LoopThread, say: Callable[[], Answer], wait: bool) -> bool:
    """Send an answer about messages of a group to the store."""
    if not wait:
        thread.soon(say)
        return True

    async def answered() -> bool:
        return await say()

    return thread.call(answered())


class _Settled:
    """The answers to a message, or to a batch: see penstock.sdk.delivery.Settling.

    Each method waits for the store: True if the store has done it; False if it was too late. With wait=False it does
    not wait, and returns True; such answers are sent together.
    """

    __slots__ = ()
    _thread: LoopThread
    _said_of: AsyncDelivery | AsyncDeliveries

    def ack(self, wait: bool = True) -> bool:
        """The message is processed: once the store has answered, it is never delivered again."""
        return _say(self._thread, self._said_of.ack, wait)

    def retry(self, after: Duration | None = None, wait: bool = True) -> bool:
        """Deliver it again, to any free consumer, after a while (a timedelta, or seconds); None: as the group
        is set.
        """
        return _say(self._thread, lambda: self._said_of.retry(after), wait)

    def reject(self, why: str = "rejected", wait: bool = True) -> bool:
        """The message cannot be processed: it becomes a dead letter, published to `$dead/GROUP/TOPIC` with
        the reason.
        """
        return _say(self._thread, lambda: self._said_of.reject(why), wait)

    def extend(self, invisible: Duration, wait: bool = True) -> bool:
        """Keep it for this consumer for so long from now on: a timedelta, or seconds."""
        return _say(self._thread, lambda: self._said_of.extend(invisible), wait)


class Delivery(_Settled, Message):
    """A message that was delivered to this consumer."""

    __slots__ = ("_said_of", "_thread")
    _said_of: AsyncDelivery

    def __init__(self, thread: LoopThread, delivery: AsyncDelivery) -> None:
        super().__init__(delivery._record, delivery.queue_offset, delivery._store)
        self._thread = thread
        self._said_of = delivery

    @property
    def deliveries(self) -> int:
        """How often it has been delivered, this time included."""
        return self._said_of.deliveries


class Deliveries(_Settled):
    """Messages that were delivered together; len() is known, and each is decoded when it is iterated over."""

    __slots__ = ("_said_of", "_thread")
    _said_of: AsyncDeliveries

    def __init__(self, thread: LoopThread, batch: AsyncDeliveries) -> None:
        self._thread = thread
        self._said_of = batch

    def __len__(self) -> int:
        return len(self._said_of)

    def __iter__(self) -> Iterator[Delivery]:
        return (Delivery(self._thread, delivery) for delivery in self._said_of)

    def payloads(self) -> Iterator[bytes]:
        """The payloads alone."""
        return self._said_of.payloads()


class Subscription:
    """The result of Client.subscribe(): iterate over it, or over its batches(); it ends with the `with` block.

    Without `with` it ends with the loop. Messages not acknowledged by then go to other consumers at once.
    """

    def __init__(self, thread: LoopThread, subscription: AsyncSubscription) -> None:
        self._thread = thread
        self._subscription = subscription

    def __enter__(self) -> Self:
        self._thread.call(self._subscription.__aenter__())
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    @property
    def lacks_history(self) -> bool:
        """Whether it made its group, and what was stored before is not in it; see penstock.Subscription."""
        return self._subscription.lacks_history

    def close(self) -> None:
        """Return the messages in hand to the group."""
        self._thread.call(self._subscription.aclose())

    def stop(self) -> None:
        """End the loops over it after the current message; from any thread, or from a signal handler."""
        self._subscription.stop()

    def __iter__(self) -> Iterator[Delivery]:
        for portion in self._thread.iterate(self._subscription.portions()):
            for delivery in portion:
                yield Delivery(self._thread, delivery)

    def batches(self) -> Iterator[Deliveries]:
        """The same messages as they come from the store, each decoded when it is read; to be acknowledged together."""
        for batch in self._thread.iterate(self._subscription.batches()):
            yield Deliveries(self._thread, batch)
