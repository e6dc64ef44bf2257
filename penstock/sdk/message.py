"""Receipts of messages that a client published, and messages that it reads. Fields are decoded when they are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from typing import Final, NamedTuple

from penstock.sdk.compression import as_published
from penstock.sdk.message_id import StorePlace
from store.records.publish_properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    stored_properties,
)
from store.records.record_bytes import walk
from store.records.records import Attribute, RecordFlag, decode_attributes
from store.records.trace_context import TraceContext, find_context

RecordTuple = tuple[int, int, int, int, int, bytes, bytes, bytes, bytes, bytes]
TIMESTAMP: Final = 1  # where these stand in it
FLAGS: Final = 4
TOPIC: Final = 5
CLIENT_ID: Final = 6
ATTRIBUTES: Final = 7
PROPERTIES: Final = 8
PAYLOAD: Final = 9
COMPRESSED = int(RecordFlag.COMPRESSED)


class Receipt(NamedTuple):
    """A message is stored, and is as safe as was asked for.

    `log_offset`: its place in the store's log (bytes); `queue_offset`: its place in its topic's queue (entries), None
    for a topic that the store delivers live only.
    """

    store: StorePlace
    queue: str
    log_offset: int
    queue_offset: int | None

    @property
    def message_id(self) -> str:
        """What Client.get() finds the message by."""
        return self.store.message_id(self.log_offset)

    @property
    def due_at(self) -> datetime | None:
        """When a delayed message is published, in UTC."""
        return None

    async def cancel(self) -> bool:
        """Take back a delayed message. False: not in time, it is published (or was cancelled before)."""
        return False


Cancel = Callable[[int, int], Awaitable[bool]]  # of log_offset and due_ms


class DelayedReceipt(Receipt):
    """A message is stored, and is published when it is due: then it gets another log_offset, and a queue_offset."""

    due_ms: int
    canceller: Cancel

    @classmethod
    def of(cls, receipt: Receipt, due_ms: int, canceller: Cancel) -> DelayedReceipt:
        made = cls(*receipt)
        made.due_ms = due_ms
        made.canceller = canceller
        return made

    @property
    def due_at(self) -> datetime:
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)

    async def cancel(self) -> bool:
        return await self.canceller(self.log_offset, self.due_ms)


class Pending(NamedTuple):
    """A delayed message that is yet to be published. `receipt.cancel()` takes it back."""

    topic: str
    key: str | None
    receipt: DelayedReceipt

    @property
    def due_at(self) -> datetime:
        """When it is published, in UTC."""
        return self.receipt.due_at

    async def cancel(self) -> bool:
        """Take it back. False: not in time, it is published (or was cancelled before)."""
        return await self.receipt.cancel()


def _payload(record: RecordTuple) -> bytes:
    return as_published(record[PAYLOAD]) if record[FLAGS] & COMPRESSED else record[PAYLOAD]


class Message:
    """A stored message."""

    __slots__ = ("_record", "_store", "queue_offset")

    def __init__(self, record: RecordTuple, queue_offset: int | None, store: StorePlace) -> None:
        self._record = record
        self._store = store
        self.queue_offset = queue_offset
        """Its place in its topic's queue (entries), where that is known: where one topic was read."""

    def __repr__(self) -> str:
        return f"<Message {self.topic} log_offset={self.log_offset} {len(self._record[PAYLOAD])} bytes>"

    @property
    def record(self) -> RecordTuple:
        """As the log has it, for whoever decodes it himself."""
        return self._record

    @property
    def topic(self) -> str:
        return self._store.names.plain_topic(self._record[TOPIC].decode())

    @property
    def payload(self) -> bytes:
        """As it was published. Raises Unreadable if it was compressed and cannot be decompressed here."""
        return _payload(self._record)

    @property
    def log_offset(self) -> int:
        """Its place in the store's log (bytes)."""
        return self._record[0]

    @property
    def message_id(self) -> str:
        """What Client.get() finds it by."""
        return self._store.message_id(self._record[0])

    @property
    def stored_at(self) -> datetime:
        """When it was stored, in UTC, by the store's clock, to the millisecond."""
        return datetime.fromtimestamp(self._record[TIMESTAMP] / 1000, UTC)

    @property
    def stored_ms(self) -> int:
        """The same as Unix time in ms."""
        return self._record[TIMESTAMP]

    @property
    def client_id(self) -> str:
        """Of the MQTT client that published it; empty where it was not one."""
        return self._store.names.plain_client_id(self._record[CLIENT_ID].decode())

    @property
    def qos(self) -> int:
        return self._record[FLAGS] & RecordFlag.QOS_MASK

    @property
    def retain(self) -> bool:
        """Whether it was published as the topic's retained message."""
        return bool(self._record[FLAGS] & RecordFlag.RETAIN)

    @property
    def lost(self) -> int:
        """How many messages before it are gone, and no earlier message says so; nearly always 0.

        A part of the store's log is damaged, or retention was faster than the group.
        """
        data = self._record[ATTRIBUTES]
        value = decode_attributes(data).get(Attribute.LOST) if data else None
        return int.from_bytes(value, "little") if value else 0

    @property
    def key(self) -> str | None:
        return self._attribute(Attribute.KEY)

    @property
    def tag(self) -> str | None:
        return self._attribute(Attribute.TAG)

    def _attribute(self, tag: Attribute) -> str | None:
        data = self._record[ATTRIBUTES]
        value = decode_attributes(data).get(tag) if data else None
        return None if value is None else value.decode()

    @property
    def headers(self) -> dict[str, str]:
        """MQTT 5 user properties; of several with one name, the last. `user_properties` has all."""
        return dict(user_properties(self._record[PROPERTIES]))

    @property
    def user_properties(self) -> list[tuple[str, str]]:
        """MQTT 5 user properties in their order; a name may come again."""
        return list(user_properties(self._record[PROPERTIES]))

    @property
    def trace_context(self) -> TraceContext | None:
        """The span that the message names as the parent of what is done with it (W3C Trace Context): the user property
        `traceparent`, and `tracestate`. None if it has none or a bad one. penstock.sdk.tracing makes spans of it."""
        return find_context(self._record[PROPERTIES])

    @property
    def content_type(self) -> str | None:
        """The content type of the payload, as its publisher says (MQTT 5)."""
        data = self._record[PROPERTIES]
        found = _property(data, CONTENT_TYPE) if data else None
        return None if found is None else found.decode()

    @property
    def expires_after(self) -> timedelta | None:
        """How long after `stored_at` MQTT subscribers get it (message expiry interval of MQTT 5); None: for ever."""
        for identifier, value in stored_properties(self._record[PROPERTIES]):
            if identifier == MESSAGE_EXPIRY_INTERVAL:
                return timedelta(seconds=int.from_bytes(value, "big"))
        return None

    @property
    def response_topic(self) -> str | None:
        """The topic where the publisher expects an answer (MQTT 5)."""
        found = _property(self._record[PROPERTIES], RESPONSE_TOPIC)
        return None if found is None else found.decode()

    @property
    def correlation_data(self) -> bytes | None:
        """The correlation data that an answer repeats (MQTT 5)."""
        return _property(self._record[PROPERTIES], CORRELATION_DATA)


def user_properties(data: bytes) -> Iterator[tuple[str, str]]:
    """The user properties among the MQTT 5 properties of a stored message, in their order."""
    for identifier, value in stored_properties(data):
        if identifier == USER_PROPERTY:
            end = 2 + int.from_bytes(value[:2], "big")
            yield value[2:end].decode(), value[end + 2 :].decode()


def _property(data: bytes, wanted: int) -> bytes | None:
    return next((value[2:] for identifier, value in stored_properties(data) if identifier == wanted), None)


class Batch:
    """Messages that came together; len() is known, and each is decoded when it is iterated over."""

    __slots__ = ("_count", "_store", "first_queue_offset", "records")

    def __init__(self, records: memoryview, number: int, queue_offset: int, store: StorePlace) -> None:
        self.records = records
        """Them all in log format (docs/formats.md), for whoever decodes them himself."""
        self._count = number
        self.first_queue_offset = queue_offset
        """Of the first of them, where one topic was read; else -1."""
        self._store = store

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        offsets = repeat(None) if self.first_queue_offset < 0 else count(self.first_queue_offset)
        return map(Message, walk(self.records), offsets, repeat(self._store))

    def payloads(self) -> Iterator[bytes]:
        """The payloads alone."""
        return map(_payload, walk(self.records))
