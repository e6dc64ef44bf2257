"""Stored messages as JSON, quickly: a hundred thousand a second."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.console.views.sizes import SMALL_BYTES, bounded_payload, in_worker, shown_bytes
from penstock.sdk.errors import Unreadable
from penstock.sdk.message import (
    ATTRIBUTES,
    CLIENT_ID,
    FLAGS,
    PAYLOAD,
    PROPERTIES,
    TIMESTAMP,
    TOPIC,
    Message,
    RecordTuple,
)
from penstock.sdk.message_id import StorePlace
from store.records.records import RecordFlag

TIMES_REMEMBERED = 1_024
TEXTS_REMEMBERED = 4_096
COMPRESSED = int(RecordFlag.COMPRESSED)
QOS_MASK, RETAIN = int(RecordFlag.QOS_MASK), int(RecordFlag.RETAIN)


class StoredMessage(Struct, omit_defaults=True):
    """A message of the log. What it does not have is left out.

    `payload` is its text; of a payload that is not UTF-8, `payload_base64` has the bytes. `queue_offset` is known where
    one topic is read. Of several headers with one name `headers` has the last, and `user_properties` has all.
    """

    message_id: str
    topic: str
    log_offset: int
    stored_at: str
    queue_offset: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET
    payload_base64: str | UnsetType = UNSET
    qos: int = 0
    retain: bool = False
    key: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    user_properties: list[tuple[str, str]] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    client_id: str = ""
    expires_after_s: int | UnsetType = UNSET
    response_topic: str | UnsetType = UNSET
    correlation_data_base64: str | UnsetType = UNSET
    lost: int = 0
    unreadable: str = ""


MessageFields = tuple[RecordTuple, int | None]
"""A record and its queue_offset, where that is known."""

_encoder = msgspec.json.Encoder()
encoded = _encoder.encode
lines = _encoder.encode_lines


def shown(records: Iterable[MessageFields], place: StorePlace) -> list[StoredMessage]:
    """Messages as the API shows them. Nearly all have neither attributes nor properties, which is quick."""
    found: list[StoredMessage] = []
    message_id, names = place.message_id, place.names
    topic_of, client_of = _plain(names.plain_topic), _plain(names.plain_client_id)
    for record, queue_offset in records:
        flags = record[FLAGS]
        message = StoredMessage(
            message_id(record[0]),
            topic_of(record[TOPIC]),
            record[0],
            rfc3339(record[TIMESTAMP]),
            UNSET if queue_offset is None else queue_offset,
        )
        message.qos = flags & QOS_MASK
        message.retain = bool(flags & RETAIN)
        if record[CLIENT_ID]:
            message.client_id = client_of(record[CLIENT_ID])
        if record[ATTRIBUTES] or record[PROPERTIES] or flags & COMPRESSED:
            _add_rest(message, Message(record, queue_offset, place))
        else:
            set_payload(message, record[PAYLOAD])
        found.append(message)
    return found


def _plain(plain: Callable[[str], str]) -> Callable[[bytes], str]:
    """A function from a name as the log has it to that which the user knows, of which the last ones are remembered."""

    @lru_cache(TEXTS_REMEMBERED)
    def found(name: bytes) -> str:
        return plain(name.decode())

    return found


def set_payload(message: StoredMessage, payload: bytes) -> None:
    try:
        message.payload = payload.decode()
    except UnicodeDecodeError:
        message.payload_base64 = b64encode(payload).decode()


def _add_rest(shown: StoredMessage, message: Message) -> None:
    """What few messages have."""
    try:
        set_payload(shown, bounded_payload(message))
    except Unreadable as error:
        shown.unreadable = str(error)
    pairs = message.user_properties
    if pairs:
        shown.headers = dict(pairs)
        if len(shown.headers) < len(pairs):
            shown.user_properties = pairs
    for name in ("key", "tag", "content_type", "response_topic"):
        value = getattr(message, name)
        if value is not None:
            setattr(shown, name, value)
    after = message.expires_after
    if after is not None:
        shown.expires_after_s = round(after.total_seconds())
    correlation = message.correlation_data
    if correlation is not None:
        shown.correlation_data_base64 = b64encode(correlation).decode()
    shown.lost = message.lost


@lru_cache(TIMES_REMEMBERED)
def rfc3339(unix_ms: int) -> str:
    """A time in UTC to the millisecond; many messages have the same.

    >>> rfc3339(1_767_225_600_123)
    '2026-01-01T00:00:00.123Z'
    """
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MessagesPage(Struct):
    """Messages, and the cursor of those that follow in this order; null: that was all. Those of a page have
    ANSWER_BYTES together, or it has one.
    """

    messages: list[StoredMessage]
    next: str | None


async def made(make: Callable[[list[StoredMessage]], bytes], found: list[MessageFields], place: StorePlace) -> bytes:
    """An answer from messages, by a thread unless they are small."""

    def answer() -> bytes:
        return make(shown(found, place))

    is_small = sum(shown_bytes(record) for record, _ in found) < SMALL_BYTES
    return answer() if is_small else await in_worker(answer)


async def page_of(found: list[MessageFields], goes_on: str | None, place: StorePlace) -> bytes:
    """A page as JSON."""
    return await made(lambda messages: encoded(MessagesPage(messages, goes_on)), found, place)


Order = Literal["asc", "desc"]
