"""Messages that were stored before, and then those that come: read ahead of the program, within a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from penstock.sdk.errors import ClientError
from penstock.sdk.link import ClientLink
from penstock.sdk.message import Batch, Message
from penstock.sdk.positions import Position, where
from store.wire import messages as wire
from store.wire.client.requests import Outcome, PendingRequest
from store.wire.frames import Frame

ANSWER_BYTES = 1 << 20
AHEAD_BYTES = 4 << 20  # that were read and that the program has not taken
NO_END = (1 << 63) - 1


class Reading:
    """The stored messages that Client.read() returns: iterate over it, or over its batches(), once.

    The next part is asked for when the last one has come, so the store reads while messages are looked at here.
    """

    def __init__(
        self, link: ClientLink, topic_filter: str, start: Position, stop: Position | None, tag: str = ""
    ) -> None:
        self._link = link
        self._topic_filter = topic_filter
        self._tag = tag
        self._wheres = [where(start)] + ([] if stop is None else [where(stop)])
        self._next = 0  # log_offset from which on to ask
        self._stop = NO_END
        self._batches: deque[Batch] = deque()
        self._ahead_bytes = 0
        self.most_ahead_bytes = AHEAD_BYTES
        """Nothing more is asked for while so much was read and nobody has taken it."""
        self._request: PendingRequest | None = None
        self._ref: int | None = None  # of the queue that says that something came, where there is no end
        self._has_grown = False
        self._is_complete = False
        self._is_closed = False
        self._error: Exception | None = None
        self._came = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncGenerator[Message, None]:
        async for batch in self.batches():
            for message in batch:
                yield message

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """The same messages, as they come from the store: some thousand at a time, each decoded when it is looked at.

        Raises a ClientError.
        """
        self._seek(0, 0)
        try:
            while True:
                while self._batches:
                    batch = self._batches.popleft()
                    self._ahead_bytes -= len(batch.records)
                    self._scan()
                    yield batch
                if self._error is not None:
                    raise self._error
                if self._is_complete:
                    return
                self._came.clear()
                await self._came.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Nothing more is wanted. The store counts who follows a queue, so it is told once."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._request is not None:
            self._link.requests.drop(self._request)
        if self._ref is not None:
            self._link.requests.tell_first(wire.Unfollow([self._ref]))
        self._link.readings.discard(self)

    # --- asking

    def _ask(self, message: wire.WireMessage, answered: Callable[[wire.WireMessage, Frame], None]) -> None:
        def received(outcome: Outcome, frame: Frame) -> None:
            self._request = None
            if isinstance(outcome, Exception):
                self.fail(outcome)
            else:
                answered(outcome, frame)

        self._request = self._link.requests.ask(message, received)

    def _seek(self, number: int, start: int) -> None:
        """Find where to begin (0) and where to stop (1)."""
        if number == len(self._wheres):
            self._link.readings.add(self)
            self._scan()
            return

        def sought(answer: wire.WireMessage, _: Frame) -> None:
            assert isinstance(answer, wire.Sought)
            if not answer.found:
                self._seek(number, answer.log_offset)
                return
            if number == 0:
                self._next = answer.log_offset
            else:
                self._stop = answer.log_offset
            self._seek(number + 1, 0)

        self._ask(wire.Seek(self._topic_filter, self._wheres[number], start), sought)

    def _scan(self) -> None:
        """Ask for more, if there may be more and there is room for it."""
        is_waiting = self._request is not None or self._is_complete or self._is_closed
        if is_waiting or self._error is not None or self._ahead_bytes >= self.most_ahead_bytes:
            return
        if self._next >= self._stop:
            self._complete()
            return
        if self._ref is not None:
            if not self._has_grown:
                return
            self._has_grown = False
        self._ask(wire.Scan(self._topic_filter, self._next, self._stop, ANSWER_BYTES, self._tag), self._scanned)

    def _scanned(self, answer: wire.WireMessage, frame: Frame) -> None:
        assert isinstance(answer, wire.Scanned)
        self._next = answer.next
        if answer.count:
            self._batches.append(Batch(frame.records, answer.count, answer.queue_offset, self._link.place))
            self._ahead_bytes += len(frame.records)
            self._came.set()
        if answer.next < answer.log_end:
            self._has_grown = True
        elif self._stop == NO_END and self._ref is None:
            self._follow()
            return
        self._scan()

    def _complete(self) -> None:
        self._is_complete = True
        self._came.set()

    # --- what comes

    def _follow(self) -> None:
        """Be told when there is more."""

        def following(answer: wire.WireMessage, _: Frame) -> None:
            assert isinstance(answer, wire.Following)
            self._ref = answer.queues[0].ref
            self._has_grown = True  # what came since
            self._scan()

        self._ask(wire.Follow(self._topic_filter, False, -1, False), following)

    def grew(self, refs: set[int]) -> None:
        """These queues have more."""
        if self._ref in refs:
            self._has_grown = True
            self._scan()

    def reconnected(self) -> None:
        """Another connection, perhaps to another process: follow it again."""
        if self._ref is not None:
            self._link.requests.tell_first(wire.Unfollow([self._ref]))
            self._ref = None
            if self._request is None:
                self._follow()

    def tick(self) -> None:
        """It has no time limit of its own."""

    def fail(self, error: Exception) -> None:
        self._error = error if isinstance(error, ClientError) else ClientError(str(error))
        self._came.set()
