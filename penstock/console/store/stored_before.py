"""What the store has already of a request with an idempotency key: another console stored it, or this one before it
was started again.

Each message of such a request has a header with its number, a hash of the request's body, and the key; a message that
has no key of its own can be found by the idempotency key. Published messages are found by their key, delayed ones among
those that are pending. That needs a user who may read the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.console.store.publishing import MessageToPublish, PublishReceipt
from penstock.sdk.client import MOST_DELAY_S
from penstock.sdk.errors import NotPermitted, StoreRefused
from penstock.sdk.message import Message
from store.records.record_bytes import walk
from store.wire.handshake import PENDING_VERSION
from store.wire.log_messages import QueueOffsets, QueueOffsetsFound
from store.wire.messages import DelayedFound, FailureCode, GetDelayed, Got, ListDelayed

IDEMPOTENCY_HEADER = "idempotency-key"
KEY_PREFIX = "idempotency-key:"
REMEMBERED_S = 86_400.0
CLOCK_STEP_S = 3_600
"""How far the store's clock may have been set back meanwhile."""
MOST_PLACES = 100
MOST_NUMBER_DIGITS = 9
PENDING_PER_PAGE = 1_000


class RequestMark(NamedTuple):
    """What the messages of a request bear: its idempotency key, and a hash of its body in hexadecimal digits."""

    key: str
    body: str

    def on(self, message: MessageToPublish, number: int) -> MessageToPublish:
        """A message of the request, with the mark and a key."""
        given = message.headers or []
        pairs = list(given.items() if isinstance(given, dict) else given)
        headers = [*pairs, (IDEMPOTENCY_HEADER, f"{number}-{self.body}:{self.key}")]
        return msgspec.structs.replace(message, headers=headers, key=message.key or KEY_PREFIX + self.key)

    def number_of(self, message: Message, marked: Sequence[MessageToPublish]) -> int | None:
        """Which of the request's messages a stored one is; None: it has another key. Raises Problem if it is of another
        request with this key."""
        name, _, key = message.headers.get(IDEMPOTENCY_HEADER, "").partition(":")
        number, _, body = name.partition("-")
        is_number = number.isdecimal() and len(number) <= MOST_NUMBER_DIGITS  # anybody may publish such a header
        if key != self.key or not is_number or int(number) >= len(marked):
            return None
        if body != self.body or message.topic != marked[int(number)].topic:
            raise key_reused(self.key)
        return int(number)


def key_reused(key: str) -> Problem:
    text = f"Idempotency-Key {key!r} was sent with another body"
    return Problem(422, "idempotency-key-reused", text, "give a new key")


async def stored_before(
    connection: StoreConnection, mark: RequestMark, marked: Sequence[MessageToPublish]
) -> dict[int, PublishReceipt]:
    """Receipts of those messages that the store has, by number. Raises Problem, ClientError."""
    found: dict[int, PublishReceipt] = {}
    async for pending, receipt in _pending(connection, marked):  # first: one that is published meanwhile is found below
        number = mark.number_of(pending, marked)
        if number is not None:
            found[number] = receipt
    for own_key, topic in _places(marked):
        since = timedelta(seconds=REMEMBERED_S)
        try:
            candidates = await connection.find(own_key, topic=topic, since=since, limit=len(marked) + 100)
        except NotPermitted:  # this user may not read
            continue
        numbered = {mark.number_of(message, marked): message for message in candidates}
        known = [(number, message) for number, message in numbered.items() if number is not None]
        receipts = await asyncio.gather(
            *(receipt_of_stored(connection, message, marked[number].topic) for number, message in known)
        )
        found |= {number: receipt for (number, _), receipt in zip(known, receipts, strict=True)}
    return found


async def receipt_of_stored(connection: StoreConnection, message: Message, topic: str) -> PublishReceipt:
    """The receipt that the publisher of a message had. Raises ClientError."""
    before = QueueOffsets(message.log_offset, [connection.names.topic(topic)])
    answer, _ = await connection.request(before, QueueOffsetsFound)
    return PublishReceipt(message.message_id, message.log_offset, answer.queue_offsets[0])


def _places(marked: Sequence[MessageToPublish]) -> list[tuple[str, str]]:
    """The keys and topics to look for; of very many topics, the keys alone."""
    places = dict.fromkeys((message.key or "", message.topic) for message in marked)
    return list(places if len(places) <= MOST_PLACES else dict.fromkeys((key, "") for key, _ in places))


async def _pending(
    connection: StoreConnection, marked: Sequence[MessageToPublish]
) -> AsyncIterator[tuple[Message, PublishReceipt]]:
    """Pending messages with the topic and key of a delayed one, due when it is due if it was sent within a day."""
    delays_s = [min(message.delay, MOST_DELAY_S) for message in marked if message.delay is not None]
    welcome = connection.welcome
    if not delays_s or welcome is None or welcome.version < PENDING_VERSION:
        return
    names = connection.names
    wanted = {
        (names.topic(message.topic), (message.key or "").encode()) for message in marked if message.delay is not None
    }
    first_ms = connection.store_ms + round((min(delays_s) - REMEMBERED_S) * 1_000)
    last_ms = connection.store_ms + round((max(delays_s) + CLOCK_STEP_S) * 1_000)
    after: tuple[int, int] | None = (max(first_ms, 0), 0)
    while after is not None and after[0] <= last_ms:
        page, _ = await connection.request(ListDelayed(after, PENDING_PER_PAGE), DelayedFound)
        candidates = [(log_offset, due_ms) for log_offset, due_ms, *place in page.messages if tuple(place) in wanted]
        messages = await asyncio.gather(*(_message(connection, *each) for each in candidates))
        for (log_offset, _), message in zip(candidates, messages, strict=True):
            if message is not None:
                yield message, PublishReceipt(connection.place.message_id(log_offset), log_offset, None)
        after = page.next


async def _message(connection: StoreConnection, log_offset: int, due_ms: int) -> Message | None:
    """The pending message; None: it is not pending any more, or this user may not read it."""
    try:
        _, records = await connection.request(GetDelayed(log_offset, due_ms), Got)
    except NotPermitted:
        return None
    except StoreRefused as error:
        if error.code == FailureCode.NO_SUCH_POSITION:
            return None
        raise
    (record,) = walk(records)
    return Message(record, None, connection.place)
