"""The messages that records of a Kafka topic become, good ones and bad ones."""

from __future__ import annotations

from typing import Final

from penstock.flows.definition import Flow
from penstock.flows.sources.records import KafkaRecord
from penstock.sdk.outgoing import MOST_KEY_BYTES, PublishOptions

CONTENT_TYPE: Final = "content-type"
"""The header that says it, as CloudEvents and many others have it."""
ToStore = tuple[str, bytes, PublishOptions]
"""Topic, payload, and what else the message has."""


def message_of(flow: Flow, record: KafkaRecord) -> ToStore | None:
    """What a record becomes in a flow; None: `where` leaves it out. Raises Unfit."""
    if flow.where is not None and not flow.where.holds(record):
        return None
    topic = flow.topic.text(record) if flow.topic is not None else ""  # which is no topic; but there is one
    payload = flow.payload.made(record) if flow.payload is not None else record.payload
    options: PublishOptions = {}
    headers = record.headers
    content_type = flow.content_type.text(record) if flow.content_type is not None else headers.pop(CONTENT_TYPE, "")
    if flow.mapped_headers:
        headers.update({header: template.text(record) for header, template in flow.mapped_headers.items()})
    key = flow.key.text(record) if flow.key is not None else record.key
    if headers:
        options["headers"] = headers
    if key and (flow.key is not None or len(key) * 4 <= MOST_KEY_BYTES or len(key.encode()) <= MOST_KEY_BYTES):
        options["key"] = key
    if content_type:
        options["content_type"] = content_type
    return topic, payload, options


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
