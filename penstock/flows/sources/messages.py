"""The messages that records of a Kafka topic, and messages of a queue of AMQP, become; good ones and bad ones."""

from __future__ import annotations

from typing import Final

from penstock.flows.definition import Flow
from penstock.flows.sources.amqp.messages import QueuedMessage
from penstock.flows.sources.records import KafkaRecord
from penstock.sdk.outgoing import MOST_KEY_BYTES, PublishOptions

CONTENT_TYPE: Final = "content-type"
"""The header that says it, as CloudEvents and many others have it."""
ID_HEADER: Final = "amqp-message-id"
"""The user property that has the property `message_id` of AMQP."""
ENCODING_HEADER: Final = "content-encoding"
ToStore = tuple[str, bytes, PublishOptions]
"""Topic, payload, and what else the message has."""


def message_of(flow: Flow, record: KafkaRecord) -> ToStore | None:
    """What a record becomes in a flow; None: `where` leaves it out. Raises Unfit."""
    if flow.where is not None and not flow.where.holds(record):
        return None
    topic = flow.topic.text(record) if flow.topic is not None else ""  # which is no topic; but there is one
    headers = record.headers
    content_type = headers.pop(CONTENT_TYPE, "") if flow.content_type is None else ""
    return mapped_message(flow, record, topic, record.payload, headers, content_type, record.key)


def mapped_message(
    flow: Flow, record: object, topic: str, payload: bytes, headers: dict[str, str], content_type: str, key: str
) -> ToStore:
    """What `map` makes of what something has by itself. Raises Unfit."""
    options: PublishOptions = {}
    if flow.payload is not None:
        payload = flow.payload.made(record)
    if flow.content_type is not None:
        content_type = flow.content_type.text(record)
    if flow.mapped_headers:
        headers.update({header: template.text(record) for header, template in flow.mapped_headers.items()})
    if flow.key is not None:
        key = flow.key.text(record)
    if headers:
        options["headers"] = headers
    if key and (flow.key is not None or len(key) * 4 <= MOST_KEY_BYTES or len(key.encode()) <= MOST_KEY_BYTES):
        options["key"] = key
    if content_type:
        options["content_type"] = content_type
    return topic, payload, options


def message_of_queue(flow: Flow, message: QueuedMessage) -> ToStore | None:
    """What a message becomes in a flow; None: `where` leaves it out. Raises Unfit."""
    if flow.where is not None and not flow.where.holds(message):
        return None
    topic = flow.topic.text(message) if flow.topic is not None else message.topic
    headers = message.headers
    if message.message_id:
        headers[ID_HEADER] = message.message_id
    if message.content_encoding:
        headers[ENCODING_HEADER] = message.content_encoding
    return mapped_message(flow, message, topic, message.payload, headers, message.content_type, "")


def letter_of(flow: Flow, record: KafkaRecord, reason: str, with_payload: bool = True) -> ToStore:
    """What a record becomes that cannot be what the flow makes of it."""
    said = {
        "penstock-reason": reason,
        "kafka-topic": record.topic,
        "kafka-partition": str(record.partition),
        "kafka-offset": str(record.offset),
    }
    options: PublishOptions = {"headers": [*(record.headers.items() if with_payload else ()), *said.items()]}
    return letters_topic(flow, record.topic), record.payload if with_payload else b"", options


def letters_topic(flow: Flow, topic: str) -> str:
    """Clients do not publish below $dead, which is for groups; a flow has a place of its own."""
    return f"$flows/{flow.name}/dead/{topic}"
