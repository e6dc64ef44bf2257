"""Messages on their way from the threads that publish them to the thread of the connection, and their receipts back.

There is no task and no asyncio.Future. The loop takes all messages that are there with one wake-up, and sends them in
the same turn; of a receipt its thread is told by a bell. Messages are sent in the order in which they are handed over.
One for which there is no room waits at the loop, and so do all after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from penstock.sdk import bell
from penstock.sdk.client import Client
from penstock.sdk.errors import ClientClosed, ClientError
from penstock.sdk.loop_thread import LoopThread
from penstock.sdk.message import Receipt
from penstock.sdk.outgoing import Outgoing


class Receiver(Protocol):
    """Who gets the receipt of a message."""

    @property
    def is_wanted(self) -> bool:
        """Whether the message will be sent, if it has not been yet."""

    def done(self, outcome: Receipt | Exception) -> None:
        """Called once, by the loop's thread, or by the one that closes the client."""


class Waiter:
    """A thread that waits for the receipt of one message."""

    __slots__ = ("_bell", "_outcome", "is_wanted")
    _outcome: Receipt | Exception

    def __init__(self) -> None:
        self.is_wanted = True
        self._bell = bell.borrow()

    def done(self, outcome: Receipt | Exception) -> None:
        self._outcome = outcome
        self._bell.ring()

    def wait(self) -> Receipt:
        """Raises what the message came to, if that is an error."""
        try:
            self._bell.wait()
        except BaseException:  # Ctrl-C, for one: the program does not wait any more
            self.is_wanted = False
            raise
        bell.give_back(self._bell)
        outcome = self._outcome
        if isinstance(outcome, Exception):
            try:
                raise outcome
            finally:
                del outcome, self._outcome  # the traceback, which the error has, has this frame
        return outcome


class HandedOver(NamedTuple):
    """A message, and who gets its receipt."""

    message: Outgoing
    receiver: Receiver


class Handover:
    """Owner of the messages that have not come to the client yet. hand() is for any thread, the rest for the loop's."""

    def __init__(self, thread: LoopThread, client: Client) -> None:
        self._thread = thread
        self._client = client
        self._coming: deque[HandedOver] = deque()
        self._held: deque[HandedOver] = deque()  # until there is room
        self._letting_in: asyncio.Task[None] | None = None
        client.expects_next = False
        thread.listen(self)

    def hand(self, message: Outgoing, receiver: Receiver) -> None:
        """Have it sent. Raises ClientClosed, OfParentProcess."""
        self._coming.append(HandedOver(message, receiver))
        self._thread.ring()

    def rung(self) -> None:
        """Put what has come to the client. The loop's thread calls it."""
        if self._coming:
            self._client.at_once(self._put_all)

    def _put_all(self) -> None:
        while self._coming:
            handed = self._coming.popleft()
            if self._held or not self._client.room.has(len(handed.message.record)):
                self._held.append(handed)
                if self._letting_in is None:
                    self._letting_in = asyncio.get_running_loop().create_task(self._let_in())
            else:
                self._put(handed)

    def _put(self, handed: HandedOver) -> None:
        if not handed.receiver.is_wanted:
            handed.receiver.done(ClientError("it was cancelled"))
            return
        try:
            self._client.put(handed.message, handed.receiver.done)
        except ClientClosed as error:
            handed.receiver.done(error)

    async def _let_in(self) -> None:
        while self._held:
            await self._client.room.wait_for(len(self._held[0].message.record))
            self._put(self._held.popleft())
        self._letting_in = None

    def closed(self) -> None:
        """The loop has ended: what it did not take is not sent."""
        for handed in (*self._held, *self._coming):
            handed.receiver.done(ClientClosed())
