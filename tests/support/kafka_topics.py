"""What a topic of Kafka has, for tests."""

from __future__ import annotations

import time
import uuid

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

READ_TIMEOUT_S = 120


def committed(url: str, topic: str) -> list[Message]:
    """All records that can be read now, partition by partition; what an open transaction wrote cannot."""
    consumer = Consumer(
        {
            "bootstrap.servers": url,
            "group.id": uuid.uuid4().hex,  # librdkafka wants one
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        partitions = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found: list[Message] = []
        at_end = 0
        while at_end < len(partitions):
            if time.monotonic() > deadline:
                raise AssertionError(f"topic {topic} was not read to its end in {READ_TIMEOUT_S} s")
            message = consumer.poll(1)
            error = message.error() if message is not None else None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at_end += 1
            elif error is not None and not error.retriable():
                raise KafkaException(error)
            elif message is not None and error is None:
                found.append(message)
        return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))
    finally:
        consumer.close()


def values(url: str, topic: str) -> list[bytes]:
    return [message.value() or b"" for message in committed(url, topic)]


def headers(message: Message) -> dict[str, str]:
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return {str(pair[0]): pair[1].decode() if isinstance(pair[1], bytes) else str(pair[1]) for pair in pairs}
