"""Messages of any topics, in as few Publishes as they fit into."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple, cast

from penstock.sdk.batch import DEAD_LETTERS, RECORD_BYTES, Make, plain_head
from penstock.sdk.errors import BadMessage, ClientError, NotAllStored, NotPermitted
from penstock.sdk.message import Receipt
from penstock.sdk.message_id import StorePlace
from penstock.sdk.outgoing import Outgoing, PublishLater, PublishOptions
from penstock.sdk.publishing import FLAGS_AT, KEPT, changes_of, in_runs
from store.records.record_bytes import plain_messages_of
from store.records.records import TOPIC_UNIT_BYTES
from store.wire.messages import Published, Wait

TOPICS_REMEMBERED = 10_000
PACKS_AT_ONCE = 8  # without an answer

ToPublish = tuple[str, bytes | str] | tuple[str, bytes | str, PublishOptions]
"""A message: topic, payload, and a dict of what publish() takes as named options."""


class Pack(NamedTuple):
    """Messages in log format, one after the other, that are one Publish."""

    topics: list[str]  # of each
    sizes: list[int]  # of each, in bytes
    records: bytes
    wait: Wait

    def receipts(self, published: Published, place: StorePlace) -> list[Receipt]:
        """Where each of them is: one after the other, and in runs of one topic in its queue."""
        log_offsets = accumulate(self.sizes[:-1], initial=published.log_offset)
        queue_offsets = in_runs(self.topics, published.queue_offsets)
        return list(map(Receipt, repeat(place), self.topics, log_offsets, queue_offsets))

    def messages(self) -> list[Outgoing]:
        """Each by itself."""
        places = pairwise(accumulate(self.sizes, initial=0))
        return [
            Outgoing(topic, self.records[start:end], self.wait)
            for topic, (start, end) in zip(self.topics, places, strict=True)
        ]


Publish = Callable[[Pack], asyncio.Future[list[Receipt]]]
Send = Callable[[Outgoing], asyncio.Future[Receipt]]


class _Head(NamedTuple):
    """The common part of a topic's messages that have only a payload."""

    in_log: tuple[bytes, int]  # topic and flags
    size_bytes: int  # without the payload
    changes: int


class Packer:
    """Makes packs of messages."""

    def __init__(self, make: Make, most_bytes: int, most_changes: float, most_plain_bytes: int) -> None:
        """`make` a message; how much one pack may have, in bytes and in changes, as a store counts them (see
        `wire.max_changes_per_publish`); `most_plain_bytes`: payloads up to this are stored as they are."""
        self._make = make
        self._most_bytes = most_bytes
        self._most_changes = most_changes
        self._most_plain_bytes = most_plain_bytes
        self._heads: dict[str, _Head] = {}
        self._begin()

    def _begin(self) -> None:
        self._topics: list[str] = []
        self._sizes: list[int] = []
        self._parts: list[bytes] = []
        self._payloads: list[bytes] = []  # after those, of messages that have nothing else
        self._in_log: list[tuple[bytes, int]] = []  # what these messages have besides
        self._left_bytes = self._most_bytes
        self._left_changes = self._most_changes
        self._wait = Wait.POLICY

    def packs(self, messages: Iterable[ToPublish]) -> Iterator[Pack]:
        """Raises BadMessage, TypeError, StoreRefused for one that is too large."""
        last: str | None = None
        for message in messages:
            topic, payload = message[:2]
            head = self._heads.get(topic) if len(message) == 2 else None
            if head is None or type(payload) is not bytes or len(payload) > self._most_plain_bytes:
                made = self._made(message)
                size_bytes, wait = len(made.record), made.wait
                is_kept, changes = made.record[FLAGS_AT] & KEPT, changes_of(made)
                part = made.record
                in_log = None
            else:
                in_log, size_bytes, changes = head
                size_bytes = size_bytes + len(payload) + 7 & ~7
                wait, is_kept, part = Wait.POLICY, 0, payload
            counted = changes if topic != last or is_kept else 0
            if size_bytes > self._left_bytes or counted > self._left_changes or wait is not self._wait:
                if self._sizes:
                    yield self._ended()
                    counted = changes
                self._wait = wait
            self._left_bytes -= size_bytes
            self._left_changes -= counted
            self._topics.append(topic)
            self._sizes.append(size_bytes)
            if in_log is not None:
                self._payloads.append(part)
                self._in_log.append(in_log)
            else:
                self._end_plain()
                self._parts.append(part)
            last = topic
        if self._sizes:
            yield self._ended()

    def _made(self, message: ToPublish) -> Outgoing:
        topic, payload, *options = message
        made = self._make(topic, payload, cast(PublishLater, {**options[0]}) if options else {})
        if made.due_ms is not None:
            raise BadMessage(f"a delayed message of {topic!r} among many; publish() that by itself")
        if topic.startswith(DEAD_LETTERS):
            raise BadMessage(f"{topic!r} is for what a consumer group gives up; publish() that by itself")
        if not options and topic not in self._heads:
            if len(self._heads) >= TOPICS_REMEMBERED:
                self._heads.clear()
            name, flags = plain_head(self._make, topic)
            self._heads[topic] = _Head((name, flags), RECORD_BYTES + len(name), 1 + len(name) // TOPIC_UNIT_BYTES)
        return made

    def _end_plain(self) -> None:
        if self._payloads:
            self._parts.append(plain_messages_of(self._payloads, self._in_log))
            self._payloads, self._in_log = [], []

    def _ended(self) -> Pack:
        self._end_plain()
        pack = Pack(self._topics, self._sizes, b"".join(self._parts), self._wait)
        self._begin()
        return pack


async def published(packs: Sequence[Pack], publish: Publish, send: Send) -> list[Receipt]:
    """Have packs published, some at a time. `send` a message by itself. Raises NotAllStored, ClientClosed."""
    outcomes: list[Receipt | BaseException] = []
    under_way: deque[tuple[Pack, asyncio.Future[list[Receipt]]]] = deque()
    try:
        for pack in packs:
            if len(under_way) == PACKS_AT_ONCE:
                outcomes += await _outcomes(*under_way.popleft(), send)
            under_way.append((pack, publish(pack)))
        while under_way:
            outcomes += await _outcomes(*under_way.popleft(), send)
    finally:
        for _, future in under_way:  # the program does not wait for it any more
            future.cancel()
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    if len(receipts) < len(outcomes):
        raise NotAllStored(outcomes)
    return receipts


async def _outcomes(pack: Pack, future: asyncio.Future[list[Receipt]], send: Send) -> Sequence[Receipt | BaseException]:
    try:
        return await future
    except NotPermitted as error:
        if len(set(pack.topics)) == 1:
            return [error] * len(pack.topics)
        # Only because they went out together: each is judged by itself.
        return await asyncio.gather(*map(send, pack.messages()), return_exceptions=True)
    except ClientError as error:
        return [error] * len(pack.topics)
