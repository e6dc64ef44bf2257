"""Messages of one topic that are stored together, or not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import accumulate, count, repeat
from types import TracebackType
from typing import NamedTuple, Self, Unpack

from penstock.sdk.errors import BatchRefused
from penstock.sdk.message import Receipt
from penstock.sdk.message_id import StorePlace
from penstock.sdk.outgoing import Outgoing, PublishLater
from store.records.record_bytes import plain_messages, walk
from store.wire.messages import Published, Wait

DEAD_LETTERS = "$dead/"
RECORD_BYTES = 40  # of a record, besides what it consists of


class Whole(NamedTuple):
    """Messages of one topic in log format, one after the other, and how long each is."""

    topic: str
    records: bytes
    sizes: list[int]
    wait: Wait

    def receipts(self, published: Published, place: StorePlace) -> list[Receipt]:
        """Where each of them is: one after the other, and so in its queue."""
        log_offsets = accumulate(self.sizes[:-1], initial=published.log_offset)
        first = published.queue_offsets[0] if published.queue_offsets else -1
        queue_offsets: Iterable[int | None] = count(first) if first >= 0 else repeat(None)
        return list(map(Receipt, repeat(place), repeat(self.topic), log_offsets, queue_offsets))


Make = Callable[[str, bytes | str, PublishLater], Outgoing]
Publish = Callable[[Whole], Awaitable[list[Receipt]]]


def plain_head(make: Make, topic: str) -> tuple[bytes, int]:
    """The topic in the log, and the flags, of messages of a topic that have nothing else besides a payload."""
    ((_, _, _, _, flags, name, *_),) = walk(make(topic, b"", {}).record)
    return name, flags


class BatchOfOneTopic:
    """Messages that are published together: see Client.batch()."""

    def __init__(self, make: Make, publish: Publish, most_bytes: int, most_plain_bytes: int = 0) -> None:
        """`most_plain_bytes`: payloads up to this are stored as they are."""
        self._make = make
        self._publish = publish
        self._most_bytes = most_bytes
        self._most_plain_bytes = most_plain_bytes
        self._first: Outgoing | None = None
        self._parts: list[bytes] = []
        self._plain: list[bytes] = []  # payloads of messages after those that have nothing else
        self._plain_topic = ""  # of such a message: then it is made with many others
        self._plain_head = (b"", 0)  # its topic, and its flags
        self._sizes: list[int] = []
        self._size_bytes = 0
        self._is_over = False
        self.receipts: list[Receipt] = []
        """One for each message, in their order, once the block has ended."""

    def __len__(self) -> int:
        return len(self._sizes)

    def publish(self, topic: str, payload: bytes | str = b"", **options: Unpack[PublishLater]) -> None:
        """Add a message. Raises BadMessage; BatchRefused for another topic or `wait` than the first one's."""
        if self._is_over:
            raise BatchRefused("this batch was sent, or given up, when its block ended; begin another one")
        if topic == self._plain_topic and not options and type(payload) is bytes:
            size_bytes = RECORD_BYTES + len(self._plain_head[0]) + len(payload) + 7 & ~7
            if len(payload) <= self._most_plain_bytes and self._size_bytes + size_bytes <= self._most_bytes:
                self._plain.append(payload)
                self._add(size_bytes)
                return
        if topic.startswith(DEAD_LETTERS):
            raise BatchRefused(f"{topic!r} is for what a consumer group gives up, and in no batch")
        message = self._make(topic, payload, options)
        self._check(message)
        self._end_plain()
        self._parts.append(message.record)
        self._add(len(message.record))
        if self._first is None:
            self._first = message
        if not options and topic != self._plain_topic:
            self._plain_topic, self._plain_head = topic, plain_head(self._make, topic)

    def _add(self, size_bytes: int) -> None:
        self._sizes.append(size_bytes)
        self._size_bytes += size_bytes

    def _end_plain(self) -> None:
        if self._plain:
            self._parts.append(plain_messages(self._plain, *self._plain_head))
            self._plain = []

    def _check(self, message: Outgoing) -> None:
        first = self._first or message
        if message.due_ms is not None:
            raise BatchRefused("a batch takes no delayed message; publish() that by itself")
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
        if kind is None and self._first is not None:
            self._end_plain()
            whole = Whole(self._first.topic, b"".join(self._parts), self._sizes, self._first.wait)
            self.receipts = await self._publish(whole)
