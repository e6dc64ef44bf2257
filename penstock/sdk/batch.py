"""Messages of one topic that are stored together, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, Unpack

from penstock.sdk.errors import BatchRefused
from penstock.sdk.message import Receipt
from penstock.sdk.outgoing import Outgoing, PublishLater

DEAD_LETTERS = "$dead/"

Make = Callable[[str, bytes | str, PublishLater], Outgoing]
Publish = Callable[[list[Outgoing]], Awaitable[list[Receipt]]]


class BatchOfOneTopic:
    """What Client.batch() gives."""

    def __init__(self, make: Make, publish: Publish, most_bytes: int) -> None:
        self._make = make
        self._publish = publish
        self._most_bytes = most_bytes
        self._messages: list[Outgoing] = []
        self._size_bytes = 0
        self._is_over = False
        self.receipts: list[Receipt] = []
        """One for each message, in their order, once the block has ended."""

    def __len__(self) -> int:
        return len(self._messages)

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> None:
        """Add a message. Raises BadMessage; BatchRefused for another topic or `wait` than the first one's."""
        if self._is_over:
            raise BatchRefused("this batch was sent, or given up, when its block ended; begin another one")
        message = self._make(topic, payload, options)
        self._check(message)
        self._messages.append(message)
        self._size_bytes += len(message.record)

    def _check(self, message: Outgoing) -> None:
        first = self._messages[0] if self._messages else message
        if message.due_ms is not None:
            raise BatchRefused("a batch takes no delayed message; publish() that by itself")
        if message.topic.startswith(DEAD_LETTERS):
            raise BatchRefused(f"{message.topic!r} is for what a consumer group gives up, and in no batch")
        if message.topic != first.topic:
            raise BatchRefused(
                f"a batch has one topic: {first.topic!r}, and not {message.topic!r} as well; use a batch for each, or "
                "Client(autobatch=True), which sorts them"
            )
        if message.wait is not first.wait:
            raise BatchRefused("a batch is stored as one, so all its messages need the same `wait`")
        if self._size_bytes + len(message.record) > self._most_bytes:
            raise BatchRefused(
                f"a batch has at most {self._most_bytes} bytes here; send it as several, or raise wire.max_frame_bytes"
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._is_over = True
        if kind is None and self._messages:
            self.receipts = await self._publish(self._messages)
