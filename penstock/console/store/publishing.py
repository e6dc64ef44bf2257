"""What a request publishes, in as few requests to the store as it fits into."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.console.store.connection import StoreConnection
from penstock.sdk.errors import BadMessage, ClientError, NotAllStored
from penstock.sdk.many import ToPublish
from penstock.sdk.message import Receipt
from penstock.sdk.outgoing import PublishLater

MOST_MESSAGES = 10_000
MOST_EXPIRY_S = (1 << 32) - 1

Text = Annotated[str, Meta(max_length=65_535)]
DelaySeconds = Annotated[float, Meta(ge=0)]
ExpirySeconds = Annotated[int, Meta(ge=1)]


class MessageToPublish(Struct, forbid_unknown_fields=True):
    """A message: a topic and, of `payload`, `json` and `payload_base64`, one at most."""

    topic: Annotated[Text, Meta(description="The name of one topic.")]
    payload: Annotated[str | UnsetType, Meta(description="The payload as text.")] = UNSET
    json: Annotated[Raw | UnsetType, Meta(description="The payload as JSON; its bytes are stored as they are.")] = UNSET
    payload_base64: Annotated[str | UnsetType, Meta(description="The payload as base64.")] = UNSET
    qos: Annotated[int, Meta(ge=0, le=2, description="The most that MQTT subscribers get it with; default 1.")] = 1
    retain: Annotated[bool, Meta(description="It becomes the topic's retained message.")] = False
    headers: Annotated[
        dict[Text, Text] | list[tuple[Text, Text]] | None,
        Meta(description="MQTT 5 user properties: an object, or pairs of name and value."),
    ] = None
    key: Annotated[Text | None, Meta(description="What it can be found by.")] = None
    tag: Annotated[Text | None, Meta(description="What kind of message it is.")] = None
    delay: Annotated[DelaySeconds | None, Meta(description="Seconds after which it is published.")] = None
    expires_after_s: Annotated[
        ExpirySeconds | None,
        Meta(
            description="Seconds; later MQTT subscribers do not get it.",
            extra_json_schema={"maximum": MOST_EXPIRY_S},  # looked at message by message, so that one fails alone
        ),
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
        if message.expires_after_s > MOST_EXPIRY_S:
            raise BadMessage(f"expires_after_s={message.expires_after_s}; use 1 to {MOST_EXPIRY_S} seconds")
        found["expires_after"] = timedelta(seconds=message.expires_after_s)
    if message.correlation_data_base64 is not None:
        found["correlation_data"] = decoded(message.correlation_data_base64, "correlation_data_base64")
    return cast(PublishLater, found)


def receipt_of(receipt: Receipt) -> PublishReceipt:
    return PublishReceipt(receipt.message_id, receipt.log_offset, receipt.queue_offset)


async def publish_all(connection: StoreConnection, messages: Sequence[MessageToPublish]) -> list[Outcome]:
    """Publish messages in their order, in as few requests as they fit into. One that cannot be published fails by
    itself. Raises ClientError if nothing was sent.
    """
    if len(messages) == 1:
        message = messages[0]
        receipt = await connection.publish(message.topic, payload_of(message), **options_of(message))
        return [receipt_of(receipt)]
    made = [_made(message) for message in messages]
    together = [each for each in made if not isinstance(each, BadMessage) and not _is_delayed(each)]
    found = iter(await _outcomes(connection, together))
    delayed = (each for each in made if not isinstance(each, BadMessage) and _is_delayed(each))
    later = iter(await asyncio.gather(*(_later(connection, each) for each in delayed)))
    return [
        each if isinstance(each, BadMessage) else next(later) if _is_delayed(each) else next(found) for each in made
    ]


def _made(message: MessageToPublish) -> ToPublish | BadMessage:
    """As publish_many() takes it, or what is wrong with it."""
    try:
        options, payload = options_of(message), payload_of(message)
    except BadMessage as error:
        return error
    return (message.topic, payload, options) if options else (message.topic, payload)


def _is_delayed(message: ToPublish) -> bool:
    return len(message) == 3 and "delay" in message[2]


async def _outcomes(connection: StoreConnection, messages: list[ToPublish]) -> list[Outcome]:
    if not messages:
        return []
    try:
        return [receipt_of(receipt) for receipt in await connection.publish_many(messages)]
    except NotAllStored as error:
        return [each if isinstance(each, ClientError) else receipt_of(cast(Receipt, each)) for each in error.outcomes]


async def _later(connection: StoreConnection, message: ToPublish) -> Outcome:
    topic, payload, *options = message
    try:
        return receipt_of(await connection.publish(topic, payload, **cast(PublishLater, options[0])))
    except ClientError as error:
        return error
