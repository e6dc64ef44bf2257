"""Messages that a consumer group gives up: each is appended again, to a topic of the group's, with what is known of it.

$dead/GROUP/original/topic      user properties penstock-reason, penstock-deliveries, penstock-topic, penstock-filter
"""

from __future__ import annotations

from lightqueue.errors import LightQueueError
from store.namespaces import namespace_of
from store.records._records import RecordBatch
from store.records.publish_properties import USER_PROPERTY
from store.records.records import Attribute, Record, RecordFlag, RecordType, decode_attributes, encode_attribute
from store.state import expiry
from store.state.group_states import GroupState


class NotPublishable(LightQueueError):
    """A dead letter whose message cannot be published again."""


PREFIX = "$dead"
MOST_TOPIC_BYTES = 65_535


def dead_letter_topic(group: str, topic: bytes) -> bytes:
    """The topic for dead letters of a group; one that would be too long for a topic loses its end."""
    names = namespace_of(group)
    plain_group, plain_topic = names.plain_group(group), names.plain_topic(topic.decode())
    named = names.topic(f"{PREFIX}/{plain_group}/{plain_topic}").encode()
    return named if len(named) <= MOST_TOPIC_BYTES else names.topic(f"{PREFIX}/{plain_group}").encode()


def append_dead_letter(
    batch: RecordBatch, state: GroupState, record: Record, why: str, deliveries: int, now_ms: int, most_bytes: int
) -> bool:
    """Add a dead letter to a batch. False if the message has expired, so that there is none.

    One that would be larger than `most_bytes` loses its payload.
    """
    properties = record.properties
    if record.flags & RecordFlag.EXPIRES:
        aged = expiry.age(properties, (now_ms - record.timestamp_ms) // 1000)
        if aged is None:
            return False
        properties = aged
    names = namespace_of(state.name)
    said = {
        "penstock-reason": why,
        "penstock-deliveries": str(deliveries),
        "penstock-topic": names.plain_topic(record.topic.decode()),
        "penstock-filter": names.plain_topic(state.topic_filter),
    }
    key = decode_attributes(record.attributes).get(Attribute.KEY)
    fits = record.length + len(record.topic) + len(state.topic_filter) + 1_024 <= most_bytes
    batch.append(
        RecordType.MESSAGE,
        record.payload if fits else b"",
        topic=dead_letter_topic(state.name, record.topic),
        client_id=record.client_id,
        attributes=(encode_attribute(Attribute.KEY, key) if key is not None else b"")
        + encode_attribute(Attribute.LETTER_OF, record.log_offset.to_bytes(8, "little")),
        properties=properties + b"".join(_user_property(name, value) for name, value in said.items()),
        flags=record.flags & (RecordFlag.QOS_MASK | RecordFlag.EXPIRES | (RecordFlag.COMPRESSED if fits else 0)),
    )
    return True


def published_again(batch: RecordBatch, group: str, record: Record, now_ms: int) -> None:
    """Add a dead letter's message to a batch as it was, to its first topic. Raises NotPublishable."""
    aged = expiry.age(record.properties, (now_ms - record.timestamp_ms) // 1000)
    if aged is None:
        raise NotPublishable("the message has expired; drop the dead letter")
    reason, at = (expiry.last_user_property(aged, name) for name in (b"penstock-reason", b"penstock-topic"))
    topic = namespace_of(group).topic(_value(aged, at)).encode() if 0 <= reason < at else b""
    if not topic or dead_letter_topic(group, topic) != record.topic:
        raise NotPublishable("the dead letter does not say where its message came from; drop it")
    key = decode_attributes(record.attributes).get(Attribute.KEY)
    batch.append(
        RecordType.MESSAGE,
        record.payload,
        topic=topic,
        client_id=record.client_id,
        attributes=encode_attribute(Attribute.KEY, key) if key is not None else b"",
        properties=aged[:reason],
        flags=record.flags & (RecordFlag.QOS_MASK | RecordFlag.EXPIRES | RecordFlag.COMPRESSED),
    )


def filter_of_letter(letter: Record) -> str:
    """The topic filter of the group that gave a message up, by the names of its namespace; empty: it is not said."""
    at = expiry.last_user_property(letter.properties, b"penstock-filter")
    return _value(letter.properties, at) if at >= 0 else ""


def _value(properties: bytes, at: int) -> str:
    """The value of the user property that begins at `at`."""
    at += 3 + int.from_bytes(properties[at + 1 : at + 3], "big")
    size = int.from_bytes(properties[at : at + 2], "big")
    return properties[at + 2 : at + 2 + size].decode(errors="replace")


def _user_property(name: str, value: str) -> bytes:
    return bytes((USER_PROPERTY,)) + b"".join(
        len(text).to_bytes(2, "big") + text for text in (name.encode(), value.encode()[:MOST_TOPIC_BYTES])
    )
