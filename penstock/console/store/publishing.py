"""What a request publishes, and how it is stored once although the request is sent again.

A request with an idempotency key marks each of its messages: a header has the key and the message's number, and a
message that has no key of its own can be found by the idempotency key. The outcome is remembered here for a day. After
a restart of the console the log is asked for the marked messages, so that a request that was answered with a console's
death is not stored again. That needs a user who may read the topic.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.console.errors import Problem
from penstock.console.store.connection import StoreConnection
from penstock.sdk.errors import BadMessage, ClientError, NotAllStored
from penstock.sdk.many import ToPublish
from penstock.sdk.message import Message, Receipt
from penstock.sdk.outgoing import PublishLater

IDEMPOTENCY_HEADER = "idempotency-key"
KEY_PREFIX = "idempotency-key:"
MOST_KEY_CHARACTERS = 255
REMEMBERED_S = 86_400.0
MOST_REMEMBERED = 10_000
MOST_REMEMBERED_BYTES = 16 << 20
MOST_MESSAGES = 10_000
MOST_PLACES = 100

Text = Annotated[str, Meta(max_length=65_535)]
DelaySeconds = Annotated[float, Meta(ge=0)]
ExpirySeconds = Annotated[int, Meta(ge=1)]


class MessageToPublish(Struct, forbid_unknown_fields=True):
    """A message: a topic and, of `payload`, `json` and `payload_base64`, one at most."""

    topic: Annotated[Text, Meta(description="The name of one topic.")]
    payload: Annotated[str | UnsetType, Meta(description="The payload as text.")] = UNSET
    json: Annotated[Raw | UnsetType, Meta(description="The payload as JSON; its bytes are stored as they are.")] = UNSET
    payload_base64: Annotated[str | UnsetType, Meta(description="The payload as base64.")] = UNSET
    qos: Annotated[int, Meta(ge=0, le=2, description="The most that MQTT subscribers get it with.")] = 1
    retain: Annotated[bool, Meta(description="It becomes the topic's retained message.")] = False
    headers: Annotated[
        dict[Text, Text] | list[tuple[Text, Text]] | None,
        Meta(description="MQTT 5 user properties: an object, or pairs of name and value."),
    ] = None
    key: Annotated[Text | None, Meta(description="What it can be found by.")] = None
    tag: Annotated[Text | None, Meta(description="What kind of message it is.")] = None
    delay: Annotated[DelaySeconds | None, Meta(description="Seconds after which it is published.")] = None
    expires_after_s: Annotated[
        ExpirySeconds | None, Meta(description="Seconds; later MQTT subscribers do not get it.")
    ] = None
    content_type: Annotated[Text | None, Meta(description="What the payload is.")] = None
    response_topic: Annotated[Text | None, Meta(description="Where an answer is expected.")] = None
    correlation_data_base64: Annotated[Text | None, Meta(description="What the answer is to bear.")] = None


class PublishReceipt(Struct):
    """Where a message is. `queue_offset` is null for a delayed or live-only message."""

    message_id: str
    log_offset: int
    queue_offset: int | None


Outcome = PublishReceipt | ClientError
Publisher = Callable[[StoreConnection, Sequence[MessageToPublish]], Awaitable[list[Outcome]]]


def payload_of(message: MessageToPublish) -> bytes:
    """Raises BadMessage."""
    if message.json is not UNSET and message.payload is UNSET and message.payload_base64 is UNSET:
        return bytes(message.json)
    if message.payload_base64 is not UNSET and message.payload is UNSET and message.json is UNSET:
        return decoded(message.payload_base64, "payload_base64")
    if message.json is not UNSET or message.payload_base64 is not UNSET:
        raise BadMessage("several payloads: give one of payload, json and payload_base64")
    return message.payload.encode() if message.payload is not UNSET else b""


def decoded(text: str, name: str) -> bytes:
    """Base64. Raises BadMessage."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise BadMessage(f"{name} is no base64") from None


def options_of(message: MessageToPublish) -> PublishLater:
    """What publish() takes. Raises BadMessage."""
    found: dict[str, Any] = {}
    for name in ("headers", "key", "tag", "delay", "content_type", "response_topic"):
        value = getattr(message, name)
        if value is not None:
            found[name] = value
    if message.qos != 1:
        found["qos"] = message.qos
    if message.retain:
        found["retain"] = True
    if message.expires_after_s is not None:
        found["expires_after"] = timedelta(seconds=message.expires_after_s)
    if message.correlation_data_base64 is not None:
        found["correlation_data"] = decoded(message.correlation_data_base64, "correlation_data_base64")
    return cast(PublishLater, found)


def receipt_of(receipt: Receipt) -> PublishReceipt:
    return PublishReceipt(receipt.message_id, receipt.log_offset, receipt.queue_offset)


async def publish_all(connection: StoreConnection, messages: Sequence[MessageToPublish]) -> list[Outcome]:
    """Publish messages in their order, as few requests as they fit into. Raises ClientError if nothing was sent."""
    if len(messages) == 1:
        message = messages[0]
        receipt = await connection.publish(message.topic, payload_of(message), **options_of(message))
        return [receipt_of(receipt)]
    together: list[ToPublish] = []
    delayed: list[MessageToPublish] = []
    for message in messages:
        if message.delay is not None:
            delayed.append(message)
            continue
        options = options_of(message)
        payload = payload_of(message)
        together.append((message.topic, payload, options) if options else (message.topic, payload))
    found = iter(await _outcomes(connection, together))
    later = iter(await asyncio.gather(*(_later(connection, message) for message in delayed)))
    return [next(found) if message.delay is None else next(later) for message in messages]


async def _outcomes(connection: StoreConnection, messages: list[ToPublish]) -> list[Outcome]:
    if not messages:
        return []
    try:
        return [receipt_of(receipt) for receipt in await connection.publish_many(messages)]
    except NotAllStored as error:
        return [each if isinstance(each, ClientError) else receipt_of(cast(Receipt, each)) for each in error.outcomes]


async def _later(connection: StoreConnection, message: MessageToPublish) -> Outcome:
    try:
        return receipt_of(await connection.publish(message.topic, payload_of(message), **options_of(message)))
    except ClientError as error:
        return error


# --- once


class _Done(NamedTuple):
    """A request that was carried out, or is: what it was, and its outcome."""

    body: bytes  # a hash
    outcome: asyncio.Task[list[Outcome]]
    ends_s: float
    size_bytes: int


class PublishedOnce:
    """Owner of the outcomes of requests with an idempotency key, of all users."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: OrderedDict[tuple[bytes, str], _Done] = OrderedDict()
        self._size_bytes = 0

    async def publish(
        self, user: bytes, key: str, body: bytes, connection: StoreConnection, messages: Sequence[MessageToPublish]
    ) -> list[Outcome]:
        """As publish_all(), once for each key of a user. `user` names its connection. Raises Problem, ClientError."""
        check_key(key)
        now_s = self._loop.time()
        self._forget(now_s)
        fingerprint = blake2b(body, digest_size=16).digest()
        done = self._done.get((user, key))
        if done is not None and done.body != fingerprint:
            raise Problem(
                422, "idempotency-key-reused", f"Idempotency-Key {key!r} was sent with another body", "give a new key"
            )
        if done is None:
            size_bytes = 256 + 128 * len(messages)
            task = asyncio.create_task(self._publish(key, connection, messages))
            done = self._done[user, key] = _Done(fingerprint, task, now_s + REMEMBERED_S, size_bytes)
            self._size_bytes += size_bytes
        try:
            outcomes = await asyncio.shield(done.outcome)
        except ClientError:
            self._drop((user, key), done)  # it may be tried again
            raise
        if any(isinstance(each, ClientError) for each in outcomes):
            self._drop((user, key), done)
        return outcomes

    def _drop(self, name: tuple[bytes, str], done: _Done) -> None:
        if self._done.get(name) is done:
            del self._done[name]
            self._size_bytes -= done.size_bytes

    def _forget(self, now_s: float) -> None:
        while self._done:
            name, done = next(iter(self._done.items()))
            is_full = len(self._done) >= MOST_REMEMBERED or self._size_bytes > MOST_REMEMBERED_BYTES
            if now_s <= done.ends_s and not is_full:
                return
            self._drop(name, done)

    async def _publish(
        self, key: str, connection: StoreConnection, messages: Sequence[MessageToPublish]
    ) -> list[Outcome]:
        """Publish those messages that the log does not have yet."""
        marked = [_marked(message, key, number) for number, message in enumerate(messages)]
        stored = await self._stored(key, connection, marked)
        missing = [number for number in range(len(marked)) if number not in stored]
        outcomes: dict[int, Outcome] = dict(stored)
        if missing:
            found = await publish_all(connection, [marked[number] for number in missing])
            outcomes |= dict(zip(missing, found, strict=True))
        return [outcomes[number] for number in range(len(marked))]

    async def _stored(
        self, key: str, connection: StoreConnection, marked: Sequence[MessageToPublish]
    ) -> dict[int, PublishReceipt]:
        """Receipts of those that an earlier console published, or another one, by number."""
        found: dict[int, PublishReceipt] = {}
        if len(marked) == 1 and marked[0].delay is not None:
            pending = await _pending(connection, marked[0])
            if pending is not None:
                return {0: pending}
        since = timedelta(seconds=REMEMBERED_S)
        for own_key, topic in _places(marked):
            try:
                candidates = await connection.find(own_key, topic=topic, since=since, limit=len(marked) + 100)
            except ClientError:  # this user may not read
                continue
            for message in candidates:
                number = _number_in(message, key)
                if number is not None and number < len(marked):
                    _check_same(message, marked[number], key)
                    found[number] = PublishReceipt(message.message_id, message.log_offset, message.queue_offset)
        return found


async def _pending(connection: StoreConnection, message: MessageToPublish) -> PublishReceipt | None:
    """The receipt of a delayed message that is not due yet."""
    async for pending in connection.delayed(message.topic, key=message.key):
        return receipt_of(pending.receipt)
    return None


def _places(marked: Sequence[MessageToPublish]) -> list[tuple[str, str]]:
    """The keys and topics to look for; of very many topics, the keys alone."""
    places = dict.fromkeys((message.key or "", message.topic) for message in marked)
    return list(places if len(places) <= MOST_PLACES else dict.fromkeys((key, "") for key, _ in places))


def check_key(key: str) -> None:
    """Raises Problem."""
    if not 0 < len(key) <= MOST_KEY_CHARACTERS or not key.isprintable():
        raise Problem(
            400,
            "bad-parameter",
            f"Idempotency-Key: it has 1 to {MOST_KEY_CHARACTERS} printable characters",
            "give a UUID, for example",
        )


def _marked(message: MessageToPublish, key: str, number: int) -> MessageToPublish:
    given = message.headers or []
    pairs = list(given.items() if isinstance(given, dict) else given)
    headers = [*pairs, (IDEMPOTENCY_HEADER, f"{number}:{key}")]
    return msgspec.structs.replace(message, headers=headers, key=message.key or KEY_PREFIX + key)


def _number_in(message: Message, key: str) -> int | None:
    """Which message of the request with this key it is."""
    number, _, its_key = message.headers.get(IDEMPOTENCY_HEADER, "").partition(":")
    return int(number) if its_key == key and number.isdecimal() else None


def _check_same(message: Message, wanted: MessageToPublish, key: str) -> None:
    """Raises Problem."""
    if message.topic != wanted.topic or message.payload != payload_of(wanted):
        raise Problem(
            422, "idempotency-key-reused", f"Idempotency-Key {key!r} was sent with another body", "give a new key"
        )
