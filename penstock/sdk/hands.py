"""The messages that a consumer of a group has in hand, and its verdicts on them. No I/O.

Equal verdicts of one turn of the loop are one request, or some if they are thousands. Requests outlive connections:
their owner sends them again until they have an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from penstock.sdk.errors import AlreadySettled
from store.wire import group_messages as wire
from store.wire.base import WireMessage

Place = tuple[int, int, int]  # serial, first queue_offset, number of messages


class SettledAs(NamedTuple):
    """A verdict on a message: done with (the default), or one of the others."""

    invisible_ms: int | None = None  # it is this consumer's for so long from now on
    is_retry: bool = False
    delay_ms: int | None = None  # of a retry; None: as the group's settings say
    dead: str = ""  # why it is a dead letter
    unseen: bool = False  # the program has not looked at it

    def request(self, ref: int, places: Iterable[Place]) -> WireMessage:
        receipts = [wire.Receipt(*place) for place in places]
        if self.invisible_ms is not None:
            return wire.ChangeInvisible(ref, receipts, self.invisible_ms)
        if self.is_retry or self.dead:
            return wire.Reject(ref, receipts, self.delay_ms, self.dead, self.unseen)
        return wire.Ack(ref, receipts)


ACK = SettledAs()
GIVE_BACK = SettledAs(is_retry=True, delay_ms=0, unseen=True)


class PendingVerdict:
    """One verdict on some messages: a request, and those who wait for its answer."""

    __slots__ = ("_waiting", "deadline_s", "error", "is_answered", "places", "requests", "stale", "verdict")

    def __init__(self, verdict: SettledAs, deadline_s: float) -> None:
        """`deadline_s`: until when the program waits for the answer, monotonic."""
        self.verdict = verdict
        self.deadline_s = deadline_s
        self.places: list[Place] = []  # that are not asked
        self.requests = 0  # without an answer
        self.is_answered = False
        self.stale: set[tuple[int, int]] = set()  # (serial, queue_offset) for which it was too late
        self.error: Exception | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, serial: int, first: int, number: int) -> None:
        if self.places:
            last_serial, start, count = self.places[-1]
            if last_serial == serial and start + count == first:
                self.places[-1] = serial, start, count + number
                return
        self.places.append((serial, first, number))

    def wait(self) -> asyncio.Future[None]:
        """Done once there is an answer."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def collect_parts(self, most: int) -> list[list[Place]]:
        """The places of each request to come, `most` at most."""
        places, self.places = self.places, []
        parts = [places[at : at + most] for at in range(0, len(places), most)]
        self.requests = len(parts)
        return parts

    def add_stale(self, stale: Iterable[wire.Receipt]) -> None:
        self.stale.update((serial, first + i) for serial, first, number in stale for i in range(number))

    def answered(self, stale: Iterable[wire.Receipt], error: Exception | None = None) -> None:
        self.is_answered = True
        self.error = error
        self.add_stale(stale)
        self._wake(None)

    def gave_up(self, error: Exception) -> None:
        """End the wait of the program. The verdict is sent all the same."""
        self._wake(error)

    def _wake(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)


class Answer:
    """To be awaited, or not: whether the store did as it was told.

    False: it was too late, as the messages (or one of them) are this consumer's no more; they come again, or have come
    to another. Raises TimedOut, StoreRefused or ClientClosed.
    """

    __slots__ = ("_places", "_said")

    def __init__(self, said: PendingVerdict, places: Sequence[Place]) -> None:
        self._said = said
        self._places = places

    def __await__(self) -> Generator[asyncio.Future[None], None, bool]:
        said = self._said
        if not said.is_answered:
            yield from said.wait()
        if said.error is not None:
            raise said.error
        stale = said.stale
        return not stale or not any(
            (serial, first + i) in stale for serial, first, number in self._places for i in range(number)
        )


Say = Callable[["Hand", SettledAs, Sequence[Place]], Answer]


class Hand:
    """Messages that were handed out together: from queue_offset `first` on."""

    __slots__ = ("_say", "_settled", "deliveries", "first", "left", "number", "serial", "until_s")

    def __init__(self, handed: tuple[int, int, int, int], until_s: float, say: Say) -> None:
        """`handed`: as in Popped; `until_s`: they are this consumer's until then, monotonic."""
        self.serial, self.deliveries, self.first, self.number = handed
        self.until_s = until_s
        self.left = self.number  # not settled
        self._settled = bytearray(self.number)
        self._say = say

    def settle(self, queue_offset: int, verdict: SettledAs) -> Answer:
        """Say something of one message; any verdict but extend() is the last one. Raises AlreadySettled."""
        at = queue_offset - self.first
        if self._settled[at]:
            raise AlreadySettled
        if verdict.invisible_ms is None:
            self._settled[at] = 1
            self.left -= 1
        return self._say(self, verdict, ((self.serial, queue_offset, 1),))

    def settle_rest(self, verdict: SettledAs) -> list[Place]:
        """The messages that are not settled. Any verdict but extend() settles them."""
        if self.left == self.number:
            places = [(self.serial, self.first, self.number)]
        else:
            places = [(self.serial, self.first + at, 1) for at, settled in enumerate(self._settled) if not settled]
        if verdict.invisible_ms is None:
            self._settled = bytearray(b"\1") * self.number
            self.left = 0
        return places
