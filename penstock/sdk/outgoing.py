"""A message to publish: checked once, then bytes in log format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Literal, NamedTuple, TypedDict

from penstock.sdk.compression import NEVER, Compression, as_stored, chosen
from penstock.sdk.errors import BadMessage
from store.namespaces import MARK, publish_fault
from store.records.publish_properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    RESPONSE_TOPIC,
    USER_PROPERTY,
)
from store.records.record_bytes import RecordBatch
from store.records.records import MOST_TAG_BYTES, Attribute, RecordFlag, RecordType, encode_attribute, message_flags
from store.topics import MOST_TOPIC_LEVELS
from store.wire.messages import Wait

MOST_TEXT_BYTES = 65_535
TOPICS_REMEMBERED = 10_000  # that were found to be good
NAMES_REMEMBERED = 256  # of headers
MOST_KEY_BYTES = 1_024
MOST_EXPIRY_S = 0xFFFFFFFF
DELAYED = int(RecordFlag.DELAYED)

PAYLOAD_TYPES = (bytes, bytearray, memoryview, str)
Headers = Mapping[str, str] | Iterable[tuple[str, str]]

WAITS = {None: Wait.POLICY, "stored": Wait.STORED, "flushed": Wait.FLUSHED}


class PublishOptions(TypedDict, total=False):
    """The options of a message, besides its topic and payload.

    key: what it can be found by, up to 1,024 bytes of UTF-8.
    tag: what kind of message it is, up to 255 bytes of UTF-8.
    headers: a mapping of names to values, or pairs of them, where a name may come again; MQTT 5 subscribers see them as
        user properties, in this order.
    content_type: what the payload is, such as "application/json"; an MQTT 5 property.
    qos: the most that MQTT subscribers get it with: 0, 1 (default) or 2.
    retain: it becomes the topic's retained message, which new MQTT subscribers get.
    response_topic, correlation_data: where an answer is expected, and what it is to bear (bytes), as in MQTT 5.
    expires_after: MQTT subscribers that come later do not get it; whole seconds.
    compress: True: whatever its size; False: not at all; None (default): as Client(compress=...) says. Every reader
        gets the payload as it was published.
    wait: what the receipt says: "stored": in the page cache, it survives a SIGKILL of the store; "flushed": on the
        disk, it survives power loss; None (default): whichever of the two the store's `flush` setting promises.
    """

    key: str | None
    tag: str | None
    headers: Headers | None
    content_type: str | None
    qos: int
    retain: bool
    response_topic: str | None
    correlation_data: bytes | None
    expires_after: timedelta | None
    compress: bool | None
    wait: Literal["stored", "flushed"] | None


class PublishLater(PublishOptions, total=False):
    """As PublishOptions, and what is not for messages of a batch.

    delay: it is stored now, and published this much later: a timedelta, or seconds; once, whatever is killed
        meanwhile. Its receipt has cancel().
    """

    delay: timedelta | float


class Outgoing(NamedTuple):
    """A message in log format, and what the client has to know of it."""

    topic: str
    record: bytes
    wait: Wait
    due_ms: int | None = None  # of a delayed message: when the store publishes it, Unix time


def outgoing(
    topic: str,
    payload: bytes | str,
    is_live_only: bool,
    compression: Compression = NEVER,
    *,
    key: str | None = None,
    tag: str | None = None,
    headers: Headers | None = None,
    content_type: str | None = None,
    qos: int = 1,
    retain: bool = False,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    expires_after: timedelta | None = None,
    compress: bool | None = None,
    wait: Literal["stored", "flushed"] | None = None,
    due_ms: int | None = None,
    left_by: bytes = b"",
) -> Outgoing:
    """A message; `left_by`: who leaves one that is delayed, as the store said.

    Raises BadMessage, or TypeError for what is no text, bytes or number.

    >>> outgoing("line/7", "21.5", False, key="m-7").topic
    'line/7'
    """
    if qos not in (0, 1, 2):
        raise BadMessage(f"QoS {qos!r}; use 0, 1 or 2")
    if wait not in WAITS:
        raise BadMessage(f"wait={wait!r}; use 'stored', 'flushed' or None (as the store's flush policy promises)")
    if not isinstance(payload, PAYLOAD_TYPES):
        raise TypeError(f"the payload is a {type(payload).__name__}; give bytes or str")
    expiry = b"" if expires_after is None else _expiry(expires_after)
    if compress is not None:
        compression = chosen(Compression(0, compression.level)) if compress else NEVER
    content, flag = as_stored(payload.encode() if isinstance(payload, str) else bytes(payload), compression)
    batch = RecordBatch()
    batch.append(
        RecordType.MESSAGE,
        content,
        topic=_topic(topic),
        attributes=_attribute(Attribute.KEY, "key", key, MOST_KEY_BYTES)
        + _attribute(Attribute.TAG, "tag", tag, MOST_TAG_BYTES)
        + _due(due_ms, left_by),
        properties=expiry
        + _content_type(content_type)
        + _expected_answer(response_topic, correlation_data)
        + _user_properties(headers),
        flags=message_flags(qos, retain=retain, expires=bool(expiry), live_only=is_live_only)
        | (0 if due_ms is None else DELAYED)
        | flag,
    )
    return Outgoing(topic, bytes(batch), WAITS[wait], due_ms)


def due(delay: timedelta | float, now_ms: int, most_s: int) -> int:
    """When the store publishes a delayed message, in Unix time in ms. Raises BadMessage.

    >>> due(timedelta(minutes=1), 1_000, 86_400)
    61000
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds <= most_s:
        raise BadMessage(f"delay={delay}; the store takes 0 to {most_s} seconds (its setting store.max_delay_s)")
    return now_ms + round(seconds * 1000)


@lru_cache(TOPICS_REMEMBERED)
def _topic(topic: str) -> bytes:
    if not topic or "+" in topic or "#" in topic:
        raise BadMessage(f"topic {topic!r}: use the name of one topic, without + and #")
    if fault := publish_fault(topic):
        raise BadMessage(f"topic {topic!r}: {fault}; use another first level")
    if topic.count("/") >= MOST_TOPIC_LEVELS:
        raise BadMessage(f"a topic of more than {MOST_TOPIC_LEVELS} levels; use fewer /")
    return _text("topic", topic, MOST_TEXT_BYTES)


def _text(what: str, text: str, most_bytes: int) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"the {what} is a {type(text).__name__}; give a str")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{what} {text!r} is not Unicode text") from None
    if "\0" in text:
        raise BadMessage(f"{what} {text!r} has a U+0000, which MQTT does not allow")
    if len(data) > most_bytes:
        raise BadMessage(f"a {what} of {len(data)} bytes; at most {most_bytes} are possible")
    return data


def _attribute(tag: Attribute, what: str, value: str | None, most_bytes: int) -> bytes:
    if value is None:
        return b""
    if not value:
        raise BadMessage(f"an empty {what}; use None where there is none")
    return encode_attribute(tag, _text(what, value, most_bytes))


def _due(due_ms: int | None, left_by: bytes) -> bytes:
    if due_ms is None:
        return b""
    left = encode_attribute(Attribute.LEFT_BY, left_by) if left_by else b""
    return left + encode_attribute(Attribute.DUE_MS, due_ms.to_bytes(8, "little"))


def _content_type(content_type: str | None) -> bytes:
    if content_type is None:
        return b""
    return _property(CONTENT_TYPE, _text("content_type", content_type, MOST_TEXT_BYTES))


def _expected_answer(response_topic: str | None, correlation_data: bytes | None) -> bytes:
    found = b""
    if response_topic is not None:
        if response_topic.startswith(MARK):
            raise BadMessage(f"response_topic {response_topic!r}: what begins with {MARK} is the server's")
        found += _property(RESPONSE_TOPIC, _topic(response_topic))
    if correlation_data is not None:
        if len(correlation_data) > MOST_TEXT_BYTES:
            raise BadMessage(
                f"correlation_data of {len(correlation_data)} bytes; at most {MOST_TEXT_BYTES} are possible"
            )
        found += _property(CORRELATION_DATA, bytes(correlation_data))
    return found


def _property(identifier: int, data: bytes) -> bytes:
    return bytes((identifier,)) + len(data).to_bytes(2, "big") + data


@lru_cache(NAMES_REMEMBERED)
def _header_name(name: str) -> bytes:
    data = _text("header", name, MOST_TEXT_BYTES)
    return bytes((USER_PROPERTY,)) + len(data).to_bytes(2, "big") + data


def _user_properties(headers: Headers | None) -> bytes:
    if not headers:
        return b""
    parts: list[bytes] = []
    for name, value in _pairs(headers):
        data = _text("header", value, MOST_TEXT_BYTES)
        parts += (_header_name(name), len(data).to_bytes(2, "big"), data)
    return b"".join(parts)


def _pairs(headers: Headers) -> Iterable[tuple[str, str]]:
    if isinstance(headers, Mapping):
        return headers.items()
    try:
        return [(name, value) for name, value in headers]
    except (TypeError, ValueError):
        raise TypeError("headers are neither a mapping of names to values nor pairs of both") from None


def _expiry(after: timedelta) -> bytes:
    seconds = int(after.total_seconds())
    if not 0 < seconds <= MOST_EXPIRY_S:
        raise BadMessage(f"expires_after={after}; use 1 second to {MOST_EXPIRY_S} seconds")
    return bytes((MESSAGE_EXPIRY_INTERVAL,)) + seconds.to_bytes(4, "big")
